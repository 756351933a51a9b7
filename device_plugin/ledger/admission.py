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
from ascend.chips import ChipSet, chip_ids, join_names, join_names_sorted, parse_chip_name
from ascend.errors import InvalidValue, Refusal
from ascend.slices import Ask
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.handovers import Part
from device_plugin.ledger.node_pods import NodePod, NodePods


class UnofferedChips:
    """What the kubelet did not offer when it last asked for a preference.

    Args:
        pods: the node's pods.
    """

    def __init__(self, pods: NodePods) -> None:
        self._pods = pods
        self._first_new = 0
        self._chips: frozenset[int] = frozenset()

    def begin(self) -> None:
        """A kubelet that may have just started is about to be told of our devices."""
        self._first_new = self._pods.next_order
        self.note(())

    def note(self, chips: Iterable[int]) -> None:
        """It asks, and does not offer these chips of the pod, though nobody holds them as far as we know."""
        self._chips = frozenset(chips)

    def check(self, pod: NodePod, part: Part) -> None:
        """Refuse a pod the kubelet may have found at its start what was not offered.

        Raises:
            Refusal: the part has such chips, and the kubelet chose others.
        """
        missing = self._chips.intersection(part.chips).difference(part.kubelet_ids)
        if missing and pod.order < self._first_new:
            raise Refusal(
                "ChipNotFreed",
                f"the kubelet does not offer {join_names_sorted(missing)} yet: after its start it frees what pods "
                "that have ended had only once those it found are admitted; a new pod will get it",
            )


HELD = "ChipHeld"
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
    ask: Ask
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
            done = max((number for number, ask in enumerate(pod.asks, 1) if ask.container in names), default=0)
            still = pod.asks[done:] if pod.uid in uncertain else pod.asks[done : done + 1]
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
        raise Refusal(*pod.problem)
    if pod.grant is None:
        raise Refusal(
            "NotPlaced",
            f"annotation {ALLOCATED} is missing: the pod was not placed by the allocator (was its node set by hand?)",
        )
    wanted = pod.grant.chip_set
    if unknown := wanted & ~snapshot.all_chips:
        raise Refusal("UnknownChip", f"this node has no {join_names(chip_ids(unknown))}")
    if unhealthy := wanted & ~snapshot.healthy:
        raise Refusal("ChipUnhealthy", f"{join_names(chip_ids(unhealthy))} is unhealthy")
    holders = dict(handed)
    for other in pods:
        if other.count and other.live and other.order < pod.order and not other.past_admission:
            holders.setdefault(other.key, other.held)
    for holder, chips in holders.items():
        if taken := wanted & chips:
            raise Refusal(HELD, f"{join_names(chip_ids(taken))} is held by pod {holder}")
    if barred := wanted & snapshot.spared & ~own:
        raise Refusal("ChipUnhealthy", f"{join_names(chip_ids(barred))} has a fault that bars new use")
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
