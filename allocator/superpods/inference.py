"""Chooses the SuperPods for the blocks of inference jobs, from the number of free nodes of each.

docs/spec/inference.md.
"""

import heapq
from collections.abc import Collection, Mapping

from allocator.rules.asked import SuperPodLimits
from allocator.superpods.stages import Share


def place_mind_ie(
    free: Mapping[int, int],
    size: int,
    need: int,
    limits: SuperPodLimits,
    *,
    idlest: bool = False,
    near: Mapping[int, int] | None = None,
) -> list[Share]:
    """Choose SuperPods for the blocks of a MindIE job (docs/spec/inference.md#mindie-jobs).

    A SuperPod that keeps its reserve comes first, then the one with the most pods that the job prefers to be near to,
    then the idlest or the fullest; after each block it is compared again.

    Args:
        free: how many nodes each SuperPod has free, by its id.
        size: how many nodes a block has.
        need: how many blocks there are.
        limits: the size of a SuperPod, and its reserve.
        idlest: whether the SuperPod with the most free nodes is preferred, not the one with the fewest.
        near: how many pods of each SuperPod the job prefers to be near to; None if it has no such preference.

    Returns:
        One share for each block, in the order in which blocks are numbered; fewer if not all fit.
    """

    def entry(number: int, nodes: int, pods: int) -> tuple[bool, int, int, int]:
        return nodes - limits.reserve < size, -pods, -nodes if idlest else nodes, number

    heap = [
        entry(number, nodes, near.get(number, 0) if near is not None else 0)
        for number, nodes in free.items()
        if nodes >= size
    ]
    heapq.heapify(heap)
    shares: list[Share] = []
    while heap and len(shares) < need:
        _, negative_pods, ordered, number = heap[0]
        nodes = abs(ordered) - size
        shares.append(Share(number, size))
        if nodes >= size:
            heapq.heapreplace(heap, entry(number, nodes, size - negative_pods if near is not None else 0))
        else:
            heapq.heappop(heap)
    return shares


def place_service(free: Mapping[int, int], size: int, need: int, hosting: Collection[int]) -> list[Share]:
    """Choose SuperPods for the blocks of an inference service's instance (docs/spec/inference.md#inference-services).

    Args:
        free: how many nodes each SuperPod has free, by its id.
        size: how many nodes a block has.
        need: how many blocks there are.
        hosting: the ids of the SuperPods with other instances of the service: they come first.

    Returns:
        One share for each block, in the order in which blocks are numbered; fewer if not all fit.
    """
    left = {number: nodes for number, nodes in sorted(free.items()) if nodes >= size}
    joined = set(hosting)
    shares: list[Share] = []
    while left and len(shares) < need:
        number = min(left, key=lambda super_pod: (super_pod not in joined, -left[super_pod]))
        joined.add(number)
        shares.append(Share(number, size))
        left[number] -= size
        if left[number] < size:
            del left[number]
    return shares
