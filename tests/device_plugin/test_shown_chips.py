"""A recovered chip is kept from new pods until the Node shows it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ascend.chips import RESOURCE
from ascend.daemon.observable import Observable
from device_plugin.publish.node_object import OwnNode, OwnNodeStatus, ShownChips
from device_plugin.publish.order import PublishingOrder
from tests.device_plugin.api import running, until


class Rig:
    def __init__(self, *, limit_s: float = 1000.0) -> None:
        self.order = PublishingOrder()
        self.node = Observable(OwnNode())
        self.shown = ShownChips(self.node, self.order, limit_s=limit_s)

    def allocatable(self, count: int) -> None:
        """Let the kubelet update its Node."""
        self.node.set(OwnNode(status=OwnNodeStatus(allocatable={RESOURCE: str(count)}, capacity={RESOURCE: "8"})))

    async def is_waiting(self) -> bool:
        """Whether chips are waited for once all that has happened was looked at."""
        for _ in range(20):
            await asyncio.sleep(0)
        return self.order.unshown.value == 0b1000

    def recover(self) -> None:
        for healthy in (0xFF, 0xF7, 0xFF):
            self.order.sent(healthy)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    rig.allocatable(7)
    async with running(rig.shown.run()):
        yield rig


async def test_a_chip_is_shown_once_the_node_has_as_many(rig: Rig) -> None:
    rig.recover()
    assert await rig.is_waiting()
    rig.allocatable(8)
    await until(lambda: rig.order.unshown.value == 0)


async def test_a_chip_that_recovers_meanwhile_is_waited_for_by_itself(rig: Rig) -> None:
    rig.order.sent(0xFF)
    rig.order.sent(0xF3)
    rig.order.sent(0xF7)

    await until(lambda: rig.order.unshown.value == 0)
    rig.order.sent(0xFF)
    assert await rig.is_waiting()


async def test_a_node_that_is_gone_shows_no_chip(rig: Rig) -> None:
    rig.recover()
    rig.node.set(OwnNode())
    assert await rig.is_waiting()
    rig.allocatable(8)
    await until(lambda: rig.order.unshown.value == 0)


async def test_a_chip_that_fails_again_is_not_waited_for(rig: Rig) -> None:
    rig.recover()
    assert await rig.is_waiting()
    rig.order.sent(0xF7)
    await until(lambda: rig.order.unshown.value == 0)
    rig.order.sent(0xFF)
    assert await rig.is_waiting()


async def test_a_node_that_never_shows_them_is_waited_for_only_so_long() -> None:
    rig = Rig(limit_s=0.05)
    rig.allocatable(7)
    async with running(rig.shown.run()):
        rig.recover()
        assert await rig.is_waiting()
        await until(lambda: rig.order.unshown.value == 0)


async def test_each_recovery_has_its_own_limit() -> None:
    rig = Rig(limit_s=0.3)
    rig.allocatable(8)
    loop = asyncio.get_running_loop()
    async with running(rig.shown.run()):
        rig.recover()
        await until(lambda: rig.order.unshown.value == 0)
        await asyncio.sleep(0.3)
        rig.allocatable(7)
        since_s = loop.time()
        rig.order.sent(0xF7)
        rig.order.sent(0xFF)
        await until(lambda: rig.order.unshown.value == 0)
        assert loop.time() - since_s >= 0.3
