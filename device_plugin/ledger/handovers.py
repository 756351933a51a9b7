"""Which pod was handed which chips: the plugin's own ledger.

It lives in memory only. After a restart it is rebuilt from the kubelet's ledger (pod-resources), which a pod's author
can't forge, joined with the pods' annotations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ascend.chips import ChipSet, chip_set
from ascend.daemon.observable import Observable
from device_plugin.ledger.node_pods import NodePods


@dataclass(frozen=True, slots=True)
class Part:
    """Chips handed to one container.

    Attributes:
        container: its name.
        keeps: it keeps them; those of a regular init container are given again to later containers of its pod.
        chips: physical ids the container was given, in the order it was given them.
        kubelet_ids: physical ids the kubelet's ledger has for it.
    """

    container: str
    keeps: bool
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]

    @property
    def matches_kubelet(self) -> bool:
        """The kubelet's ledger says the same."""
        return chip_set(self.chips) == chip_set(self.kubelet_ids)


@dataclass(frozen=True, slots=True)
class HandOver:
    """Chips handed to a pod: from its first container on, all of its chips are its.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        chips: physical ids of all its chips, in selection order.
        kubelet_ids: physical ids the kubelet's ledger has for it, or will have; the same set unless the kubelet could
            not be led.
        parts: what its containers were given so far, in the order they were given it.
    """

    uid: str
    pod: str
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]
    parts: tuple[Part, ...] = ()

    @classmethod
    def of_parts(cls, uid: str, pod: str, chips: tuple[int, ...], parts: tuple[Part, ...]) -> "HandOver":
        """A hand-over; of chips no container was given yet the kubelet will have the same ids."""
        given = {chip for part in parts for chip in part.chips}
        ids = dict.fromkeys(chip for part in parts for chip in part.kubelet_ids)
        ids |= dict.fromkeys(chip for chip in chips if chip not in given)
        return cls(uid, pod, chips, tuple(ids), parts)

    def plus(self, part: Part) -> "HandOver":
        """The hand-over after one more container was given its part."""
        others = tuple(each for each in self.parts if each.container != part.container)
        return HandOver.of_parts(self.uid, self.pod, self.chips, (*others, part))

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """The chips no other container of the pod may get, by the container that keeps them."""
        return {part.container: part.chips for part in self.parts if part.keeps}

    @property
    def chip_set(self) -> ChipSet:
        """The chips as a set."""
        return chip_set(self.chips)

    @property
    def held(self) -> ChipSet:
        """What nobody else may get: its chips, and those the kubelet believes it has."""
        return self.chip_set | chip_set(self.kubelet_ids)

    @property
    def matches_kubelet(self) -> bool:
        """The kubelet's ledger says the same of the pod as a whole and of each container."""
        return self.chip_set == chip_set(self.kubelet_ids) and all(part.matches_kubelet for part in self.parts)


class HandOvers:
    """All hand-overs to pods that still live."""

    def __init__(self) -> None:
        self._by_uid: dict[str, HandOver] = {}
        self.turned_away: set[str] = set()
        """Uids of pods that were refused: the kubelet rejects such a pod, though it takes a moment to show."""
        self.uncertain: set[str] = set()
        """Uids of pods of which more containers may have been handed chips than we know: from before a restart."""
        self.guessed: set[str] = set()
        """Uids of pods that were handed chips by the documented rule alone, which the kubelet's ledger may disprove."""
        self.astray: list[Part] = []
        """What was answered by such a guess and is not that pod's, or that pod is gone: another one may have it."""
        self.changes: Observable[None] = Observable(None)
        """Set after every change."""

    def __iter__(self) -> Iterator[HandOver]:
        return iter(self._by_uid.values())

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> HandOver | None:
        """The hand-over to the pod with this uid."""
        return self._by_uid.get(uid)

    @property
    def granted(self) -> dict[str, frozenset[str]]:
        """The names of the containers that were handed chips, by uid of their pod."""
        return {each.uid: frozenset(part.container for part in each.parts) for each in self}

    def add(self, handover: HandOver) -> None:
        """Enter a hand-over, or what has become of it."""
        ids = chip_set(handover.kubelet_ids)
        self.astray = [part for part in self.astray if not ids & chip_set(part.kubelet_ids)]
        self._by_uid[handover.uid] = handover
        self.changes.set(None)

    def stray(self, parts: Iterable[Part]) -> None:
        """Keep answers that turned out to be for another pod, unless a hand-over has them."""
        known = {frozenset(part.kubelet_ids) for handover in self for part in handover.parts}
        self.astray += [part for part in parts if frozenset(part.kubelet_ids) not in known]

    def drop(self, uid: str) -> None:
        """The pod's containers can't run any more: its chips are its no longer."""
        self.turned_away.discard(uid)
        self.uncertain.discard(uid)
        handover = self._by_uid.pop(uid, None)
        if handover is not None:
            if uid in self.guessed:
                self.stray(handover.parts)
            self.changes.set(None)
        self.guessed.discard(uid)


def used_chips(pods: NodePods, handovers: HandOvers) -> ChipSet:
    """The chips that are somebody's: handed over, or written on a live pod that asks for chips.

    A chip is used from the moment Allocate granted it (spec/node-agent.md §5.4 has it the other way: only once the
    pod's annotation is written, which leaves a gap).
    """
    used = _handed_over(handovers)
    for pod in pods:
        if pod.live and pod.count:
            used |= pod.held
    return used


def running_chips(pods: NodePods, handovers: HandOvers) -> ChipSet:
    """The chips that pods run with, or are about to: handed over, or claimed before the ledger was rebuilt.

    A pod that is merely bound has its chips written on it and does not have them yet: a fault that bars new use
    (spec/node-agent.md §4.1) bars them to it.
    """
    running = _handed_over(handovers)
    for pod in pods:
        if pod.live and pod.count and (pod.past_admission or pod.claimed):
            running |= pod.held
    return running


def _handed_over(handovers: HandOvers) -> ChipSet:
    held = 0
    for handover in handovers:
        held |= handover.held
    return held
