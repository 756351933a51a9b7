"""The device plugin alone on a real kubelet: the scenarios of Kubernetes' own device-plugin tests, and known failures.

There is no scheduler and no allocator: a test binds a pod with the chips in its annotations, as in the reference's
measurements (docs/spec/measurements.md#conditions-of-the-device-plugin). The numbers in the docstrings are those of
docs/spec/kubelet.md#conformance-scenarios.

Scenarios of a kubelet alone are left out: that a kubelet removes a resource five minutes after its plugin has ended
(the end of 6, F6 and F7), that the v1alpha1 pod-resources API responds (a part of 1), and that F1 and F5 (a plugin
whose options fail, or whose first stream fails) leave the resource absent or at zero. The last two are replaced by
tests of this plugin: if it can't read its driver, it does not register; if its stream ends, it registers again.
"""
