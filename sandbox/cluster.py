"""A sandbox cluster: an API server, a scheduler, and nodes with simulated chips.

Our two programs are not part of it. As on any cluster they are started separately, in this process or in others.
"""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from ascend.chips import RESOURCE
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES
from ascend.products import ASCEND_910A, Product
from ascend.rules.identity import ACCELERATOR_TYPE
from device_plugin.driver.simulated_file import SimulatedChip, SimulatedServer
from device_plugin.pods.container_edits import MANAGER_NODE
from sandbox.apiserver import ApiServer
from sandbox.kubelet import Kubelet
from sandbox.scheduler import Scheduler

TOKEN = "sandbox"  # noqa: S105 - gives access to this sandbox only


ANY_CHIP: Final = "910B"
"""The kind of chip of servers whose chips can be of several kinds."""


def full_server(product: Product) -> SimulatedServer:
    """Return a server of this product with all its chips, healthy."""
    chips = [SimulatedChip(chip_id, ip=f"10.20.0.{chip_id + 1}") for chip_id in range(product.chips)]
    return SimulatedServer(product.chip or ANY_CHIP, chips)


def save_server(server: SimulatedServer, path: Path) -> None:
    """Write the file atomically."""
    content = msgspec.json.format(msgspec.json.encode(server), indent=1)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as scratch:
        scratch.write(content)
    now_ns = time.time_ns()  # the kernel's own times are too coarse to distinguish two versions
    os.utime(scratch.name, ns=(now_ns, now_ns))
    Path(scratch.name).replace(path)


@dataclass(frozen=True, slots=True)
class SandboxNode:
    """A node: kubelet, state file of the simulated chips, and folder of device nodes."""

    kubelet: Kubelet
    state_file: Path
    device_root: Path

    @property
    def name(self) -> str:
        """The node's name."""
        return self.kubelet.node_name

    def edit_chip(self, chip_id: int, **fields: Any) -> None:
        """Change fields of a simulated chip, such as ``edit_chip(2, health="Unhealthy")``."""
        server = msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer)
        for name, value in fields.items():
            setattr(server.chips[chip_id], name, value)
        save_server(server, self.state_file)

    def edit_server(self, **fields: Any) -> None:
        """Change fields of the simulated server, such as ``edit_server(delay_s=1.0)``."""
        server = msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer)
        save_server(msgspec.structs.replace(server, **fields), self.state_file)


class SandboxCluster:
    """A cluster in this process. Use as an async context manager.

    Args:
        folder: for sockets and files; a short path, because the path of a unix socket may have 107 bytes.
        node_names: the names of the nodes.
        product: the product of the nodes.
        seed: of every arbitrary choice.
        reregistration_race: whether the kubelets behave as those before 1.37.
        node_status_period_s: the period of the kubelets' updates of their Nodes.

    Attributes:
        client: the API server, as an administrator.
        nodes: the nodes, in the order of ``node_names``.
    """

    def __init__(
        self,
        folder: Path,
        node_names: Sequence[str],
        *,
        product: Product = ASCEND_910A,
        seed: int = 1,
        reregistration_race: bool = True,
        node_status_period_s: float = 0.0,
    ) -> None:
        self._folder = folder
        self._node_names = node_names
        self._product = product
        self._seed = seed
        self._reregistration_race = reregistration_race
        self._node_status_period_s = node_status_period_s
        self._stack = AsyncExitStack()
        self._scheduling = AsyncExitStack()
        self.server = ApiServer(tokens={TOKEN: "admin"})
        self.client: KubeClient
        self.nodes: list[SandboxNode] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.server)
            client = await KubeClient.connect(str(self.write_kubeconfig("admin")))
            self.client = await stack.enter_async_context(client)
            for number, name in enumerate(self._node_names):
                self.nodes.append(await self._node(stack, name, self._seed + number))
            await stack.enter_async_context(self._scheduling)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start_scheduler(self, extender_url: str | None) -> None:
        """Start or restart the scheduler, with an allocator as extender; with None it only counts."""
        await self._scheduling.aclose()
        await self._scheduling.enter_async_context(Scheduler(self.client, extender_url, seed=self._seed))

    def write_kubeconfig(self, name: str, server: str = "") -> Path:
        """Write a kubeconfig file for the API server, or for a proxy of it at another address."""
        document = self.server.kubeconfig(TOKEN)
        if server:
            document["clusters"][0]["cluster"]["server"] = server
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    async def _node(self, stack: AsyncExitStack, name: str, seed: int) -> SandboxNode:
        folder = self._folder / name
        if not self._product.chip:  # the label decides, not the chips
            labels = {ACCELERATOR_TYPE: self._product.node_types[0]}
            metadata = {"name": name, "labels": labels}
            await self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        kubelet = await stack.enter_async_context(
            Kubelet(
                name,
                self.client,
                folder,
                seed=seed,
                reregistration_race=self._reregistration_race,
                node_status_period_s=self._node_status_period_s,
            )
        )
        node = SandboxNode(kubelet, folder / "chips.json", folder / "dev")
        save_server(full_server(self._product), node.state_file)
        node.device_root.mkdir()
        for device in (MANAGER_NODE, *(f"davinci{chip_id}" for chip_id in range(self._product.chips))):
            (node.device_root / device).touch()
        return node


def pod_manifest(name: str, chips: int, **spec: Any) -> dict[str, Any]:
    """Return a pod with one container, ``main``, that requests chips; 0 for none."""
    resources = {"limits": {RESOURCE: str(chips)}} if chips else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
            **spec,
        },
    }
