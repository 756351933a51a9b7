"""The state as a whole: in any order of events no chip is allocated twice and none is lost.

The machine has an API server of its own (objects, and a watch whose events arrive late), a scheduler that filters and
binds pods with every outcome a Binding can have, chips and nodes that fail, and leaders that change: a new leader knows
nothing but the objects.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.binding.annotations import Stamper
from allocator.binding.barrier import Barrier
from allocator.binding.binder import Binder
from allocator.binding.known_pods import FOR_SCHEDULERS, KnownPods
from allocator.binding.reserving import Reserver
from allocator.rules.job import JobKey
from allocator.rules.vacancy import Vacancy
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import chip_set
from ascend.errors import NotFound, Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.client import KubeClient
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.pod_devices import held_chips
from ascend.turn import at_once
from tests.allocator.audit import audit, by_kind
from tests.allocator.builders import GROUP, World, node, pod, report
from tests.allocator.expiry import expire

NODES = ("n1", "n2", "n3")
JOBS = ("red", "blue")
OUTCOMES = ("made", "refused", "lost, made", "lost", "lost, made later")
LABELS = {"n1": {}, "n2": {"accelerator-type": "module-910b-8"}, "n3": {"accelerator-type": "module-910b-8"}}
TTL_S = 30.0
GANG_TTL_S = 120.0
IN_FLIGHT_S = 60.0
"""The API server's time limit of a request: a Binding of unknown outcome is made within it, or never."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The chips that a caller which binds by itself has to write on a pod."""

    name: str
    node: str
    chips: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class LateBinding:
    """A Binding whose answer was lost, and that may still be made."""

    name: str
    node: str
    chips: tuple[int, ...]
    until_s: float


class Consistency(RuleBasedStateMachine):
    """One cluster: ``api`` is the truth, ``seen`` the part of it that the watch has delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.api: dict[str, Node | Pod | ConfigMap] = {}
        self.seen: dict[str, Node | Pod | ConfigMap] = {}
        self.events: list[tuple[str, Node | Pod | ConfigMap | None]] = []
        self.late: list[LateBinding] = []
        self.promises: dict[str, Promise] = {}
        self.minimum: dict[str, int] = {}
        self.world = World(ttl_s=TTL_S)
        self.binder = self._new_binder()
        self.numbers = iter(range(100_000))

    @initialize(red=st.integers(2, 4), blue=st.integers(2, 4))
    def the_cluster_is_created(self, red: int, blue: int) -> None:
        self.minimum = {"red": red, "blue": blue}
        for name in NODES:
            self._write(f"node {name}", node(name, labels=LABELS[name]))
            self._write(f"report {name}", report(name))
        self._deliver(len(self.events))

    # The API server and its watch.

    def _write(self, key: str, value: Node | Pod | ConfigMap | None) -> None:
        if value is None:
            self.api.pop(key, None)
        else:
            self.api[key] = value
        self.events.append((key, value))

    def _deliver(self, count: int) -> None:
        for key, value in self.events[:count]:
            old = self.seen.get(key)
            if value is None:
                assert old is not None
                del self.seen[key]
                if isinstance(old, Pod):
                    self.world.cluster.pod_deleted(old)
                elif isinstance(old, Node):
                    self.world.cluster.node_deleted(old)
            else:
                self.seen[key] = value
                self.world.add(value)
        del self.events[:count]

    def _pods(self, keep: Callable[[Pod], bool] = lambda _pod: True) -> list[Pod]:
        return [each for each in self.api.values() if isinstance(each, Pod) and keep(each)]

    def _choose(self, data: st.DataObject, pods: list[Pod]) -> Pod | None:
        return data.draw(st.sampled_from(pods)) if pods else None

    @rule(count=st.integers(1, 8))
    def the_watch_delivers(self, count: int) -> None:
        self._deliver(count)

    # Pods.

    @rule(count=st.sampled_from([1, 2, 4, 8]))
    def a_pod_is_created(self, count: int) -> None:
        name = f"p{next(self.numbers)}"
        self._write(f"pod {name}", pod(name, count))

    @rule(job=st.sampled_from(JOBS), chips=st.sampled_from([2, 4, 8]), count=st.integers(1, 4))
    def pods_of_a_gang_are_created(self, job: str, chips: int, count: int) -> None:
        for _ in range(count):
            name = f"{job}{next(self.numbers)}"
            annotations = {GROUP: job, MIN_AVAILABLE: str(self.minimum[job])}
            self._write(f"pod {name}", pod(name, chips, annotations=annotations))

    @rule(data=st.data(), how=st.sampled_from(["Failed", "Succeeded", "deleted"]))
    def a_pod_ends(self, data: st.DataObject, how: str) -> None:
        each = self._choose(data, self._pods())
        if each is None:
            return
        key = f"pod {each.name}"
        if how == "deleted" or not each.is_live:
            self._write(key, None)
        else:
            self._write(key, self._changed(each, phase=how))

    def _changed(self, each: Pod, *, phase: str = "", at: str = "", chips: tuple[int, ...] | None = None) -> Pod:
        return pod(
            each.name,
            each.spec.containers[0].chips,
            node=at or each.spec.node_name,
            chips=chips,
            phase=phase or each.status.phase,
            annotations=each.metadata.annotations,
        )

    # The scheduler.

    @rule(data=st.data(), candidates=st.sampled_from([None, ["n1"], ["n2", "n3"], list(NODES)]))
    def a_pod_is_placed(self, data: st.DataObject, candidates: list[str] | None) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name and one.is_live))
        if each is None:
            return
        self.promises.pop(each.uid, None)
        held = self.world.ledger.get(each.uid)
        planned = self.world.ledger.seats(self.world.cluster.jobs.job_of(each).key.plan)
        try:
            made = self.world.engine.place(each, candidates)
        except Refusal:
            return
        assert candidates is None or made.node in candidates
        if held is not None and held.stage not in (Stage.RESERVED, Stage.PLANNED):
            assert made == held
        if held is None and not planned:
            self._check_whole(each)

    @rule(data=st.data(), candidates=st.sampled_from([None, ["n1"], ["n2", "n3"]]))
    def chips_are_reserved_for_a_caller(self, data: st.DataObject, candidates: list[str] | None) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name and one.is_live))
        if each is None:
            return
        self.promises.pop(each.uid, None)
        with contextlib.suppress(Refusal):
            bound = self.reserver.reserve(each, candidates)
            assert candidates is None or bound.node in candidates
            self.promises[each.uid] = Promise(each.name, bound.node, bound.grant.chips, self.world.now_s + TTL_S)

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def a_caller_binds_by_itself(self, data: st.DataObject) -> None:
        promise = self.promises.pop(data.draw(st.sampled_from(sorted(self.promises))))
        each = self.api.get(f"pod {promise.name}")
        if isinstance(each, Pod) and not each.spec.node_name and each.is_live:
            self._write(f"pod {promise.name}", self._changed(each, at=promise.node, chips=promise.chips))
            self.reserver.confirm(each.uid, promise.node)

    def _check_whole(self, each: Pod) -> None:
        """After a plan was made, as many pods as the minimum requires are placed or have a seat."""
        job = self.world.cluster.jobs.job_of(each)
        if job.is_gang:
            placed = [one for one in job.pods.values() if one.spec.node_name or not one.is_live]
            reserved = [one for one in job.pods.values() if self.world.ledger.get(one.uid) and one not in placed]
            unseen = each.uid not in job.pods
            assert len(placed) + len(reserved) + unseen >= job.min_available

    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def a_pod_is_bound(self, data: st.DataObject, outcome: str) -> None:
        ledger = self.world.ledger
        reserved = self._pods(lambda one: (held := ledger.get(one.uid)) is not None and held.stage in _OPEN)
        each = self._choose(data, reserved)
        if each is not None and not each.spec.node_name and each.is_live:
            self._bind(each, outcome)

    @rule(count=st.sampled_from([2, 4, 8]), outcome=st.sampled_from(OUTCOMES))
    def a_pod_is_created_and_bound_at_once(self, count: int, outcome: str) -> None:
        each = pod(f"p{next(self.numbers)}", count)
        self._write(f"pod {each.name}", each)
        try:
            self.world.engine.place(each)
        except Refusal:
            return
        self._bind(each, outcome)

    def _bind(self, each: Pod, outcome: str) -> None:
        ledger = self.world.ledger
        expire(ledger)
        self.promises.pop(each.uid, None)
        held = ledger.advance(each.uid, Stage.BINDING)
        if held is None:
            return
        if outcome in ("made", "lost, made"):
            self._write(f"pod {each.name}", self._changed(each, at=held.node, chips=held.take.chips))
        match outcome:
            case "made":
                ledger.advance(each.uid, Stage.ASSUMED)
            case "refused":
                ledger.withdraw(each.uid)
            case "lost, made later":
                self.late.append(LateBinding(each.name, held.node, held.take.chips, self.world.now_s + IN_FLIGHT_S))
        if outcome.startswith("lost"):
            ledger.advance(each.uid, Stage.DOUBTFUL)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_late_binding_is_made(self, data: st.DataObject) -> None:
        late = data.draw(st.sampled_from(self.late))
        self.late.remove(late)
        each = self.api.get(f"pod {late.name}")
        if isinstance(each, Pod) and not each.spec.node_name and each.is_live:
            self._write(f"pod {late.name}", self._changed(each, at=late.node, chips=late.chips))

    @rule(data=st.data())
    def a_reservation_is_released(self, data: st.DataObject) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name))
        if each is not None:
            self.promises.pop(each.uid, None)
            self.world.engine.release(each.uid)

    # Nodes.

    @rule(name=st.sampled_from(NODES), unhealthy=st.frozensets(st.integers(0, 7), max_size=2))
    def chips_fail_or_recover(self, name: str, unhealthy: frozenset[int]) -> None:
        self._write(f"report {name}", report(name, unhealthy=unhealthy))

    @rule(name=st.sampled_from(NODES), ready=st.booleans(), cordoned=st.booleans())
    def a_node_changes(self, name: str, *, ready: bool, cordoned: bool) -> None:
        self._write(f"node {name}", node(name, ready=ready, cordoned=cordoned, labels=LABELS[name]))

    @rule(name=st.sampled_from(NODES))
    def a_node_is_deleted(self, name: str) -> None:
        if f"node {name}" in self.api:
            self._write(f"node {name}", None)

    # Time, and leaders.

    @rule(seconds=st.sampled_from([1, 20, 31, 121]))
    def time_passes(self, seconds: int) -> None:
        self.world.now_s += seconds
        self.late = [late for late in self.late if late.until_s >= self.world.now_s]
        self.promises = {uid: promise for uid, promise in self.promises.items() if promise.until_s > self.world.now_s}
        expire(self.world.ledger)
        self._verify()

    def _verify(self) -> None:
        """Do what the binder does about Bindings that were not seen for long."""
        ledger = self.world.ledger
        for each in ledger.unconfirmed():
            found = self.api.get(f"pod {each.pod.partition('/')[2]}")
            if not isinstance(found, Pod) or not found.is_live:
                ledger.vacate(each.uid)
            elif not found.spec.node_name and each.stage is Stage.DOUBTFUL:
                ledger.withdraw(each.uid)

    @rule()
    def another_leader_takes_over(self) -> None:
        # It starts once no Binding of the former leader can be in flight, and lists everything.
        self.late.clear()
        self.promises.clear()
        self.events.clear()
        self.seen = dict(self.api)
        now_s = self.world.now_s
        self.world = World(ttl_s=TTL_S)
        self.world.now_s = now_s
        self.world.cluster.begin()
        self.world.add(*self.seen.values())
        at_once(self.world.cluster.settle())
        self.binder = self._new_binder()
        asyncio.run(self.world.engine.resume())

    def _new_binder(self) -> Binder:
        world = self.world
        self.barrier = Barrier(world.engine, monotonic=lambda: world.now_s, hold_s=TTL_S)
        stamper = Stamper(world.cluster, world.ledger, lambda: 1)
        at_once(stamper.resume())
        self.reserver = Reserver(world.engine, stamper)
        pods = KnownPods(
            cast("KubeClient", self),
            world.cluster,
            schedulers=["default-scheduler"],
            limit=FOR_SCHEDULERS,
            monotonic=lambda: world.now_s,
        )
        return Binder(
            client=cast("KubeClient", self),
            pods=pods,
            engine=world.engine,
            barrier=self.barrier,
            stamper=stamper,
            monotonic=lambda: world.now_s,
            outcome=lambda _ref, _node, _result, _duration_s: None,
        )

    async def get(self, _resource: object, name: str, _namespace: str = "", **_more: object) -> Pod:
        """Answer the binder: the pod as the API server has it."""
        found = self.api.get(f"pod {name}")
        if not isinstance(found, Pod):
            raise NotFound("no such pod", status=404)
        return found

    @rule()
    def unseen_bindings_are_verified(self) -> None:
        asyncio.run(self.binder.outcomes.verify())

    # The invariants.

    @invariant()
    def no_chip_is_on_two_pods(self) -> None:
        taken = dict.fromkeys(NODES, 0)
        for each in self._pods(lambda one: bool(one.spec.node_name) and one.is_live):
            chips = held_chips(each.metadata.annotations)
            assert chips.bit_count() == each.spec.containers[0].chips
            assert not taken[each.spec.node_name] & chips
            taken[each.spec.node_name] |= chips

    @invariant()
    def the_state_is_what_was_seen(self) -> None:
        objects = list(self.seen.values())
        differences = audit(self.world.cluster, self.world.ledger, by_kind(*objects))
        # A verified pod is known to have ended before the watch shows it: its chips may be another pod's.
        seen_live = [each for each in self.world.cluster.pods.values() if each.is_live]
        late = {f"node {each.spec.node_name}" for each in seen_live if self._has_ended(each.uid)}
        assert [each for each in differences if each.object not in late or not each.field.startswith("chips of")] == []

    def _has_ended(self, uid: str) -> bool:
        found = self.api.get(f"pod {uid.removeprefix('uid-')}")
        return not isinstance(found, Pod) or not found.is_live

    @invariant()
    def every_chip_is_free_held_or_reserved(self) -> None:
        for name in NODES:
            record = self.world.cluster.nodes.get(name)
            if record is None or not isinstance(record.offer, Vacancy):
                continue
            held = {uid: holding.chips for uid, holding in record.holdings.items()}
            reserved = {uid: take.chip_set for uid, take in self.world.ledger.on(name).items()}
            taken = taken_by_live = 0
            for uid, chips in (reserved | held).items():
                taken |= chips
                if uid not in held or not self._has_ended(uid):
                    assert not taken_by_live & chips
                    taken_by_live |= chips
            assert isinstance(record.unhealthy, int)
            assert record.offer.free == 0xFF & ~taken & ~record.unhealthy

    @invariant()
    def no_reservation_outlives_its_time(self) -> None:
        ledger, now_s = self.world.ledger, self.world.now_s
        for each in ledger:
            assert each.stage is not Stage.RESERVED or each.since_s + TTL_S > now_s
            assert (each.stage is Stage.PLANNED) <= bool(each.plan)
        for uid, promise in self.promises.items():
            held = ledger.get(uid)
            seen = self.world.cluster.pods.get(uid)
            # The caller can't bind a pod that is gone or was placed elsewhere meanwhile.
            assert held is None or seen is None or (held.node, held.take.chips) == (promise.node, promise.chips)
        for job in JOBS:
            plan = JobKey("default", job, VOLCANO).plan
            assert {each.uid for each in ledger.seats(plan)} == {
                each.uid for each in ledger if each.stage is Stage.PLANNED and each.plan == plan
            }

    def teardown(self) -> None:
        for key in [key for key, value in self.api.items() if isinstance(value, Pod)]:
            self._write(key, None)
        for name in NODES:
            self._write(f"node {name}", node(name, labels=LABELS[name]))
            self._write(f"report {name}", report(name))
        self._deliver(len(self.events))
        self.world.now_s += GANG_TTL_S + 1
        expire(self.world.ledger)
        self._verify()
        assert list(self.world.ledger) == []
        for name in NODES:
            offer = self.world.cluster.nodes[name].offer
            assert isinstance(offer, Vacancy)
            assert (offer.free, offer.room) == (chip_set(range(8)), 8)


_OPEN = (Stage.RESERVED, Stage.PLANNED)
TestConsistency = Consistency.TestCase
