"""How jobs use the leaf switches is published as MindCluster's scheduler does it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from allocator.observe.switch_publisher import SwitchPublisher
from allocator.switches.publication import KEY, NAME, NAMESPACE, publication
from allocator.switches.rooms import SwitchState, Use
from ascend.kube.client import KubeClient
from ascend.kube.config_maps import MOST_BYTES, REREAD_S
from ascend.kube.objects import CONFIG_MAPS
from ascend.leaf_switches import read_switches
from ascend.turn import at_once
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World
from tests.allocator.harness import running, write_kubeconfig
from tests.allocator.switches.world import address, bind, job, switches, table

ON: dict[str, Any] = {"publish_switches": True, "nslb_version": "2.0"}


class Publishing:
    """A publisher of a world, with a clock that the test sets.

    Attributes:
        leads: what it is told, call by call, of whether it leads; the last one stays.
    """

    def __init__(self, world: World, server: ApiServer, client: KubeClient) -> None:
        self.now_s = 0.0
        self.leads = [True]
        self.server = server
        self.client = client
        self._publisher = SwitchPublisher(client, world.cluster, world.ledger, self._leads, lambda: self.now_s)

    def _leads(self) -> bool:
        return self.leads.pop(0) if len(self.leads) > 1 else self.leads[0]

    async def publish(self) -> list[str]:
        """Publish once; return what is logged."""
        with capture_logs() as logs:
            await self._publisher.publish()
        return [each["event"] for each in logs]

    async def published(self) -> dict[str, Any]:
        """Publish once; return what is stored then, by the address of each switch."""
        assert await self.publish() == []
        return await stored(self.client)


async def stored(client: KubeClient) -> dict[str, Any]:
    found = await client.list_objects(CONFIG_MAPS, namespace=NAMESPACE)
    content: dict[str, Any] = json.loads(found[0].data[KEY]) if found else {}
    return content


@asynccontextmanager
async def publishing(folder: Path, world: World) -> AsyncIterator[Publishing]:
    async with ApiServer() as server:
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        async with await KubeClient.connect(str(write_kubeconfig(folder, server))) as client:
            yield Publishing(world, server, client)


def start(world: World, pods: int, name: str = "train") -> None:
    """Add a job, and bind its pods."""
    made = job(pods, name=name)
    world.add(*made)
    bind(world, made)


async def test_the_jobs_below_each_switch_and_its_state_are_published(tmp_path: Path) -> None:
    world = switches(range(4), range(2), version="2.0")
    async with publishing(tmp_path, world) as each:
        unused = await each.published()
        assert {(switch["IsSharedTor"], switch["IsHealthy"]) for switch in unused.values()} == {(0, 0)}
        start(world, 6)
        content = await each.published()
    assert set(content) == {"192.168.0.0", "192.168.0.1"}
    full, half = content["192.168.0.0"], content["192.168.0.1"]
    assert [server["NodeIp"] for server in full["nodes"]] == [address(0, slot) for slot in range(4)]
    assert {tuple(server["JobName"]) for server in full["nodes"]} == {("train",)}
    assert (full["IsSharedTor"], half["IsSharedTor"], half["IsHealthy"]) == (2, 2, 0)
    # Two servers of the table are no nodes.
    assert [(server["NodeName"], server["JobName"]) for server in half["nodes"]] == [
        ("t1-0", ["train"]),
        ("t1-1", ["train"]),
        ("", []),
        ("", []),
    ]


def test_numbers_are_those_of_the_annotations() -> None:
    known = read_switches(table([3, 4, 5], width=1))
    assert not isinstance(known, str)
    states = {3: SwitchState(Use.SHARED, is_healthy=False), 4: SwitchState(Use.EXCLUSIVE), 9: SwitchState(Use.SHARED)}
    found = json.loads(at_once(publication(known, states, {}, {}))[KEY])
    said = {address: (each["IsSharedTor"], each["IsHealthy"]) for address, each in found.items()}
    assert said == {"192.168.0.3": (1, 1), "192.168.0.4": (2, 0), "192.168.0.5": (0, 0)}


def test_switches_without_an_address_of_their_own_are_all_there() -> None:
    made = table(range(4), width=1)
    info = json.loads(made.data["tor_info"])
    for switch, written in zip(info["server_list"], ("same", "same", "", "other"), strict=True):
        switch["tor_ip"] = written
    made.data["tor_info"] = json.dumps(info)
    known = read_switches(made)
    assert not isinstance(known, str)
    found = json.loads(at_once(publication(known, {}, {}, {}))[KEY])
    assert [(name, each["nodes"][0]["NodeIp"]) for name, each in found.items()] == [
        ("tor_id 0", address(0, 0)),
        ("tor_id 1", address(1, 0)),
        ("tor_id 2", address(2, 0)),
        ("other", address(3, 0)),
    ]


async def test_nothing_is_requested_while_nothing_changes(tmp_path: Path) -> None:
    world = switches(range(4), version="2.0")
    async with publishing(tmp_path, world) as each:
        await each.publish()
        each.now_s = REREAD_S - 1
        each.server.fail_next("*", f"/{NAME}", 500)
        assert await each.publish() == []  # no request has failed
        start(world, 2)
        assert await each.publish() == ["can't publish how jobs use the leaf switches"]
        assert len((await each.published())["192.168.0.0"]["nodes"][0]["JobName"]) == 1


async def test_what_others_have_changed_is_written_again(tmp_path: Path) -> None:
    async with publishing(tmp_path, switches(range(4), version="2.0")) as each:
        right = await each.published()
        await each.client.patch(CONFIG_MAPS, NAME, {"data": {KEY: "{}", "theirs": "x"}}, namespace=NAMESPACE)
        each.now_s = REREAD_S
        assert await each.published() == right
        await each.client.delete(CONFIG_MAPS, NAME, NAMESPACE)
        each.now_s = 2 * REREAD_S
        assert await each.published() == right


@pytest.mark.parametrize("leads", [[False], [True, False]])
async def test_only_the_leader_publishes(leads: list[bool], tmp_path: Path) -> None:
    """Also one that loses the lease while it looks."""
    async with publishing(tmp_path, switches(range(4), version="2.0")) as each:
        each.leads = leads
        assert await each.published() == {}


async def test_what_no_config_map_can_hold_is_said_once_and_not_sent(tmp_path: Path) -> None:
    world = switches(range(4), version="2.0")
    known = table([0], width=1)
    many = [{"tor_id": 0, "tor_ip": "t", "server": [{"server_ip": str(n)} for n in range(MOST_BYTES // 40)]}]
    huge = {"tor_info": json.dumps({"tor_count": MOST_BYTES, "server_list": many})}
    async with publishing(tmp_path, world) as each:
        assert await each.published()
        world.cluster.switches.apply(type(known)(metadata=known.metadata, data=huge))
        sentence = "how jobs use the leaf switches is not published: a ConfigMap can't be that large"
        assert [await each.publish(), await each.publish()] == [[sentence], []]
        assert await stored(each.client) == {}


async def test_unknown_switches_are_not_published(tmp_path: Path) -> None:
    world = switches(range(4), version="2.0")
    world.cluster.switches.delete(table([0]))
    async with publishing(tmp_path, world) as each:
        assert await each.published() == {}
        assert not await each.client.list_objects(CONFIG_MAPS, namespace=NAMESPACE)
        world.cluster.switches.apply(table([0]))
        assert list(await each.published()) == ["192.168.0.0"]
        world.cluster.switches.delete(table([0]))
        assert await each.published() == {}
        assert await each.client.list_objects(CONFIG_MAPS, namespace=NAMESPACE)


async def test_reserved_servers_and_all_jobs_on_a_server_are_published(tmp_path: Path) -> None:
    world = switches(range(1), version="2.0")
    reserved, bound = job(1, None, name="b", chips=4), job(1, None, name="a", chips=4)
    world.add(*reserved, *bound)
    world.engine.place(reserved[0])
    bind(world, bound)
    async with publishing(tmp_path, world) as each:
        assert (await each.published())["192.168.0.0"]["nodes"][0]["JobName"] == ["a", "b"]


async def test_an_api_server_that_does_not_answer_ends_nothing(tmp_path: Path) -> None:
    async with publishing(tmp_path, switches(range(1), version="2.0")) as each:
        await each.server.__aexit__(None, None, None)
        assert await each.publish() == ["can't publish how jobs use the leaf switches"]
        assert await each.publish() == []  # said already


async def test_a_leader_that_comes_back_reads_what_another_has_written(tmp_path: Path) -> None:
    async with publishing(tmp_path, switches(range(4), version="2.0")) as each:
        right = await each.published()
        each.leads = [False]
        await each.publish()
        await each.client.patch(CONFIG_MAPS, NAME, {"data": {KEY: "{}"}}, namespace=NAMESPACE)
        each.leads = [True]
        assert await each.published() == right


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
        async with running(server, tmp_path, **ON), asyncio.timeout(10):
            while list(await stored(client)) != ["192.168.0.0"]:  # noqa: ASYNC110 - a request has no event
                await asyncio.sleep(0.01)


async def test_without_the_setting_nothing_is_published(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, nslb_version="2.0"):
        assert "publication of switches" not in {task.get_name() for task in asyncio.all_tasks()}
