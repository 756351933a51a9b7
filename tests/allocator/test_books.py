"""The books as a whole: whatever happens in whatever order, no chip is given twice and none is lost.

The machine has an API server of its own (objects, and a watch whose events arrive late), a scheduler that asks about
pods and binds them, with every outcome a Binding can have, chips and nodes that fail, and leaders that change: the new
one knows nothing but the objects.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.binding.annotations import Stamper
from allocator.binding.binder import Binder
from allocator.rules.job import VOLCANO, JobKey
from allocator.rules.vacancy import Vacancy
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, held_chips
from ascend.chips import chip_set
from ascend.errors import NotFound, Refusal
from ascend.kube.client import KubeClient
from ascend.kube.objects import ConfigMap, Node, Pod
from tests.allocator.builders import World, audit, by_kind, node, pod, report

NODES = ("n1", "n2", "n3")
JOBS = ("red", "blue")
GROUP = "scheduling.k8s.io/group-name"
OUTCOMES = ("made", "refused", "lost, made", "lost", "lost, made later")
LABELS = {"n1": {}, "n2": {"accelerator-type": "module-910b-8"}, "n3": {"accelerator-type": "module-910b-8"}}
TTL_S = 30.0
GANG_TTL_S = 120.0
IN_FLIGHT_S = 60.0
"""The API server's own limit of a request: a Binding of unknown outcome comes about within it or never."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller that binds by itself was told to write on a pod."""

    name: str
    node: str
    chips: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class Late:
    """A Binding whose answer was lost and that may yet be made."""

    name: str
    node: str
    chips: tuple[int, ...]
    until_s: float


class Books(RuleBasedStateMachine):
    """One cluster; `api` is the truth, `seen` what the watch has delivered of it."""

    def __init__(self) -> None:
        super().__init__()
        self.api: dict[str, Node | Pod | ConfigMap] = {}
        self.seen: dict[str, Node | Pod | ConfigMap] = {}
        self.events: list[tuple[str, Node | Pod | ConfigMap | None]] = []
        self.late: list[Late] = []
        self.told: dict[str, Told] = {}
        self.minimum: dict[str, int] = {}
        self.world = World(ttl_s=TTL_S)
        self.binder = self._hire()
        self.numbers = iter(range(100_000))

    @initialize(red=st.integers(2, 4), blue=st.integers(2, 4))
    def begins(self, red: int, blue: int) -> None:
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
    def a_pod_appears(self, count: int) -> None:
        name = f"p{next(self.numbers)}"
        self._write(f"pod {name}", pod(name, count))

    @rule(job=st.sampled_from(JOBS), chips=st.sampled_from([2, 4, 8]), count=st.integers(1, 4))
    def pods_of_a_gang_appear(self, job: str, chips: int, count: int) -> None:
        for _ in range(count):
            name = f"{job}{next(self.numbers)}"
            marks = {GROUP: job, MIN_AVAILABLE: str(self.minimum[job])}
            self._write(f"pod {name}", pod(name, chips, annotations=marks))

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
    def a_pod_is_asked_about(self, data: st.DataObject, candidates: list[str] | None) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name and one.is_live))
        if each is None:
            return
        self.told.pop(each.uid, None)
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
    def a_caller_is_told_the_chips_of_a_pod(self, data: st.DataObject, candidates: list[str] | None) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name and one.is_live))
        if each is None:
            return
        self.told.pop(each.uid, None)
        with contextlib.suppress(Refusal):
            bound = self.binder.reserve(each, candidates)
            assert candidates is None or bound.node in candidates
            self.told[each.uid] = Told(each.name, bound.node, bound.grant.chips, self.world.now_s + TTL_S)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def a_caller_that_was_told_binds(self, data: st.DataObject) -> None:
        told = self.told.pop(data.draw(st.sampled_from(sorted(self.told))))
        each = self.api.get(f"pod {told.name}")
        if isinstance(each, Pod) and not each.spec.node_name and each.is_live:
            self._write(f"pod {told.name}", self._changed(each, at=told.node, chips=told.chips))
            self.binder.confirm(each.uid, told.node)

    def _check_whole(self, each: Pod) -> None:
        """Where a plan was made just now, all that the minimum needs have a place."""
        job = self.world.cluster.jobs.job_of(each)
        if job.is_gang:
            placed = [one for one in job.pods.values() if one.spec.node_name or not one.is_live]
            reserved = [one for one in job.pods.values() if self.world.ledger.get(one.uid) and one not in placed]
            unseen = each.uid not in job.pods
            assert len(placed) + len(reserved) + unseen >= job.min_available

    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def a_pod_is_bound(self, data: st.DataObject, outcome: str) -> None:
        ledger = self.world.ledger
        asked = self._pods(lambda one: (held := ledger.get(one.uid)) is not None and held.stage in _OPEN)
        each = self._choose(data, asked)
        if each is not None and not each.spec.node_name and each.is_live:
            self._bind(each, outcome)

    @rule(count=st.sampled_from([2, 4, 8]), outcome=st.sampled_from(OUTCOMES))
    def a_pod_appears_and_is_bound_at_once(self, count: int, outcome: str) -> None:
        each = pod(f"p{next(self.numbers)}", count)
        self._write(f"pod {each.name}", each)
        try:
            self.world.engine.place(each)
        except Refusal:
            return
        self._bind(each, outcome)

    def _bind(self, each: Pod, outcome: str) -> None:
        ledger = self.world.ledger
        ledger.expire()
        self.told.pop(each.uid, None)
        held = ledger.advance(each.uid, Stage.BINDING)
        if held is None:
            return
        if outcome in ("made", "lost, made"):
            self._write(f"pod {each.name}", self._changed(each, at=held.node, chips=held.chips))
        match outcome:
            case "made":
                ledger.advance(each.uid, Stage.ASSUMED)
            case "refused":
                ledger.withdraw(each.uid)
            case "lost, made later":
                self.late.append(Late(each.name, held.node, held.chips, self.world.now_s + IN_FLIGHT_S))
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
    def a_pod_is_given_up(self, data: st.DataObject) -> None:
        each = self._choose(data, self._pods(lambda one: not one.spec.node_name))
        if each is not None:
            self.told.pop(each.uid, None)
            self.world.engine.release(each.uid)

    # Nodes.

    @rule(name=st.sampled_from(NODES), sick=st.frozensets(st.integers(0, 7), max_size=2))
    def chips_fail_or_recover(self, name: str, sick: frozenset[int]) -> None:
        self._write(f"report {name}", report(name, unhealthy=sick))

    @rule(name=st.sampled_from(NODES), ready=st.booleans(), cordoned=st.booleans())
    def a_node_changes(self, name: str, *, ready: bool, cordoned: bool) -> None:
        self._write(f"node {name}", node(name, ready=ready, cordoned=cordoned, labels=LABELS[name]))

    @rule(name=st.sampled_from(NODES))
    def a_node_goes(self, name: str) -> None:
        if f"node {name}" in self.api:
            self._write(f"node {name}", None)

    # Time, and leaders.

    @rule(seconds=st.sampled_from([1, 20, 31, 121]))
    def time_passes(self, seconds: int) -> None:
        self.world.now_s += seconds
        self.late = [late for late in self.late if late.until_s >= self.world.now_s]
        self.told = {uid: told for uid, told in self.told.items() if told.until_s > self.world.now_s}
        self.world.ledger.expire()
        self._look()

    def _look(self) -> None:
        """What the committer does about pods that the watch has not shown for long."""
        ledger = self.world.ledger
        for each in ledger.unconfirmed():
            found = self.api.get(f"pod {each.pod.partition('/')[2]}")
            if not isinstance(found, Pod) or not found.is_live:
                ledger.vacate(each.uid)
            elif not found.spec.node_name and each.stage is Stage.DOUBTFUL:
                ledger.withdraw(each.uid)

    @rule()
    def another_leader_takes_over(self) -> None:
        # It begins when no Binding of the old one can be under way any more, and reads everything anew.
        self.late.clear()
        self.told.clear()
        self.events.clear()
        self.seen = dict(self.api)
        now_s = self.world.now_s
        self.world = World(ttl_s=TTL_S)
        self.world.now_s = now_s
        self.world.add(*self.seen.values())
        self.binder = self._hire()
        self.world.engine.gangs.resume()

    def _hire(self) -> Binder:
        world = self.world
        return Binder(
            client=cast("KubeClient", self),
            cluster=world.cluster,
            ledger=world.ledger,
            engine=world.engine,
            stamper=Stamper(world.cluster, world.ledger, lambda: 1),
            monotonic=lambda: world.now_s,
            outcome=lambda _ref, _node, _result, _duration_s: None,
        )

    async def get(self, _resource: object, name: str, _namespace: str = "") -> Pod:
        """What the binder reads of the API server: the truth."""
        found = self.api.get(f"pod {name}")
        if not isinstance(found, Pod):
            raise NotFound("no such pod", status=404)
        return found

    @rule()
    def the_allocator_verifies_what_it_has_not_seen(self) -> None:
        asyncio.run(self.binder.verify())

    # What must hold.

    @invariant()
    def the_api_server_has_no_chip_twice(self) -> None:
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
        # What was looked up is known before the watch tells: the chips of a pod that has ended may be another's.
        seen_live = [each for each in self.world.cluster.pods.values() if each.is_live]
        late = {f"node {each.spec.node_name}" for each in seen_live if self._has_ended(each.uid)}
        assert [each for each in differences if each.object not in late or each.rebuilt != "given once"] == []

    def _has_ended(self, uid: str) -> bool:
        found = self.api.get(f"pod {uid.removeprefix('uid-')}")
        return not isinstance(found, Pod) or not found.is_live

    @invariant()
    def every_chip_is_somewhere(self) -> None:
        for name in NODES:
            record = self.world.cluster.nodes.get(name)
            if record is None or not isinstance(record.offer, Vacancy):
                continue
            held = {uid: holding.chips for uid, holding in record.holdings.items()}
            taken = lived = 0
            for uid, chips in (dict(self.world.ledger.on(name)) | held).items():
                taken |= chips
                if uid not in held or not self._has_ended(uid):
                    assert not lived & chips
                    lived |= chips
            assert isinstance(record.unhealthy, int)
            assert record.offer.free == 0xFF & ~taken & ~record.unhealthy

    @invariant()
    def nothing_is_kept_longer_than_it_may(self) -> None:
        ledger, now_s = self.world.ledger, self.world.now_s
        for each in ledger:
            assert each.stage is not Stage.RESERVED or each.since_s + TTL_S > now_s
            assert (each.stage is Stage.PLANNED) <= bool(each.plan)
        for uid, told in self.told.items():
            held = ledger.get(uid)
            seen = self.world.cluster.pods.get(uid)
            # A pod that is gone, or was given another place meanwhile, is nobody's to bind.
            assert held is None or seen is None or (held.node, held.chips) == (told.node, told.chips)
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
        self.world.ledger.expire()
        self._look()
        assert list(self.world.ledger) == []
        for name in NODES:
            offer = self.world.cluster.nodes[name].offer
            assert isinstance(offer, Vacancy)
            assert (offer.free, offer.room) == (chip_set(range(8)), 8)


_OPEN = (Stage.RESERVED, Stage.PLANNED)

TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
