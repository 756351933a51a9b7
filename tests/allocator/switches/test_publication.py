"""How jobs use the leaf switches is published as MindCluster's scheduler does it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from allocator.settings import Settings
from allocator.switches.publication import KEY, NAME, NAMESPACE, publication
from allocator.switches.rooms import SwitchState, Use
from allocator.switches.table import read_switches
from allocator.watch.switch_publisher import SwitchPublisher
from ascend.daemon.settings import fixed_settings
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World
from tests.allocator.harness import running, write_kubeconfig
from tests.allocator.switches.world import address, bind, job, switches, table

ON: Any = {"publish_switches": True, "nslb_version": "2.0"}


class Leader:
    def leads(self) -> bool:
        return True

    async def opened(self) -> None:
        return None


@asynccontextmanager
async def publishing(folder: Path, world: World, **settings: Any) -> AsyncIterator[tuple[ApiServer, KubeClient]]:
    async with ApiServer() as server:
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        async with await KubeClient.connect(str(write_kubeconfig(folder, server))) as client:
            chosen = fixed_settings(Settings, None, settings)
            publisher = SwitchPublisher(client, world.cluster, world.ledger, chosen, Leader(), period_s=0.01)
            task = asyncio.create_task(publisher.run())
            try:
                yield server, client
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def published(client: KubeClient) -> dict[str, Any] | None:
    try:
        found = await client.get(CONFIG_MAPS, NAME, NAMESPACE)
    except NotFound:
        return None
    content: dict[str, Any] = json.loads(found.data[KEY])
    return content


def start(world: World, pods: int, name: str = "train") -> None:
    """Add a job, and bind its pods."""
    made = job(pods, name=name)
    world.add(*made)
    bind(world, made)


async def changed(client: KubeClient, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until something else is published."""
    async with asyncio.timeout(10):
        while True:
            content = await published(client)
            if content is not None and content != before:
                return content
            await asyncio.sleep(0.01)


async def eventually(client: KubeClient, **expected: Any) -> dict[str, Any]:
    """Wait until the first switch is published like this."""
    async with asyncio.timeout(10):
        while True:
            content = await published(client)
            if content is not None and expected.items() <= content["192.168.0.0"].items():
                return content
            await asyncio.sleep(0.01)


async def test_the_jobs_below_each_switch_and_its_state_are_published(tmp_path: Path) -> None:
    world = switches(range(4), range(2), version="2.0")
    async with publishing(tmp_path, world, **ON) as (_, client):
        await eventually(client, IsSharedTor=0, IsHealthy=0)
        start(world, 6)
        content = await eventually(client, IsSharedTor=2)
        assert set(content) == {"192.168.0.0", "192.168.0.1"}
        full, half = content["192.168.0.0"], content["192.168.0.1"]
        assert [each["NodeIp"] for each in full["nodes"]] == [address(0, slot) for slot in range(4)]
        assert {tuple(each["JobName"]) for each in full["nodes"]} == {("default/train",)}
        assert (half["IsSharedTor"], half["IsHealthy"]) == (2, 0)
        # Two servers of the table are no nodes.
        assert [(bool(each["NodeName"]), len(each["JobName"])) for each in half["nodes"]] == [(True, 1)] * 2 + [
            (False, 0)
        ] * 2


def test_numbers_are_those_of_the_annotations() -> None:
    known = read_switches(table([3, 4, 5], width=1))
    assert not isinstance(known, str)
    states = {3: SwitchState(Use.SHARED, is_healthy=False), 4: SwitchState(Use.EXCLUSIVE), 9: SwitchState(Use.SHARED)}
    found = json.loads(publication(known, states, {}, {})[KEY])
    said = {address: (each["IsSharedTor"], each["IsHealthy"]) for address, each in found.items()}
    assert said == {"192.168.0.3": (1, 1), "192.168.0.4": (2, 0), "192.168.0.5": (0, 0)}


async def test_it_is_written_again_only_if_it_has_changed_or_a_write_has_failed(tmp_path: Path) -> None:
    world = switches(range(4), version="2.0")
    async with publishing(tmp_path, world, **ON) as (server, client):
        first = await eventually(client)
        start(world, 2)
        second = await changed(client, first)
        version = (await client.get(CONFIG_MAPS, NAME, NAMESPACE)).metadata.resource_version
        await asyncio.sleep(0.1)  # ten looks of the publisher
        assert (await client.get(CONFIG_MAPS, NAME, NAMESPACE)).metadata.resource_version == version
        server.fail_next("PATCH", f"/{NAME}", 500)
        start(world, 1, "other")
        await changed(client, second)


@pytest.mark.parametrize("settings", [{"nslb_version": "2.0"}, {"publish_switches": True}])
async def test_without_the_setting_or_version_2_nothing_is_published(settings: dict[str, Any], tmp_path: Path) -> None:
    async with publishing(tmp_path, switches(range(4)), **settings) as (_, client):
        await asyncio.sleep(0.1)
        assert await published(client) is None


async def test_a_running_allocator_publishes(tmp_path: Path) -> None:
    config = table([0])
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config.name, "namespace": config.metadata.namespace},
        "data": dict(config.data),
    }
    async with ApiServer() as server, await KubeClient.connect(str(write_kubeconfig(tmp_path, server))) as client:
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await server.create(manifest)
        async with running(server, tmp_path, **ON):
            await eventually(client, IsSharedTor=0)


async def test_unknown_switches_are_not_published(tmp_path: Path) -> None:
    world = switches(range(4), version="2.0")
    world.cluster.switches.deleted(table([0]))
    async with publishing(tmp_path, world, **ON) as (_, client):
        await asyncio.sleep(0.1)
        assert await published(client) is None
        world.cluster.switches.applied(table([0]))
        await eventually(client, IsSharedTor=0)
