"""Breaks of docs/failures.md that happen on a node: its chips, its kubelet, its device plugin."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ascend.annotations import KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, parse_chip_name
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.kube.objects import CONFIG_MAPS, PODS
from ascend.products import ASCEND_A3_16
from device_plugin.driver.simulated_events import SimulatedEvents
from device_plugin.driver.simulated_resets import SimulatedReset
from device_plugin.driver.simulated_switches import SimulatedSwitchFault
from device_plugin.kubelet.pod_resources import count_healthy
from sandbox.cluster import full_server, save_server
from tests.allocator.authority import Authority
from tests.conformance.pods_list import PodsList
from tests.conformance.reference_plugin import SLOW_RESOURCE, SlowPlugin
from tests.conformance.test_foreign_containers import process_with
from tests.dcmi.fake import FakeDcmi, ascend_910a
from tests.device_plugin.node import SloppyKubelet
from tests.e2e.lab import Break, Lab
from tests.e2e.real import RealProgram
from tests.mindcluster.device_plugin import MindClusterPlugin

REPORT: Final = config_map_name("n1")


def with_chip(**fields: Any) -> Break:
    """The driver says something else of a chip."""

    @asynccontextmanager
    async def edited(lab: Lab) -> AsyncIterator[None]:
        lab.node.edit_chip(5, **fields)
        yield
        await lab.node.plugin.kill()
        await lab.heal()

    return edited


@asynccontextmanager
async def a_card_is_not_ready_at_the_start(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    lab.node.edit_chip(5, ready=False)
    await lab.node.plugin.start()
    yield
    await lab.heal()


@asynccontextmanager
async def a_chip_flaps(lab: Lab) -> AsyncIterator[None]:
    codes = ["80E18402"]
    for health in ("Unhealthy", "Healthy", "Unhealthy"):
        lab.node.edit_chip(5, health=health, fault_codes=codes if health == "Unhealthy" else [])
        is_so = partial(_is_unhealthy, lab, health == "Unhealthy")
        await lab.world.eventually(is_so, f"the chip is {health}")
    yield
    await lab.heal()


async def _is_unhealthy(lab: Lab, wanted: bool) -> bool:  # noqa: FBT001 - a condition
    return bool((await lab.world.report("n1")).unhealthy) == wanted


@asynccontextmanager
async def the_library_is_missing(lab: Lab) -> AsyncIterator[None]:
    async with lab.plugin_with("--driver", "dcmi", "--dcmi-library", str(lab.world.folder / "libdcmi.so")):
        yield


@asynccontextmanager
async def the_kubelets_socket_is_deleted(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    (lab.node.device_plugins / "kubelet.sock").unlink()
    await lab.node.plugin.start()
    yield
    await lab.node.restart_kubelet()


@asynccontextmanager
async def the_folder_is_missing(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    away = lab.node.device_plugins.rename(lab.node.device_plugins.with_name("away"))
    await lab.node.plugin.start()
    yield
    await lab.node.stop_plugin()
    away.rename(lab.node.device_plugins)
    await lab.node.plugin.start()


@asynccontextmanager
async def the_kubelet_refuses(lab: Lab) -> AsyncIterator[None]:
    folder = lab.node.device_plugins
    await lab.node.stop_plugin()
    away = (folder / "kubelet.sock").rename(folder / "kubelets")
    async with SloppyKubelet(folder) as refusing:
        refusing.refuses = True
        await lab.node.plugin.start()
        yield
    await lab.node.stop_plugin()
    away.rename(folder / "kubelet.sock")
    await lab.node.plugin.start()


@asynccontextmanager
async def the_disk_is_full(lab: Lab) -> AsyncIterator[None]:
    folder = "/var/lib/kubelet/device-plugins"
    await lab.node.stop_plugin()
    # A file system of one inode, that of its root.
    await lab.once("full", f"mount -t tmpfs -o nr_inodes=1 tmpfs {folder}")
    await lab.node.plugin.start()
    yield
    await lab.node.stop_plugin()
    await lab.once("free", f"umount {folder}")
    await lab.node.plugin.start()


@asynccontextmanager
async def the_kubelets_certificate_is_foreign(lab: Lab) -> AsyncIterator[None]:
    stranger = await asyncio.to_thread(Authority, lab.world.folder, "stranger")
    folder = lab.world.folder / "pki"
    folder.mkdir()
    (folder / "kubelet.crt").write_bytes(stranger.cert.read_bytes())
    async with lab.plugin_with("--kubelet-cert-dir", str(folder)):
        yield


@asynccontextmanager
async def the_kubelet_loses_its_checkpoint(lab: Lab) -> AsyncIterator[None]:
    await lab.run("works", 8)
    kubelet = lab.cluster.node("n1")
    await asyncio.to_thread(kubelet.kubelet.stop)
    (lab.node.device_plugins / "kubelet_internal_checkpoint").unlink()
    await asyncio.to_thread(kubelet.start_kubelet)
    await lab.node.stop_plugin()
    await lab.node.plugin.start()
    yield
    await lab.world.delete("works")


@asynccontextmanager
async def the_restarted_kubelet_counts_the_chip_of_an_ended_pod(lab: Lab) -> AsyncIterator[None]:
    await lab.run("old", 1)
    held = (await lab.world.pod("old")).metadata.annotations[RESOURCE]
    kubelet = lab.cluster.node("n1")
    await asyncio.to_thread(kubelet.kubelet.stop)
    await lab.world.client.delete(PODS, "old", "default", grace_s=0)
    pod = await lab.world.create("late", 1, schedulerName="none")
    written = {RESOURCE: held, PREDICATE_TIME: "1"}
    await lab.world.client.bind(namespace="default", name="late", uid=pod.uid, node="n1", annotations=written)
    await asyncio.to_thread(kubelet.start_kubelet)
    await lab.world.failed("late")
    yield
    await lab.world.delete("late")


@asynccontextmanager
async def a_pod_starts_while_the_kubelet_does_not_know_the_resource(lab: Lab) -> AsyncIterator[None]:
    kubelet = lab.cluster.node("n1")
    await lab.node.plugin.kill()
    await asyncio.to_thread(kubelet.kubelet.stop)
    (lab.node.device_plugins / "kubelet_internal_checkpoint").unlink()
    pod = await lab.world.create("without", 1, schedulerName="none")
    await lab.world.bind(pod, "n1", 5, predicate_time=1)
    await asyncio.to_thread(kubelet.start_kubelet)

    async def runs() -> bool:
        return (await lab.world.pod("without")).status.phase == "Running"

    await lab.world.eventually(runs, "the pod runs")
    await lab.node.plugin.start()
    yield
    await lab.world.delete("without")


@asynccontextmanager
async def the_kubelets_list_is_empty(lab: Lab) -> AsyncIterator[None]:
    pods_list = PodsList(lab.cluster.node("n1").server)
    pods_list.manner = "empty"
    with pods_list.served():
        async with lab.plugin_with("--kubelet-pods-url", pods_list.url):
            await lab.world.eventually(lab.node.has_ready_plugin, "the plugin is ready")
            pod = await lab.world.create("unlisted", 1, schedulerName="none")
            await lab.world.bind(pod, "n1", 5, predicate_time=1)
            await lab.world.failed("unlisted")
            yield
            await lab.world.delete("unlisted")


@asynccontextmanager
async def a_pod_of_mindclusters_plugin_has_another_chip_than_the_kubelet_counts(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    other = MindClusterPlugin(lab.node, lab.world.client)

    async def offers(number: int) -> bool:
        is_known = await count_healthy(lab.node.pod_resources_socket, RESOURCE) == number
        return is_known and await lab.world.allocatable("n1") == number

    await lab.world.eventually(partial(offers, 0), "the kubelet has noticed the end of the plugin")
    await other.start()
    await lab.world.eventually(partial(offers, lab.world.setup.product.chips), "the other plugin offers the chips")
    counted = ""
    for chip in range(8):  # until the kubelet, which chooses by itself, chooses another one
        pod = await lab.world.create(f"theirs-{chip}", 1, schedulerName="none")
        await lab.world.bind(pod, "n1", chip, predicate_time=chip + 1)
        annotations = (await lab.world.running(pod.name)).metadata.annotations
        if (counted := annotations[KUBELET_IDS]) != annotations[REAL]:
            break
    await other.stop()
    await lab.node.plugin.start()
    await lab.world.eventually(partial(offers, lab.world.setup.product.chips), "the plugin offers the chips")
    pod = await lab.world.create("ours", 1, schedulerName="none")
    await lab.world.bind(pod, "n1", parse_chip_name(counted), predicate_time=9)
    await lab.world.running("ours")
    yield


@asynccontextmanager
async def a_container_uses_a_chip_of_nobody(lab: Lab) -> AsyncIterator[None]:
    (container,) = lab.world.pod_manifest("stranger", 0)["spec"]["containers"]
    seconds = "1000077"
    container["command"] = ["sh", "-c", f'trap "exit 0" TERM; sleep {seconds} & wait']
    await lab.world.create("stranger", 0, containers=[container], nodeSelector={"kubernetes.io/hostname": "n1"})

    async def runs() -> bool:
        return process_with(seconds) > 0

    await lab.world.eventually(runs, "the process runs")
    lab.node.edit_chip(5, processes=[process_with(seconds)])
    yield
    await lab.world.delete("stranger")
    await lab.heal()


@asynccontextmanager
async def a_pod_is_created_again_while_the_kubelet_admits_another(lab: Lab) -> AsyncIterator[None]:
    world, slow, pods_list = lab.world, SlowPlugin(), PodsList(lab.cluster.node("n1").server)
    pods_list.manner = "refused"
    with pods_list.served(), slow.serving(lab.node.device_plugins):
        await lab.run("same", 1)
        held = parse_chip_name((await world.pod("same")).metadata.annotations[KUBELET_IDS])
        await world.create("slow", 1, resource=SLOW_RESOURCE)
        await world.eventually(partial(asyncio.to_thread, slow.called.is_set), "the kubelet admits the slow pod")
        await world.client.delete(PODS, "same", "default", grace_s=0)
        pod = await world.create("same", 1, schedulerName="none")
        await world.bind(pod, "n1", held, predicate_time=1)
        async with lab.plugin_with("--kubelet-pods-url", pods_list.url):
            # The kubelet, which is not told which chips to prefer, must not choose the same one by chance.
            lab.node.edit_chip(held, health="Unhealthy", fault_codes=["80E18402"])

            async def is_withheld() -> bool:
                return await world.allocatable("n1") == world.setup.product.chips - 1

            await world.eventually(is_withheld, "the kubelet withholds the chip")
            slow.answers.set()
            await world.failed("same")
            yield
        await world.delete("same", "slow")
    await lab.heal()


@asynccontextmanager
async def allocate_has_a_defect(lab: Lab) -> AsyncIterator[None]:
    folder = lab.world.folder / "defect"
    folder.mkdir()
    # Python runs such a module at its start.
    (folder / "sitecustomize.py").write_text(
        "from device_plugin.pods.admission_matcher import AdmissionMatcher\n"
        "AdmissionMatcher._part = lambda *given: 1 / 0\n"
    )
    async with lab.plugin_with(PYTHONPATH=str(folder)):
        await lab.world.create("fails", 1, nodeSelector={"kubernetes.io/hostname": "n1"})
        await lab.world.failed("fails")
        yield
        await lab.world.delete("fails")


@asynccontextmanager
async def no_board_can_be_read(lab: Lab) -> AsyncIterator[None]:
    folder = lab.world.folder / "dcmi"
    folder.mkdir()
    fake = FakeDcmi(folder, ascend_910a())
    fake.fail("dcmi_get_device_board_info", -8005)
    async with lab.plugin_with("--driver", "dcmi", "--dcmi-library", str(fake.library), **fake.environment()):
        yield


@asynccontextmanager
async def a_lost_link_is_announced_only(lab: Lab) -> AsyncIterator[None]:
    await lab.run_job()
    lab.edit(events=SimulatedEvents(code_delay_s=3600.0))
    await lab.node.plugin.kill()
    await lab.node.plugin.start()
    await lab.world.eventually(lab.node.has_ready_plugin, "the plugin is ready")
    lab.node.edit_chip(5, fault_codes=["81078603"])
    yield
    await lab.node.plugin.kill()
    await lab.heal()


@asynccontextmanager
async def switches_of_an_a3_server_fail(lab: Lab) -> AsyncIterator[None]:
    await lab.node.stop_plugin()
    server = full_server(ASCEND_A3_16)
    server.switch_faults = [SimulatedSwitchFault("[0x08520003,na,npu,na]", time_ms=1)]
    save_server(server, lab.node.state_file)
    await lab.forget_node()
    await lab.node.plugin.start()
    yield
    await lab.node.stop_plugin()
    await lab.forget_node()
    await lab.heal()


@asynccontextmanager
async def a_plugin_leaves_its_taint_to_mindclusters(lab: Lab) -> AsyncIterator[None]:
    other = MindClusterPlugin(lab.node, lab.world.client)
    async with lab.plugin_with("--taint-from", "SeparateNPU"):
        lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])

        async def is_tainted() -> bool:
            return bool((await lab.world.node_object("n1")).spec.taints)

        await lab.world.eventually(is_tainted, "the node is tainted")
        await lab.node.plugin.kill()
        await other.start()
        await lab.world.create("waits", 1, nodeSelector={"kubernetes.io/hostname": "n1"})
        yield
        await lab.world.delete("waits")
        await other.stop()
        await lab.node.plugin.start()
    await lab.heal()


@asynccontextmanager
async def the_plugin_has_no_descriptors(lab: Lab) -> AsyncIterator[None]:
    assert isinstance(lab.node.plugin, RealProgram)
    pid = lab.node.plugin.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # Those that are open stay open, the connection to the API server among them.
    lowest = min({*range(1024)} - {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()})
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def with_reset(**how: Any) -> Break:
    """A reset of the driver goes like this."""

    @asynccontextmanager
    async def reset(lab: Lab) -> AsyncIterator[None]:
        async with lab.plugin_with("--hot-reset", "on", "--hot-reset-idle-s", "1"):
            lab.edit(reset=SimulatedReset(**how))
            lab.node.edit_chip(5, fault_codes=["80A18008"])
            yield
            await lab.node.plugin.kill()
            await lab.heal()

    return reset


@asynccontextmanager
async def the_api_server_is_silent_at_the_end(lab: Lab) -> AsyncIterator[None]:
    async with lab.world.api.silence(""):
        await lab.node.stop_plugin()
    yield
    await lab.node.plugin.start()


@asynccontextmanager
async def the_clock_is_ahead(lab: Lab) -> AsyncIterator[None]:
    # What a device plugin has written at such a node: the machine of the tests has one clock.
    await lab.node.plugin.kill()
    ahead = DeviceReport(0xFF, 0, 0, int(time.time()) + 3600)
    await lab.mark(CONFIG_MAPS, REPORT, {"data": encode_report(ahead)}, NAMESPACE)
    yield
    await lab.world.client.delete(CONFIG_MAPS, REPORT, NAMESPACE)
    await lab.node.plugin.start()


@asynccontextmanager
async def the_plugin_dies_while_a_pod_is_admitted(lab: Lab) -> AsyncIterator[None]:
    await lab.node.plugin.pause()
    await lab.world.create("admitted", 1, nodeSelector={"kubernetes.io/hostname": "n1"})

    async def is_known() -> bool:
        return "admitted" in await lab.node.listed()

    await lab.world.eventually(is_known, "the kubelet knows the pod")
    await lab.node.plugin.kill()
    await lab.world.failed("admitted")
    await lab.node.plugin.start()
    yield
    await lab.world.delete("admitted")


@asynccontextmanager
async def another_plugin_registers(lab: Lab) -> AsyncIterator[None]:
    other = MindClusterPlugin(lab.node, lab.world.client)
    await other.start()
    yield
    await other.stop()


@asynccontextmanager
async def the_cdi_file_can_not_be_written(lab: Lab) -> AsyncIterator[None]:
    file = lab.world.folder / "file"
    file.touch()
    async with lab.plugin_with("--injection", "cdi", "--cdi-dir", str(file / "cdi")):
        await lab.world.create("fails", 1, nodeSelector={"kubernetes.io/hostname": "n1"})
        await lab.world.failed("fails")
        yield
        await lab.world.delete("fails")


BREAKS: Final[Mapping[str, Break]] = {
    "a chip has a fault that only bars": with_chip(health="Unhealthy", fault_codes=["8F180220"]),
    "a card is not ready when the plugin starts": a_card_is_not_ready_at_the_start,
    "the driver can't reach a chip": with_chip(reachable=False),
    "a reset fails": with_reset(error="dcmi_set_npu_device_reset: -8011"),
    "the driver does not return from a reset": with_reset(delay_s=3600.0),
    "a chip does not start after a reset": with_reset(start_s=3600.0),
    "the board of a chip can't be read": no_board_can_be_read,
    "a network port loses its link": a_lost_link_is_announced_only,
    "a switch of an A3 server": switches_of_an_a3_server_fail,
    "it has restarted and still counts": the_restarted_kubelet_counts_the_chip_of_an_ended_pod,
    "a pod runs without the chips": a_pod_starts_while_the_kubelet_does_not_know_the_resource,
    "its `/pods` has no pod that a call fits": the_kubelets_list_is_empty,
    "it counts the id of a free chip": a_pod_of_mindclusters_plugin_has_another_chip_than_the_kubelet_counts,
    "a container uses chips": a_container_uses_a_chip_of_nobody,
    "a pod is recreated under its name, and": a_pod_is_created_again_while_the_kubelet_admits_another,
    "an internal error in Allocate": allocate_has_a_defect,
    "the plugin ends, or gives way": a_plugin_leaves_its_taint_to_mindclusters,
    "a chip flaps": a_chip_flaps,
    "an unknown fault code": with_chip(health="Unhealthy", fault_codes=["8EEEEEEE"]),
    "the calls for one chip hang": with_chip(delay_s=3600.0),
    "the library is missing": the_library_is_missing,
    "its socket `kubelet.sock`": the_kubelets_socket_is_deleted,
    "its folder is missing": the_folder_is_missing,
    "it refuses the registration": the_kubelet_refuses,
    "its certificate is neither": the_kubelets_certificate_is_foreign,
    "it has lost its checkpoint": the_kubelet_loses_its_checkpoint,
    "it does not answer while the plugin ends": the_api_server_is_silent_at_the_end,
    "the node's clock is set": the_clock_is_ahead,
    "it dies while a pod is admitted": the_plugin_dies_while_a_pod_is_admitted,
    "the disk of the kubelet's folder is full": the_disk_is_full,
    "the plugin has no file descriptors": the_plugin_has_no_descriptors,
    "another plugin of the same resource registers": another_plugin_registers,
    "the CDI file can't be written": the_cdi_file_can_not_be_written,
}
