"""The plugin's ledger: which pod was given which chips.

It is about one type of devices, which are called chips here, whole or not. It exists in memory only. After a restart it
is rebuilt from the kubelet's ledger (pod-resources), which a pod's author can't forge, and from the pods' annotations.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ascend.chips import ChipSet, chip_set
from ascend.daemon.observable import Observable
from device_plugin.ledger.node_pods import NodePod


@dataclass(frozen=True, slots=True)
class Part:
    """The chips given to one container.

    Attributes:
        container: its name.
        keeps: whether it keeps them; those of a regular init container are reused by later containers of its pod.
        chips: the physical ids given to the container, in order.
        kubelet_ids: the physical ids in the kubelet's ledger for it.
    """

    container: str
    keeps: bool
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]

    @property
    def matches_kubelet(self) -> bool:
        """Whether the kubelet's ledger has the same chips."""
        return chip_set(self.chips) == chip_set(self.kubelet_ids)


@dataclass(frozen=True, slots=True)
class HandOver:
    """The chips given to a pod. Once its first container has chips, the pod owns all of its chips.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        chips: the physical ids of all its chips, in selection order.
        kubelet_ids: the physical ids that the kubelet's ledger has or will have for it; the same set unless the kubelet
            did not follow the preferred allocation, or another device plugin gave the chips. They say nothing about who
            has the chips with these ids.
        parts: what its containers were given so far, in order.
    """

    uid: str
    pod: str
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]
    parts: tuple[Part, ...] = ()

    @classmethod
    def of_parts(cls, uid: str, pod: str, chips: tuple[int, ...], parts: tuple[Part, ...]) -> "HandOver":
        """Return a hand-over; for chips no container has yet, the kubelet is expected to use the same ids."""
        given = {chip for part in parts for chip in part.chips}
        ids = dict.fromkeys(chip for part in parts for chip in part.kubelet_ids)
        ids |= dict.fromkeys(chip for chip in chips if chip not in given)
        return cls(uid, pod, chips, tuple(ids), parts)

    def plus(self, part: Part) -> "HandOver":
        """Return the hand-over after one more container was given its part."""
        others = tuple(each for each in self.parts if each.container != part.container)
        return HandOver.of_parts(self.uid, self.pod, self.chips, (*others, part))

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """The chips that only one container of the pod may have, by that container."""
        return {part.container: part.chips for part in self.parts if part.keeps}

    @property
    def chip_set(self) -> ChipSet:
        """The chips as a set: no other pod may get them."""
        return chip_set(self.chips)

    @property
    def matches_kubelet(self) -> bool:
        """Whether the kubelet's ledger has the same chips for the pod as a whole and for each container."""
        return self.chip_set == chip_set(self.kubelet_ids) and all(part.matches_kubelet for part in self.parts)


class HandOvers:
    """All hand-overs of one type of devices to live pods.

    Args:
        changes: what is set on every change; None for one of its own.
    """

    def __init__(self, changes: Observable[None] | None = None) -> None:
        self._by_uid: dict[str, HandOver] = {}
        self.refused: set[str] = set()
        """Uids of pods that were refused; the kubelet rejects such a pod, but the watch shows that later."""
        self.answers: dict[frozenset[int], HandOver] = {}
        """The last answer for each set of device ids, as the hand-over to the pod that the call was taken for. It is
        kept until one of the ids is given again: the kubelet's ledger says which pod has the ids, and that pod has the
        chips that were given for them."""
        self.unconfirmed: set[str] = set()
        """Uids of pods whose hand-overs have not been compared with the kubelet's ledger yet."""
        self.changes: Observable[None] = changes if changes is not None else Observable(None)
        """Set on every change."""

    def __iter__(self) -> Iterator[HandOver]:
        return iter(self._by_uid.values())

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> HandOver | None:
        """Return the hand-over to the pod with this uid."""
        return self._by_uid.get(uid)

    @property
    def granted(self) -> dict[str, frozenset[str]]:
        """The names of the containers that were given chips, by uid of their pod."""
        return {each.uid: frozenset(part.container for part in each.parts) for each in self}

    def give(self, handover: HandOver, kubelet_ids: Iterable[int]) -> None:
        """Add or replace a hand-over by which a call for these device ids is answered."""
        ids = frozenset(kubelet_ids)
        self.answers = {given: answer for given, answer in self.answers.items() if not given & ids}
        self.answers[ids] = handover
        self.add(handover)
        self.unconfirmed.add(handover.uid)

    def add(self, handover: HandOver) -> None:
        """Add or replace a hand-over that is what the kubelet's ledger shows."""
        self._by_uid[handover.uid] = handover
        self.unconfirmed.discard(handover.uid)
        self.changes.set(None)

    def drop(self, uid: str) -> None:
        """Remove a pod whose containers can't run any more; its chips are free."""
        self.refused.discard(uid)
        self.unconfirmed.discard(uid)
        if self._by_uid.pop(uid, None) is not None:
            self.changes.set(None)


def used_chips(pods: Iterable[NodePod], handovers: HandOvers) -> ChipSet:
    """Return the chips that are taken: given to a pod, or written on a live pod that requests chips.

    What a pod was given is known: whatever its author has written on it since does not count.

    A chip is used as soon as Allocate has granted it (in docs/spec/node-report.md#used-chips only once the pod's
    annotation is written, which leaves a gap).
    """
    return _taken(pods, handovers, lambda _pod: True)


def running_chips(pods: Iterable[NodePod], handovers: HandOvers) -> ChipSet:
    """Return the chips that pods run with or are about to: given to a pod, or claimed before the ledger was rebuilt.

    A pod that is only bound has its chips written on it but does not have them yet: a fault that bars new use
    (docs/spec/faults.md#chip-health) bars them to it.
    """
    return _taken(pods, handovers, lambda pod: pod.past_admission or pod.claimed)


def _taken(pods: Iterable[NodePod], handovers: HandOvers, counts: Callable[[NodePod], bool]) -> ChipSet:
    held = 0
    for handover in handovers:
        held |= handover.chip_set
    for pod in pods:
        if pod.live and pod.count and pod.uid not in handovers and counts(pod):
            held |= pod.held
    return held
