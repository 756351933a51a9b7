"""Jobs with switch affinity preempt jobs that span the switches they need."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from allocator.decision.preemption import Preemption
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import pod
from tests.allocator.decision.test_gang_preemption import answers, everywhere
from tests.allocator.switches.world import bind, job, server, switches

ALL = range(4)
LARGE = "large-model-schema"


def with_priority(pods: Iterable[Pod], priority: int) -> list[Pod]:
    """The pods with a priority."""
    return [replace(each, spec=replace(each.spec, priority=priority)) for each in pods]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
async def test_a_job_that_spans_the_switches_gives_way_to_one_of_higher_priority(version: str) -> None:
    world = switches(ALL, ALL, version=version)
    world.add(*(low := with_priority(job(8, LARGE, name="low"), 0)))
    bind(world, low)
    world.add(*(high := with_priority(job(8, LARGE, name="high"), 100)))
    victims = await answers(world, Preemption(world.cluster, world.ledger, world.engine), high)
    assert sorted(victims) == sorted(world.cluster.nodes)
    assert sorted(name for each in victims.values() for name in each) == [f"low-{number}" for number in range(8)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
async def test_a_job_of_which_only_the_switches_are_needed_and_no_server_is_not_preempted(version: str) -> None:
    world = switches((0, 1), (2, 3), version=version)
    world.add(*(low := with_priority(job(4, LARGE, chips=4, name="low"), 0)))
    others = [
        f"t{switch}-{slot}" for switch in (0, 1) for slot in ALL if f"t{switch}-{slot}" not in world.cluster.nodes
    ]
    for each in bind(world, low):
        (held,) = [world.cluster.nodes[each.spec.node_name].holdings[each.uid]]
        left = [chip for chip in range(8) if not held.chips >> chip & 1]
        name = f"important-{each.spec.node_name}"
        world.add(pod(name, 4, node=each.spec.node_name, chips=left, phase="Running", priority=100))
    world.add(*(server(int(name[1]), int(name[3])) for name in others))
    world.add(*(high := with_priority(job(4, LARGE, name="high"), 100)))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    with pytest.raises(Refusal, match="only without jobs of lower priority that hold no server that it would get"):
        await preemption.improve(high[0], everywhere(world))
    assert not world.ledger.promises
