"""Gangs of Kubernetes itself, whether kube-scheduler schedules their pods as a group or leaves them to the allocator.

Each starts whole or not at all, and one that can't start keeps no chips, however often its scheduler tries it.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from allocator.rules.scheduled import verdict_on
from ascend.kube.workloads import POD_GROUPS
from tests.cluster.binaries import KUBERNETES_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import require_cluster
from tests.e2e.real import real_world
from tests.e2e.test_gang_barrier import POOL, bound_gangs
from tests.e2e.world import Setup, World

log = logging.getLogger(__name__)

MINOR: Final = int(KUBERNETES_VERSION.split(".")[1])
GROUPS: Final = POD_GROUPS[0] if MINOR > 36 else POD_GROUPS[2]
GATES: Final = ("GenericWorkload",) if MINOR > 36 else ("GenericWorkload", "GangScheduling")

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(MINOR < 36, reason="pod groups of Kubernetes came with 1.36"),
]


class Way(NamedTuple):
    """Who makes a gang of the pods of a group, and whether the allocator nominates their nodes."""

    gates: tuple[str, ...]
    nominate: str


WAYS: Final = {
    "by the scheduler": Way(GATES, "off"),
    "by the scheduler, nominated": Way(GATES, "pending"),
    "by the allocator": Way((), "off"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS.values(), ids=WAYS)
async def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    require_cluster()
    way: Way = request.param
    made = Cluster(1, feature_gates=GATES, scheduler_gates=way.gates, apis=(GROUPS.api_version,))
    cluster = await asyncio.to_thread(made.__enter__)
    try:
        async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup(nominate=way.nominate)) as real:
            yield real
    finally:
        await asyncio.to_thread(cluster.stop)


async def create_gang(world: World, name: str, size: int, *, cpus: tuple[int, ...] = (), **spec: Any) -> None:
    """Create a group and its pods of eight chips; some of them ask for that much CPU."""
    group = {
        "apiVersion": GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }
    await world.client.create(GROUPS, group, "default")
    for rank in range(size):
        cpu = cpus[rank] if rank < len(cpus) else 0
        own = {"nodeSelector": POOL, "schedulingGroup": {"podGroupName": name}, **spec}
        await world.create(f"{name}-{rank}", 8, cpu=cpu, **own)


@pytest.fixture
def name() -> str:
    """The name of a group: no controller removes the finalizers of deleted ones."""
    return f"gang-{uuid4().hex[:8]}"


async def reservations(world: World) -> float:
    """The reservations of the allocator, in all states."""
    async with aiohttp.ClientSession() as http, http.get(f"{await world.service.leader()}/metrics") as response:
        page = await response.text()
    return sum(map(float, re.findall(r"^ascend_allocator_reservations\{.*\} (\S+)$", page, re.MULTILINE)))


async def starts(world: World, name: str, size: int) -> None:
    async def check() -> bool:
        return name in await bound_gangs(world, (name,), size)

    await world.eventually(check, f"gang {name} starts")


async def refused(world: World) -> None:
    """Wait until the scheduler has refused all pods."""

    async def check() -> bool:
        verdicts = [verdict_on(pod) for pod in await world.pods()]
        return all(verdict is not None and verdict.status == "False" for verdict in verdicts)

    await world.eventually(check, "all pods are refused")


async def test_a_gang_that_fits_starts_whole(world: World, name: str) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(4)), labels=POOL)
    await create_gang(world, name, 4)
    await starts(world, name, 4)
    assert len({pod.spec.node_name for pod in await world.pods()}) == 4


async def test_a_gang_without_room_for_its_last_pod_waits_whole_until_there_is(world: World, name: str) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(3)), labels=POOL)
    await create_gang(world, name, 4)
    await refused(world)
    assert not [pod.name for pod in await world.pods() if pod.spec.node_name]
    await world.add_fake_nodes("q-3", labels=POOL)
    await starts(world, name, 4)


@pytest.mark.parametrize("lacks", ["chips", "cpu"])
async def test_gangs_that_cannot_start_keep_no_chips_however_often_they_are_tried(
    world: World, name: str, lacks: str
) -> None:
    room, gangs = (3, 10) if lacks == "chips" else (4, 1)
    await world.add_fake_nodes(*(f"q-{number}" for number in range(room)), labels=POOL, cpu=8)
    for number in range(gangs):
        await create_gang(world, f"{name}{number}", 4, cpus=(0, 0, 0, 1000) if lacks == "cpu" else ())
    await refused(world)
    world.service.requests.clear()
    begin_s, ends = time.monotonic(), 10
    for number in range(ends):  # each end of a pod makes the scheduler try all gangs again
        await world.create(f"other-{number}", 1, nodeSelector={"kubernetes.io/hostname": world.nodes[0].name})
        await world.running(f"other-{number}")
        await world.delete(f"other-{number}")
    calls = sum(request.startswith(b"POST /scheduler/filter") for request in world.service.requests)
    log.info("%s: %d calls to filter for %d gangs in %.1f s", lacks, calls, gangs, time.monotonic() - begin_s)

    async def none_kept() -> bool:
        return not await reservations(world)

    await world.eventually(none_kept, "no chips are kept")
    assert not [pod.name for pod in await world.pods() if pod.spec.node_name]
