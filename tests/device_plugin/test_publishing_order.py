"""The order in which the kubelet and the readers of the report learn of a change."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from ascend.daemon.observable import Observable
from device_plugin.health.snapshot import Snapshot
from device_plugin.publish import order as order_module
from device_plugin.publish.order import PublishingOrder
from tests.device_plugin.builders import snapshot


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 1000.0)
    monkeypatch.setattr(order_module, "KUBELET_WAIT_S", 1000.0)


async def waits(waiting: Awaitable[None]) -> bool:
    """Whether it still waits after the event loop has run for a while."""
    task = asyncio.ensure_future(waiting)
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done() and task.cancel()


def ending(value: bool = False) -> Observable[bool]:  # noqa: FBT001, FBT002 - a value
    return Observable(value)


async def test_the_first_report_waits_for_the_first_list() -> None:
    order, snapshots = PublishingOrder(), Observable[Snapshot | None](snapshot())
    assert not await waits(order.wait_before_list(snapshot(), ending()))
    assert await waits(order.wait_before_first_report(snapshots))
    order.sent(0xFF)
    assert not await waits(order.wait_before_first_report(snapshots))


async def test_with_an_unhealthy_chip_the_first_list_waits_for_the_first_report() -> None:
    order, snapshots = PublishingOrder(), Observable[Snapshot | None](snapshot(3))
    assert await waits(order.wait_before_list(snapshot(3), ending()))
    assert not await waits(order.wait_before_first_report(snapshots))
    order.reported_unhealthy.set(0b1000)
    assert not await waits(order.wait_before_list(snapshot(3), ending()))


async def test_a_fault_ends_the_first_reports_wait_for_the_kubelet() -> None:
    order, snapshots = PublishingOrder(), Observable[Snapshot | None](snapshot())
    report = asyncio.ensure_future(order.wait_before_first_report(snapshots))
    await asyncio.sleep(0)
    snapshots.set(snapshot(3))
    assert await waits(order.wait_before_list(snapshot(3), ending()))
    assert report.done()


async def test_later_faults_are_reported_before_they_are_listed_and_recoveries_are_not() -> None:
    order = PublishingOrder()
    order.reported_unhealthy.set(0b1000)
    assert await waits(order.wait_before_list(snapshot(2, 3), ending()))
    assert not await waits(order.wait_before_list(snapshot(3), ending()))
    assert not await waits(order.wait_before_list(snapshot(), ending()))


async def test_a_stream_that_is_to_end_does_not_wait() -> None:
    order, end = PublishingOrder(), ending()
    listed = asyncio.ensure_future(order.wait_before_list(snapshot(3), end))
    await asyncio.sleep(0)
    end.set(True)
    await asyncio.wait_for(listed, 5.0)


async def test_both_waits_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 0.01)
    monkeypatch.setattr(order_module, "KUBELET_WAIT_S", 0.01)
    order = PublishingOrder()
    async with asyncio.timeout(5.0):
        await order.wait_before_list(snapshot(3), ending())
        await order.wait_before_first_report(Observable(snapshot()))


def test_the_first_chips_count_as_shown() -> None:
    order = PublishingOrder()
    order.sent(0)
    order.sent(0xFF)
    assert order.unshown.value == 0


def test_a_recovered_chip_is_unshown_until_the_node_shows_it() -> None:
    order = PublishingOrder()
    order.sent(0b11)
    order.sent(0b01)
    assert order.unshown.value == 0
    order.sent(0b11)
    assert order.unshown.value == 0b10
    order.sent(0b11)  # the kubelet restarted
    assert order.unshown.value == 0b10
    order.shown(0b01)
    assert order.unshown.value == 0b10
    order.shown(0b11)
    assert order.unshown.value == 0


def test_a_chip_that_relapses_is_unshown_again_after_its_next_recovery() -> None:
    order = PublishingOrder()
    for healthy in (0b11, 0b01, 0b11, 0b01):
        order.sent(healthy)
    assert order.unshown.value == 0
    order.sent(0b11)
    assert order.unshown.value == 0b10


def test_a_node_that_lost_all_its_chips_does_not_start_over() -> None:
    order = PublishingOrder()
    for healthy in (0b11, 0, 0b11):
        order.sent(healthy)
    assert order.unshown.value == 0b11


async def test_a_faulty_chip_in_use_delays_the_list_only_if_the_kubelet_is_told() -> None:
    order = PublishingOrder()
    hidden = replace(snapshot(3, running=0b1000), tells_faults_in_use=False)
    assert not await waits(order.wait_before_list(hidden, ending()))
    assert await waits(order.wait_before_list(snapshot(3), ending()))
    assert await waits(order.wait_before_list(snapshot(3, running=0b1000), ending()))
