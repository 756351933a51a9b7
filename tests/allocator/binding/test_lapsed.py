"""A pod counts for its gang after its scheduler has given its Binding up, unless there is evidence to the contrary."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from allocator.binding.barrier import REFUSED_S, STALLED_S, Barrier
from allocator.binding.binding import PodRef
from allocator.binding.lapsed import SETTLED_S
from allocator.serving.ports import most_calls
from allocator.settings import Settings
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import Condition, Pod
from ascend.reasons import Reason
from ascend.serving import limits
from tests.allocator.binding.rig import HOLD_S, BinderWorld
from tests.allocator.binding.simulation import CHIPS, LABELS, Case, Demand, Simulation
from tests.allocator.binding.test_barrier import Scheduler, gang, refused_by_its_scheduler, rig_of
from tests.allocator.builders import node, pod

pytestmark = pytest.mark.looptime

LATE_S = 8.0
"""How long a Binding is held."""
NAMES = tuple(f"n{number}" for number in range(1, 7))


class SlowScheduler(Scheduler):
    """A scheduler that gives Bindings up as kube-scheduler 1.34 does: it clears nominations, which come again."""

    def __init__(self, rig: BinderWorld) -> None:
        super().__init__(rig)
        self.is_nominating = True

    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            await super().wait(1)
            for uid in self.rig.barrier.lapsed:
                if (task := self.bindings.get(uid)) is not None and task.done():
                    del self.bindings[uid]
                    self._give_up(uid, str(task.exception()))
                elif self.is_nominating:
                    self._nominate(uid, self.rig.barrier.lapsed.node_of(uid) or "")

    def _give_up(self, uid: str, message: str) -> None:
        condition = Condition("PodScheduled", "False", "SchedulerError", f"{Reason.GANG_AWAITED}: {message}")
        known = self.rig.world.cluster.pods[uid]
        self.rig.world.add(replace(known, status=replace(known.status, conditions=[condition])))
        self._nominate(uid, "")

    def _nominate(self, uid: str, node: str) -> None:
        known = self.rig.world.cluster.pods[uid]
        self.rig.world.add(replace(known, status=replace(known.status, nominated_node_name=node)))


async def late(*pods: Pod, is_nominating: bool = True) -> tuple[BinderWorld, SlowScheduler]:
    """All pods of a gang but the last were asked for, and the first has lapsed."""
    rig = BinderWorld(*pods, hold_s=LATE_S)
    rig.world.add(*(node(name, labels=LABELS) for name in NAMES))
    scheduler = SlowScheduler(rig)
    scheduler.is_nominating = is_nominating
    for each in pods[:-1]:
        await scheduler.try_(each, NAMES)
        await scheduler.wait(3)
    assert pods[0].uid in rig.barrier.lapsed
    assert pods[-2].uid not in rig.barrier.lapsed
    return rig, scheduler


def node_of(rig: BinderWorld, each: Pod) -> str:
    held = rig.world.ledger.get(each.uid)
    assert held is not None
    return held.node


def sharing(size: int) -> list[Pod]:
    """A gang of which two pods fit on each node."""
    annotations = gang("a", size)[0].metadata.annotations
    return [pod(f"a-{rank}", 4, annotations=annotations) for rank in range(size)]


async def test_a_gang_starts_whole_although_its_scheduler_is_too_slow_for_all_bindings_to_be_held() -> None:
    pods = gang("a", 4)
    rig, scheduler = await late(*pods)
    assert scheduler.posted == 0
    await scheduler.try_(pods[-1], NAMES)
    await scheduler.wait(SETTLED_S + 2)
    await rig.binder.drain()
    assert {each["name"] for each in rig.server.bindings} == {each.key for each in pods}
    assert len({each["node"] for each in rig.server.bindings}) == 4


async def test_a_gang_waits_until_nominations_are_seen_of_pods_that_have_lapsed() -> None:
    pods = gang("a", 4)
    rig, scheduler = await late(*pods, is_nominating=False)
    await scheduler.try_(pods[-1], NAMES)
    await scheduler.wait(SETTLED_S + 2)
    assert scheduler.posted == 0
    scheduler.is_nominating = True
    await scheduler.wait(SETTLED_S + 2)
    await rig.binder.drain()
    assert scheduler.posted == 4


async def test_a_pod_that_its_scheduler_accepts_again_is_held_again() -> None:
    pods = gang("a", 4)
    rig, scheduler = await late(*pods, is_nominating=False)
    assert await scheduler.try_(pods[0], NAMES) == node_of(rig, pods[0])
    assert pods[0].uid not in rig.barrier.lapsed
    await scheduler.try_(pods[-1], NAMES)
    await asyncio.sleep(0.01)
    assert scheduler.posted == 4


async def test_a_pod_that_is_refused_after_it_has_lapsed_counts_as_refused() -> None:
    pods = gang("a", 4)
    rig, scheduler = await late(*pods)
    await scheduler.wait(1)
    rig.world.add(refused_by_its_scheduler(rig.world.cluster.pods[pods[0].uid]))
    await scheduler.wait(REFUSED_S + 1)
    assert "default/a-0 was refused" in (await scheduler.refusal(pods[-2])).message
    assert len(rig.world.ledger) == 0


async def test_a_pod_whose_node_its_scheduler_turns_down_counts_no_more() -> None:
    pods = gang("a", 4)
    rig, _ = await late(*pods)
    rig.barrier.on_filter(pods[0].uid, [name for name in NAMES if name != node_of(rig, pods[0])])
    assert rig.stage(pods[0].uid) is Stage.PLANNED


async def test_a_pod_counts_no_more_when_another_one_has_come_to_its_node() -> None:
    pods = sharing(5)
    rig, scheduler = await late(*pods)
    rig.world.add(pod("thief", None, node=node_of(rig, pods[0])))
    await scheduler.try_(pods[-1], NAMES)
    await scheduler.wait(SETTLED_S + 1)
    assert scheduler.posted == 0
    assert pods[0].uid not in rig.barrier.lapsed


@pytest.mark.parametrize(
    ("is_nominating", "priority", "counts"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
async def test_a_pod_that_is_accepted_on_the_node_may_not_have_counted_one_that_has_lapsed(
    *, is_nominating: bool, priority: int, counts: bool
) -> None:
    pods = sharing(5)
    rig, scheduler = await late(*pods, is_nominating=is_nominating)
    await scheduler.wait(3)
    lapsed, first = rig.barrier.lapsed, pods[0]
    beside = pod("b-0", 1, annotations=gang("b", 2)[0].metadata.annotations, priority=priority)
    lapsed.on_acceptance(beside, node_of(rig, first), is_further=True)
    scheduler.is_nominating = True
    await scheduler.wait(SETTLED_S + 2)
    assert lapsed.is_settled(first.uid) is counts
    assert lapsed.on_acceptance(beside, node_of(rig, first), is_further=False) is (not counts and not priority)
    assert lapsed.is_settled(first.uid) is (counts or not priority)


async def test_a_doubt_ends_when_a_pod_is_accepted_beside_all_others() -> None:
    pods = sharing(5)
    rig, scheduler = await late(*pods)
    lapsed, where = rig.barrier.lapsed, node_of(rig, pods[0])
    (other,) = [each for each in pods[1:-1] if node_of(rig, each) == where]
    lapsed.on_acceptance(pod("b-0", 1, priority=1), where, is_further=True)
    await scheduler.wait(SETTLED_S + 3)
    assert other.uid in lapsed
    assert not lapsed.is_settled(other.uid)
    assert await scheduler.try_(pods[0], NAMES) == where
    assert lapsed.is_settled(other.uid)


@pytest.mark.parametrize("cycles", [1, 2, 3])
@pytest.mark.parametrize("chips", [1, 2, 4])
def test_a_gang_starts_however_many_of_its_pods_share_a_node(chips: int, cycles: int) -> None:
    """A scheduler that filters 4, 8 or 12 pods in a second takes up to eight times as long as a Binding is held."""
    size = 64
    names = [f"n{number}" for number in range(size * chips // CHIPS)]
    annotations = gang("a", size)[0].metadata.annotations
    demands = [
        Demand(pod(f"a-{rank}", chips, annotations=annotations), chips, 0, frozenset(names)) for rank in range(size)
    ]

    async def check() -> None:
        simulation = Simulation(Case(dict.fromkeys(names, 1), [demands]), cycles=cycles, hold_s=2.0)
        for number, entry in enumerate(simulation.queue.values()):
            # In no order; the last ones come when the first ones have lapsed.
            entry.due_s = simulation.rig.world.now_s + (number * 37 % size) / size + (number % 8 == 0) * 6
        while simulation.started(demands) < size:
            assert simulation.now_s < 60
            await simulation.run(1)

    asyncio.run(check())


async def test_a_gang_gives_up_if_only_pods_that_have_come_already_come_again() -> None:
    pods = gang("a", 4)
    rig, scheduler = await late(*pods)
    for _ in range(round(4 * STALLED_S)):
        await scheduler.try_(pods[0], NAMES)
        await scheduler.wait(1)
        if rig.world.engine.gangs.queue.get(rig.world.cluster.jobs.job_of(pods[0])) is not None:
            break
    else:
        raise AssertionError("the gang has not given up")
    assert scheduler.posted == 0


async def test_a_caller_that_does_not_come_again_by_itself_keeps_no_claim() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    place = rig.world.engine.place(a)
    calling = asyncio.create_task(rig.binder.bind(PodRef.of(a), place.node, hold_s=1))
    await asyncio.sleep(2)
    assert calling.done()
    assert calling.exception() is not None
    assert (rig.stage(a.uid), len(rig.barrier.lapsed)) == (Stage.PLANNED, 0)


class ImpatientScheduler(SlowScheduler):
    """A scheduler that ends its requests itself, and always with the same sentence."""

    timeout_s = 20.0

    def __init__(self, rig: BinderWorld) -> None:
        super().__init__(rig)
        self.queue: list[Pod] = []
        self.backoff: list[Pod] = []

    async def run(self, seconds: float, period_s: int) -> None:
        """Try a pod every few seconds, in turn one that has not been tried and one that was given up."""
        for second in range(round(seconds)):
            waiting = self.queue if second % (2 * period_s) == 0 else self.backoff
            if second % period_s == 0 and waiting:
                await self.try_(self.rig.world.cluster.pods[waiting.pop(0).uid], NAMES)
            await self.wait(1)
            await self._end_late()

    async def stop(self) -> None:
        """End all requests at once."""
        await cancelled(list(self.bindings.values()))

    def _give_up(self, uid: str, message: str) -> None:
        super()._give_up(uid, message)
        self.backoff.append(self.rig.world.cluster.pods[uid])

    async def _end_late(self) -> None:
        for uid, task in tuple(self.bindings.items()):
            held = self.rig.world.ledger.get(uid)
            if held is not None and not task.done() and self.rig.world.now_s - held.since_s >= self.timeout_s:
                del self.bindings[uid]
                await cancelled([task])
                self._give_up(uid, "context deadline exceeded")


def impatient(*pods: Pod) -> ImpatientScheduler:
    rig = BinderWorld(*pods, hold_s=290.0)
    rig.world.add(*(node(name, labels=LABELS) for name in NAMES))
    scheduler = ImpatientScheduler(rig)
    scheduler.queue += pods
    return scheduler


async def test_a_gang_starts_although_its_scheduler_waits_less_long_than_bindings_are_held() -> None:
    pods = sharing(12)
    scheduler = impatient(*pods)
    with capture_logs() as logs:
        await scheduler.run(300, period_s=4)
    await scheduler.rig.binder.drain()
    assert scheduler.posted == len(pods)
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "httpTimeout is shorter than gang_hold_s" in warning["event"]
    assert (warning["waited_s"], warning["gang_hold_s"], warning["held_for_s"]) == (20.0, 290.0, 16.0)


async def test_a_scheduler_that_is_stopped_says_nothing_of_how_long_it_waits() -> None:
    pods = gang("a", 4)
    scheduler = impatient(*pods)
    with capture_logs() as logs:
        await scheduler.run(12, period_s=2)
        await scheduler.stop()
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(scheduler.rig.barrier.lapsed) == 3


async def test_the_time_out_of_a_caller_other_than_kube_scheduler_is_not_learned() -> None:
    pods = gang("a", 4)
    rig = rig_of(*pods)
    with capture_logs() as logs:
        for each in pods[:3]:
            calling = asyncio.create_task(rig.binder.bind(PodRef.of(each), rig.world.engine.place(each).node))
            await asyncio.sleep(0.01)
            rig.world.now_s += 10
            await cancelled([calling])
    assert not [entry for entry in logs if entry["log_level"] == "warning"]


async def test_a_pod_that_is_refused_while_its_binding_is_held_is_not_counted_on() -> None:
    """Its scheduler has died without ending the request, and the next one has given the room away."""
    pods = gang("a", 4)
    scheduler = impatient(*pods)
    await scheduler.run(14, period_s=3)
    rig = scheduler.rig
    rig.world.add(refused_by_its_scheduler(rig.world.cluster.pods[pods[0].uid]))
    await scheduler.wait(1)
    assert "a scheduler has refused it since" in (await scheduler.refusal(pods[0])).message
    await scheduler.try_(pods[3], NAMES)
    await asyncio.sleep(0.01)
    assert scheduler.posted == 0


def barrier_of(rig: BinderWorld, most_calls: int) -> Barrier:
    return Barrier(
        rig.world.engine,
        monotonic=lambda: rig.world.now_s,
        hold_s=HOLD_S,
        most_calls=most_calls,
    )


async def calls_of(rig: BinderWorld, barrier: Barrier, *pods: Pod) -> list[asyncio.Task[None]]:
    """Requests to bind pods, after they had the time to be held, or not."""
    calls = []
    for each in pods:
        rig.world.engine.place(each, NAMES)
        job = rig.world.engine.gang_of(each)
        assert job is not None
        calls.append(asyncio.create_task(barrier.wait_for_gang(each, job, is_repeated=True)))
    await asyncio.sleep(0.01)
    return calls


async def cancelled(calls: Sequence[asyncio.Task[Any]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_the_caller_that_has_waited_longest_makes_room_for_too_many() -> None:
    pods, others = gang("a", 4), gang("b", 2)
    rig = rig_of(*pods, *others)
    rig.world.add(node("n5"), node("n6"))
    calls = await calls_of(rig, barrier_of(rig, 4), *pods[:2], others[0])
    assert [call.done() for call in calls] == [True, False, False]
    assert [rig.stage(each.uid) for each in (*pods[:2], others[0])] == [Stage.HELD] * 3
    assert calls[0].exception() is not None
    await cancelled(calls)


async def test_all_bindings_of_a_gang_are_held_that_is_as_large_as_may_be() -> None:
    pods = gang("a", 4)
    rig = rig_of(*pods)
    calls = await calls_of(rig, barrier_of(rig, 4), *pods[:3])
    assert not any(call.done() for call in calls)
    await cancelled(calls)


async def test_a_gang_with_more_pods_than_may_be_held_is_refused_unless_it_has_started() -> None:
    pods = gang("a", 4)
    rig = rig_of(*pods)
    barrier_of(rig, 4).require_room(pods[0])
    with pytest.raises(Refusal, match=r"4 pods must be placed together, and 3 Bindings may be held"):
        barrier_of(rig, 3).require_room(pods[0])
    rig.world.add(replace(pods[0], spec=replace(pods[0].spec, node_name="n1")))
    barrier_of(rig, 3).require_room(pods[0])


def test_fewer_bindings_are_held_than_a_port_has_connections_for() -> None:
    assert 500 < most_calls(Settings()) < limits.OPEN_CALLS.connections
