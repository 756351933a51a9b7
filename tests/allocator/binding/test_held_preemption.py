"""A gang with held Bindings waits for pods that end for one of its pods."""

import pytest

from allocator.binding.barrier import REFUSED_S, STALLED_S
from allocator.decision.preemption import Preemption
from allocator.rules.victims import Suggestion
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.binding.rig import HOLD_S, BinderWorld
from tests.allocator.binding.test_barrier import Scheduler, gang, refused_by_its_scheduler, rig_of
from tests.allocator.builders import pod

pytestmark = pytest.mark.looptime


def low(name: str, on: str) -> Pod:
    return pod(name, 8, node=on, chips=range(8), phase="Running", priority=1)


async def preempting() -> tuple[BinderWorld, Scheduler, list[Pod]]:
    """The first pod of a gang is held on n1; the other may not be on n4 then, and pods end for it on n2."""
    pods = gang("a", 2, priority=9)
    rig = rig_of(*pods)
    preemption, scheduler = Preemption(rig.world.cluster, rig.world.ledger, rig.world.engine), Scheduler(rig)
    rig.world.add(low("low-2", "n2"), low("low-3", "n3"))
    assert await scheduler.try_(pods[0], ["n1", "n4"]) == "n1"
    chosen = await preemption.improve(pods[1], {"n2": Suggestion(), "n3": Suggestion()})
    assert chosen is not None
    assert chosen.node == "n2"
    rig.world.add(refused_by_its_scheduler(pods[1], "0/4 nodes are available: 1 didn't match anti-affinity rules."))
    return rig, scheduler, pods


async def test_a_gang_starts_once_pods_have_ended_for_the_pod_that_was_refused() -> None:
    rig, scheduler, pods = await preempting()
    await scheduler.wait(STALLED_S + REFUSED_S)
    assert scheduler.posted == 0
    assert rig.world.engine.gangs.queue.get(rig.world.engine.gang_of(pods[0]) or pytest.fail("no gang")) is None
    rig.world.cluster.pod_deleted(rig.world.cluster.pods["uid-low-2"])
    await scheduler.wait(1)
    assert await scheduler.try_(pods[1], ["n2"]) == "n2"
    await scheduler.wait(1)
    assert {each["node"] for each in rig.server.bindings} == {"n1", "n2"}


async def test_a_gang_gives_up_if_its_scheduler_does_not_come_back_when_they_have_ended() -> None:
    rig, scheduler, pods = await preempting()
    rig.world.cluster.pod_deleted(rig.world.cluster.pods["uid-low-2"])
    await scheduler.wait(STALLED_S + REFUSED_S)
    assert (await scheduler.refusal(pods[0])).reason is Reason.GANG_STEPPED_BACK
    assert rig.world.engine.gangs.queue.get(rig.world.engine.gang_of(pods[0]) or pytest.fail("no gang")) is not None


async def test_a_gang_keeps_its_seats_if_they_take_longer_than_a_binding_is_held() -> None:
    rig, scheduler, pods = await preempting()
    await scheduler.wait(HOLD_S + 1)
    assert (await scheduler.refusal(pods[0])).reason is Reason.GANG_AWAITED
    assert await scheduler.try_(pods[0], ["n1", "n4"]) == "n1"
    rig.world.cluster.pod_deleted(rig.world.cluster.pods["uid-low-2"])
    assert await scheduler.try_(pods[1], ["n2"]) == "n2"
    await scheduler.wait(1)
    assert scheduler.posted == 2
