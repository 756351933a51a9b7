"""The scenarios' world in the sandbox: API server, kubelets and scheduler here, our programs as processes."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A, Product
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest
from tests.cluster.api import free_ports
from tests.e2e.proxy import ApiProxy
from tests.e2e.world import (
    ContainerView,
    Program,
    World,
    WorldNode,
    allocator_command,
    plugin_command,
)

BIN = Path(sys.executable).parent


class SandboxProgram(Program):
    """One of our programs as a child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self._name = name
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process's id; it must have been started."""
        assert self._process is not None, f"{self._name} was never started"
        return self._process.pid

    async def start(self) -> None:
        environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            status = await self._process.wait()
            assert number is signal.SIGKILL or status == 0, f"{self._name} ended with {status}; see {self._log}"


class SandboxWorldNode(WorldNode):
    """A node with a sandbox kubelet."""

    def __init__(self, node: SandboxNode) -> None:
        self._kubelet = node.kubelet
        self.name = node.name
        self.pod_resources_socket = node.kubelet.pod_resources_socket
        self.state_file = node.state_file

    async def restart_kubelet(self) -> None:
        await self._kubelet.restart()

    async def container(self, pod: Pod) -> ContainerView:
        container = self._kubelet.container(pod.key, "main")
        inside = (Path(path) for path in container.devices)
        return ContainerView(container.env, frozenset(path.name for path in inside if path.name.startswith("davinci")))


class SandboxWorld(World):
    """A world in this process."""

    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        return pod_manifest(name, chips, **spec)


@asynccontextmanager
async def sandbox_world(folder: Path, product: Product = ASCEND_910A) -> AsyncIterator[SandboxWorld]:
    """Two nodes, a scheduler and both programs, from nothing."""
    world = SandboxWorld()
    world.chips_per_node = product.chips
    allocator_port, *plugin_ports = free_ports(3)
    world.allocator_url = f"http://127.0.0.1:{allocator_port}"
    async with AsyncExitStack() as stack:
        # Unix sockets have short paths only, pytest's folders long ones.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        cluster = await stack.enter_async_context(SandboxCluster(short, ("n1", "n2"), product=product))
        world.client = cluster.client
        world.api = await stack.enter_async_context(ApiProxy(cluster.server.url))
        kubeconfig = cluster.write_kubeconfig("programs", world.api.url)
        command = allocator_command(
            BIN / "ascend-allocator", kubeconfig=kubeconfig, address=f"127.0.0.1:{allocator_port}"
        )
        world.allocator = SandboxProgram("ascend-allocator", command, folder / "allocator.log")
        world.nodes = [
            _node(node, kubeconfig, port, folder) for node, port in zip(cluster.nodes, plugin_ports, strict=True)
        ]
        await cluster.start_scheduler(f"{world.allocator_url}/scheduler")
        programs = [world.allocator, *(node.plugin for node in world.nodes)]
        try:
            await asyncio.gather(*(program.start() for program in programs))
            await world.all_ready()
            yield world
        finally:
            await asyncio.gather(*(program.stop() for program in programs))


def _node(node: SandboxNode, kubeconfig: Path, port: int, folder: Path) -> SandboxWorldNode:
    world_node = SandboxWorldNode(node)
    world_node.plugin_url = f"http://127.0.0.1:{port}"
    command = plugin_command(
        BIN / "ascend-device-plugin",
        kubeconfig=kubeconfig,
        node=node.name,
        state_file=node.state_file,
        device_root=node.device_root,
        pods_url=node.kubelet.pods_url,
        http_address=f"127.0.0.1:{port}",
        injection="both",
        device_plugin_dir=str(node.kubelet.socket_dir),
        pod_resources_socket=str(node.kubelet.pod_resources_socket),
    )
    world_node.plugin = SandboxProgram("ascend-device-plugin", command, folder / f"{node.name}.log")
    return world_node
