"""The device plugin alone on a real kubelet: the scenarios of Kubernetes' own device-plugin tests, and known failures.

There is no scheduler and no allocator: a test writes chips on a pod and binds it, as in the reference's measurements
(docs/spec/measurements.md#conditions-of-the-device-plugin). The numbers in the docstrings are those of
docs/spec/kubelet.md#conformance-scenarios.

Scenarios of a kubelet alone are left out: that a kubelet forgets a resource five minutes after its plugin went away
(the end of 6, F6 and F7), that the v1alpha1 pod-resources API answers (a part of 1), and that F1 and F5 (a plugin whose
options fail, or whose first stream fails) leave the resource absent or at zero. The last two are replaced by this
plugin's behaviour: one that can't read its driver does not register, and one whose stream ends registers again.
"""
