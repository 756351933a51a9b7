"""A recovered chip is kept from new pods until the Node shows it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ascend.chips import RESOURCE
from ascend.kube.objects import NODES, Node, Resource
from device_plugin.publish.order import PublishingOrder
from device_plugin.publish.shown_chips import ShownChips
from tests.device_plugin.api import NODE, RecordingClient, node_manifest, running, until


class Rig:
    def __init__(self, client: RecordingClient, *, limit_s: float = 1000.0) -> None:
        self.client = client
        self.order = PublishingOrder()
        self.shown = ShownChips(client, NODE, self.order, poll_s=0.001, limit_s=limit_s)

    async def allocatable(self, count: int) -> None:
        """Let the kubelet update its Node."""
        status = {"status": {"allocatable": {RESOURCE: str(count)}, "capacity": {RESOURCE: "8"}}}
        await self.client.patch(NODES, NODE, status, subresource="status")

    @property
    def looks(self) -> int:
        return len(self.client.to("/nodes/", "GET"))

    async def look(self) -> None:
        """Wait until it has looked at the Node as it is now."""
        before = self.looks
        await until(lambda: self.looks > before + 1)

    def recover(self) -> None:
        for healthy in (0xFF, 0xF7, 0xFF):
            self.order.sent(healthy)


@pytest.fixture
async def rig(client: RecordingClient) -> AsyncIterator[Rig]:
    await client.create(NODES, node_manifest())
    rig = Rig(client)
    await rig.allocatable(7)
    async with running(rig.shown.run()):
        yield rig


async def test_the_node_is_read_only_while_a_chip_is_waited_for(rig: Rig) -> None:
    rig.order.sent(0xFF)
    rig.order.sent(0xF7)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.looks == 0
    rig.order.sent(0xFF)
    await rig.look()
    await rig.allocatable(8)
    await until(lambda: rig.order.unshown.value == 0)
    done = rig.looks
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert rig.looks == done


async def test_a_chip_is_shown_once_the_node_has_as_many(rig: Rig) -> None:
    rig.recover()
    await rig.look()
    assert rig.order.unshown.value == 0b1000
    await rig.allocatable(8)
    await until(lambda: rig.order.unshown.value == 0)


async def test_a_chip_that_recovers_meanwhile_is_waited_for_by_itself(rig: Rig) -> None:
    rig.order.sent(0xFF)
    rig.order.sent(0xF3)
    rig.order.sent(0xF7)

    await until(lambda: rig.order.unshown.value == 0)
    rig.order.sent(0xFF)
    await rig.look()
    assert rig.order.unshown.value == 0b1000


async def test_an_api_server_that_fails_is_asked_again(rig: Rig) -> None:
    rig.recover()
    await rig.client.delete(NODES, NODE)
    await rig.look()
    assert rig.order.unshown.value == 0b1000
    await rig.client.create(NODES, node_manifest())
    await rig.allocatable(8)
    await until(lambda: rig.order.unshown.value == 0)


async def test_a_node_that_never_shows_them_is_waited_for_only_so_long(client: RecordingClient) -> None:
    await client.create(NODES, node_manifest())
    rig = Rig(client, limit_s=0.05)
    await rig.allocatable(7)
    async with running(rig.shown.run()):
        rig.recover()
        await rig.look()
        assert rig.order.unshown.value == 0b1000
        await until(lambda: rig.order.unshown.value == 0)


async def test_each_recovery_has_its_own_limit(client: RecordingClient) -> None:
    await client.create(NODES, node_manifest())
    rig = Rig(client, limit_s=0.3)
    await rig.allocatable(8)
    loop = asyncio.get_running_loop()
    async with running(rig.shown.run()):
        rig.recover()
        await until(lambda: rig.order.unshown.value == 0)
        await asyncio.sleep(0.3)
        await rig.allocatable(7)
        since_s = loop.time()
        rig.order.sent(0xF7)
        rig.order.sent(0xFF)
        await until(lambda: rig.order.unshown.value == 0)
        assert loop.time() - since_s >= 0.3


async def test_a_chip_that_recovers_while_the_node_is_read_is_not_shown_by_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.order.sent(0xFF)
    rig.order.sent(0xF3)
    get = rig.client.get

    async def recovering(resource: Resource[Node], name: str) -> Node:
        node = await get(resource, name)
        rig.order.sent(0xFF)
        return node

    monkeypatch.setattr(rig.client, "get", recovering)
    rig.order.sent(0xF7)
    await until(lambda: rig.order.unshown.value == 0b1000)
    await rig.look()
    assert rig.order.unshown.value == 0b1000
