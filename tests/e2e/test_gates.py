"""New pods are gated until they have a place: waiting pods cost their scheduler nothing."""

import json

import pytest

from ascend.annotations import NOMINATED, PLACEMENT_GATE
from ascend.kube.objects import EVENTS, Pod
from tests.e2e.test_gang_barrier import (  # noqa: F401 - gangs start whole also if they are gated
    test_a_gang_whose_pods_share_no_node_by_cpu_is_spread,
    test_two_gangs_that_need_each_others_cpu_start_one_after_the_other,
)
from tests.e2e.test_gangs import GANG, check_together
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.test_nominations import bound, offered
from tests.e2e.world import Setup, World

SETUP = Setup(nominate="gated", allocators=2)


def is_gated(pod: Pod) -> bool:
    return [gate.name for gate in pod.spec.scheduling_gates] == [PLACEMENT_GATE]


async def gated_because(world: World, name: str) -> str:
    """Wait until an Event says why a pod is gated; return its note."""
    uid = (await world.pod(name)).uid

    async def check() -> str | None:
        events = json.loads(await world.client.request("GET", EVENTS.path(namespace="default")))["items"]
        notes = [
            str(event["note"]) for event in events if event["regarding"].get("uid") == uid and event["action"] == "Gate"
        ]
        return notes[-1] if notes else None

    return await world.eventually(check, f"an Event says why pod {name} is gated")


async def test_a_gated_gang_is_let_go_as_a_whole(world: World) -> None:
    world.service.requests.clear()
    assert is_gated(await world.create("train-0", 8, annotations=GANG))
    assert "2 pods must be placed together; 1 exists, 1 is missing" in await gated_because(world, "train-0")
    assert offered(world, "train-0") == []
    await world.create("train-1", 8, annotations=GANG)
    for pod in await check_together(world):
        assert pod.metadata.annotations[NOMINATED] == pod.spec.node_name
        assert offered(world, pod.name) == [{pod.spec.node_name}]


@pytest.mark.long  # tests/allocator/nomination/test_gated.py shows it
async def test_a_pod_that_does_not_fit_is_gated_until_it_does(world: World) -> None:
    world.service.requests.clear()
    for number in range(2):
        await world.create(f"full-{number}", 8)
        await world.running(f"full-{number}")
    assert is_gated(await world.create("waiting", 4))
    assert "chips fit on none of 2 nodes" in await gated_because(world, "waiting")
    assert offered(world, "waiting") == []
    await world.delete("full-1")
    pod = await check_hand_over(world, "waiting", 4)
    assert offered(world, "waiting") == [{pod.spec.node_name}]


@pytest.mark.long  # tests/allocator/nomination/test_gated.py shows it
async def test_pods_are_created_without_the_gate_while_no_allocator_answers(world: World) -> None:
    for allocator in world.allocators:
        await allocator.stop()
    assert not (await world.create("train", 8)).spec.scheduling_gates
    for allocator in world.allocators:
        await allocator.start()
    await bound(world, "train")
    await check_hand_over(world, "train", 8)


async def test_the_next_leader_lets_gated_pods_go(world: World) -> None:
    assert is_gated(await world.create("train-0", 8, annotations=GANG))
    await world.stop_leader()
    await world.create("train-1", 8, annotations=GANG)
    await check_together(world)
