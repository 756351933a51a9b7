"""The device plugin alone on a real kubelet: the scenarios of Kubernetes' own device-plugin tests, and what went wrong
elsewhere.

No scheduler and no allocator take part: a test writes chips on a pod and binds it, as the reference was measured
(spec/baseline-device-plugin.md §1). The numbers in the docstrings are those of spec/kubernetes.md §5.5; the sections of
the baseline are named as such.

What is about a kubelet alone is left out, because no plugin of ours takes part in it: that a kubelet forgets a
resource five minutes after its plugin went away (the end of 6, F6 and F7), that the v1alpha1 pod-resources API answers
(a part of 1), and that F1 and F5 (a plugin whose options fail, or whose first stream fails) leave the resource absent
or at zero. In place of the last two stands what must never happen with ours: a plugin that can't read its driver does
not register, and one whose stream ends registers again.
"""
