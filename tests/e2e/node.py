"""A node of the scenarios: its kubelet, its device plugin, its chips and its containers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ascend.kube.objects import Pod
from ascend.products import Product
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.kubelet.pod_resources import read_ledger
from sandbox.cluster import full_server, save_server
from tests.e2e.programs import Program, is_ready


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The inside of a container: its environment, and the davinci devices in /dev."""

    env: Mapping[str, str]
    devices: frozenset[str]


class WorldNode(ABC):
    """A node: its kubelet, its device plugin, its simulated chips.

    Attributes:
        device_plugins: the kubelet's folder of device plugin sockets.
        make_plugin: makes an instance of the device plugin, and the address of its page.
    """

    name: str
    plugin: Program
    plugin_url: str = ""
    state_file: Path
    pod_resources_socket: Path
    device_plugins: Path
    make_plugin: Callable[[], tuple[Program, str]]

    def renew_plugin(self) -> Program:
        """Have another instance of the device plugin, which is not started; return the one before."""
        before = self.plugin
        self.plugin, self.plugin_url = self.make_plugin()
        return before

    async def stop_plugin(self) -> None:
        """Stop the present instance of the device plugin."""
        await self.plugin.stop()

    async def has_ready_plugin(self) -> bool:
        """Whether the plugin is ready; MindCluster's has no probe that says so."""
        return not self.plugin_url or await is_ready(self.plugin_url)

    @abstractmethod
    async def restart_kubelet(self) -> None:
        """Restart the kubelet; its containers keep running."""

    @abstractmethod
    async def listed(self) -> set[str]:
        """Return the names of the pods in the kubelet's own list."""

    @abstractmethod
    async def container(self, pod: Pod) -> ContainerView:
        """Return the inside of the pod's container."""

    @abstractmethod
    def add_device_nodes(self, *names: str) -> None:
        """Add device nodes to those of the driver."""

    async def ledger(self) -> dict[str, tuple[int, ...]]:
        """Return the kubelet's own ledger: physical chip ids by ``namespace/name`` of the pod."""
        pods = (await read_ledger(self.pod_resources_socket)).pods
        return {key: tuple(sorted(chip for ids in held.values() for chip in ids)) for key, held in pods.items() if held}

    async def restore(self, product: Product) -> None:
        """Make all chips healthy, discard the plugin's memory of faults, and start the plugin if it does not run."""
        healthy = full_server(product)
        if msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer) != healthy:
            await self.plugin.stop()
            save_server(healthy, self.state_file)
        if not self.plugin.runs:
            await self.plugin.start()

    def edit_chip(self, chip_id: int, **fields: Any) -> None:
        """Change fields of a simulated chip while the plugin runs."""
        server = msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer)
        for name, value in fields.items():
            setattr(server.chips[chip_id], name, value)
        save_server(server, self.state_file)
