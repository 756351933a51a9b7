"""What an earlier plugin has left on the Node is withdrawn once another one offers the chips in another way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ascend.chips import RESOURCE
from ascend.daemon.observable import Observable
from ascend.kube.objects import NODES
from ascend.products import ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
from device_plugin.app import Plugin
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from device_plugin.publish.node_object import OwnNode, OwnNodeStatus
from device_plugin.serving import withdrawal
from device_plugin.serving.servicer import NoDevicesServicer
from device_plugin.serving.withdrawal import Withdrawal, leftovers
from sandbox.cluster import SandboxCluster
from tests.device_plugin.api import NODE, running, until
from tests.device_plugin.test_probes import answers
from tests.device_plugin.whole import Whole

SMALL = f"{RESOURCE}-5c.1cpu.16g"


@asynccontextmanager
async def divisible_node(folder: Path, *, race: bool = True) -> AsyncIterator[Whole]:
    """A cluster of one node with 910B3 chips, without a plugin."""
    async with SandboxCluster(folder, (NODE,), product=ASCEND_910B_8, reregistration_race=race) as cluster:
        yield Whole(cluster)


def has(whole: Whole, **allocatable: int) -> bool:
    """Whether the Node has so many whole chips, AI cores and small vNPUs."""
    kubelet, names = whole.node.kubelet, {"chips": RESOURCE, "cores": RESOURCE_CORES, "small": SMALL}
    return all(kubelet.allocatable(names[what]) == number for what, number in allocatable.items())


@pytest.mark.parametrize("race", [True, False], ids=["kubelet before 1.37", "kubelet from 1.37"])
@pytest.mark.parametrize("to_cores", [True, False], ids=["to AI cores", "to whole chips"])
async def test_a_successor_with_another_setting_leaves_nothing_of_the_one_before(
    folder: Path, *, race: bool, to_cores: bool
) -> None:
    before: dict[str, int] = {"chips": 8} if to_cores else {"cores": 160}
    after = {"chips": 0, "cores": 160} if to_cores else {"chips": 8, "cores": 0}
    async with divisible_node(folder, race=race) as whole:
        new = Plugin(whole.settings(dynamic_vnpus=to_cores))
        async with running(Plugin(whole.settings(dynamic_vnpus=not to_cores)).run()) as old:
            await until(lambda: has(whole, **before))
            async with running(new.run()):
                await until(lambda: new.http_address)
                await answers(new, "/standbyz", 200, "")
                old.cancel()
                await until(lambda: has(whole, **after), timeout_s=30.0)
                await answers(new, "/readyz", 200, "")


async def test_vnpus_of_a_chip_that_is_whole_again_are_withdrawn(folder: Path) -> None:
    async with divisible_node(folder) as whole:
        whole.node.edit_chip(0, vnpus=[SimulatedVirtualNpu(100, "vir05_1c_16g")])
        async with running(Plugin(whole.settings()).run()):
            await until(lambda: has(whole, chips=7, small=1), timeout_s=30.0)
        whole.node.edit_chip(0, vnpus=[])
        async with running(Plugin(whole.settings()).run()):
            await until(lambda: has(whole, chips=8, small=0), timeout_s=30.0)
            await until(lambda: whole.node.kubelet.devices(SMALL) == {})


async def test_a_cancellation_while_the_server_of_a_withdrawal_stops_is_not_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC's server swallows a cancellation that arrives when it has just stopped.
    stopping = asyncio.Event()

    @asynccontextmanager
    async def swallowing(servicer: NoDevicesServicer, _path: Path) -> AsyncIterator[None]:
        servicer.listed.set()
        yield
        stopping.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def nothing(*_: object) -> None:
        """The kubelet registers it."""

    monkeypatch.setattr(withdrawal, "served", swallowing)
    monkeypatch.setattr(withdrawal, "register", nothing)
    node = Observable(OwnNode(status=OwnNodeStatus(capacity={RESOURCE_CORES: "160"})))
    task = asyncio.create_task(Withdrawal(folder, "x", node).run(lambda: [WHOLE_CHIPS], lambda: None))
    await stopping.wait()
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=5.0)
    task.cancel()
    assert ended


async def leave_cores(whole: Whole) -> None:
    """Leave AI cores on the Node, of which its kubelet does not know."""
    left = {RESOURCE_CORES: "160"}
    status = {"status": {"capacity": left, "allocatable": left}}
    await whole.client.patch(NODES, NODE, status, subresource="status")


async def test_what_only_the_node_has_is_withdrawn(folder: Path) -> None:
    async with divisible_node(folder) as whole:
        async with running(Plugin(whole.settings()).run()):
            await until(lambda: has(whole, chips=8), timeout_s=30.0)
        await leave_cores(whole)
        await whole.node.kubelet.restart()
        await until(lambda: has(whole, cores=160))
        async with running(Plugin(whole.settings()).run()):
            await until(lambda: has(whole, chips=8, cores=0), timeout_s=30.0)


async def test_it_is_withdrawn_later_if_the_kubelet_does_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "NOTICE_S", 0.05)
    monkeypatch.setattr(withdrawal, "AGAIN_S", 0.05)
    async with divisible_node(folder) as whole, running(Plugin(whole.settings()).run()):
        await until(lambda: has(whole, chips=8), timeout_s=30.0)
        await whole.node.kubelet.stop()
        with capture_logs() as logs:
            await leave_cores(whole)
            await until(lambda: any(each["event"] == "can't withdraw a resource" for each in logs))
        await whole.node.kubelet.start()
        await until(lambda: has(whole, chips=8, cores=0), timeout_s=30.0)


def test_only_what_this_plugin_would_offer_counts_as_left() -> None:
    capacity = {
        "cpu": "64",
        "example.com/gpu": "8",
        "huawei.com/Ascend310": "8",
        RESOURCE: "8",
        RESOURCE_CORES: "160",
        SMALL: "2",
        f"{RESOURCE}-2c": "0",
    }
    small = DeviceType("5c.1cpu.16g")
    assert set(leftovers(capacity, {WHOLE_CHIPS})) == {CORES, small}
    assert set(leftovers(capacity, {WHOLE_CHIPS, small})) == {CORES}
    assert set(leftovers(capacity, {CORES})) == {WHOLE_CHIPS, small}
