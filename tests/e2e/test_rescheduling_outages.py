"""Rescheduling while the real control plane is frozen, cut off, half-open or slow: pods of a Ready node stay."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from ascend.annotations import MIN_AVAILABLE, RANK, Grant
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, PODS, JsonObject, Pod
from tests.bench.fake_cluster import fake_node
from tests.cluster.api import free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import require_cluster
from tests.cluster.manifests import pod as pod_manifest
from tests.cluster.processes import Process
from tests.e2e.programs import BIN, allocator_command, is_ready, write_kubeconfig
from tests.e2e.proxy import ApiProxy

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

NOT_READY_S: Final = 8.0
OUTAGE_S: Final = 14.0
"""Longer than a node may be not Ready, and than a gap that is noticed."""
PATIENCE_S: Final = 60.0
READY: Final = {True: "True", False: "Unknown"}


@dataclass
class Stage:
    """A control plane, its API server behind a proxy, and an allocator that reschedules."""

    cluster: Cluster
    client: KubeClient
    api: ApiProxy
    allocator: Process

    async def job(self, name: str) -> list[str]:
        """Run a gang of two pods, each on a server of its own; return the servers."""
        servers = [f"{name}-on-{rank}" for rank in range(2)]
        for rank, server in enumerate(servers):
            await self.client.create(NODES, fake_node(server))
            await self.client.create(PODS, _member(name, rank, server), "default")
            path = PODS.path(namespace="default", name=f"{name}-{rank}", subresource="status")
            body: JsonObject = {"status": {"phase": "Running"}}
            await self.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        return servers

    async def set_ready(self, server: str, *, ready: bool) -> None:
        status = {"conditions": [{"type": "Ready", "status": READY[ready]}]}
        await self.client.patch(NODES, server, {"status": status}, subresource="status")

    async def is_read(self, server: str) -> None:
        """Wait until the allocator reads a server anew, because it is not Ready."""
        async with self.api.gate("GET", f"fieldSelector=metadata.name%3D{server}$") as gate:
            await asyncio.wait_for(gate.reached.wait(), PATIENCE_S)

    async def going(self, name: str) -> list[Pod]:
        """Return those of the pods of a job that stay, or are terminating."""
        listed = await self.client.list_objects(PODS, "default")
        return [each for each in listed if each.name.startswith(f"{name}-") and not each.is_terminating]

    async def stays(self, name: str, for_s: float) -> None:
        """Check for a while that no pod of a job goes."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        while loop.time() < until_s:
            assert len(await self.going(name)) == 2
            await asyncio.sleep(0.25)

    async def goes(self, name: str) -> None:
        """Wait until all pods of a job have gone."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.going(name):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.25)


def _member(job: str, rank: int, server: str) -> JsonObject:
    manifest = pod_manifest(f"{job}-{rank}", 8, nodeName=server)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": job, "uid": job, "controller": True}
    manifest["metadata"] |= {
        "labels": {"fault-scheduling": "force"},
        "ownerReferences": [owner],
        "annotations": {
            **Grant(tuple(range(8)), 1).annotations(),
            RANK: str(rank),
            MIN_AVAILABLE: "2",
        },
    }
    return manifest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    require_cluster()
    folder: Path = tmp_path_factory.mktemp("outages")
    async with AsyncExitStack() as stack:
        cluster = Cluster(0)
        stack.push_async_callback(asyncio.to_thread, cluster.stop)
        await asyncio.to_thread(cluster.start)
        client = await stack.enter_async_context(await KubeClient.connect(str(cluster.kubeconfig_path)))
        api = await stack.enter_async_context(ApiProxy(cluster.url, cluster.ca))
        kubeconfig = write_kubeconfig(folder / "kubeconfig.json", api.url, cluster.admin_token)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        settings = {"reschedule": "on", "reschedule_not_ready_s": str(NOT_READY_S), "reschedule_faulty_share": "1.0"}
        command = allocator_command(BIN / "ascend-allocator", kubeconfig=kubeconfig, address=address, **settings)
        allocator = cluster.process("ascend-allocator", command)
        await asyncio.to_thread(allocator.start)
        stack.push_async_callback(asyncio.to_thread, allocator.stop)
        for number in range(8):  # so that two servers are not most of them
            await client.create(NODES, fake_node(f"other-{number}"))
        async with asyncio.timeout(PATIENCE_S):
            while not await is_ready(f"http://{address}"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        yield Stage(cluster, client, api, allocator)


@asynccontextmanager
async def _paused(process: Process) -> AsyncIterator[None]:
    await asyncio.to_thread(process.pause)
    try:
        yield
    finally:
        process.resume()


OUTAGES: Final[dict[str, Callable[[Stage], AbstractAsyncContextManager[None]]]] = {
    "etcd frozen": lambda stage: _paused(stage.cluster.control_plane.etcd),
    "API server frozen": lambda stage: _paused(stage.cluster.control_plane.apiserver),
    "allocator suspended": lambda stage: _paused(stage.allocator),
    "cut off": lambda stage: stage.api.silence("."),
}
_numbers = itertools.count()


@pytest.mark.long
@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_node_that_returns_with_the_control_plane_keeps_its_pods(stage: Stage, outage: str) -> None:
    name = f"job{next(_numbers)}"
    server, _ = await stage.job(name)
    await stage.set_ready(server, ready=False)
    await stage.is_read(server)
    async with OUTAGES[outage](stage):
        await asyncio.sleep(OUTAGE_S)
    async with stage.api.silence(r"/nodes\?.*watch=true"):  # requests are answered before the watch is
        await stage.is_read(server)
        await stage.set_ready(server, ready=True)
        await stage.stays(name, NOT_READY_S + 3.0)
    await stage.stays(name, 2.0)
    await stage.set_ready(server, ready=False)
    await stage.goes(name)
    await _forget(stage, server)


@pytest.mark.long
async def test_pods_of_a_ready_node_stay_while_the_watch_of_nodes_is_half_open(stage: Stage) -> None:
    name = f"job{next(_numbers)}"
    server, _ = await stage.job(name)
    await stage.set_ready(server, ready=False)
    await stage.is_read(server)
    async with stage.api.silence(r"/nodes\?.*watch=true"):
        await stage.set_ready(server, ready=True)
        await stage.stays(name, 2 * NOT_READY_S)
    await stage.set_ready(server, ready=False)
    await stage.goes(name)
    await _forget(stage, server)


@pytest.mark.long
async def test_an_api_server_that_is_slow_for_a_while_does_not_let_pods_of_a_ready_node_go(stage: Stage) -> None:
    name = f"job{next(_numbers)}"
    server, _ = await stage.job(name)
    await stage.set_ready(server, ready=False)
    await stage.is_read(server)
    stage.api.answer_delay_s = 2.5
    try:
        await stage.stays(name, OUTAGE_S)
        await stage.set_ready(server, ready=True)
    finally:
        stage.api.answer_delay_s = 0.0
    await stage.stays(name, NOT_READY_S)
    await stage.set_ready(server, ready=False)
    await stage.goes(name)
    await _forget(stage, server)


@pytest.mark.long  # test_pods_stay_while_more_than_half_of_the_nodes_look_faulty shows it
async def test_nothing_goes_while_no_node_is_ready(stage: Stage) -> None:
    name = f"job{next(_numbers)}"
    server, _ = await stage.job(name)
    nodes = [each.name for each in await stage.client.list_objects(NODES)]
    await asyncio.gather(*(stage.set_ready(each, ready=False) for each in nodes))
    await stage.stays(name, NOT_READY_S + 4.0)
    await asyncio.gather(*(stage.set_ready(each, ready=True) for each in nodes if each != server))
    await stage.goes(name)
    await _forget(stage, server)


async def _forget(stage: Stage, server: str) -> None:
    """Let a server be Ready again, so that it is no fault of the next test."""
    await stage.set_ready(server, ready=True)
    for pod in await stage.client.list_objects(PODS, "default"):
        try:
            await stage.client.delete(PODS, pod.name, "default", grace_s=0)
        except NotFound:
            continue
