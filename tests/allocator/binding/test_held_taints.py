"""A gang is not bound to a node that was tainted after its scheduler had accepted it."""

import asyncio

import pytest
from msgspec.structs import replace

from allocator.binding.binding import PodRef
from allocator.state.reservation import Stage
from ascend.kube.objects import NodeSpec, Taint
from ascend.reasons import Reason
from tests.allocator.binding.test_barrier import Scheduler, gang, rig_of
from tests.allocator.builders import node

pytestmark = pytest.mark.looptime

TOLERATIONS = '[{"key": "drain", "operator": "Exists"}]'


@pytest.mark.parametrize("effect", ["NoExecute", "NoSchedule"])
async def test_a_taint_releases_the_seats_of_a_held_gang(effect: str) -> None:
    pods = gang("a", 2)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    on = await scheduler.try_(pods[0])
    rig.world.add(replace(node(on), spec=NodeSpec(taints=(Taint("drain", effect),))))
    await scheduler.wait(1)
    assert (await scheduler.refusal(pods[0])).reason is Reason.GANG_STEPPED_BACK
    assert rig.stage(pods[0].uid) is None
    others = [name for name in ("n1", "n2", "n3", "n4") if name != on]
    for each in pods:
        assert await scheduler.try_(each, others) in others
    await scheduler.wait(1)
    assert scheduler.posted == 2


async def test_a_taint_counts_when_the_last_binding_is_asked_for() -> None:
    pods = gang("a", 2)
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    on = await scheduler.try_(pods[0])
    other = rig.world.engine.place(pods[1], ("n1", "n2", "n3", "n4")).node
    rig.world.add(replace(node(on), spec=NodeSpec(taints=(Taint("drain", "NoExecute"),))))
    last = asyncio.create_task(rig.binder.bind(PodRef.of(pods[1]), other))
    assert (await scheduler.refusal(pods[0])).reason is Reason.GANG_STEPPED_BACK
    assert scheduler.posted == 0
    last.cancel()


@pytest.mark.parametrize(("effect", "tolerations"), [("NoExecute", TOLERATIONS), ("PreferNoSchedule", "[]")])
async def test_a_taint_that_its_pods_tolerate_does_not_release_a_gang(effect: str, tolerations: str) -> None:
    pods = [replace(each, spec=replace(each.spec, tolerations=tolerations)) for each in gang("a", 2)]
    rig = rig_of(*pods)
    scheduler = Scheduler(rig)
    on = await scheduler.try_(pods[0])
    rig.world.add(replace(node(on), spec=NodeSpec(taints=(Taint("drain", effect),))))
    await scheduler.wait(1)
    assert rig.stage(pods[0].uid) is Stage.HELD
    await scheduler.try_(pods[1])
    await scheduler.wait(1)
    assert scheduler.posted == 2
