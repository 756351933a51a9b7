"""Who is the kubelet asking for, and may that pod have the chips written on it?

The kubelet's calls carry no identity (spec/kubernetes.md §1.6). Design, decision 2: of the pods on this node whose next
container asks for as many chips, a single one is it; of several, the kubelet's own list tells. It takes up one pod at a
time, in the order in which the watch shows them to it and to us, and lists a pod right before it admits it. So it is
the one of the listed that came last: those before it are through, also where they still look as if they waited, because
the kubelet turned them away without asking us and the API server does not know yet. Where the kubelet can't be asked,
it is a pod that has got a part of its chips already, for its containers are asked for one right after the other; else
the documented rule decides: the smallest predicate-time (seed 002, last step).

Pods without a usable annotation count as candidates too: leaving them out would take another pod's chips for theirs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ascend.annotations import ALLOCATED, CLAIMED
from ascend.chips import ChipSet, chip_ids, join_names, parse_chip_name
from ascend.errors import InvalidValue, Refusal
from ascend.reasons import Reason
from ascend.slices import ContainerRequest
from device_plugin.rules.pod import NodePod
from device_plugin.rules.snapshot import Snapshot

HELD = Reason.CHIP_HELD
"""The reason of a refusal that the end of another pod makes untrue."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A container an admission call can be about.

    Attributes:
        pod: its pod.
        ask: what the container asks for.
        begun: whether containers of the pod before it were handed chips.
    """

    pod: NodePod
    ask: ContainerRequest
    begun: bool


def candidates(
    pods: Iterable[NodePod],
    count: int,
    granted: Mapping[str, Collection[str]],
    uncertain: Collection[str] = (),
) -> list[Candidate]:
    """The containers an admission call for ``count`` chips can be about, in the order their pods came to the node.

    Whether a container was handed chips is what we and the kubelet know, never what annotations claim: those can be
    forged.

    Args:
        pods: of the node.
        count: how many chips the kubelet asks for.
        granted: the names of the containers that were handed chips, by uid of their pod.
        uncertain: uids of pods of which more containers may have been handed chips than we know.
    """
    found = []
    for pod in pods:
        if pod.live and not pod.past_admission:
            names = granted.get(pod.uid, ())
            done = max(
                (number for number, ask in enumerate(pod.container_requests, 1) if ask.container in names), default=0
            )
            still = pod.container_requests[done:] if pod.uid in uncertain else pod.container_requests[done : done + 1]
            ask = next((ask for ask in still if ask.count == count), None)
            if ask is not None:
                found.append(Candidate(pod, ask, begun=done > 0))
    return sorted(found, key=lambda each: each.pod.order)


def newest(listed: Iterable[Candidate]) -> Candidate:
    """Of those the kubelet lists, the one it admits; among pods we have not seen come, the one decided last."""
    return max(listed, key=lambda each: (each.pod.order, _decided_at(each)))


def oldest_decision(waiting: Iterable[Candidate]) -> Candidate:
    """Of several, where the kubelet can't be asked; a missing predicate-time orders last; among equals the earliest."""
    return min(waiting, key=lambda each: (not each.begun, _decided_at(each), each.pod.order))


def _decided_at(candidate: Candidate) -> int:
    time = candidate.pod.grant.predicate_time if candidate.pod.grant is not None else None
    return time if time is not None else CLAIMED


def chips_for(
    pod: NodePod, snapshot: Snapshot, handed: Mapping[str, ChipSet], pods: Iterable[NodePod], own: ChipSet = 0
) -> tuple[int, ...]:
    """The chips of a pod, in the order written on it; its containers get their parts of them.

    Args:
        pod: the pod under admission.
        snapshot: the node's chips.
        handed: what other live pods were handed: ``namespace/name`` to chips.
        pods: all pods of the node; one that came earlier and waits for its chips holds them too.
        own: what this pod was handed already; a fault that bars new use does not bar it.

    Raises:
        Refusal: the pod must not get them; the sentence is shown to its owner by the kubelet.
    """
    if pod.problem is not None:
        raise Refusal(Reason(pod.problem[0]), pod.problem[1])
    if pod.grant is None:
        raise Refusal(
            Reason.NOT_PLACED,
            f"annotation {ALLOCATED} is missing: the pod was not placed by the allocator (was its node set by hand?)",
        )
    wanted = pod.grant.chip_set
    if unknown := wanted & ~snapshot.all_chips:
        raise Refusal(Reason.UNKNOWN_CHIP, f"this node has no {join_names(chip_ids(unknown))}")
    if unhealthy := wanted & ~snapshot.healthy:
        raise Refusal(Reason.CHIP_UNHEALTHY, f"{join_names(chip_ids(unhealthy))} is unhealthy")
    holders = dict(handed)
    for other in pods:
        if other.count and other.live and other.order < pod.order and not other.past_admission:
            holders.setdefault(other.key, other.held)
    for holder, chips in holders.items():
        if taken := wanted & chips:
            raise Refusal(Reason.CHIP_HELD, f"{join_names(chip_ids(taken))} is held by pod {holder}")
    if barred := wanted & snapshot.spared & ~own:
        raise Refusal(Reason.CHIP_UNHEALTHY, f"{join_names(chip_ids(barred))} has a fault that bars new use")
    return pod.grant.chips


def known_ids(names: Iterable[str]) -> set[int]:
    """The physical ids of those device ids that are names of chips."""
    ids = set()
    for name in names:
        try:
            ids.add(parse_chip_name(name))
        except InvalidValue:
            continue
    return ids
