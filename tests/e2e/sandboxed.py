"""The sandbox world: API server, scheduler and kubelets in this process, our programs as child processes."""

import asyncio
import base64
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp

from ascend.kube.objects import Pod
from sandbox.apiserver.patches import json_patch
from sandbox.apiserver.registry import AdmissionHook
from sandbox.apiserver.resources import ServedResource
from sandbox.apiserver.status import forbidden, internal
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest
from tests.cluster.api import free_ports
from tests.e2e.node import ContainerView, WorldNode
from tests.e2e.programs import BIN, Program, plugin_command
from tests.e2e.proxy import ApiProxy
from tests.e2e.world import Setup, World


class SandboxProgram(Program):
    """One of our programs as a child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self._name = name
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id; the program must have been started."""
        assert self._process is not None, f"{self._name} was never started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    async def pause(self) -> None:
        assert self._process is not None, f"{self._name} was never started"
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            status = await self._process.wait()
            assert number is signal.SIGKILL or status == 0, f"{self._name} exited with status {status}; see {self._log}"


class SandboxWorldNode(WorldNode):
    """A node with a sandbox kubelet."""

    def __init__(self, node: SandboxNode) -> None:
        self._kubelet = node.kubelet
        self.name = node.name
        self.device_plugins = node.kubelet.socket_dir
        self.pod_resources_socket = node.kubelet.pod_resources_socket
        self.state_file = node.state_file
        self._device_root = node.device_root

    async def restart_kubelet(self) -> None:
        await self._kubelet.restart()

    async def listed(self) -> set[str]:
        async with aiohttp.ClientSession() as http, http.get(self._kubelet.pods_url) as answer:
            return {each["metadata"]["name"] for each in (await answer.json())["items"]}

    async def container(self, pod: Pod) -> ContainerView:
        container = self._kubelet.container(pod.key, "main")
        inside = (Path(path) for path in container.devices)
        return ContainerView(container.env, frozenset(path.name for path in inside if path.name.startswith("davinci")))

    def add_device_nodes(self, *names: str) -> None:
        for name in names:
            (self._device_root / name).touch()


class SandboxWorld(World):
    """A world in this process."""

    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        return pod_manifest(name, chips, **spec)


@asynccontextmanager
async def sandbox_world(folder: Path, setup: Setup) -> AsyncIterator[SandboxWorld]:
    """Start two nodes, a scheduler and both programs."""
    world = SandboxWorld(setup, folder)
    async with AsyncExitStack() as stack:
        # The paths of pytest's temporary directories are too long for sockets.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        cluster = await stack.enter_async_context(
            SandboxCluster(short, ("n1", "n2"), product=setup.product, node_status_period_s=setup.node_status_period_s)
        )
        world.client = cluster.client
        world.api = await stack.enter_async_context(ApiProxy(cluster.server.url))
        await stack.enter_async_context(world.service)
        kubeconfig = cluster.write_kubeconfig("programs", world.api.url)
        world.add_allocators(kubeconfig, lambda name, command: SandboxProgram(name, command, folder / f"{name}.log"))
        world.nodes = [_node(node, kubeconfig, setup, folder) for node in cluster.nodes]
        if setup.mindclusters_plugin:
            world.install_mindclusters_plugin()
        world.restart_scheduler = lambda: cluster.start_scheduler(world.extender_url)
        await world.restart_scheduler()
        programs = [*world.allocators, *(node.plugin for node in world.nodes)]
        for stop in (*(each.stop for each in world.allocators), *(each.stop_plugin for each in world.nodes)):
            stack.push_async_callback(stop)
        await asyncio.gather(*(program.start() for program in programs))
        await world.all_ready()
        if setup.by_webhook:
            cluster.server.admission.append(_webhook(world.webhook_url, "binding"))
        if setup.gates:
            url = await stack.enter_async_context(world.serving_gates())
            cluster.server.admission.append(_webhook(url, "", failure_policy="Ignore"))
        yield world


def _webhook(url: str, subresource: str, *, failure_policy: Literal["Fail", "Ignore"] = "Fail") -> AdmissionHook:
    """Return an admission hook that calls a mutating webhook for pods or Bindings, as the API server does."""

    async def call(operation: str, resource: ServedResource, called: str, document: dict[str, Any]) -> dict[str, Any]:
        if (operation, resource.plural, called) != ("CREATE", "pods", subresource):
            return document
        name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
        request = {"uid": "1", "operation": operation, "name": name, "namespace": namespace, "object": document}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        try:
            async with aiohttp.ClientSession() as http, http.post(url, json=review, ssl=False) as answer:
                response = (await answer.json())["response"]
        except aiohttp.ClientError as error:
            if failure_policy == "Ignore":
                return document
            raise internal(f"failed calling webhook: {error}") from error
        if not response["allowed"]:
            raise forbidden(resource, name, f"admission webhook denied the request: {response['status']['message']}")
        operations = json.loads(base64.b64decode(response.get("patch", "W10=")))
        patched: dict[str, Any] = json_patch(document, operations)
        return patched

    return call


def _node(node: SandboxNode, kubeconfig: Path, setup: Setup, folder: Path) -> SandboxWorldNode:
    world_node = SandboxWorldNode(node)

    def make() -> tuple[Program, str]:
        (port,) = free_ports(1)
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
            dynamic_vnpus=str(setup.dynamic_vnpus).lower(),
            faults_in_use=setup.faults_in_use,
        )
        program = SandboxProgram("ascend-device-plugin", command, folder / f"{node.name}.log")
        return program, f"http://127.0.0.1:{port}"

    world_node.make_plugin = make
    world_node.plugin, world_node.plugin_url = make()
    return world_node
