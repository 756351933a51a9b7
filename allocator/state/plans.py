"""The plans of gangs in the ledger: their unused seats and times to live."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from allocator.state.reservation import Reservation, Stage


@dataclass(slots=True)
class Plan:
    """The unused seats of a gang.

    Attributes:
        ttl_s: how long it lives after a seat of it was used last.
        due_s: when it expires, on the ledger's clock.
        queued_s: when it is examined next, at most ``due_s``.
        seats: the uids of the unused seats.
        held: the uids of the seats whose Bindings are held.
        empty: the number of unused seats that wait for a successor.
        vacated: the number of seats that have waited for a successor so far.
        refused: the uids of the pods that fitted nowhere beside its seats when they were filtered, until they are held.
        is_ahead: it was made before its pods were created: until one comes, its seats wait for all of them.
    """

    ttl_s: float
    due_s: float
    queued_s: float
    seats: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    empty: int = 0
    vacated: int = 0
    refused: set[str] = field(default_factory=set)
    is_ahead: bool = False

    @property
    def unused(self) -> int:
        """The number of the seats that belong to pods and are neither used nor held."""
        return len(self.seats) - self.empty

    @property
    def is_deserted(self) -> bool:
        """Whether all unused seats wait for a successor."""
        return self.empty == len(self.seats) and not (self.held or self.is_ahead)

    def enter(self, uid: str, stage: Stage, now_s: float) -> None:
        """Follow a reservation into a stage; if the gang makes progress by that, the time to live starts again."""
        was_seat, was_held = uid in self.seats, uid in self.held
        self.seats.discard(uid)
        self.held.discard(uid)
        if stage is Stage.PLANNED:
            self.seats.add(uid)
        elif stage is Stage.HELD:
            self.held.add(uid)
            self.refused.discard(uid)
        if (was_seat and stage is not Stage.PLANNED) or (was_held and stage not in (Stage.PLANNED, Stage.HELD)):
            self.due_s = now_s + self.ttl_s


_NO_PLAN: Final = Plan(0, 0, 0)


class Plans(dict[str, Plan]):
    """All plans, by name."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[tuple[float, str]] = []

    def of(self, name: str) -> Plan:
        """A plan; one without seats if there is none."""
        return self.get(name, _NO_PLAN)

    def renew(self, name: str, ttl_s: float, now_s: float) -> None:
        """Add a plan without seats, or restart the time to live of an existing one."""
        due_s = now_s + ttl_s
        plan = self.get(name)
        if plan is None:
            self[name] = Plan(ttl_s, due_s, due_s)
            heapq.heappush(self._queue, (due_s, name))
        else:
            plan.ttl_s, plan.due_s = ttl_s, due_s

    def put(self, reservation: Reservation) -> None:
        """Add a reservation; it is a seat if its plan lives and it is unused."""
        plan = self.get(reservation.plan)
        if plan is not None and reservation.stage is Stage.PLANNED:
            plan.seats.add(reservation.uid)
            plan.empty += reservation.is_empty
        elif plan is not None and reservation.stage is Stage.HELD:
            plan.held.add(reservation.uid)

    def take(self, reservation: Reservation) -> None:
        """Remove a reservation."""
        plan = self.get(reservation.plan)
        if plan is not None:
            plan.seats.discard(reservation.uid)
            plan.held.discard(reservation.uid)
            plan.empty -= reservation.is_empty

    def overdue(self, now_s: float) -> Iterator[str]:
        """Yield the expired plans; the caller drops each of them, unless it is used again meanwhile."""
        while self._queue and self._queue[0][0] <= now_s:
            queued_s, name = heapq.heappop(self._queue)
            plan = self.get(name)
            if plan is None or plan.queued_s != queued_s:
                continue  # the entry of an earlier plan of the same name
            try:
                if plan.due_s <= now_s:
                    yield name
            finally:  # the caller may be cancelled in a pause
                if self.get(name) is plan:
                    plan.queued_s = plan.due_s
                    heapq.heappush(self._queue, (plan.due_s, name))
