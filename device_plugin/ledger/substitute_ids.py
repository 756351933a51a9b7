"""Substitute device ids, for chips whose ids the kubelet counts for different pods.

MindCluster's plugin gives pods other chips than the ids that the kubelet chose
(docs/spec/hand-over.md#kubelet-ids-and-real-chips). While its pods run, the id of a free chip may be theirs. There
are as many free ids as free chips, so each pod can get its chips under other ids: those of chips that other pods
have. The ids of free chips stay free for the pods that will get these chips, and the difference ends with the pods
that have it.
"""

from collections.abc import Collection, Iterable, Sequence

from device_plugin.ledger.allocations import Allocation


def counted_for(others: Iterable[Allocation]) -> set[int]:
    """Return the device ids that the kubelet's ledger has for these pods."""
    return {chip for other in others for chip in other.kubelet_ids}


def substitute_ids(
    chips: Sequence[int], offered: Collection[int], others: Collection[Allocation]
) -> tuple[int, ...] | None:
    """Return the device ids to prefer for a container's chips.

    Args:
        chips: the physical ids of the container's chips.
        offered: the device ids that the kubelet can allocate.
        others: what other pods were given.

    Returns:
        None if a chip's id is not offered for another reason than that the kubelet counts it for one of these pods, or
        if there are too few ids of chips that these pods have.
    """
    missing = [chip for chip in chips if chip not in offered]
    if not counted_for(others).issuperset(missing):
        return None
    spare = sorted({chip for other in others for chip in other.chips}.intersection(offered).difference(chips))
    if len(spare) < len(missing):
        return None
    return (*(chip for chip in chips if chip in offered), *spare[: len(missing)])
