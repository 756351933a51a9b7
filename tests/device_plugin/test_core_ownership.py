"""No vNPU of a live pod is given back or given again, whatever the plugin and the kubelet know of the pod."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import PREDICATE_TIME, REAL
from ascend.errors import DriverError
from ascend.kube.objects import PODS
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import resource_of
from device_plugin.app import Plugin
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import VirtualNpu
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from device_plugin.kubelet.pod_resources import PodResources, read_ledger
from device_plugin.pods import core_keeper, cut_vnpus
from device_plugin.pods import reconciler as reconcile_module
from device_plugin.pods.cutter import Cutter, Outcome
from device_plugin.pods.reconciler import Reconciler
from sandbox.cluster import pod_manifest
from sandbox.kubelet.pod_status import PodStatusWriter
from tests.device_plugin.api import NODE, running, seen, until
from tests.device_plugin.test_dynamic_vnpus import (
    CORES,
    SMALL,
    bind,
    cores_node,
    end,
    healthy_cores,
    plugin_on,
    vnpus,
)
from tests.device_plugin.test_probes import answers
from tests.device_plugin.test_succession import is_registered
from tests.device_plugin.whole import Whole

LARGER = "vir10_3c_32g"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody has is given back soon, so that a test can wait for that."""
    monkeypatch.setattr(cut_vnpus, "HANDING_OVER_S", 0.2)
    monkeypatch.setattr(core_keeper, "LOOK_S", 1.0)


async def swept(whole: Whole, chip: int = 7) -> None:
    """Cut a vNPU that nobody has out of a chip, and wait until the plugin has given back all such vNPUs."""
    driver = SimulatedDriver(whole.node.state_file)
    facts = next(each for each in driver.discover().chips if each.phy_id == chip)
    leftover = driver.create_vnpu(facts, SMALL)
    await until(lambda: leftover not in vnpus(whole), timeout_s=30.0)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30.0):
        while not await check():  # noqa: ASYNC110 - a request to the API server, not a state of this process
            await asyncio.sleep(0.1)


def has(whole: Whole, name: str, container: str = "main") -> str:
    """The device that a container has."""
    return whole.node.kubelet.container(f"default/{name}", container).env["ASCEND_VISIBLE_DEVICES"]


def claim(whole: Whole, name: str) -> str:
    pod = whole.find(name)
    assert pod is not None
    return pod.metadata.annotations.get(REAL, "")


async def test_the_vnpu_of_an_init_container_stays_after_a_restart(folder: Path) -> None:
    init = {"name": "prepare", "image": "i", "resources": {"limits": {RESOURCE_CORES: "5"}}}
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(
                whole, "first", 5, f"1-{SMALL}", initContainers=[init], containers=[{"name": "main", "image": "i"}]
            )
            await whole.claimed("first")
            made = vnpus(whole)
        assert len(made) == 1
        async with plugin_on(whole):
            await swept(whole)
            assert vnpus(whole) == made
            assert await whole.notes("NPURunsWithoutChips") == []
            await bind(whole, "next", 5, f"1-{SMALL}")
            await whole.claimed("next")
            assert has(whole, "next") != str(made[0].vdev_id)
            await end(whole, "first")
            await until(lambda: made[0] not in vnpus(whole))


async def test_a_pod_whose_annotation_was_changed_keeps_what_it_claims(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "first", 5, f"1-{SMALL}")
            await whole.claimed("first")
            made = vnpus(whole)
        await whole.client.patch(
            PODS, "first", {"metadata": {"annotations": {RESOURCE_CORES: f"2-{SMALL}"}}}, namespace="default"
        )
        await until(lambda: (pod := whole.find("first")) and pod.metadata.annotations[RESOURCE_CORES][0] == "2")
        async with plugin_on(whole):
            await swept(whole)
            assert vnpus(whole) == made
            (note,) = await whole.notes("NPUAllocationMismatch")
            assert f"it has the vNPU {made[0].vdev_id}, but its annotation huawei.com/npu-core says otherwise" in note


async def test_a_claim_that_names_another_vnpu_of_the_chip_is_repaired(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        for name in ("one", "two"):
            await bind(whole, name, 5, f"1-{SMALL}")
            await whole.claimed(name)
        right = claim(whole, "one")
        wrong = {"metadata": {"annotations": {REAL: claim(whole, "two")}}}
        await whole.client.patch(PODS, "one", wrong, namespace="default")
        await until(lambda: claim(whole, "one") == claim(whole, "two"))
        await until(lambda: claim(whole, "one") == right)


@pytest.mark.parametrize("chips", [(1, 2), (1, 1)], ids=["of two chips", "of one chip"])
async def test_pods_mistaken_for_each_other_keep_what_they_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch, chips: Sequence[int]
) -> None:
    """The kubelet's pods can't be asked, its ledger answers late, and its statuses reach the API server late."""
    send = PodStatusWriter._send

    async def slow(*args: Any) -> PodResources:
        found = await read_ledger(*args)
        await asyncio.sleep(0.7)
        return found

    async def late(writer: PodStatusWriter, update: Any) -> None:
        await asyncio.sleep(0.5)
        await send(writer, update)

    monkeypatch.setattr(reconcile_module, "read_ledger", slow)
    monkeypatch.setattr(PodStatusWriter, "_send", late)
    async with cores_node(folder) as whole, plugin_on(whole):
        kubelet = whole.node.kubelet
        kubelet.hold_admission()
        for name, chip, time in (("late", chips[0], "9"), ("early", chips[1], "1")):
            body = pod_manifest(name, 0, terminationGracePeriodSeconds=0)
            body["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE_CORES: "5"}}
            pod = await whole.client.create(PODS, body, "default")
            written = {RESOURCE_CORES: f"{chip}-{SMALL}", PREDICATE_TIME: time}
            await whole.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=written)
        await until(lambda: whole.find("late") and whole.find("early"))
        kubelet.pods_answer.forbidden = True
        kubelet.release_admission()
        for name in ("late", "early"):
            await whole.claimed(name)
        await until(lambda: all(f"-{has(whole, name)}-" in claim(whole, name) for name in ("late", "early")))
        await swept(whole)
        assert {has(whole, "late"), has(whole, "early")} == {str(each.vdev_id) for each in vnpus(whole)}
        assert await whole.notes("NPURunsWithoutChips") == []


async def destroy(whole: Whole, vnpu: VirtualNpu) -> None:
    """Destroy a vNPU, as an operator does with the vendor's tool."""
    driver = SimulatedDriver(whole.node.state_file)
    facts = next(chip for chip in driver.discover().chips if chip.phy_id == vnpu.phy_id)
    driver.destroy_vnpu(facts, vnpu.vdev_id)


async def told(whole: Whole, words: str) -> None:
    """Wait until a pod is told that it runs without its vNPU."""

    async def check() -> bool:
        return any(words in note for note in await whole.notes("NPURunsWithoutChips"))

    await eventually(check)


async def test_a_pod_whose_vnpu_is_destroyed_while_it_runs_is_told(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        (vnpu,) = vnpus(whole)
        await destroy(whole, vnpu)
        await told(whole, f"the driver no longer has its vNPU {vnpu.vdev_id}; delete the pod")


async def test_a_vnpu_of_another_size_under_the_id_of_a_lost_one_is_not_the_pods(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        (lost,) = vnpus(whole)
        await destroy(whole, lost)
        await bind(whole, "second", 10, f"1-{LARGER}")
        assert f"the driver has given the id {lost.vdev_id} again" in await whole.failure("second")
        await until(lambda: vnpus(whole) == [], timeout_s=30.0)
        await told(whole, f"the driver no longer has its vNPU {lost.vdev_id}")


async def test_a_pod_is_told_of_a_vnpu_of_another_size_under_its_id(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        (lost,) = vnpus(whole)
        await destroy(whole, lost)
        other = SimulatedVirtualNpu(lost.vdev_id, LARGER, in_container=True)
        whole.node.edit_chip(lost.phy_id, vnpus=(other,))
        await told(whole, f"the driver no longer has its vNPU {lost.vdev_id}, but one of {LARGER} with its id")


async def test_a_chip_that_is_missing_at_the_start_holds_up_no_other(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            for name, chip in (("here", 1), ("other", 2)):
                await bind(whole, name, 5, f"{chip}-{SMALL}")
                await whole.claimed(name)
        whole.node.edit_chip(1, present=False)
        async with plugin_on(whole, healthy=None):
            await end(whole, "other")
            await until(lambda: not [each for each in vnpus(whole) if each.phy_id == 2])
            await until(lambda: whole.node.kubelet.allocatable(RESOURCE_CORES) == CORES - 15)
            assert (await whole.report()).recovering == 0b10  # no other pod gets the rest of the chip
            whole.node.edit_chip(1, present=True)
            await until(lambda: healthy_cores(whole) == CORES, timeout_s=30.0)
            await end(whole, "here")
            await until(lambda: not vnpus(whole), timeout_s=40.0)


async def test_a_missing_vnpu_is_told_once_its_chip_is_back(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "first", 5, f"1-{SMALL}")
            await whole.claimed("first")
        await destroy(whole, vnpus(whole)[0])
        whole.node.edit_chip(1, present=False)
        async with plugin_on(whole, healthy=None):
            await asyncio.sleep(1.0)  # nothing is said while the driver does not answer for the chip
            assert await whole.notes("NPURunsWithoutChips") == []
            whole.node.edit_chip(1, present=True)
            await told(whole, "no longer has its vNPU")


async def test_the_vnpu_of_a_pod_deleted_by_force_is_left_to_its_container(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        made = vnpus(whole)
        whole.node.edit_server(cuts=SimulatedCuts(in_containers=(made[0].vdev_id,)))
        await end(whole, "first")
        await seen(lambda: whole.notes("NPUSegmentInUse"), lambda found: len(found) == 1)
        assert [each.vdev_id for each in vnpus(whole)] == [made[0].vdev_id]
        whole.node.edit_server(cuts=SimulatedCuts())
        await until(lambda: not vnpus(whole), timeout_s=30.0)


async def test_the_old_instance_cuts_chips_until_its_successor_is_registered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore, restored, go = Reconciler.restore, asyncio.Event(), asyncio.Event()

    async def slow(reconciler: Reconciler) -> None:
        await restore(reconciler)
        restored.set()
        await go.wait()

    async with cores_node(folder) as whole, running(Plugin(whole.settings(dynamic_vnpus=True)).run()) as old:
        await until(lambda: healthy_cores(whole) == CORES)
        new = Plugin(whole.settings(dynamic_vnpus=True))
        async with running(new.run()):
            await until(lambda: new.http_address)
            await answers(new, "/standbyz", 200, "")
            monkeypatch.setattr(Reconciler, "restore", slow)
            old.cancel()
            await restored.wait()
            assert not is_registered(new)
            await bind(whole, "from-the-old", 5, f"1-{SMALL}")
            try:
                await until(lambda: (pod := whole.find("from-the-old")) and pod.status.phase in {"Running", "Failed"})
            finally:
                go.set()
            await whole.claimed("from-the-old")
            await until(lambda: is_registered(new))
            await swept(whole)
            assert has(whole, "from-the-old") == str(vnpus(whole)[0].vdev_id)


async def test_a_thread_that_is_closed_refuses_calls_at_once() -> None:
    thread = CallThread("test")
    assert await thread.call(lambda: 1) == 1
    thread.close()
    with pytest.raises(DriverError, match="the plugin is ending"):
        await thread.call(lambda: 2)


async def test_after_the_setting_was_switched_off_nobody_else_gets_what_pods_still_have(folder: Path) -> None:
    five = resource_of("5c.1cpu.16g")
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "slice", 5, f"1-{SMALL}")
            await bind(whole, "train", 20, "2")
            await whole.claimed("slice")
            await whole.claimed("train")
        (vnpu,) = vnpus(whole)
        device = f"Ascend910-5c.1cpu.16g-{vnpu.vdev_id}-1"
        async with whole.plugin(0b1111_1101):
            await until(lambda: whole.node.kubelet.devices(five) == {device: "Unhealthy"})
            await seen(whole.report, lambda found: found.free == 0b1111_1001)
            await end(whole, "slice")
            await until(lambda: whole.node.kubelet.devices(five) == {device: "Healthy"})
            await end(whole, "train")
            await seen(whole.report, lambda found: found.free == 0b1111_1101)


async def test_a_chip_is_not_free_before_the_vnpu_of_its_pod_is_destroyed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroy, may_go_on = Cutter.destroy, asyncio.Event()

    async def slow(cutter: Cutter, vnpu: VirtualNpu, within_s: float) -> Outcome:
        await may_go_on.wait()
        return await destroy(cutter, vnpu, within_s)

    monkeypatch.setattr(Cutter, "destroy", slow)
    async with cores_node(folder) as whole, plugin_on(whole) as plugin:
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        ledger = plugin.ledgers.cores
        await end(whole, "first")
        await until(lambda: not ledger.holding)
        assert ledger.used == 0b10
        may_go_on.set()
        await until(lambda: ledger.used == 0)
        assert vnpus(whole) == []
