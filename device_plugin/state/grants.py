"""Which pod was handed which chips: the plugin's own ledger.

It lives in memory only. After a restart it is rebuilt from the kubelet's ledger (pod-resources), which a pod's author
can't forge, joined with the pods' annotations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ascend.chips import ChipSet, chip_set
from device_plugin.state.observable import Observable


@dataclass(frozen=True, slots=True)
class HandOver:
    """Chips handed to a pod.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        chips: physical ids the container was given, in the order it was given them.
        kubelet_ids: physical ids the kubelet's ledger has for it; the same set unless the kubelet could not be led.
    """

    uid: str
    pod: str
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]

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
        """The kubelet's ledger says the same."""
        return self.chip_set == chip_set(self.kubelet_ids)


class HandOvers:
    """All hand-overs to pods that still live."""

    def __init__(self) -> None:
        self._by_uid: dict[str, HandOver] = {}
        self.turned_away: set[str] = set()
        """Uids of pods that were refused: the kubelet rejects such a pod, though it takes a moment to show."""
        self.changes: Observable[None] = Observable(None)
        """Set after every change."""

    def __iter__(self) -> Iterator[HandOver]:
        return iter(self._by_uid.values())

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> HandOver | None:
        """The hand-over to the pod with this uid."""
        return self._by_uid.get(uid)

    def add(self, handover: HandOver) -> None:
        """Enter a hand-over."""
        self._by_uid[handover.uid] = handover
        self.changes.set(None)

    def drop(self, uid: str) -> None:
        """The pod's containers can't run any more: its chips are its no longer."""
        self.turned_away.discard(uid)
        if self._by_uid.pop(uid, None) is not None:
            self.changes.set(None)
