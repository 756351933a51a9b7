"""The device plugin: one per node, it makes the kubelet hand out exactly the chips the allocator wrote on each pod.

    driver ──► snapshot ──┬──► ListAndWatch ──────────────► kubelet
                          └──► report: ConfigMap, node annotations
    API server ──► pods ──┐
                          ├──► hand-over ◄── GetPreferredAllocation, Allocate ── kubelet
    kubelet's ledger ─────┘        │
                                   └──► claim: one patch on the pod

``driver``, ``kubelet``, ``report`` and ``claims`` are edges; ``state`` holds what is true now; ``rules`` are pure.
``handover`` answers the kubelet from state by rules.
"""
