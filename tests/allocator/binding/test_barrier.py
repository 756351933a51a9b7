"""The Bindings of a gang are held until all pods that its minimum needs can be bound."""

import asyncio
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from allocator.binding.barrier import REFUSED_S, RETRIED_S, STALLED_S, TURN_RETRIED_S
from allocator.binding.binding import Assignment, PodRef
from allocator.gangs.obstacles import SKIPPED_S
from allocator.gangs.start_queue import TURN_S
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Condition, Pod
from ascend.kube.workloads import PodGroup
from ascend.reasons import Reason
from tests.allocator.binding.rig import BinderWorld
from tests.allocator.builders import GROUP, node, pod, pod_group
from tests.allocator.expiry import expire

pytestmark = pytest.mark.looptime


NODES = ("n1", "n2", "n3", "n4")


def gang(
    name: str, size: int, *, minimum: int | None = None, priority: int = 0, since: str = "2026-01-01"
) -> list[Pod]:
    annotations = {GROUP: name, MIN_AVAILABLE: str(minimum or size)}
    return [pod(f"{name}-{rank}", 8, annotations=annotations, priority=priority, since=since) for rank in range(size)]


def rig_of(*pods: Pod) -> BinderWorld:
    rig = BinderWorld(*pods)
    rig.world.add(node("n3"), node("n4"))
    return rig


LACKS_CHIPS = "0/2 nodes are available: 2 Insufficient huawei.com/Ascend910."


def refused_by_its_scheduler(each: Pod, message: str = "0/2 nodes are available: 2 Insufficient cpu.") -> Pod:
    condition = Condition("PodScheduled", "False", "Unschedulable", message)
    return replace(each, status=replace(each.status, conditions=[condition]))


class Scheduler:
    """Filters and binds pods as kube-scheduler does: a Binding is asked for while others are being filtered."""

    def __init__(self, rig: BinderWorld) -> None:
        self.rig = rig
        self.bindings: dict[str, asyncio.Task[Assignment]] = {}

    async def try_(self, each: Pod, nodes: Iterable[str] = NODES) -> str:
        """Filter a pod and ask to bind it; the node, or the reason of the refusal."""
        self.rig.barrier.on_filter(each.uid, tuple(nodes))
        self.rig.world.engine.gangs.obstacles.on_request(each)
        await asyncio.sleep(0.001)
        try:
            node = self.rig.world.engine.place(each, tuple(nodes)).node
        except Refusal as refusal:
            return refusal.reason
        self.bindings[each.uid] = asyncio.create_task(self.rig.binder.bind(PodRef.of(each), node, is_repeated=True))
        await asyncio.sleep(0.001)
        return node

    async def refusal(self, each: Pod) -> Refusal:
        """Why the Binding of a pod was refused."""
        with pytest.raises(Refusal) as refused:
            await self.bindings[each.uid]
        return refused.value

    @property
    def posted(self) -> int:
        return len(self.rig.server.bindings)

    async def wait(self, seconds: float) -> None:
        """Let time pass, second by second."""
        for _ in range(round(seconds)):
            self.rig.world.now_s += 1
            expire(self.rig.world.ledger)
            await self.rig.barrier.check()
            await asyncio.sleep(0.001)


async def test_no_pod_of_a_gang_is_bound_before_the_last_has_passed_its_scheduler() -> None:
    pods = gang("a", 3)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    for each in pods[:2]:
        await scheduler.try_(each)
    await scheduler.wait(5)
    assert scheduler.posted == 0
    assert [rig.stage(each.uid) for each in pods] == [Stage.HELD, Stage.HELD, Stage.PLANNED]
    await scheduler.try_(pods[2])
    bound = await asyncio.gather(*scheduler.bindings.values())
    assert scheduler.posted == 3
    assert len({(each.node, each.grant.chips) for each in bound}) == 3


async def test_a_pod_beyond_the_minimum_is_not_waited_for() -> None:
    pods = gang("a", 3, minimum=2)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    for each in pods[:2]:
        await scheduler.try_(each)
    await asyncio.gather(*scheduler.bindings.values())
    assert scheduler.posted == 2
    await scheduler.try_(pods[2])
    await scheduler.bindings[pods[2].uid]
    assert scheduler.posted == 3


async def test_the_successor_of_a_pod_of_a_running_gang_is_bound_at_once() -> None:
    first, second = gang("a", 2)
    running = replace(first, spec=replace(first.spec, node_name="n1"), status=replace(first.status, phase="Running"))
    rig = rig_of(running, second)
    scheduler = Scheduler(rig)
    await scheduler.try_(second)
    await scheduler.bindings[second.uid]
    assert scheduler.posted == 1


async def test_a_gang_gives_up_when_its_scheduler_refuses_one_of_its_pods() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    await scheduler.wait(1)
    rig.world.add(refused_by_its_scheduler(b))
    await scheduler.wait(REFUSED_S + 1)
    refusal = await scheduler.refusal(a)
    assert refusal.reason is Reason.GANG_STEPPED_BACK
    assert "default/a-1 was refused: 0/2 nodes are available: 2 Insufficient cpu" in refusal.message
    assert len(rig.world.ledger) == 0
    with pytest.raises(Refusal) as again:
        rig.world.engine.place(a)
    assert again.value.message == (
        "job default/a has released its chips, because pod default/a-1 was refused: 0/2 nodes are available: "
        "2 Insufficient cpu; 1 more of its pods has to be filtered before they are planned again"
    )
    assert scheduler.posted == 0


async def test_a_pod_refused_right_after_the_first_binding_is_noticed() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    rig.world.add(refused_by_its_scheduler(b))
    await scheduler.wait(REFUSED_S + 1)
    assert "default/a-1 was refused" in (await scheduler.refusal(a)).message


async def test_a_refusal_from_before_the_gang_was_planned_is_no_obstacle() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    incomplete = f"0/2 nodes are available: 2 {Reason.GANG_INCOMPLETE}: job default/a: 1 is missing."
    rig.world.add(refused_by_its_scheduler(b, incomplete))  # seen late
    await scheduler.wait(STALLED_S - 1)
    assert rig.stage(a.uid) is Stage.HELD


async def test_the_refusal_of_a_deleted_pod_does_not_count_for_its_successor() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    await scheduler.wait(1)
    rig.world.add(refused_by_its_scheduler(b))
    await scheduler.wait(1)
    rig.world.cluster.pod_deleted(b)
    rig.world.add(pod("a-2", 8, annotations=b.metadata.annotations))
    await scheduler.wait(REFUSED_S + 1)
    assert rig.stage(a.uid) is Stage.HELD


async def test_a_gang_of_high_priority_that_never_starts_does_not_keep_others_from_trying() -> None:
    high, low = gang("high", 2, priority=10), gang("low", 2)
    rig = rig_of(*high, *low)
    jobs = {pods[0].name: rig.world.cluster.jobs.job_of(pods[0]) for pods in (high, low)}
    gangs = rig.world.engine.gangs
    for each in (*high, *low):
        gangs.obstacles.on_request(each)
    gangs.step_back(jobs["low-0"], (), "a test says so")
    gangs.step_back(jobs["high-0"], (), "a test says so")
    scheduler, turns = Scheduler(rig), []
    for _ in range(4):
        turns.append(next(name for name, job in jobs.items() if gangs.queue.ahead_of(job) is None))
        await scheduler.wait(TURN_S)
    assert turns == ["high-0", "low-0", "high-0", "low-0"]


async def test_a_gang_keeps_its_turn_while_its_scheduler_filters_one_pod_after_the_other() -> None:
    pods = gang("a", 4)
    rig = rig_of(*pods)
    rig.world.engine.gangs.step_back(rig.world.cluster.jobs.job_of(pods[0]), (), "a test says so")
    scheduler = Scheduler(rig)
    for each in pods[:-1]:
        assert await scheduler.try_(each) == Reason.GANG_STEPPED_BACK
        await scheduler.wait(TURN_S / 2)
    assert await scheduler.try_(pods[-1]) in NODES


async def test_a_refusal_of_a_pod_that_the_minimum_does_not_need_is_no_obstacle() -> None:
    pods = gang("a", 3, minimum=2)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    await scheduler.try_(pods[0])
    await scheduler.wait(1)
    rig.world.add(refused_by_its_scheduler(pods[1]))
    await scheduler.wait(REFUSED_S + 2)
    assert rig.stage(pods[0].uid) is Stage.HELD
    await scheduler.try_(pods[2])
    await scheduler.bindings[pods[2].uid]
    assert scheduler.posted == 2


async def test_a_gang_gives_up_when_its_scheduler_does_not_come_back() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    rig.world.engine.gangs.obstacles.on_request(b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    await scheduler.wait(STALLED_S - 1)
    assert rig.stage(a.uid) is Stage.HELD
    await scheduler.wait(2)
    refusal = await scheduler.refusal(a)
    assert "no Binding of 1 further pod was asked for within 20 s: default/a-1" in refusal.message
    with pytest.raises(Refusal, match=r"because no Binding of .*: default/a-1; 1 more of its pods has to be filtered"):
        rig.world.engine.place(a)
    assert len(rig.world.ledger) == 0


def rig_of_group(*pods: Pod) -> tuple[BinderWorld, PodGroup]:
    """A cluster with pods of a PodGroup that needs all of them."""
    rig, group = rig_of(*pods), pod_group(len(pods), name="a")
    rig.world.cluster.jobs.on_watched(VOLCANO)
    rig.world.cluster.jobs.group_applied(VOLCANO, group)
    return rig, group


async def test_a_gang_whose_group_is_deleted_releases_its_chips_and_starts_when_that_is_there_again() -> None:
    pods = [pod(f"a-{rank}", 8, annotations={GROUP: "a"}) for rank in range(3)]
    rig, group = rig_of_group(*pods)
    scheduler, jobs = Scheduler(rig), rig.world.cluster.jobs
    for each in pods[:2]:
        await scheduler.try_(each)
    jobs.group_deleted(VOLCANO, group)
    await scheduler.wait(1)
    for each in pods[:2]:
        refusal = await scheduler.refusal(each)
        assert (refusal.reason, refusal.message) == (
            Reason.GROUP_MISSING,
            f"pod {each.key} names {VOLCANO} default/a, which does not exist",
        )
    assert len(rig.world.ledger) == 0
    assert await scheduler.try_(pods[2]) == Reason.GROUP_MISSING
    jobs.group_applied(VOLCANO, group)
    for each in pods:
        assert await scheduler.try_(each) in NODES  # it has not lost a turn
    await asyncio.gather(*scheduler.bindings.values())
    assert scheduler.posted == 3


async def test_running_pods_keep_their_chips_while_their_group_is_deleted_and_successors_wait() -> None:
    pods = [pod(f"a-{rank}", 8, node=f"n{rank + 1}", chips=range(8), annotations={GROUP: "a"}) for rank in range(2)]
    rig, group = rig_of_group(*pods)
    cluster = rig.world.cluster
    cluster.jobs.group_deleted(VOLCANO, group)
    scheduler = Scheduler(rig)
    await scheduler.wait(1)
    assert [rig.world.vacancy(name).free for name in ("n1", "n2")] == [0, 0]
    cluster.pod_deleted(pods[1])
    successor = pod("a-2", 8, annotations={GROUP: "a"})
    rig.world.add(successor)
    assert await scheduler.try_(successor) == Reason.GROUP_MISSING
    cluster.jobs.group_applied(VOLCANO, group)
    assert await scheduler.try_(successor) in NODES


async def test_of_two_gangs_in_each_others_way_the_last_gives_up_and_the_first_starts() -> None:
    a, b = gang("a", 2), gang("b", 2, since="2026-01-02")
    rig = rig_of(*a, *b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a[0], ("n1",))
    await scheduler.try_(b[0], ("n3",))
    await scheduler.wait(SKIPPED_S)
    assert (await scheduler.refusal(b[0])).reason is Reason.GANG_STEPPED_BACK
    assert rig.stage(a[0].uid) is Stage.HELD
    await scheduler.try_(a[1], ("n2",))
    await asyncio.gather(scheduler.bindings[a[0].uid], scheduler.bindings[a[1].uid])
    assert scheduler.posted == 2


async def test_a_pod_that_is_refused_as_before_when_another_gang_has_given_up_is_noticed() -> None:
    a, b = gang("a", 2, since="2026-01-01"), gang("b", 2, since="2026-01-02")
    rig = rig_of(*a, *b)
    scheduler = Scheduler(rig)
    for pods in (a, b):
        await scheduler.try_(pods[0])
    for pods in (a, b):
        rig.world.add(refused_by_its_scheduler(pods[1]))
    await scheduler.wait(REFUSED_S + 1)
    assert "default/b-1 was refused" in (await scheduler.refusal(b[0])).message
    assert rig.stage(a[0].uid) is Stage.HELD
    await scheduler.wait(RETRIED_S + 1)
    assert "default/a-1 was refused" in (await scheduler.refusal(a[0])).message


async def test_a_pod_that_is_refused_as_before_its_gang_was_planned_is_noticed() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, refused_by_its_scheduler(b, LACKS_CHIPS))
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    await scheduler.wait(TURN_RETRIED_S - 1)
    assert rig.stage(a.uid) is Stage.HELD
    await scheduler.wait(2)
    assert "default/a-1 was refused" in (await scheduler.refusal(a)).message


async def test_a_gang_goes_on_although_its_scheduler_has_yet_to_see_what_others_have_released() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    rig.world.add(refused_by_its_scheduler(b, LACKS_CHIPS))
    await scheduler.wait(TURN_RETRIED_S - 2)  # it tries the pod again after at most 10 s
    assert await scheduler.try_(b) in NODES
    await scheduler.wait(1)
    assert scheduler.posted == 2


async def test_a_gang_with_a_pod_that_lacks_cpu_on_every_node_holds_nothing_until_that_changes() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, refused_by_its_scheduler(b))
    scheduler = Scheduler(rig)
    assert await scheduler.try_(a) == Reason.GANG_STEPPED_BACK
    assert rig.world.engine.gangs.queue.get(rig.world.cluster.jobs.job_of(a)) is None
    assert not rig.world.engine.may_fit(a)
    assert await scheduler.try_(b) in NODES
    assert await scheduler.try_(a) in NODES
    await scheduler.wait(1)
    assert scheduler.posted == 2


@pytest.mark.parametrize("planned_first", [True, False], ids=["since the gang was planned", "before"])
async def test_a_pod_for_which_no_seat_was_found_counts_as_refused_since_its_gang_was_planned(
    *, planned_first: bool
) -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b, pod("other", 8, node="n4", chips=range(8)))
    scheduler = Scheduler(rig)
    if planned_first:
        assert rig.world.engine.place(a, NODES).node != "n4"
    message = f"0/4 nodes are available: 1 {await scheduler.try_(b, ('n4',))}, 3 Insufficient cpu."
    assert Reason.GANG_DOES_NOT_FIT in message
    rig.world.add(refused_by_its_scheduler(b, message))  # seen before the Binding of its peer is asked for
    await scheduler.try_(a)
    await scheduler.wait(RETRIED_S - 1)
    assert rig.stage(a.uid) is Stage.HELD
    await scheduler.wait(2)
    assert (rig.stage(a.uid) is Stage.HELD) is not planned_first
    if planned_first:
        assert "default/a-1 was refused" in (await scheduler.refusal(a)).message
    else:
        await scheduler.try_(b)
        await asyncio.gather(*scheduler.bindings.values())


async def test_of_many_stuck_gangs_half_give_up_at_once() -> None:
    gangs = [gang(name, 2, since=f"2026-01-0{number}") for number, name in enumerate("abcd", start=1)]
    rig = rig_of(*(pod for pods in gangs for pod in pods))
    rig.world.add(*(node(f"n{number}") for number in range(5, 9)))
    scheduler = Scheduler(rig)
    for number, pods in enumerate(gangs):
        await scheduler.try_(pods[0], (f"n{2 * number + 1}",))
    await scheduler.wait(SKIPPED_S)
    assert [rig.stage(pods[0].uid) is Stage.HELD for pods in gangs] == [True, True, False, False]


async def test_a_gang_of_lower_priority_gives_up_first() -> None:
    low, high = gang("a", 2), gang("b", 2, priority=10)
    rig = rig_of(*low, *high)
    scheduler = Scheduler(rig)
    await scheduler.try_(low[0], ("n1",))
    await scheduler.try_(high[0], ("n3",))
    await scheduler.wait(SKIPPED_S)
    assert (await scheduler.refusal(low[0])).reason is Reason.GANG_STEPPED_BACK
    assert rig.stage(high[0].uid) is Stage.HELD


async def test_a_scheduler_that_filters_a_pod_again_has_given_up_its_binding() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    first = await scheduler.try_(a)
    waiting = scheduler.bindings[a.uid]
    assert await scheduler.try_(a) == first
    with pytest.raises(Refusal):
        await waiting
    await scheduler.try_(b)
    await asyncio.gather(*scheduler.bindings.values())
    assert scheduler.posted == 2


async def test_a_gang_is_not_bound_whose_caller_for_one_pod_has_gone_away() -> None:
    pods = gang("a", 3)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    for each in pods[:2]:
        await scheduler.try_(each)
    scheduler.bindings[pods[0].uid].cancel()
    await asyncio.sleep(0.01)
    assert pods[0].uid in rig.barrier.lapsed
    await scheduler.try_(pods[2])
    await asyncio.sleep(0.01)
    assert scheduler.posted == 0


async def test_a_pod_deleted_while_it_waits_leaves_its_seat_to_its_successor() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    rig.world.cluster.pod_deleted(a)
    assert (await scheduler.refusal(a)).reason is Reason.GANG_STEPPED_BACK
    assert await scheduler.try_(b) == Reason.GANG_INCOMPLETE
    successor = replace(a, metadata=replace(a.metadata, name="a-0b", uid="uid-a-0b"))
    rig.world.add(successor)
    rig.server.pods["a-0b"] = successor
    await scheduler.try_(successor)
    await scheduler.try_(b)
    await asyncio.gather(scheduler.bindings[successor.uid], scheduler.bindings[b.uid])
    assert scheduler.posted == 2


async def test_an_allocator_that_stops_refuses_what_it_holds_and_binds_nothing() -> None:
    a, b = gang("a", 2)
    rig = rig_of(a, b)
    scheduler = Scheduler(rig)
    await scheduler.try_(a)
    rig.barrier.close(Refusal(Reason.NOT_LEADER, "this allocator is stopping"))
    await rig.binder.drain()
    assert (await scheduler.refusal(a)).reason is Reason.NOT_LEADER
    await scheduler.try_(b)
    assert (await scheduler.refusal(b)).reason is Reason.NOT_LEADER
    assert scheduler.posted == 0


async def test_a_node_that_becomes_unusable_ends_the_wait_of_the_whole_gang() -> None:
    pods = gang("a", 3)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    nodes = [await scheduler.try_(each) for each in pods[:2]]
    rig.world.add(node(nodes[0], cordoned=True))
    await scheduler.wait(1)
    for each in pods[:2]:
        assert (await scheduler.refusal(each)).reason is Reason.GANG_STEPPED_BACK
    assert len(rig.world.ledger) == 0


async def test_a_gang_that_needs_fewer_pods_now_does_not_start_on_a_node_that_has_become_unusable() -> None:
    pods = gang("a", 3)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    nodes = [await scheduler.try_(each) for each in pods[:2]]
    rig.world.add(node(nodes[0], cordoned=True), *gang("a", 3, minimum=2))
    await scheduler.wait(1)
    assert scheduler.posted == 0
    for each in pods[:2]:
        await scheduler.refusal(each)
        await scheduler.try_(each)
    await asyncio.gather(*(scheduler.bindings[each.uid] for each in pods[:2]))
    assert nodes[0] not in {binding["node"] for binding in rig.server.bindings}
