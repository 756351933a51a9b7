"""The device plugin: one per node, it makes the kubelet allocate exactly the chips the allocator wrote on each pod.

    driver/ ──► chips/ ──► health/ ──► snapshot ──┬──► serving/: ListAndWatch ──────────────────────► kubelet
                                                  ├──► publish/: ConfigMap, Node ───────────────────► API server
    watched pods, pod-resources ──► ledger/ ──────┴──► pods/: GetPreferredAllocation, Allocate ─────► kubelet
                                                            claim: one patch on the pod ────────────► API server

``health`` and ``ledger`` hold the state and its rules, without input or output; ``kubelet`` has the clients of the
kubelet; ``inventory`` reads the driver once, without Kubernetes. ``app`` puts everything together.
"""
