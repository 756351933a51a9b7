"""vNPUs on a node with the whole plugin: offered, given to pods, kept over restarts and faults, and cut anew."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, parse_chip_name
from ascend.kube.objects import EVENTS, PODS, Pod
from ascend.vnpus import parse_vnpu, resource_of
from device_plugin.app import Plugin
from device_plugin.chips import scanner
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from device_plugin.pods.container_edits import CDI_FILE
from device_plugin.pods.notices import WITHOUT
from sandbox.cluster import pod_manifest
from tests.device_plugin.api import NODE, running, seen, until
from tests.device_plugin.test_probes import answers
from tests.device_plugin.whole import Whole, check_hand_over, whole_node

TWO, FOUR = resource_of("2c"), resource_of("4c")
WHOLE = 0b1111_1101
"""The chips that are not cut."""


@pytest.fixture(autouse=True)
def frequent_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "DISCOVER_S", 0.1)


def cut(whole: Whole, chip: int, **vnpus: str) -> None:
    """Cut a chip into these vNPUs (template by ``v<id>``), which have device nodes."""
    parts = {int(name[1:]): template for name, template in vnpus.items()}
    for vdev_id in parts:
        (whole.node.device_root / f"vdavinci{vdev_id}").touch()
    whole.node.edit_chip(chip, vnpus=tuple(SimulatedVirtualNpu(*each) for each in parts.items()))


async def bind(whole: Whole, name: str, resource: str, device: str = "", *, count: int = 1, **spec: Any) -> Pod:
    """Create a pod that requests a vNPU, and bind it with one written on it, as the allocator does."""
    body = pod_manifest(name, 0, **spec)
    if not spec:
        body["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    pod = await whole.client.create(PODS, body, "default")
    annotations = {resource: device, PREDICATE_TIME: "1"} if device else {}
    await whole.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=annotations)
    return pod


def offers(whole: Whole, resource: str, **devices: str) -> bool:
    """Whether the kubelet has exactly these devices of a resource (``v<id>_<chip>``)."""
    size = resource.removeprefix("huawei.com/")
    wanted = {f"{size}-{name[1:].replace('_', '-')}": health for name, health in devices.items()}
    healthy = sum(health == "Healthy" for health in wanted.values())
    return whole.node.kubelet.devices(resource) == wanted and whole.node.kubelet.allocatable(resource) == healthy


async def test_pods_get_the_vnpus_written_on_them_beside_whole_chips(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02", v102="vir04")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await until(lambda: offers(whole, FOUR, v102_1="Healthy"))
            await bind(whole, "first", TWO, "Ascend910-2c-101-1")
            await bind(whole, "second", TWO, "Ascend910-2c-100-1")
            await whole.bind("train", 0, 2)
            await whole.claimed("second")
            claimed = await whole.claimed("first")
            container = whole.node.kubelet.container("default/first", "main")
            assert container.env["ASCEND_VISIBLE_DEVICES"] == "101"
            assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
            root = whole.node.device_root
            assert container.devices["/dev/davinci101"] == (str(root / "vdavinci101"), "rw")
            assert "/dev/davinci1" not in container.devices
            assert whole.devices("first") == {"Ascend910-2c-101-1"}
            annotations = claimed.metadata.annotations
            assert annotations[REAL] == annotations[KUBELET_IDS] == annotations[TWO] == "Ascend910-2c-101-1"
            assert annotations[PREDICATE_TIME] == str(CLAIMED)
            configuration = json.loads((await whole.annotations("first"))[CONFIGURATION])
            assert configuration["devices"] == [{"device_id": "1", "device_ip": "127.0.0.1"}]
            assert configuration["server_id"] == claimed.uid
            check_hand_over(whole, await whole.claimed("train"))
            await seen(whole.report, lambda found: found.free == WHOLE & ~0b101)


@pytest.mark.parametrize("seed", range(3))
async def test_pods_that_come_together_get_each_its_own(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with whole_node(folder, seed=seed) as whole:
        cut(whole, 1, v100="vir02", v101="vir02", v102="vir02", v103="vir04")
        cut(whole, 2, v110="vir02", v111="vir04", v112="vir04")
        async with whole.plugin(WHOLE & ~0b100) as plugin:
            await until(lambda: len(whole.node.kubelet.devices(TWO)) == 4 and whole.node.kubelet.allocatable(TWO) == 4)
            await until(lambda: whole.node.kubelet.allocatable(FOUR) == 3)
            devices = [*whole.node.kubelet.devices(TWO), *whole.node.kubelet.devices(FOUR)]
            rng.shuffle(devices)
            bindings = [
                bind(whole, f"p{number}", parse_vnpu(each).resource, each) for number, each in enumerate(devices)
            ]
            await asyncio.gather(*bindings, whole.bind("train", 3, 0), whole.bind("eval", 5, 4, 6))
            for number, device in enumerate(devices):
                pod = await whole.claimed(f"p{number}")
                assert pod.metadata.annotations[REAL] == pod.metadata.annotations[KUBELET_IDS] == device
                assert whole.devices(pod.name) == {device}
                container = whole.node.kubelet.container(f"default/{pod.name}", "main")
                assert container.env["ASCEND_VISIBLE_DEVICES"] == str(parse_vnpu(device).vdev_id)
            for name in ("train", "eval"):
                check_hand_over(whole, await whole.claimed(name))
            await seen(whole.report, lambda found: found.free == 0b1000_0000)
            states = plugin.metrics.registry.get_sample_value
            assert states("ascend_dp_devices", {"state": "cut", "reason": ""}) == 2


async def test_a_pod_gets_one_vnpu_and_devices_of_one_type(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await bind(whole, "two", TWO, "Ascend910-2c-100-1,Ascend910-2c-101-1", count=2)
            assert "InvalidRequest: the pod requests 2 vNPUs of Ascend910-2c" in await whole.failure("two")
            mixed = [
                {"name": "a", "image": "busybox", "resources": {"limits": {TWO: "1"}}},
                {"name": "b", "image": "busybox", "resources": {"limits": {RESOURCE: "1"}}},
            ]
            await bind(whole, "mixed", TWO, "Ascend910-2c-100-1", containers=mixed)
            sentence = await whole.failure("mixed")
            assert "devices of several types (huawei.com/Ascend910, huawei.com/Ascend910-2c)" in sentence
            await bind(whole, "elsewhere", TWO, "Ascend910-2c-100-2")
            assert "UnknownChip: this node has no Ascend910-2c-100-2" in await whole.failure("elsewhere")
            await bind(whole, "unplaced", TWO)
            assert f"NotPlaced: annotation {TWO} is missing" in await whole.failure("unplaced")


async def test_without_an_allocator_the_kubelets_own_choice_is_used(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02")
        async with whole.plugin(WHOLE, choose_chips=True):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await bind(whole, "one", TWO)
            await bind(whole, "other", TWO)
            claims = {(await whole.claimed(name)).metadata.annotations[REAL] for name in ("one", "other")}
            assert claims == {"Ascend910-2c-100-1", "Ascend910-2c-101-1"}
            assert claims == whole.devices("one") | whole.devices("other")


async def test_vnpus_are_adopted_after_restarts_of_plugin_and_kubelet(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await bind(whole, "first", TWO, "Ascend910-2c-101-1")
            await whole.claimed("first")
            before = await whole.annotations("first")
        lost = dict.fromkeys((REAL, KUBELET_IDS, CONFIGURATION))
        await whole.client.patch(PODS, "first", {"metadata": {"annotations": lost}}, namespace="default")
        await until(lambda: (found := whole.find("first")) is not None and REAL not in found.metadata.annotations)
        async with whole.plugin(WHOLE):
            await whole.claimed("first")
            again = await whole.annotations("first")
            assert {key: again[key] for key in lost} == {key: before[key] for key in lost}
            await whole.node.kubelet.restart()
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            assert whole.devices("first") == {"Ascend910-2c-101-1"}
            await bind(whole, "wrong", TWO, "Ascend910-2c-101-1")
            assert "ChipHeld: Ascend910-2c-101-1 is held by pod default/first" in await whole.failure("wrong")
            await bind(whole, "second", TWO, "Ascend910-2c-100-1")
            assert (await whole.claimed("second")).metadata.annotations[REAL] == "Ascend910-2c-100-1"


async def test_a_fault_of_a_cut_chip_takes_its_idle_vnpus_and_tells_the_pods(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02", v102="vir02")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy", v102_1="Healthy"))
            for number, name in enumerate(("first", "second")):
                await bind(whole, name, TWO, f"Ascend910-2c-{100 + number}-1")
                await whole.claimed(name)
            whole.node.edit_chip(1, health="Unhealthy", fault_codes=["80E18402"])
            await until(lambda: offers(whole, TWO, v100_1="Unhealthy", v101_1="Unhealthy", v102_1="Unhealthy"))
            await seen(whole.report, lambda found: (found.unhealthy, found.free) == (0b10, WHOLE))
            notes = await seen(lambda: whole.notes("NPUFault"), lambda found: len(found) == 2)
            assert {note.partition(" ")[0] for note in notes} == {"Ascend910-2c-100-1", "Ascend910-2c-101-1"}
            whole.node.edit_chip(1, health="Healthy", fault_codes=[])
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy", v102_1="Healthy"))


async def test_recutting_is_followed_without_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin():
        cut(whole, 1, v100="vir02")
        await until(lambda: offers(whole, TWO, v100_1="Healthy") and whole.offers_chips(WHOLE))
        assert whole.node.kubelet.devices(RESOURCE)["Ascend910-1"] == "Unhealthy"
        await bind(whole, "first", TWO, "Ascend910-2c-100-1")
        await whole.claimed("first")
        cut(whole, 1, v104="vir04")
        await until(lambda: offers(whole, FOUR, v104_1="Healthy"))
        assert offers(whole, TWO, v100_1="Healthy")  # removed, but its pod runs
        await whole.client.delete(PODS, "first", "default")
        await until(lambda: whole.node.kubelet.devices(TWO) == {})
        cut(whole, 1)
        await until(whole.offers_chips)
        assert whole.node.kubelet.devices(FOUR) == {}


async def test_a_removed_vnpu_stays_with_its_pod_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy"))
            await bind(whole, "first", TWO, "Ascend910-2c-100-1")
            await whole.claimed("first")
        cut(whole, 1)
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy"))
            await whole.bind("train", 1)
            assert "ChipUnhealthy: Ascend910-1 is unhealthy" in await whole.failure("train")
            await seen(whole.report, lambda found: found.free == WHOLE)
            assert await told_of_removal(whole) == []  # it may be that the driver can't read them
            await whole.client.delete(PODS, "first", "default")
            await until(whole.offers_chips)


async def told_of_removal(whole: Whole) -> list[tuple[str, str]]:
    """The pods that were told that their vNPU is gone, with what they were told."""
    events = json.loads(await whole.client.request("GET", EVENTS.path()))["items"]
    return [(each["regarding"]["name"], each["note"]) for each in events if each["reason"] == WITHOUT]


async def test_a_pod_whose_vnpu_is_removed_is_told_once_also_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02")
        async with whole.plugin(WHOLE):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            for name, device in (("first", "Ascend910-2c-100-1"), ("second", "Ascend910-2c-101-1")):
                await bind(whole, name, TWO, device)
                await whole.claimed(name)
            cut(whole, 1, v101="vir02")
            await seen(lambda: told_of_removal(whole), lambda found: len(found) == 1)
        cut(whole, 1, v101="vir04")  # the id of another size is not the pod's vNPU
        async with whole.plugin(WHOLE):
            found = await seen(lambda: told_of_removal(whole), lambda found: len(found) == 2)
    says = "it runs with {}, which the driver no longer has: delete the pod"
    assert found == [("first", says.format("Ascend910-2c-100-1")), ("second", says.format("Ascend910-2c-101-1"))]


async def test_a_pod_that_another_plugin_gave_a_vnpu_keeps_it(folder: Path) -> None:
    """MindCluster's plugin takes the kubelet's choice, whatever is written, and writes none of our annotations."""
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir02")
        async with whole.plugin(WHOLE, choose_chips=True):
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await bind(whole, "old", TWO)
            device = (await whole.claimed("old")).metadata.annotations[REAL]
        (other,) = {"Ascend910-2c-100-1", "Ascend910-2c-101-1"} - {device}
        as_it_was = {**dict.fromkeys((REAL, KUBELET_IDS, CONFIGURATION)), PREDICATE_TIME: "1", TWO: other}
        await whole.client.patch(PODS, "old", {"metadata": {"annotations": as_it_was}}, namespace="default")
        await until(lambda: (found := whole.find("old")) is not None and REAL not in found.metadata.annotations)
        async with whole.plugin(WHOLE):
            assert (await whole.claimed("old")).metadata.annotations[REAL] == device
            await until(lambda: offers(whole, TWO, v100_1="Healthy", v101_1="Healthy"))
            await bind(whole, "wrong", TWO, device)
            assert f"ChipHeld: {device} is held by pod default/old" in await whole.failure("wrong")
            await bind(whole, "new", TWO, other)
            assert (await whole.claimed("new")).metadata.annotations[KUBELET_IDS] == other


async def test_all_resources_give_way_to_another_plugin_that_serves_one_size(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02", v101="vir04")
        kubelet = whole.node.kubelet

        async def serve(socket: str) -> asyncio.Server:
            return await asyncio.start_unix_server(lambda _, writer: writer.close(), kubelet.socket_dir / socket)

        def offers_all() -> bool:
            return (
                whole.offers_chips(WHOLE)
                and offers(whole, TWO, v100_1="Healthy")
                and offers(whole, FOUR, v101_1="Healthy")
            )

        other = await serve("Ascend910-2c.sock")
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            await until(lambda: plugin.http_address)
            await answers(plugin, "/readyz", 503, "MindCluster's device plugin serves huawei.com/Ascend910-2c on")
            assert kubelet.registrations == 0
            other.close()
            await until(offers_all)
            await answers(plugin, "/readyz", 200, "")
            # One of a size that this node has not: pods must not get from it what they get from this plugin.
            other = await serve("Ascend910-10c.3cpu.16g.ndvpp.sock")
            await until(lambda: not any(map(kubelet.allocatable, (RESOURCE, TWO, FOUR))))
            await answers(
                plugin, "/readyz", 503, "MindCluster's device plugin serves huawei.com/Ascend910-10c.3cpu.16g"
            )
            other.close()
            await until(offers_all)


@pytest.mark.parametrize("race", [True, False], ids=["kubelet before 1.37", "kubelet from 1.37"])
async def test_the_devices_of_every_type_stay_healthy_in_an_upgrade(folder: Path, *, race: bool) -> None:
    async with whole_node(folder, reregistration_race=race) as whole:
        cut(whole, 1, v100="vir02", v101="vir04")
        lapses: list[list[str]] = []

        async def watch() -> None:
            while True:
                kubelet = whole.node.kubelet
                healths = [*kubelet.devices(RESOURCE).values(), *kubelet.devices(TWO).values()]
                healths += kubelet.devices(FOUR).values()
                if healths != ["Healthy"] * 9:
                    lapses.append(healths)
                await asyncio.sleep(0)

        async with running(Plugin(whole.settings()).run()) as old:
            await until(lambda: offers(whole, TWO, v100_1="Healthy") and offers(whole, FOUR, v101_1="Healthy"))
            await until(lambda: whole.offers_chips(WHOLE))
            new = Plugin(whole.settings())
            async with running(new.run()):
                await until(lambda: new.http_address)
                await answers(new, "/standbyz", 200, "")
                async with running(watch()):
                    old.cancel()
                    await asyncio.wait([old])
                    await answers(new, "/readyz", 200, "")
                    await bind(whole, "first", TWO, "Ascend910-2c-100-1")
                    await whole.claimed("first")
        assert lapses == []


async def test_containers_get_vnpus_by_cdi(folder: Path) -> None:
    async with whole_node(folder) as whole:
        cut(whole, 1, v100="vir02")
        async with whole.plugin(WHOLE, injection="cdi", cdi_dir=folder / "cdi"):
            await until(lambda: offers(whole, TWO, v100_1="Healthy"))
            await bind(whole, "first", TWO, "Ascend910-2c-100-1")
            await whole.claimed("first")
            container = whole.node.kubelet.container("default/first", "main")
            assert container.cdi_devices == ("huawei.com/npu=Ascend910-2c-100-1",)
            devices = json.loads((folder / "cdi" / CDI_FILE).read_text())["devices"]
            found = {each["name"]: each["containerEdits"]["deviceNodes"] for each in devices}
            host = str(whole.node.device_root / "vdavinci100")
            assert found["Ascend910-2c-100-1"] == [{"path": "/dev/davinci100", "hostPath": host, "permissions": "rw"}]
            assert "1" not in found
            assert all(parse_chip_name(f"Ascend910-{name}") in range(8) for name in found if name.isdigit())
