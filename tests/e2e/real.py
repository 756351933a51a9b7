"""The real world: etcd, kube-apiserver, kube-scheduler, kubelets and containers."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, Pod
from sandbox.cluster import full_server, save_server
from tests.cluster import nodes as cluster_nodes
from tests.cluster.api import free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod as pod_manifest
from tests.cluster.processes import Process
from tests.dcmi.fake import FakeChip, FakeDcmi
from tests.e2e.node import ContainerView, WorldNode
from tests.e2e.programs import BIN, DEVICE_NODES, Program, plugin_command, write_kubeconfig
from tests.e2e.proxy import ApiProxy
from tests.e2e.world import Setup, World
from tests.written_nodes import removal

WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ascend-allocator"


class RealProgram(Program):
    """One of our programs, supervised by the cluster."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def runs(self) -> bool:
        return self.process.alive

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    async def pause(self) -> None:
        await asyncio.to_thread(self.process.pause)

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)

    async def stop(self) -> None:
        await asyncio.to_thread(self.process.stop)


class RealNode(WorldNode):
    """A node with a real kubelet and containerd."""

    def __init__(self, node: cluster_nodes.Node) -> None:
        self._node = node
        self.name = node.name
        self.device_plugins = node.device_plugin_dir
        self.pod_resources_socket = node.pod_resources_socket
        self.state_file = node.folder / "chips.json"

    async def restart_kubelet(self) -> None:
        def restart() -> None:
            self._node.kubelet.stop()
            self._node.start_kubelet()

        await asyncio.to_thread(restart)

    async def listed(self) -> set[str]:
        return {each["metadata"]["name"] for each in await asyncio.to_thread(self._node.pods)}

    async def container(self, pod: Pod) -> ContainerView:
        def look() -> ContainerView:
            printed = self._node.exec(pod.name, ["env"])
            env = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
            devices = self._node.exec(pod.name, ["ls", "/dev"]).split()
            return ContainerView(env, frozenset(name for name in devices if name.startswith("davinci")))

        return await asyncio.to_thread(look)

    def add_device_nodes(self, *names: str) -> None:
        cluster_nodes.make_device_nodes(self._node.folder / "chips", names)


class RealWorld(World):
    """A world on a running real cluster."""

    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        return pod_manifest(name, chips, **spec)


@asynccontextmanager
async def real_world(
    cluster: Cluster, folder: Path, setup: Setup, *, driver: Callable[[], list[FakeChip]] | None = None
) -> AsyncIterator[RealWorld]:
    """Run both programs on the shared real cluster, and restore the cluster afterwards.

    Args:
        cluster: the cluster.
        folder: for files.
        setup: the configuration.
        driver: the chips of a node, which a fake DCMI library reports to the real driver; None simulates the driver.
    """
    world = RealWorld(setup, folder)
    async with AsyncExitStack() as stack:
        client = await KubeClient.connect(str(cluster.kubeconfig_path))
        world.client = await stack.enter_async_context(client)
        world.api = await stack.enter_async_context(ApiProxy(cluster.url, cluster.ca))
        await stack.enter_async_context(world.service)
        kubeconfig = write_kubeconfig(folder / "kubeconfig.json", world.api.url, cluster.admin_token)
        world.add_allocators(kubeconfig, lambda name, command: RealProgram(cluster.process(name, command)))
        world.nodes = [_node(node, kubeconfig, setup, folder, driver) for node in cluster.nodes]
        if setup.mindclusters_plugin:
            world.install_mindclusters_plugin()
        programs = [*world.allocators, *(node.plugin for node in world.nodes)]
        stack.push_async_callback(_restore_cluster, world)
        for stop in (*(each.stop for each in world.allocators), *(each.stop_plugin for each in world.nodes)):
            stack.push_async_callback(stop)
        stack.push_async_callback(world.clear)
        world.restart_scheduler = lambda: asyncio.to_thread(cluster.restart_scheduler, world.extender_url)
        await asyncio.gather(world.restart_scheduler(), *(program.start() for program in programs))
        await world.all_ready()
        if setup.by_webhook:
            await world.client.request(
                "POST", WEBHOOKS, body=_webhook(world, world.webhook_url, "pods/binding", "Fail")
            )
        if setup.gates:
            url = await stack.enter_async_context(world.serving_gates())
            await world.client.request("POST", WEBHOOKS, body=_webhook(world, url, "pods", "Ignore"))
        yield world


def _node(
    node: cluster_nodes.Node, kubeconfig: Path, setup: Setup, folder: Path, driver: Callable[[], list[FakeChip]] | None
) -> RealNode:
    world_node = RealNode(node)
    environment = {}
    if driver is None:
        save_server(full_server(setup.product), world_node.state_file)
    else:
        library = folder / f"dcmi-{node.name}"
        library.mkdir()
        environment = FakeDcmi(library, driver()).environment()
    device_root = cluster_nodes.make_device_nodes(node.folder / "chips", DEVICE_NODES)
    numbers = count()

    def make() -> tuple[Program, str]:
        (port,), number = free_ports(1), next(numbers)
        command = plugin_command(
            BIN / "ascend-device-plugin",
            kubeconfig=kubeconfig,
            node=node.name,
            state_file=world_node.state_file if driver is None else None,
            device_root=device_root,
            pods_url=node.pods_url,
            http_address=f"127.0.0.1:{port}",
            injection="both",
            dynamic_vnpus=str(setup.dynamic_vnpus).lower(),
            faults_in_use=setup.faults_in_use,
        )
        name = f"ascend-device-plugin-{number}" if number else "ascend-device-plugin"
        return RealProgram(node.process(name, command, **environment)), f"http://127.0.0.1:{port}"

    world_node.make_plugin = make
    world_node.plugin, world_node.plugin_url = make()
    return world_node


def _webhook(world: World, url: str, resource: str, failure_policy: str) -> dict[str, Any]:
    """Return a webhook configuration like the chart's, but for all namespaces, users and pods."""
    authority = base64.b64encode(world.authority.cert.read_bytes()).decode()
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "scenario"},
        "webhooks": [
            {
                "name": "scenario.ascend-affinity.io",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": url, "caBundle": authority},
                "rules": [rule],
                "failurePolicy": failure_policy,
                "sideEffects": "NoneOnDryRun",
                "timeoutSeconds": 5,
            }
        ],
    }


async def _restore_cluster(world: World) -> None:
    """Remove what our programs leave on the cluster, such as labels: other test modules use other products."""
    for node in world.nodes:
        await world.client.patch(NODES, node.name, removal())
    await world.client.request("DELETE", CONFIG_MAPS.path(namespace="kube-system"))
    with suppress(NotFound):
        await world.client.request("DELETE", LEASE)
    with suppress(NotFound):
        await world.client.request("DELETE", f"{WEBHOOKS}/scenario")
