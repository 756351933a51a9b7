"""A node as the scenarios see it: its kubelet, its device plugin, its chips, and what a container there sees."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ascend.kube.objects import Pod
from ascend.products import Product
from device_plugin.driver.simulated import SimulatedServer
from device_plugin.kubelet.pod_resources import read_ledger
from tests.e2e.programs import Program


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a container sees: its environment, and the davinci nodes below /dev."""

    env: Mapping[str, str]
    devices: frozenset[str]


class WorldNode(ABC):
    """A node: its kubelet, its device plugin, its simulated chips."""

    name: str
    plugin: Program
    plugin_url: str
    state_file: Path
    pod_resources_socket: Path

    @abstractmethod
    async def restart_kubelet(self) -> None:
        """Restart the kubelet; its containers stay."""

    @abstractmethod
    async def container(self, pod: Pod) -> ContainerView:
        """What the pod's container sees."""

    async def ledger(self) -> dict[str, tuple[int, ...]]:
        """The kubelet's own ledger: ``namespace/name`` to physical ids."""
        pods = (await read_ledger(self.pod_resources_socket)).pods
        return {key: tuple(sorted(chip for ids in held.values() for chip in ids)) for key, held in pods.items() if held}

    async def mend(self, product: Product) -> None:
        """All chips healthy, whatever the plugin has seen of them forgotten, and the plugin running."""
        healthy = SimulatedServer.full(product)
        if msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer) != healthy:
            await self.plugin.stop()
            healthy.save(self.state_file)
        if not self.plugin.runs:
            await self.plugin.start()

    def edit_chip(self, chip_id: int, **fields: Any) -> None:
        """Change a simulated chip while the plugin runs."""
        server = msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer)
        for name, value in fields.items():
            setattr(server.chips[chip_id], name, value)
        server.save(self.state_file)
