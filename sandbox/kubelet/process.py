"""One run of the kubelet, from its start to its exit: everything a restart loses lives here."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc

from ascend.errors import InvalidValue
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.objects import Node
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from protos.k8s.podresources.v1 import podresources_pb2_grpc
from sandbox.kubelet.allocation import DeviceManager, TopologyPolicy
from sandbox.kubelet.checkpoint import read_checkpoint
from sandbox.kubelet.ledger import Ledger
from sandbox.kubelet.nodereport import NodeReport
from sandbox.kubelet.podbook import PodBook
from sandbox.kubelet.podresources import PodResources
from sandbox.kubelet.podserver import PodsAnswer, PodServer
from sandbox.kubelet.registration import Plugins
from sandbox.kubelet.reports import PodReports
from sandbox.kubelet.runtime import Runtime
from sandbox.kubelet.syncloop import SyncLoop
from sandbox.kubelet.workers import PodWorkers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run of the kubelet finds on its node, and what outlives it.

    Attributes:
        node_name: the node.
        node_ip: its InternalIP.
        labels: of the Node.
        client: the API server.
        plugin_socket: ``kubelet.sock``; beside it the plugins' sockets and the checkpoint.
        pod_resources_socket: of the pod-resources API.
        runtime: the containers.
        answer: how ``GET /pods`` is answered.
        gate: admission waits while it is not set.
        rng: every arbitrary choice.
        topology_policy: see ``sandbox.kubelet.allocation``.
        reregistration_race: see ``sandbox.kubelet.registration``.
        dial_timeout_s: for a plugin's socket.
        stop_grace_s: how long a resource is remembered without its plugin.
        now: wall clock.
        monotonic: clock of rate limits.
        changed: called after every change.
    """

    node_name: str
    node_ip: str
    labels: Mapping[str, str]
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
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    changed: Callable[[], None]


class KubeletProcess:
    """One run of the kubelet.

    Args:
        machine: where it runs.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        directory = machine.plugin_socket.parent
        self.ledger = Ledger()
        self.book = PodBook()
        self.plugins = Plugins(
            directory,
            self.ledger,
            self._devices_changed,
            reregistration_race=machine.reregistration_race,
            dial_timeout_s=machine.dial_timeout_s,
            stop_grace_s=machine.stop_grace_s,
        )
        # Containers that ran before this kubelet did need no devices again (manager.go, isContainerAlreadyRunning).
        survivors = {(each.pod_uid, each.name) for each in machine.runtime.containers if each.running}
        self.devices = DeviceManager(
            self.ledger,
            self.plugins,
            directory,
            rng=machine.rng,
            active=lambda: {each.uid for each in self.book.active()},
            adopted=lambda uid, name: (uid, name) in survivors,
            topology_policy=machine.topology_policy,
            changed=self._devices_changed,
        )
        self._reports = PodReports(machine.client, machine.changed)
        self.workers = PodWorkers(
            self.book,
            machine.runtime,
            self.devices,
            self._reports,
            node_ip=machine.node_ip,
            now=machine.now,
            changed=machine.changed,
        )
        self._events = EventRecorder(machine.client, "kubelet", machine.node_name)
        self._pod_server = PodServer(self.book, machine.answer, machine.rng, changed=machine.changed)
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._node: NodeReport | None = None
        self._second_name = machine.plugin_socket.parent.parent / "previous.sock"

    @property
    def node(self) -> Node:
        """The Node as the API server last had it."""
        return Node() if self._node is None else self._node.node

    async def start(self, port: int) -> int:
        """Start in the kubelet's order: checkpoint, sockets removed, Registration served, then the pods (§1.2).

        Args:
            port: of ``GET /pods``; 0 for any.

        Returns:
            The port of ``GET /pods``.
        """
        machine = self._machine
        known = self._read_checkpoint()
        for resource in self.ledger.healthy:
            self.plugins.expect(resource)
        await self._serve_sockets()
        port = await self._pod_server.start(port)
        self._node = NodeReport(
            machine.client,
            machine.node_name,
            address=machine.node_ip,
            labels=machine.labels,
            ledger=self.ledger,
            now=machine.now,
            changed=machine.changed,
            reset=not known,
        )
        loop = SyncLoop(
            machine.client,
            machine.node_name,
            node=self._node,
            book=self.book,
            ledger=self.ledger,
            devices=self.devices,
            workers=self.workers,
            reports=self._reports,
            events=self._events,
            rng=machine.rng,
            gate=machine.gate,
            changed=machine.changed,
        )
        for each in (self._node.run(), self._reports.run(), self._events.run(), loop.watch(), loop.run()):
            self._run(each)
        return port

    async def stop(self) -> None:
        """Exit. Containers, checkpoint and the plugins' sockets stay.

        Raises:
            ExceptionGroup: something had failed that must not.
        """
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.workers.close()
        if self._machine.plugin_socket.exists():
            # As long as the old socket has another name its inode is not used again: plugins tell sockets apart by it.
            self._second_name.unlink(missing_ok=True)
            self._second_name.hardlink_to(self._machine.plugin_socket)
        for server in self._servers:
            await server.stop(grace=None)
        await self._pod_server.close()
        await self.plugins.close()
        failures = [each for each in outcomes if isinstance(each, Exception)]
        if failures:
            raise ExceptionGroup("the kubelet failed", failures)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"kubelet of {self._machine.node_name}"))

    def _read_checkpoint(self) -> bool:
        try:
            return read_checkpoint(self._machine.plugin_socket.parent, self.ledger)
        except InvalidValue as error:
            log.warning("ignoring the checkpoint", extra={"error": str(error)})
            return True

    async def _serve_sockets(self) -> None:
        machine = self._machine
        directory = machine.plugin_socket.parent
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        machine.pod_resources_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in (*directory.iterdir(), machine.pod_resources_socket):
            # Sockets only: neither the checkpoint nor sub-directories (§1.2).
            if path.is_socket():
                path.unlink(missing_ok=True)  # its owner may be quicker
        registration = grpc.aio.server()
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self.plugins, registration)
        await self._serve(registration, machine.plugin_socket)
        self._second_name.unlink(missing_ok=True)
        lister = grpc.aio.server()
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(
            PodResources(self.book, self.ledger, self.devices, monotonic=machine.monotonic), lister
        )
        await self._serve(lister, machine.pod_resources_socket)

    async def _serve(self, server: grpc.aio.Server, socket: Path) -> None:
        server.add_insecure_port(f"unix:{socket}")
        self._servers.append(server)
        await server.start()

    def _devices_changed(self) -> None:
        if self._node is not None:
            self._node.refresh()
        self._machine.changed()
