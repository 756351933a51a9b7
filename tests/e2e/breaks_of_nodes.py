"""Breaks of docs/failures.md that happen on a node: its chips, its kubelet, its device plugin."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.kube.objects import CONFIG_MAPS
from device_plugin.driver.simulated_resets import SimulatedReset
from tests.allocator.authority import Authority
from tests.device_plugin.node import SloppyKubelet
from tests.e2e.lab import Break, Lab
from tests.e2e.test_vnpus import create, cut_chip

REPORT: Final = config_map_name("n1")


@asynccontextmanager
async def a_chip_with_vnpus_fails(lab: Lab) -> AsyncIterator[None]:
    await cut_chip(lab.world, lab.node, 100, 101)
    await create(lab.world, "part")
    await lab.world.running("part")
    lab.node.edit_chip(0, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.world.delete("part")
    await lab.heal()


@asynccontextmanager
async def a_reset_fails(lab: Lab) -> AsyncIterator[None]:
    async with lab.plugin_with("--hot-reset", "on", "--hot-reset-idle-s", "1"):
        lab.edit(reset=SimulatedReset(error="dcmi_set_npu_device_reset: -8011"))
        lab.node.edit_chip(5, fault_codes=["80A18008"])
        yield
        await lab.heal()


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
async def the_clock_is_ahead(lab: Lab) -> AsyncIterator[None]:
    # What a device plugin has written at such a node: the machine of the tests has one clock.
    await lab.node.plugin.kill()
    ahead = DeviceReport(0xFF, 0, 0, int(time.time()) + 3600)
    await lab.mark(CONFIG_MAPS, REPORT, {"data": encode_report(ahead)}, NAMESPACE)
    yield
    await lab.world.client.delete(CONFIG_MAPS, REPORT, NAMESPACE)
    await lab.node.plugin.start()


BREAKS: Final[Mapping[str, Break]] = {
    "a chip with vNPUs fails": a_chip_with_vnpus_fails,
    "a reset fails": a_reset_fails,
    "its folder is missing": the_folder_is_missing,
    "it refuses the registration": the_kubelet_refuses,
    "its certificate is neither": the_kubelets_certificate_is_foreign,
    "the node's clock is set": the_clock_is_ahead,
    "the disk of the kubelet's folder is full": the_disk_is_full,
}
