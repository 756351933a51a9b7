"""The plans of gangs in the ledger: which seats are left of each, and until when it lives."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from allocator.state.reservation import Reservation, Stage


@dataclass(slots=True)
class Plan:
    """What is left of the places of a gang.

    Attributes:
        ttl_s: how long it lives after a seat of it was used last.
        due_s: until when it lives, on the ledger's clock.
        queued_s: the date it is looked at again, at most ``due_s``.
        seats: the uids of those that are not used yet.
        empty: how many of these wait for a successor.
        vacated: how many seats have ever waited for one.
    """

    ttl_s: float
    due_s: float
    queued_s: float
    seats: set[str] = field(default_factory=set)
    empty: int = 0
    vacated: int = 0

    @property
    def is_deserted(self) -> bool:
        """Whether every seat that is left waits for a successor."""
        return self.empty == len(self.seats)

    def use(self, uid: str, now_s: float) -> None:
        """A seat is used, which shows that the gang is getting on."""
        if uid in self.seats:
            self.seats.discard(uid)
            self.due_s = now_s + self.ttl_s


class Plans:
    """All plans, by name."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._queue: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, name: str) -> Plan | None:
        """A plan; None where there is none of that name."""
        return self._plans.get(name)

    def renew(self, name: str, ttl_s: float, now_s: float) -> None:
        """Make a plan without any seat, or give the one there is its time anew."""
        due_s = now_s + ttl_s
        plan = self._plans.get(name)
        if plan is None:
            self._plans[name] = Plan(ttl_s, due_s, due_s)
            heapq.heappush(self._queue, (due_s, name))
        else:
            plan.ttl_s, plan.due_s = ttl_s, due_s

    def drop(self, name: str) -> None:
        """Forget a plan."""
        self._plans.pop(name, None)

    def put(self, reservation: Reservation) -> None:
        """A reservation is made; it is a seat where its plan lives and nobody has used it."""
        plan = self._plans.get(reservation.plan)
        if plan is not None and reservation.stage is Stage.PLANNED:
            plan.seats.add(reservation.uid)
            plan.empty += reservation.is_empty

    def take(self, reservation: Reservation) -> None:
        """A reservation has ended."""
        plan = self._plans.get(reservation.plan)
        if plan is not None:
            plan.seats.discard(reservation.uid)
            plan.empty -= reservation.is_empty

    def overdue(self, now_s: float) -> Iterator[str]:
        """The plans whose time is up; to be dropped as they come."""
        while self._queue and self._queue[0][0] <= now_s:
            queued_s, name = heapq.heappop(self._queue)
            plan = self._plans.get(name)
            if plan is None or plan.queued_s != queued_s:
                continue  # this date is that of a plan of the same name before
            if plan.due_s <= now_s:
                yield name
            else:
                plan.queued_s = plan.due_s
                heapq.heappush(self._queue, (plan.due_s, name))
