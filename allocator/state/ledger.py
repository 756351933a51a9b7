"""The ledger of chips that are assigned but not yet seen on a pod: one reservation per pod uid.

``allocator/state/reservation.py`` has the stages of a reservation, and how each ends.

The pods of a gang are reserved as one plan of PLANNED reservations, its seats. A seat outlives its pod: a pod that is
deleted before it was bound leaves its seat to its successor, and a pod whose Binding is refused gets its seat back. The
unused rest of a plan is released as a whole when no seat of it was used within its time to live.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from allocator.state.plans import Plans
from allocator.state.promises import Promises
from allocator.state.reservation import Reservation, Seat, Stage
from ascend.takes import Take
from ascend.turn import Steps

DOUBT_S = 75.0
"""How long a Binding of unknown outcome may still be made: the API server's own limit for requests is 60 s."""
_STEP: Final = 64  # so many seats of an expired plan are released before there may be a pause


class Ledger:
    """All reservations.

    Args:
        ttl_s: the time to live of a reservation in stage RESERVED.
        monotonic: the clock.

    Attributes:
        monotonic: the clock.
        expired_total: the number of reservations that have expired.
        promises: chips that are kept for pods and gangs that can't be placed yet.
        plans: the plans of gangs, by name.
    """

    def __init__(self, *, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self.ttl_s = ttl_s
        self.expired_total = 0
        self.promises = Promises(monotonic)
        self.monotonic = monotonic
        self._by_uid: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, Take]] = {}
        # Expiry times of RESERVED ones; outdated entries are skipped when they come up.
        self._due: list[tuple[float, str]] = []
        self.plans = Plans()
        self._changed: Callable[[str, Iterable[str]], None] = lambda _node, _uids: None
        self._let_go: Callable[[Reservation], None] = lambda _reservation: None

    def on_let_go(self, let_go: Callable[[Reservation], None]) -> None:
        """Set the callback for reservations that leave the stage HELD, unless their Binding is posted now."""
        self._let_go = let_go

    def subscribe(self, changed: Callable[[str, Iterable[str]], None]) -> None:
        """Set the callback for changes: it gets a node, and the uids of the pods whose reservations there changed."""
        self._changed = changed
        self.promises.subscribe(lambda node: changed(node, ()))

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> Reservation | None:
        """The reservation of a pod."""
        return self._by_uid.get(uid)

    def on(self, node: str) -> Mapping[str, Take]:
        """What is reserved on a node, by pod uid."""
        return self._by_node.get(node, {})

    def count(self, stage: Stage) -> int:
        """The number of reservations in a stage."""
        return sum(reservation.stage is stage for reservation in self._by_uid.values())

    def reserve(
        self,
        *,
        uid: str,
        pod: str,
        node: str,
        take: Take,
        stage: Stage = Stage.RESERVED,
        predicate_time: int | None = None,
    ) -> Reservation:
        """Reserve something for a pod, replacing its reservation; the caller makes sure that it is free."""
        if uid in self._by_uid:
            self.release(uid)
        reservation = Reservation(uid, pod, node, take, stage, self.monotonic(), predicate_time)
        self._enter(reservation)
        self._changed(node, (uid,))
        return reservation

    def advance(self, uid: str, stage: Stage, *, predicate_time: int | None = None) -> Reservation | None:
        """Put a reservation into a stage; None if it was released meanwhile.

        Args:
            uid: the pod's uid.
            stage: RESERVED again restarts its time to live.
            predicate_time: what is written on the pod, if known now.
        """
        old = self._by_uid.get(uid)
        if old is None:
            return None
        time = old.predicate_time if predicate_time is None else predicate_time
        new = replace(old, stage=stage, since_s=self.monotonic(), predicate_time=time)
        self._by_uid[uid] = new
        self._schedule(new)
        plan = self.plans.get(new.plan)
        if plan is not None:
            plan.enter(uid, stage, new.since_s)
        if stage not in (Stage.HELD, Stage.BINDING):
            self._ended(old)
        return new

    def reserve_plan(self, name: str, seats: Iterable[Seat], *, ttl_s: float) -> None:
        """Reserve chips for several pods at once, replacing their reservations; seats are added to an existing plan.

        Args:
            name: the plan's name.
            seats: one for each pod; the caller makes sure that their chips are free.
            ttl_s: how long the plan lives after a seat of it was used last.
        """
        now_s = self.monotonic()
        self.plans.renew(name, ttl_s, now_s)
        changed: defaultdict[str, list[str]] = defaultdict(list)
        for seat in seats:
            if (old := self._take_out(seat.uid)) is not None:
                changed[old.node].append(seat.uid)
                self._ended(old)
            planned = Reservation(seat.uid, seat.pod, seat.node, seat.take, Stage.PLANNED, now_s, None, name, seat.part)
            self._enter(planned)
            changed[seat.node].append(seat.uid)
        self._notify(changed)

    def reserve_ahead(self, name: str, seats: Iterable[Seat], *, ttl_s: float) -> None:
        """Reserve chips for the pods of a job before they are created; seats are added to an existing plan.

        Args:
            name: the plan's name.
            seats: one for each pod, as those of deleted pods; the caller makes sure that their chips are free.
            ttl_s: how long the plan lives after a seat of it was used last.
        """
        vacated = self.plans.of(name).vacated
        empty = [replace(seat, uid=f"{name}#{number}") for number, seat in enumerate(seats, start=vacated + 1)]
        self.reserve_plan(name, empty, ttl_s=ttl_s)
        plan = self.plans[name]
        plan.vacated, plan.is_ahead = vacated + len(empty), True

    def seats(self, plan: str) -> list[Reservation]:
        """The unused seats of a plan, including those that wait for a successor."""
        return [self._by_uid[uid] for uid in sorted(self.plans.of(plan).seats)]

    def swap(self, uid: str, other: str) -> None:
        """Swap the seats of two pods, or of a pod and an empty seat; both must have the same number of chips."""
        one, two = self._by_uid[uid], self._by_uid[other]
        for old, new in ((one, two), (two, one)):
            self._take_out(old.uid)
            self._enter(replace(old, node=new.node, take=new.take, predicate_time=None))
        self._notify(dict.fromkeys((one.node, two.node), (uid, other)))

    def hand(self, seat: str, uid: str, pod: str) -> Reservation:
        """Assign a seat to another pod."""
        old = self._take_out(seat)
        if old is None:
            raise KeyError(seat)
        if (plan := self.plans.get(old.plan)) is not None:
            plan.is_ahead = False
        new = replace(old, uid=uid, pod=pod, stage=Stage.PLANNED, predicate_time=None)
        self._enter(new)
        self._changed(new.node, (seat, uid))
        self._ended(old)
        return new

    def vacate(self, uid: str) -> None:
        """Handle the deletion of a pod: its seat in a live plan waits for its successor, other chips are released."""
        old = self._by_uid.get(uid)
        plan = self.plans.get(old.plan) if old is not None else None
        if old is None or plan is None:
            self.release(uid)
            return
        plan.vacated += 1
        self.hand(uid, f"{old.plan}#{plan.vacated}", old.pod)

    def withdraw(self, uid: str) -> None:
        """Handle a failed Binding: in a live plan the pod keeps its seat, otherwise its chips are released."""
        old = self._by_uid.get(uid)
        if old is not None and self.plans.get(old.plan) is not None:
            self.advance(uid, Stage.PLANNED)
            self._changed(old.node, (uid,))
        else:
            self.release(uid)

    def unconfirmed(self) -> list[Reservation]:
        """The reservations whose pod should have been seen by now, bound or not: it has to be read."""
        now_s = self.monotonic()
        limits_s = {Stage.ASSUMED: self.ttl_s, Stage.DOUBTFUL: max(self.ttl_s, DOUBT_S)}
        return [held for held in self if held.stage in limits_s and held.since_s + limits_s[held.stage] <= now_s]

    def renew(self, uid: str) -> None:
        """Restart the time to live of a reservation in stage RESERVED, and of its plan."""
        held = self._by_uid.get(uid)
        if held is None:
            return
        if held.stage is Stage.RESERVED:
            self.advance(uid, Stage.RESERVED)
        if (plan := self.plans.get(held.plan)) is not None:
            plan.due_s = self.monotonic() + plan.ttl_s

    def drop_plan(self, name: str) -> list[Reservation]:
        """Release the rest of a plan, unused seats and those whose Bindings are held, and return it."""
        left = self._left(name)
        self.plans.pop(name, None)
        return self._drop(left)

    def _left(self, name: str) -> list[Reservation]:
        """What is reserved by a plan and not used: first the seats whose Bindings nobody has asked for."""
        return [*self.seats(name), *(self._by_uid[uid] for uid in sorted(self.plans.of(name).held))]

    def _drop(self, left: list[Reservation]) -> list[Reservation]:
        changed: defaultdict[str, list[str]] = defaultdict(list)
        for reservation in left:
            self._take_out(reservation.uid)
            changed[reservation.node].append(reservation.uid)
        self._notify(changed)
        for reservation in left:
            self._ended(reservation)
        return left

    def release(self, uid: str) -> Reservation | None:
        """Release the chips of a pod; None if none were reserved."""
        reservation = self._take_out(uid)
        if reservation is not None:
            self._changed(reservation.node, (uid,))
            self._ended(reservation)
        return reservation

    def expire_plans(self) -> Steps[list[Reservation]]:
        """Release every plan that has expired, some seats in each step; returns what was released.

        If a seat that is left is used in a pause, its plan lives on, and the pods without a seat are planned anew.
        """
        now_s, expired = self.monotonic(), list[Reservation]()
        for name in self.plans.overdue(now_s) if self.plans else ():
            plan = self.plans[name]
            while self.plans.get(name) is plan and plan.due_s <= now_s:
                if len(left := self._left(name)) <= _STEP:
                    expired += self.drop_plan(name)
                    break
                expired += self._drop(left[:_STEP])
                yield
        self.expired_total += len(expired)
        return expired

    def expire_reserved(self) -> list[Reservation]:
        """Release every RESERVED reservation and every promise that has expired; returns the former.

        The pod of a live plan keeps its seat.
        """
        if self.promises:
            self.promises.expire()
        now_s, expired = self.monotonic(), list[Reservation]()
        while self._due and self._due[0][0] <= now_s:
            _, uid = heapq.heappop(self._due)
            reservation = self._by_uid.get(uid)
            if reservation is None or reservation.stage is not Stage.RESERVED:
                continue
            if reservation.since_s + self.ttl_s <= now_s:
                self.withdraw(uid)
                if uid not in self._by_uid:
                    self.expired_total += 1
                    expired.append(reservation)
        return expired

    def _notify(self, changed: Mapping[str, Iterable[str]]) -> None:
        for node, uids in changed.items():
            self._changed(node, uids)

    def _enter(self, reservation: Reservation) -> None:
        self._by_uid[reservation.uid] = reservation
        self._by_node.setdefault(reservation.node, {})[reservation.uid] = reservation.take
        if self.promises:
            self.promises.taken(reservation.node, reservation.take, (reservation.uid, reservation.plan))
        self._schedule(reservation)
        if reservation.plan:
            self.plans.put(reservation)

    def _take_out(self, uid: str) -> Reservation | None:
        reservation = self._by_uid.pop(uid, None)
        if reservation is None:
            return None
        on_node = self._by_node[reservation.node]
        del on_node[uid]
        if not on_node:
            del self._by_node[reservation.node]
        if reservation.plan:
            self.plans.take(reservation)
        return reservation

    def _ended(self, reservation: Reservation) -> None:
        if reservation.stage is Stage.HELD:
            self._let_go(reservation)

    def _schedule(self, reservation: Reservation) -> None:
        if reservation.stage is Stage.RESERVED:
            heapq.heappush(self._due, (reservation.since_s + self.ttl_s, reservation.uid))
