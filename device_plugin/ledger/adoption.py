"""What a pod was given, according to the kubelet's ledger: the source of truth after a restart.

A pod's author can forge annotations but not the kubelet's ledger. The ledger does not show which chips were written on
the pod, if the kubelet did not follow the preferred allocation, nor what regular init containers hold
(docs/spec/kubelet.md#pod-resources-api).
"""

from collections.abc import Iterable, Mapping

from ascend.chips import chip_ids
from ascend.slices import deal
from device_plugin.ledger.allocations import Allocation, ContainerPart
from device_plugin.ledger.node_pods import NodePod


def is_as_requested(pod: NodePod, held: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a ledger entry has as many ids for each container as the pod's container requests."""
    names = {ask.container: ask.count for ask in pod.container_requests if ask.keeps}
    return all(names.get(container) == len(ids) for container, ids in held.items())


def has_own_ids(pod: NodePod, held: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether all ids of a ledger entry are written on the pod, which an earlier pod of its name rarely has."""
    written = set(pod.grant.chips) if pod.grant is not None else set()
    return bool(held) and all(written.issuperset(ids) for ids in held.values())


def without_chips(pod: NodePod, held: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return an admitted pod's containers that request chips but have none (docs/spec/kubelet.md#silent-skip)."""
    return [ask.container for ask in pod.container_requests if ask.keeps and ask.container not in held]


def explains(allocation: Allocation, held: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether an allocation is what a ledger entry shows."""
    kept = {part.container: frozenset(part.kubelet_ids) for part in allocation.parts if part.keeps}
    return kept == {container: frozenset(ids) for container, ids in held.items()}


def adopt(
    pod: NodePod,
    held: Mapping[str, tuple[int, ...]],
    answers: Mapping[frozenset[int], Allocation],
    *,
    admitted: bool,
) -> Allocation:
    """Return the allocation that explains a ledger entry.

    Where we answered the call for a container's ids, it has the chips of that answer, whichever pod the call was taken
    for; otherwise those of the annotations, or of the ledger.

    Args:
        pod: the pod.
        held: physical ids by container, from the kubelet's ledger.
        answers: the last answer for each set of ids.
        admitted: whether all of its containers were admitted.
    """
    answered = {name: answer for name, ids in held.items() if (answer := answers.get(frozenset(ids))) is not None}
    given = {name: _answer(answer, held[name]) for name, answer in answered.items()}
    chips = _chips_of(pod, answered.values(), given) or _chips(pod, held)
    slices = deal(pod.container_requests, chips)
    numbers = [number for number, ask in enumerate(pod.container_requests, 1) if admitted or ask.container in held]
    parts = []
    for ask in pod.container_requests[: max(numbers, default=0)]:
        ids = held.get(ask.container, () if ask.keeps else slices[ask.container])
        own = given.get(ask.container) or tuple(chip for chip in chips if chip in ids)
        if len(own) < len(ids):
            # The kubelet did not follow the preferred allocation; its ids are not what the container was given.
            own = slices[ask.container]
        if ids:
            parts.append(ContainerPart(ask.container, ask.keeps, own, ids))
    return Allocation.of_parts(pod.uid, pod.key, chips, tuple(parts), pod.device_type)


def _answer(answer: Allocation, ids: Iterable[int]) -> tuple[int, ...]:
    return next(part.chips for part in reversed(answer.parts) if set(part.kubelet_ids) == set(ids))


def _chips_of(
    pod: NodePod, answered: Iterable[Allocation], given: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return the chips that were answered for a pod; None if not all calls for it are known."""
    wholes = {answer.chips for answer in answered}
    if len(wholes) == 1 and len(whole := wholes.pop()) == pod.count:
        return whole
    parts = tuple(chip for ask in pod.container_requests for chip in given.get(ask.container, ()))
    return parts if len(parts) == pod.count else None


def believe(pod: NodePod) -> Allocation | None:
    """Return the allocation that a pod's claim describes, for use without an entry of the kubelet's ledger.

    Returns:
        None if the claim can't be true: it has another number of chips than the pod requests.
    """
    if not pod.claimed or pod.real.bit_count() != pod.count:
        return None
    chips = pod.grant.chips if pod.grant is not None and pod.grant.chip_set == pod.held else chip_ids(pod.held)
    slices = deal(pod.container_requests, chips)
    parts = tuple(
        ContainerPart(ask.container, ask.keeps, slices[ask.container], slices[ask.container])
        for ask in pod.container_requests
    )
    return Allocation.of_parts(pod.uid, pod.key, chips, parts, pod.device_type)


def _chips(pod: NodePod, held: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the chips written by the allocator if the kubelet's ledger agrees, else those claimed.

    MindCluster's plugin gives a pod the vNPU that the kubelet has chosen, whatever is written on the pod, and claims
    nothing (docs/spec/vnpu.md#static-vnpus).
    """
    ids = {chip for chips in held.values() for chip in chips}
    if pod.device_type.suffix and not pod.claimed:
        return tuple(sorted(ids))
    written = pod.grant.chips if pod.grant is not None and pod.problem is None else None
    if written is not None and ids <= set(written):
        return written
    if pod.claimed and pod.real.bit_count() == pod.count:
        return chip_ids(pod.real)
    if written is not None:
        return written
    return tuple(sorted(ids))
