"""Gangs that the scheduler refuses for reasons the allocator does not know: each starts whole, or not at all."""

from collections.abc import Collection
from typing import Any

import pytest

from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from tests.e2e.world import World

POOL = {"accelerator-type": "module-910b-8"}
"""Servers on which four chips are enough for a pod of a gang."""


def of_gang(name: str, size: int) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": name, MIN_AVAILABLE: str(size)}


async def create_gang(world: World, name: str, size: int, *, cpu: int = 4) -> None:
    for rank in range(size):
        await world.create(f"{name}-{rank}", 4, annotations=of_gang(name, size), cpu=cpu, nodeSelector=POOL)


async def bound_gangs(world: World, names: Collection[str], size: int) -> set[str]:
    """The gangs whose pods are all bound; no gang may be bound in part, but for those whose Bindings are in flight."""
    nodes: dict[str, list[str]] = {name: [] for name in names}
    for pod in await world.pods():
        if pod.spec.node_name:
            nodes[pod.name.rpartition("-")[0]].append(pod.spec.node_name)
    return {name for name, bound in nodes.items() if len(bound) == size}


async def delete_gang(world: World, name: str, size: int) -> None:
    for rank in range(size):
        path = f"/api/v1/namespaces/default/pods/{name}-{rank}"
        await world.client.request("DELETE", path, query={"gracePeriodSeconds": "0"})


@pytest.mark.long
async def test_two_gangs_that_need_each_others_cpu_start_one_after_the_other(world: World) -> None:
    await world.add_fake_nodes("q-0", "q-1", labels=POOL, cpu=6)
    for rank in range(2):
        for name in ("a", "b"):
            await world.create(f"{name}-{rank}", 4, annotations=of_gang(name, 2), cpu=4, nodeSelector=POOL)

    async def one_starts() -> str | None:
        started = await bound_gangs(world, ("a", "b"), 2)
        return next(iter(started), None)

    first = await world.eventually(one_starts, "one gang starts")
    (second,) = {"a", "b"} - {first}
    assert not [pod.name for pod in await world.pods() if pod.name.startswith(second) and pod.spec.node_name]
    await delete_gang(world, first, 2)

    async def other_starts() -> bool:
        return second in await bound_gangs(world, (first, second), 2)

    await world.eventually(other_starts, "the other gang starts")


async def test_of_three_gangs_on_the_room_of_two_two_start_whole(world: World) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(4)), labels=POOL, cpu=6)
    names = ("a", "b", "c")
    for rank in range(2):
        for name in names:
            await world.create(f"{name}-{rank}", 4, annotations=of_gang(name, 2), cpu=4, nodeSelector=POOL)

    async def two_start() -> set[str] | None:
        started = await bound_gangs(world, names, 2)
        return started if len(started) == 2 else None

    started = await world.eventually(two_start, "two gangs start")
    (last,) = set(names) - started
    assert not [pod.name for pod in await world.pods() if pod.name.startswith(last) and pod.spec.node_name]
    await delete_gang(world, min(started), 2)

    async def last_starts() -> bool:
        return last in await bound_gangs(world, names, 2)

    await world.eventually(last_starts, "the last gang starts")


async def nodes_of(world: World, names: Collection[str]) -> list[str]:
    async def bound() -> list[Pod] | None:
        pods = [pod for pod in await world.pods() if pod.name in names]
        return pods if all(pod.spec.node_name for pod in pods) else None

    return [pod.spec.node_name for pod in await world.eventually(bound, "all pods are bound")]


async def test_a_gang_whose_pods_share_no_node_by_cpu_is_spread(world: World) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(4)), labels=POOL, cpu=6)
    await create_gang(world, "a", 4)
    nodes = await nodes_of(world, [f"a-{rank}" for rank in range(4)])
    assert len(set(nodes)) == 4


async def test_a_gang_that_fits_starts_at_once_beside_gangs_that_cannot_start(world: World) -> None:
    await world.add_fake_nodes("q-0", "q-1", labels=POOL, cpu=6)
    impossible: list[dict[str, Any]] = [
        {"cpu": 1000},
        {"nodeSelector": {**POOL, "pool": "none"}},
        {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        {"schedulerName": "nobody"},
    ]
    for number, spec in enumerate(impossible * 3):
        name = f"never-{number}"
        await world.create(f"{name}-0", 4, annotations=of_gang(name, 2), cpu=1, nodeSelector=POOL)
        await world.create(f"{name}-1", 4, annotations=of_gang(name, 2), **{"nodeSelector": POOL, **spec})

    async def all_tried() -> bool:
        waiting = [pod for pod in await world.pods() if pod.spec.scheduler_name != "nobody"]
        return all(any(each.status == "False" for each in pod.status.conditions) for pod in waiting)

    await world.eventually(all_tried, "all gangs that can't start have been tried")
    for rank in range(2):
        await world.create(f"good-{rank}", 8, annotations=of_gang("good", 2), cpu=1, nodeSelector=POOL)

    async def starts() -> bool:
        return "good" in await bound_gangs(world, ("good", *(f"never-{number}" for number in range(12))), 2)

    await world.eventually(starts, "the gang that fits starts")
    assert not [pod.name for pod in await world.pods() if pod.name.startswith("never") and pod.spec.node_name]
