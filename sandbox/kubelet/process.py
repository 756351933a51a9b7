"""One run of the kubelet process: holds the state that a restart of the kubelet loses."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ascend.daemon.grpc_start import start_server
from ascend.errors import InvalidValue
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.objects import Node
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from protos.k8s.podresources.v1 import podresources_pb2_grpc
from sandbox.kubelet.allocation import DeviceManager, TopologyPolicy
from sandbox.kubelet.checkpoint import read_checkpoint
from sandbox.kubelet.ledger import ResourceLedger
from sandbox.kubelet.node_status import NodeStatusUpdater
from sandbox.kubelet.pod_resources import PodResources
from sandbox.kubelet.pod_status import PodStatusWriter
from sandbox.kubelet.pod_store import PodStore
from sandbox.kubelet.pod_workers import PodWorkers
from sandbox.kubelet.registration import Plugins
from sandbox.kubelet.runtime import Runtime
from sandbox.kubelet.server import PodsAnswer, PodServer
from sandbox.kubelet.sync_loop import SyncLoop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The configuration of a kubelet, and the state of its node that outlives the kubelet process.

    Attributes:
        node_name: the node's name.
        client: the API server.
        plugin_socket: ``kubelet.sock``; the plugins' sockets and the checkpoint are in the same directory.
        pod_resources_socket: socket of the pod-resources API.
        runtime: the container runtime.
        answer: how ``GET /pods`` is answered.
        gate: admission waits while it is not set.
        rng: makes every arbitrary choice.
        topology_policy: see ``sandbox.kubelet.allocation``.
        reregistration_race: see ``sandbox.kubelet.registration``.
        dial_timeout_s: how long to wait for a connection to a plugin.
        stop_grace_s: how long a resource is kept after its plugin disconnected.
        node_status_period_s: see ``sandbox.kubelet.node_status``.
        changed: called after every change.
    """

    node_name: str
    client: KubeClient
    plugin_socket: Path
    pod_resources_socket: Path
    runtime: Runtime
    answer: PodsAnswer
    gate: asyncio.Event
    rng: random.Random
    topology_policy: TopologyPolicy
    reregistration_race: bool
    dial_timeout_s: float
    stop_grace_s: float
    node_status_period_s: float
    changed: Callable[[], None]


class KubeletProcess:
    """One run of the kubelet.

    Args:
        dependencies: its configuration and its node.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        directory = dependencies.plugin_socket.parent
        self.ledger = ResourceLedger()
        self.pod_store = PodStore()
        self.plugins = Plugins(
            directory,
            self.ledger,
            self._devices_changed,
            reregistration_race=dependencies.reregistration_race,
            dial_timeout_s=dependencies.dial_timeout_s,
            stop_grace_s=dependencies.stop_grace_s,
        )
        # Containers that already run need no devices again (manager.go, isContainerAlreadyRunning).
        running = {
            (container.pod_uid, container.name) for container in dependencies.runtime.containers if container.running
        }
        self.devices = DeviceManager(
            self.ledger,
            self.plugins,
            directory,
            rng=dependencies.rng,
            active=lambda: {pod.uid for pod in self.pod_store.active()},
            already_running=lambda uid, name: (uid, name) in running,
            topology_policy=dependencies.topology_policy,
            changed=self._devices_changed,
        )
        self._statuses = PodStatusWriter(dependencies.client, dependencies.changed)
        self.workers = PodWorkers(
            self.pod_store, dependencies.runtime, self.devices, self._statuses, changed=dependencies.changed
        )
        self._events = EventRecorder(dependencies.client, "kubelet", dependencies.node_name)
        self._pod_server = PodServer(
            self.pod_store,
            dependencies.answer,
            dependencies.rng,
            registrations=self.plugins.registrations,
            changed=dependencies.changed,
        )
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._node: NodeStatusUpdater | None = None
        self._old_socket = dependencies.plugin_socket.parent.parent / "previous.sock"

    @property
    def node(self) -> Node:
        """The Node as this kubelet last wrote it."""
        return Node() if self._node is None else self._node.node

    async def start(self, port: int) -> int:
        """Start in the order of the kubelet: checkpoint, old sockets, Registration service, pods.

        See docs/spec/kubelet.md#kubelet-start.

        Args:
            port: of ``GET /pods``; 0 lets the system choose.

        Returns:
            The port of ``GET /pods``.
        """
        dependencies = self._dependencies
        has_checkpoint = self._read_checkpoint()
        for resource in self.ledger.healthy:
            self.plugins.expect(resource)
        await self._serve_sockets()
        port = await self._pod_server.start(port)
        self._node = NodeStatusUpdater(
            dependencies.client,
            dependencies.node_name,
            ledger=self.ledger,
            changed=dependencies.changed,
            reset=not has_checkpoint,
            version="v1.36.3" if dependencies.reregistration_race else "v1.37.2",
            period_s=dependencies.node_status_period_s,
        )
        loop = SyncLoop(
            dependencies.client,
            dependencies.node_name,
            node=self._node,
            pod_store=self.pod_store,
            ledger=self.ledger,
            devices=self.devices,
            workers=self.workers,
            statuses=self._statuses,
            events=self._events,
            rng=dependencies.rng,
            gate=dependencies.gate,
            changed=dependencies.changed,
        )
        for work in (self._node.run(), self._statuses.run(), self._events.run(), loop.watch(), loop.run()):
            self._run(work)
        return port

    async def stop(self) -> None:
        """Exit. Containers, checkpoint and the plugins' sockets remain.

        Raises:
            ExceptionGroup: a task of the kubelet failed.
        """
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.workers.close()
        if self._dependencies.plugin_socket.exists():
            # Plugins tell sockets apart by inode. A second link to the old socket keeps its inode from being reused.
            self._old_socket.unlink(missing_ok=True)
            self._old_socket.hardlink_to(self._dependencies.plugin_socket)
        for server in self._servers:
            await server.stop(grace=None)
        await self._pod_server.close()
        await self.plugins.close()
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup("the kubelet failed", failures)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"kubelet of {self._dependencies.node_name}"))

    def _read_checkpoint(self) -> bool:
        try:
            return read_checkpoint(self._dependencies.plugin_socket.parent, self.ledger)
        except InvalidValue as error:
            log.warning("checkpoint ignored", extra={"error": str(error)})
            return True

    async def _serve_sockets(self) -> None:
        dependencies = self._dependencies
        directory = dependencies.plugin_socket.parent
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        dependencies.pod_resources_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in (*directory.iterdir(), dependencies.pod_resources_socket):
            # It removes sockets only, neither the checkpoint nor directories (docs/spec/kubelet.md#kubelet-start).
            if path.is_socket():
                path.unlink(missing_ok=True)  # its plugin may remove it first
        registration = grpc.aio.server()
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self.plugins, registration)
        await self._serve(registration, dependencies.plugin_socket)
        self._old_socket.unlink(missing_ok=True)
        lister = grpc.aio.server()
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(
            PodResources(self.pod_store, self.ledger, self.devices), lister
        )
        await self._serve(lister, dependencies.pod_resources_socket)

    async def _serve(self, server: grpc.aio.Server, socket: Path) -> None:
        server.add_insecure_port(f"unix:{socket}")
        self._servers.append(server)
        await start_server(server)

    def _devices_changed(self) -> None:
        if self._node is not None:
            self._node.refresh()
        self._dependencies.changed()
