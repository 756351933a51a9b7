"""The scenarios' world on the real cluster: etcd, kube-apiserver, kube-scheduler, kubelets, containers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, Pod
from ascend.products import ASCEND_910A
from device_plugin.driver.simulated import SimulatedServer
from tests.cluster import nodes as cluster_nodes
from tests.cluster.api import free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod as pod_manifest
from tests.cluster.processes import Process
from tests.e2e.proxy import ApiProxy
from tests.e2e.world import (
    DEVICE_NODES,
    ContainerView,
    Program,
    World,
    WorldNode,
    allocator_command,
    plugin_command,
    write_kubeconfig,
)

BIN = Path(sys.executable).parent


class RealProgram(Program):
    """One of our programs, supervised by the cluster."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)

    async def stop(self) -> None:
        await asyncio.to_thread(self.process.stop)


class RealNode(WorldNode):
    """A node with a real kubelet and containerd."""

    def __init__(self, node: cluster_nodes.Node) -> None:
        self._node = node
        self.name = node.name
        self.pod_resources_socket = node.pod_resources_socket
        self.state_file = node.folder / "chips.json"

    async def restart_kubelet(self) -> None:
        def restart() -> None:
            self._node.kubelet.stop()
            self._node.start_kubelet()

        await asyncio.to_thread(restart)

    async def container(self, pod: Pod) -> ContainerView:
        def look() -> ContainerView:
            printed = self._node.exec(pod.name, ["env"])
            env = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
            devices = self._node.exec(pod.name, ["ls", "/dev"]).split()
            return ContainerView(env, frozenset(name for name in devices if name.startswith("davinci")))

        return await asyncio.to_thread(look)


class RealWorld(World):
    """A world on a running real cluster."""

    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        return pod_manifest(name, chips, **spec)


@asynccontextmanager
async def real_world(cluster: Cluster, folder: Path) -> AsyncIterator[RealWorld]:
    """Both programs on the shared real cluster; afterwards it is as it was."""
    world = RealWorld()
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    world.allocator_url = f"http://{address}"
    async with (
        await KubeClient.connect(str(cluster.kubeconfig_path)) as world.client,
        ApiProxy(cluster.url, cluster.ca) as world.api,
    ):
        kubeconfig = write_kubeconfig(folder / "kubeconfig.json", world.api.url, cluster.admin_token)
        command = allocator_command(BIN / "ascend-allocator", kubeconfig=kubeconfig, address=address)
        world.allocator = RealProgram(cluster.process("ascend-allocator", command))
        world.nodes = [_node(node, kubeconfig) for node in cluster.nodes]
        await asyncio.to_thread(cluster.restart_scheduler, f"{world.allocator_url}/scheduler")
        programs = [world.allocator, *(node.plugin for node in world.nodes)]
        try:
            await asyncio.gather(*(program.start() for program in programs))
            await world.all_ready()
            yield world
        finally:
            await world.remove_pods()
            await asyncio.gather(*(program.stop() for program in programs))
            await world.client.request("DELETE", CONFIG_MAPS.path(namespace="kube-system"))


def _node(node: cluster_nodes.Node, kubeconfig: Path) -> RealNode:
    world_node = RealNode(node)
    SimulatedServer.full(ASCEND_910A).save(world_node.state_file)
    (port,) = free_ports(1)
    world_node.plugin_url = f"http://127.0.0.1:{port}"
    command = plugin_command(
        BIN / "ascend-device-plugin",
        kubeconfig=kubeconfig,
        node=node.name,
        state_file=world_node.state_file,
        device_root=cluster_nodes.make_device_nodes(node.folder / "chips", DEVICE_NODES),
        pods_url=node.pods_url,
        http_address=f"127.0.0.1:{port}",
        injection="both",
    )
    world_node.plugin = RealProgram(node.process("ascend-device-plugin", command))
    return world_node
