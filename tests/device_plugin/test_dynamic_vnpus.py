"""vNPUs that are cut when pods start, on a node with the whole plugin: created, claimed, kept, and given back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE
from ascend.errors import InvalidValue
from ascend.kube.objects import NODES, PODS, Pod
from ascend.products import ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
from device_plugin.app import Plugin
from device_plugin.device_types import CORES as CORE_TYPE
from device_plugin.driver import VirtualNpu
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from device_plugin.pods.cutter import Cutter
from device_plugin.pods.reconciler import Reconciler
from device_plugin.reset.steps import obstacles
from sandbox.cluster import SandboxCluster, pod_manifest
from tests.device_plugin.api import NODE, running, sample, seen, until
from tests.device_plugin.test_probes import answers
from tests.device_plugin.test_succession import is_registered
from tests.device_plugin.whole import Whole

SMALL, LARGE = "vir05_1c_16g", "vir10_3c_32g"
CORES = 160


@asynccontextmanager
async def cores_node(folder: Path, *, seed: int = 1) -> AsyncIterator[Whole]:
    """A cluster of one node with 910B3 chips, without a plugin; device nodes of vNPUs exist."""
    async with SandboxCluster(folder, (NODE,), seed=seed, product=ASCEND_910B_8) as cluster:
        whole = Whole(cluster)
        for vdev_id in range(100, 160):
            (whole.node.device_root / f"vdavinci{vdev_id}").touch()
        async with running(whole.watch.run()):
            await whole.watch.synced.wait()
            yield whole


@asynccontextmanager
async def plugin_on(whole: Whole, healthy: int | None = CORES, **changes: Any) -> AsyncIterator[Plugin]:
    """A running plugin, as many of whose AI cores the kubelet has (None: any number)."""
    plugin = Plugin(whole.settings(dynamic_vnpus=True, **changes))

    def is_watched() -> bool:
        # The kubelet may still offer what an earlier plugin sent.
        return bool(sample(plugin.metrics, "ascend_dp_last_list_sent_timestamp_seconds"))

    async with running(plugin.run()) as task:
        await until(lambda: task.done() or (is_watched() and healthy in {None, healthy_cores(whole)}), timeout_s=30.0)
        if not task.done():
            yield plugin


def healthy_cores(whole: Whole) -> int:
    """The healthy AI cores that the kubelet has, if its Node says the same."""
    devices = whole.node.kubelet.devices(RESOURCE_CORES)
    healthy = sum(health == "Healthy" for health in devices.values())
    return healthy if whole.node.kubelet.allocatable(RESOURCE_CORES) == healthy else -1


def vnpus(whole: Whole) -> list[VirtualNpu]:
    """What the driver has."""
    return [each for chip in SimulatedDriver(whole.node.state_file).discover().chips for each in chip.vnpus]


async def bind(whole: Whole, name: str, cores: int, written: str = "", **spec: Any) -> Pod:
    """Create a pod that requests AI cores, and bind it with what it gets, as the allocator does."""
    body = pod_manifest(name, 0, terminationGracePeriodSeconds=0, **spec)
    if "containers" not in spec:
        body["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE_CORES: str(cores)}}
    pod = await whole.client.create(PODS, body, "default")
    annotations = {RESOURCE_CORES: written, PREDICATE_TIME: "1"} if written else {}
    await whole.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=annotations)
    return pod


async def end(whole: Whole, name: str) -> None:
    await whole.client.delete(PODS, name, "default")


async def lose_claims(whole: Whole, *names: str) -> None:
    """Remove what the plugin wrote on pods, as if it had been killed before it could."""
    lost = {REAL: None, KUBELET_IDS: None, CONFIGURATION: None, PREDICATE_TIME: "1"}
    for name in names:
        await whole.client.patch(PODS, name, {"metadata": {"annotations": lost}}, namespace="default")
        await until(lambda name=name: REAL not in (whole.find(name) or Pod()).metadata.annotations)  # type: ignore[misc]


async def test_two_slices_of_one_chip_in_two_pods(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        assert len(whole.node.kubelet.devices(RESOURCE_CORES)) == CORES
        assert whole.node.kubelet.devices(RESOURCE) == {}
        await bind(whole, "small", 5, f"1-{SMALL}")
        await bind(whole, "large", 10, f"1-{LARGE}")
        await bind(whole, "train", 40, "2,3")
        small, large, train = [await whole.claimed(name) for name in ("small", "large", "train")]
        made = {each.template: each for each in vnpus(whole)}
        assert {(each.phy_id, each.template) for each in made.values()} == {(1, SMALL), (1, LARGE)}
        for pod, template, size in ((small, SMALL, "5c.1cpu.16g"), (large, LARGE, "10c.3cpu.32g")):
            vnpu = made[template]
            annotations = pod.metadata.annotations
            assert annotations[REAL] == f"Ascend910-{size}-{vnpu.vdev_id}-1_{vnpu.vfg_id}"
            assert set(annotations[KUBELET_IDS].split(",")) == whole.devices(pod.name)
            assert annotations[PREDICATE_TIME] == str(CLAIMED)
            configuration = json.loads((await whole.annotations(pod.name))[CONFIGURATION])
            assert configuration["devices"] == [{"device_id": "1", "device_ip": "127.0.0.1"}]
            container = whole.node.kubelet.container(f"default/{pod.name}", "main")
            assert container.env["ASCEND_VISIBLE_DEVICES"] == str(vnpu.vdev_id)
            assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
            assert (container.env["WORLD_SIZE"], container.env["LOCAL_RANK"]) == ("1", "0")
            root = whole.node.device_root
            assert container.devices[f"/dev/davinci{vnpu.vdev_id}"] == (str(root / f"vdavinci{vnpu.vdev_id}"), "rw")
        assert whole.devices("small") <= {f"npu-core-{number}" for number in range(20, 40)}
        assert train.metadata.annotations[REAL] == "Ascend910-2,Ascend910-3"
        container = whole.node.kubelet.container("default/train", "main")
        assert container.env["ASCEND_VISIBLE_DEVICES"] == "2,3"
        assert container.env["ASCEND_RUNTIME_OPTIONS"] == ""
        assert (container.env["MS_WORKER_NUM"], container.env["LOCAL_RANK"]) == ("2", "0,1")
        await seen(whole.report, lambda found: found.free == 0b1111_0001)
        node = await whole.client.get(NODES, NODE)
        assert len(json.loads(node.metadata.annotations["baseDeviceInfos"])) == 8
        assert healthy_cores(whole) == CORES
        await end(whole, "small")
        await until(lambda: [each.template for each in vnpus(whole)] == [LARGE])
        await end(whole, "large")
        await end(whole, "train")
        await until(lambda: vnpus(whole) == [])
        await seen(whole.report, lambda found: found.free == 0xFF)


async def test_a_creation_that_fails_refuses_its_pod_and_leaks_nothing(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        whole.node.edit_server(cuts=SimulatedCuts(error="out of vNPUs"))
        await bind(whole, "first", 5, f"0-{SMALL}")
        assert f"NPUSegmentFailed: no vNPU of {SMALL} on Ascend910-0: out of vNPUs" in await whole.failure("first")
        whole.node.edit_server(cuts=SimulatedCuts())
        await bind(whole, "second", 5, f"0-{SMALL}")
        await whole.claimed("second")
        assert len(vnpus(whole)) == 1


async def test_a_creation_that_ends_too_late_is_given_back(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        whole.node.edit_server(cuts=SimulatedCuts(delay_s=5.0))
        began_s = asyncio.get_running_loop().time()
        await bind(whole, "late", 5, f"0-{SMALL}")
        sentence = await whole.failure("late")
        assert "NPUSegmentFailed" in sentence
        assert "does not answer within" in sentence
        assert asyncio.get_running_loop().time() - began_s < 4.5
        whole.node.edit_server(cuts=SimulatedCuts(delay_s=0.5))  # so that the vNPU is seen before it is gone
        await until(lambda: vnpus(whole) != [])
        await until(lambda: vnpus(whole) == [])
        await bind(whole, "next", 20, "0")
        await whole.claimed("next")


@pytest.mark.parametrize(
    ("cores", "written", "sentence"),
    [
        (5, "", "NotPlaced"),
        (5, "9-vir05_1c_16g", "NoNPUResource: this node has no Ascend910-9"),
        (20, "0,9", "WrongCount: annotation huawei.com/npu-core stands for 40 AI cores, the pod requests 20"),
        (10, "0-vir05_1c_16g", "WrongCount: annotation huawei.com/npu-core stands for 5 AI cores"),
        (12, "0-vir12_3c_32g", "InvalidRequest: chips of this node can't be cut by vir12_3c_32g"),
        (5, "0-vir99", "MalformedAnnotation"),
        (20, "0,0", "MalformedAnnotation"),
        (10, "1-vir10_3c_32g", "NoNPUResource: Ascend910-1 has 5 AI cores"),
        (20, "1", "ChipHeld: Ascend910-1: pod default/held0 has a vNPU of vir10_3c_32g"),
        (5, "2-vir05_1c_16g", "ChipHeld: Ascend910-2: pod default/held2 has it as a whole"),
    ],
)
async def test_what_can_not_be_given_is_refused(folder: Path, cores: int, written: str, sentence: str) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        for number, (own, grant) in enumerate([(10, f"1-{LARGE}"), (5, f"1-{SMALL}"), (20, "2")]):
            await bind(whole, f"held{number}", own, grant)
            await whole.claimed(f"held{number}")
        await bind(whole, "pod", cores, written)
        assert sentence in await whole.failure("pod")
        assert len(vnpus(whole)) == 2


async def test_several_containers_or_resources_are_refused(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        several = [
            {"name": name, "image": "busybox", "resources": {"limits": {RESOURCE_CORES: "5"}}} for name in ("a", "b")
        ]
        await bind(whole, "several", 10, f"1-{LARGE}", containers=several)
        assert "2 containers of the pod request AI cores; one can have some" in await whole.failure("several")


@pytest.mark.parametrize("fault", ["80E18402", ""])
async def test_a_fault_bars_creation_and_takes_only_free_cores(folder: Path, fault: str) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        whole.node.edit_chip(1, health="Unhealthy", fault_codes=[fault] if fault else [])
        await until(lambda: healthy_cores(whole) == CORES - 15)
        devices = whole.node.kubelet.devices(RESOURCE_CORES)
        assert {devices[each] for each in whole.devices("first")} == {"Healthy"}
        await bind(whole, "second", 5, f"1-{SMALL}")
        assert "ChipUnhealthy: Ascend910-1" in await whole.failure("second")
        if fault:
            told = await seen(lambda: whole.notes("NPUFault"), lambda found: len(found) == 1)
            assert told[0].startswith("Ascend910-1 has the fault")
        await end(whole, "first")
        await until(lambda: healthy_cores(whole) == CORES - 20)
        whole.node.edit_chip(1, health="Healthy", fault_codes=[])
        await until(lambda: healthy_cores(whole) == CORES)
        await until(lambda: vnpus(whole) == [])


async def test_vnpus_are_adopted_after_restarts(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "first", 5, f"1-{SMALL}")
            await bind(whole, "second", 5, f"1-{SMALL}")
            await bind(whole, "train", 20, "2")
            before = {name: (await whole.claimed(name)).metadata.annotations for name in ("first", "second", "train")}
            made = vnpus(whole)
        async with plugin_on(whole):
            await asyncio.sleep(0.3)
            assert vnpus(whole) == made
            await whole.node.kubelet.restart()
            await until(lambda: healthy_cores(whole) == CORES)
            await end(whole, "first")
            await until(lambda: len(vnpus(whole)) == 1)
        # Killed between the answer and the claim.
        await lose_claims(whole, "second", "train")
        async with plugin_on(whole):
            for name in ("second", "train"):
                annotations = (await whole.claimed(name)).metadata.annotations
                assert annotations == before[name]
            await asyncio.sleep(0.3)
            assert len(vnpus(whole)) == 1


async def test_a_vnpu_of_a_pod_that_was_refused_is_given_back_after_a_restart(folder: Path) -> None:
    """The plugin is killed between the creation and the answer."""
    async with cores_node(folder) as whole:
        driver = SimulatedDriver(whole.node.state_file)
        chips = driver.discover().chips
        async with plugin_on(whole):
            await bind(whole, "kept", 5, f"1-{SMALL}")
            await whole.claimed("kept")
        driver.create_vnpu(chips[1], SMALL)
        driver.create_vnpu(chips[2], LARGE)
        async with plugin_on(whole):
            await until(lambda: len(vnpus(whole)) == 1, timeout_s=30.0)
            assert (await whole.claimed("kept")).metadata.annotations[REAL].startswith("Ascend910-5c.1cpu.16g-100-1_")


async def test_the_plugin_is_killed_while_it_creates(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            whole.node.edit_server(cuts=SimulatedCuts(delay_s=0.5))
            await bind(whole, "first", 5, f"1-{SMALL}")
            await asyncio.sleep(0.2)
        await whole.failure("first")
        whole.node.edit_server(cuts=SimulatedCuts())
        await until(lambda: vnpus(whole) != [])  # the driver has gone on
        async with plugin_on(whole):
            await until(lambda: vnpus(whole) == [], timeout_s=30.0)


async def test_leftovers_of_a_reboot_are_given_back_but_not_those_in_use(folder: Path) -> None:
    async with cores_node(folder) as whole:
        driver = SimulatedDriver(whole.node.state_file)
        chips = driver.discover().chips
        async with plugin_on(whole):
            await bind(whole, "kept", 5, f"1-{SMALL}")
            await whole.claimed("kept")
        for chip, template in ((0, LARGE), (1, SMALL), (3, SMALL)):
            driver.create_vnpu(chips[chip], template)
        await whole.node.kubelet.reboot()
        await whole.failure("kept")  # the kubelet does not wait for the plugin
        whole.node.edit_server(cuts=SimulatedCuts(in_containers=(101,)))
        async with plugin_on(whole, healthy=CORES - 10):
            await until(lambda: {each.vdev_id for each in vnpus(whole)} == {101}, timeout_s=30.0)
            (note,) = await seen(lambda: whole.notes("NPUSegmentInUse"), lambda found: len(found) == 1)
            assert note.startswith("the vNPU 101 of Ascend910-0 belongs to no pod, but the driver says")
            await seen(whole.report, lambda found: found.free == 0b1111_1110)
            await bind(whole, "whole", 20, "0")
            assert "NoNPUResource: Ascend910-0 is cut: it has the vNPU 101" in await whole.failure("whole")
            whole.node.edit_server(cuts=SimulatedCuts())
            await until(lambda: vnpus(whole) == [], timeout_s=20.0)
            await until(lambda: healthy_cores(whole) == CORES)


async def test_a_refused_destruction_is_tried_again(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        whole.node.edit_server(cuts=SimulatedCuts(destroy_error="busy"))
        await end(whole, "first")
        await until(lambda: healthy_cores(whole) == CORES - 5)
        whole.node.edit_server(cuts=SimulatedCuts())
        await until(lambda: vnpus(whole) == [])
        await until(lambda: healthy_cores(whole) == CORES)


async def test_a_pod_whose_vnpu_is_gone_is_told_and_its_id_is_not_given_again(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "first", 5, f"1-{SMALL}")
            await whole.claimed("first")
        driver = SimulatedDriver(whole.node.state_file)
        driver.destroy_vnpu(driver.discover().chips[1], 100)
        async with plugin_on(whole):
            (note,) = await seen(lambda: whole.notes("NPURunsWithoutChips"), lambda found: len(found) == 1)
            assert "the driver no longer has its vNPU 100; delete the pod" in note
            await bind(whole, "second", 5, f"2-{SMALL}")
            assert "NPUSegmentFailed: the driver has given the id 100 again" in await whole.failure("second")
            await until(lambda: vnpus(whole) == [])
            await end(whole, "first")
            # Its chip is free once the plugin has seen the end, too; until then the id is its own.
            await seen(whole.report, lambda found: found.free == 0xFF)
            await bind(whole, "third", 5, f"2-{SMALL}")
            await whole.claimed("third")


async def test_other_products_are_refused_with_a_sentence(folder: Path) -> None:
    async with SandboxCluster(folder, (NODE,)) as cluster:
        whole = Whole(cluster)
        with pytest.raises(BaseExceptionGroup) as caught:
            await Plugin(whole.settings(dynamic_vnpus=True)).run()
        (error,) = caught.value.exceptions
        assert isinstance(error, InvalidValue)
        assert "dynamic_vnpus: chips of this server can't be cut when pods start (Ascend910, 32 AI cores" in str(error)
        with pytest.raises(InvalidValue, match="choose_chips: with dynamic_vnpus"):
            whole.settings(dynamic_vnpus=True, choose_chips=True)


async def test_chips_held_before_the_setting_was_changed_are_not_cut(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("train", 1)
            await whole.claimed("train")
        whole.node.edit_chip(2, vnpus=(SimulatedVirtualNpu(150, "vir02", in_container=True),))
        async with plugin_on(whole, healthy=CORES - 40):
            await bind(whole, "first", 5, f"1-{SMALL}")
            assert "ChipHeld: Ascend910-1" in await whole.failure("first")
            await seen(whole.report, lambda found: found.free == 0b1111_1001)


async def test_of_vnpus_that_look_alike_none_is_given_back_while_it_is_unknown_whose_they_are(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            for name in ("first", "second"):
                await bind(whole, name, 5, f"1-{SMALL}")
                await whole.claimed(name)
        driver = SimulatedDriver(whole.node.state_file)
        driver.create_vnpu(driver.discover().chips[1], SMALL)  # of nobody
        await lose_claims(whole, "first", "second")
        async with plugin_on(whole, healthy=CORES - 5):
            claims = {(await whole.claimed(name)).metadata.annotations[REAL] for name in ("first", "second")}
            assert len(claims) == 2
            assert len(vnpus(whole)) == 3
            await end(whole, "first")
            await until(lambda: healthy_cores(whole) == CORES - 10)
            assert len(vnpus(whole)) == 3
            await end(whole, "second")
            await until(lambda: vnpus(whole) == [], timeout_s=20.0)
            await until(lambda: healthy_cores(whole) == CORES)


async def test_a_pod_without_a_claim_has_the_vnpu_that_a_container_has(folder: Path) -> None:
    async with cores_node(folder) as whole:
        driver = SimulatedDriver(whole.node.state_file)
        async with plugin_on(whole):
            for name in ("other", "first"):
                await bind(whole, name, 5, f"1-{SMALL}")
                real = (await whole.claimed(name)).metadata.annotations[REAL]
            await end(whole, "other")
            await until(lambda: len(vnpus(whole)) == 1)
        driver.create_vnpu(driver.discover().chips[1], SMALL)  # has the id of the first again
        whole.node.edit_server(cuts=SimulatedCuts(in_containers=(101,)))
        await lose_claims(whole, "first")
        async with plugin_on(whole):
            assert (await whole.claimed("first")).metadata.annotations[REAL] == real
            await until(lambda: [each.vdev_id for each in vnpus(whole)] == [101])


async def test_a_pod_whose_grant_is_unreadable_keeps_all_vnpus(folder: Path) -> None:
    async with cores_node(folder) as whole:
        async with plugin_on(whole):
            await bind(whole, "first", 5, f"1-{SMALL}")
            await whole.claimed("first")
        await lose_claims(whole, "first")
        body = {"metadata": {"annotations": {RESOURCE_CORES: "what"}}}
        await whole.client.patch(PODS, "first", body, namespace="default")
        async with plugin_on(whole, healthy=CORES - 5):
            await asyncio.sleep(1.5)
            assert len(vnpus(whole)) == 1
            await end(whole, "first")
            await until(lambda: vnpus(whole) == [], timeout_s=20.0)


async def test_a_pod_that_a_new_kubelet_does_not_know_gets_its_vnpu_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unresolved, found = Reconciler._unresolved_uids, [{"nothing was looked at"}]

    def recorded(reconciler: Reconciler) -> set[str]:
        if reconciler._device_type == CORE_TYPE:
            found.append(unresolved(reconciler))
        return unresolved(reconciler)

    monkeypatch.setattr(Reconciler, "_unresolved_uids", recorded)
    async with cores_node(folder) as whole, plugin_on(whole) as plugin:
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        ledger = plugin.ledgers.cores
        (allocation,) = ledger.allocations
        await until(lambda: all(pod.claimed for pod in ledger.pods) and not found[-1])
        ledger.allocations.drop(allocation.uid)
        assert ledger.allocations.kept[allocation.uid].vnpu == allocation.vnpu
        assert ledger.used == 0b10
        await until(lambda: allocation.uid in ledger.allocations)  # the kubelet's ledger has it after all
        assert [each.vnpu for each in ledger.allocations] == [allocation.vnpu]
        assert len(vnpus(whole)) == 1


async def test_chips_with_vnpus_are_not_reset(folder: Path) -> None:
    async with cores_node(folder) as whole, plugin_on(whole, hot_reset="dry-run", hot_reset_idle_s=0.0) as plugin:
        await bind(whole, "first", 5, f"1-{SMALL}")
        await whole.claimed("first")
        snapshot = plugin.snapshots.value
        assert snapshot is not None
        assert (snapshot.divided, snapshot.used, snapshot.cut) == (0b10, 0b10, 0)
        found = obstacles(snapshot, 0xFF, plugin.ledgers.held)
        assert "pod default/first holds Ascend910-1" in found
        assert "Ascend910-1 is cut into virtual chips" in found


@pytest.mark.parametrize("has_died", [False, True], ids=["its successor", "the successor of one that died"])
async def test_a_plugin_that_takes_over_leaves_what_the_one_before_it_is_giving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_died: bool
) -> None:
    created, may_answer, restored = asyncio.Event(), asyncio.Event(), asyncio.Event()
    create = Cutter.create

    async def slow(cutter: Cutter, chip: int, template: str, within_s: float) -> VirtualNpu:
        vnpu = await create(cutter, chip, template, within_s)
        created.set()
        await may_answer.wait()
        return vnpu

    async def never(_: Reconciler) -> None:
        restored.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Cutter, "create", slow)
    async with cores_node(folder) as whole, running(Plugin(whole.settings(dynamic_vnpus=True)).run()) as old:
        await until(lambda: healthy_cores(whole) == CORES)
        new = Plugin(whole.settings(dynamic_vnpus=True))
        with monkeypatch.context() as patch:
            if has_died:
                patch.setattr(Reconciler, "restore", never)
            async with AsyncExitStack() as successors:
                successor = await successors.enter_async_context(running(new.run()))
                await until(lambda: new.http_address)
                await answers(new, "/standbyz", 200, "")
                await bind(whole, "first", 5, f"1-{SMALL}")
                await created.wait()
                old.cancel()
                if has_died:
                    await restored.wait()
                    successor.cancel()
                    await asyncio.wait([successor])
                    patch.undo()
                    new = Plugin(whole.settings(dynamic_vnpus=True))
                    await successors.enter_async_context(running(new.run()))
                await until(lambda: is_registered(new))
                await asyncio.sleep(1.0)  # the other one may look at what the driver has
                (vnpu,) = vnpus(whole)
                may_answer.set()
                claimed = await whole.claimed("first")
                assert claimed.metadata.annotations[REAL].startswith(f"Ascend910-5c.1cpu.16g-{vnpu.vdev_id}-1_")
                assert vnpus(whole) == [vnpu]


@pytest.mark.parametrize(
    "change",
    [{RESOURCE_CORES: "0,1,2,3"}, {RESOURCE_CORES: None}, {RESOURCE_CORES: f"2-{LARGE}", REAL: "Ascend910-2"}],
    ids=["whole chips", "removed", "another chip"],
)
async def test_forged_annotations_of_a_pod_with_a_part_of_a_chip_are_put_right(
    folder: Path, change: dict[str, str | None]
) -> None:
    async with cores_node(folder) as whole, plugin_on(whole):
        await bind(whole, "small", 5, f"1-{SMALL}")
        before = (await whole.claimed("small")).metadata.annotations
        free = await seen(whole.report, lambda report: not report.free & 0b10)
        await whole.client.patch(PODS, "small", {"metadata": {"annotations": change}}, namespace="default")
        (note,) = await seen(lambda: whole.notes("NPUAnnotationRepaired"), bool)
        assert RESOURCE_CORES in note
        await until(lambda: (found := whole.find("small")) is not None and found.metadata.annotations == before)
        assert (await whole.report()).free == free.free
