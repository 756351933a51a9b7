"""Chips that are decided but not yet seen on a pod: one reservation per pod uid.

A reservation is made TENTATIVE, and expires unless it is used in time: nothing tells us when a scheduler drops a pod.
It is BINDING while the Binding is in flight and BOUND once that is posted; from then on it ends when the watch (or,
when that is silent for long, a look at the pod) shows the pod on its node, so that the pod itself holds the chips, or
finished, or gone. Where the Binding's outcome is not known it is DOUBTFUL: the API server may still make it, so the
chips are kept for this pod on this node, and for nothing else, for as long as a request can take there.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from ascend.annotations import Grant
from ascend.chips import ChipSet, chip_set


class Stage(StrEnum):
    """How far a reservation has come."""

    TENTATIVE = "tentative"
    BINDING = "binding"
    BOUND = "bound"
    DOUBTFUL = "doubtful"


DOUBT_S = 75.0
"""How long a Binding of unknown outcome may still come about: the API server's own limit is 60 s."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Chips kept for a pod.

    Attributes:
        uid: the pod's.
        pod: ``namespace/name``.
        node: where the chips are.
        chips: in selection order.
        stage: how far it has come.
        since_s: when it entered the stage, on the ledger's clock.
        predicate_time: what is or will be written on the pod, Unix nanoseconds; None before that is known.
    """

    uid: str
    pod: str
    node: str
    chips: tuple[int, ...]
    stage: Stage
    since_s: float
    predicate_time: int | None = None

    @property
    def taken(self) -> ChipSet:
        """The chips as a set."""
        return chip_set(self.chips)

    @property
    def grant(self) -> Grant:
        """What is written on the pod."""
        return Grant(self.chips, self.predicate_time)


class Ledger:
    """All reservations.

    Args:
        ttl_s: how long a tentative one lives; a doubtful one lives for ``DOUBT_S`` at least.
        monotonic: the clock.

    Attributes:
        expired_total: how many have expired so far.
    """

    def __init__(self, *, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self.ttl_s = ttl_s
        self.expired_total = 0
        self._monotonic = monotonic
        self._by_uid: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, ChipSet]] = {}
        # Due times of tentative reservations; those changed meanwhile are skipped when they come up.
        self._due: list[tuple[float, str]] = []
        self._changed: Callable[[str], None] = lambda _node: None

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Name the one to be told of every node whose reserved chips have changed."""
        self._changed = changed

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> Reservation | None:
        """The reservation of a pod."""
        return self._by_uid.get(uid)

    def on(self, node: str) -> Mapping[str, ChipSet]:
        """The chips reserved on a node, by pod uid."""
        return self._by_node.get(node, {})

    def count(self, stage: Stage) -> int:
        """How many reservations are in a stage."""
        return sum(each.stage is stage for each in self._by_uid.values())

    def reserve(
        self,
        *,
        uid: str,
        pod: str,
        node: str,
        chips: tuple[int, ...],
        stage: Stage = Stage.TENTATIVE,
        predicate_time: int | None = None,
    ) -> Reservation:
        """Keep chips for a pod, in place of what was kept for it before; that they are free is the caller's to know."""
        self.release(uid)
        reservation = Reservation(uid, pod, node, chips, stage, self._monotonic(), predicate_time)
        self._put(reservation)
        return reservation

    def advance(self, uid: str, stage: Stage, *, predicate_time: int | None = None) -> Reservation | None:
        """Put a reservation into a stage, from now on; None where the watch has released it meanwhile.

        Args:
            uid: the pod's.
            stage: to TENTATIVE again starts its time anew.
            predicate_time: what is written on the pod, where that is known now.
        """
        old = self._by_uid.get(uid)
        if old is None:
            return None
        stamp = old.predicate_time if predicate_time is None else predicate_time
        new = replace(old, stage=stage, since_s=self._monotonic(), predicate_time=stamp)
        self._by_uid[uid] = new
        self._schedule(new)
        return new

    def release(self, uid: str) -> Reservation | None:
        """Give the chips of a pod back; None where none were kept."""
        reservation = self._by_uid.pop(uid, None)
        if reservation is not None:
            on_node = self._by_node[reservation.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[reservation.node]
            self._changed(reservation.node)
        return reservation

    def expire(self) -> list[Reservation]:
        """Release every tentative or doubtful reservation whose time is up; returns them."""
        now_s = self._monotonic()
        expired = []
        while self._due and self._due[0][0] <= now_s:
            _, uid = heapq.heappop(self._due)
            reservation = self._by_uid.get(uid)
            if reservation is None or (due_s := self._due_s(reservation)) is None:
                continue
            if due_s <= now_s:
                self.release(uid)
                self.expired_total += 1
                expired.append(reservation)
        return expired

    @contextmanager
    def suspended(self, uid: str) -> Iterator[Reservation | None]:
        """Within the block the chips kept for this pod count as free: its own must not stand in its way.

        The block must not await.
        """
        reservation = self.release(uid)
        try:
            yield reservation
        finally:
            if reservation is not None and uid not in self._by_uid:
                self._put(reservation)

    def _put(self, reservation: Reservation) -> None:
        self._by_uid[reservation.uid] = reservation
        self._by_node.setdefault(reservation.node, {})[reservation.uid] = reservation.taken
        self._schedule(reservation)
        self._changed(reservation.node)

    def _schedule(self, reservation: Reservation) -> None:
        if (due_s := self._due_s(reservation)) is not None:
            heapq.heappush(self._due, (due_s, reservation.uid))

    def _due_s(self, reservation: Reservation) -> float | None:
        match reservation.stage:
            case Stage.TENTATIVE:
                return reservation.since_s + self.ttl_s
            case Stage.DOUBTFUL:
                return reservation.since_s + max(self.ttl_s, DOUBT_S)
            case _:
                return None
