"""A node: a kubelet that can be restarted, its containers, and what a test may look at and hold up."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject
from sandbox.changes import Changes
from sandbox.kubelet.allocation import TopologyPolicy
from sandbox.kubelet.endpoint import checked_socket
from sandbox.kubelet.podserver import PodsAnswer
from sandbox.kubelet.process import KubeletProcess, Machine
from sandbox.kubelet.registration import SOCKET_NAME
from sandbox.kubelet.runtime import Container, Runtime
from sandbox.pods import FullPod


class Kubelet:
    """A node with a kubelet that speaks the real device plugin and pod-resources contracts. Use as a context manager.

    Args:
        node_name: of the Node it makes.
        client: the API server: a client, or a kubeconfig to connect with.
        directory: for its sockets and checkpoint; short, because a socket's path may have 107 bytes only.
        seed: of every arbitrary choice: the ids of an allocation, their order, the order of lists.
        node_ip: the Node's InternalIP.
        labels: of the Node, besides ``kubernetes.io/hostname``.
        host_root: where device nodes and mounts of the host are looked up.
        topology_policy: ``none`` asks for a preferred allocation always, ``best-effort`` only where there is a choice.
        reregistration_race: have the flaw of kubelet ≤ 1.36: an old stream's end disconnects the new plugin.
        dial_timeout_s: how long a registration waits for the plugin's socket.
        stop_grace_s: how long a resource is remembered after its plugin went away.
        now: wall clock.
        monotonic: clock of rate limits.

    Raises:
        InvalidValue: the directory's path is too long.
    """

    def __init__(
        self,
        node_name: str,
        client: KubeClient | JsonObject,
        directory: Path,
        *,
        seed: int,
        node_ip: str = "127.0.0.1",
        labels: Mapping[str, str] | None = None,
        host_root: Path = Path("/"),
        topology_policy: TopologyPolicy = "none",
        reregistration_race: bool = True,
        dial_timeout_s: float = 10.0,
        stop_grace_s: float = 300.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_name = node_name
        self.pods_answer = PodsAnswer()
        """How ``GET /pods`` is answered."""
        self.directory = directory
        self.socket_dir = directory / "device-plugins"
        """Where ``kubelet.sock`` is and plugins' sockets must be."""
        self.plugin_socket = checked_socket(self.socket_dir / SOCKET_NAME)
        self.pod_resources_socket = checked_socket(directory / "pod-resources" / SOCKET_NAME)
        self._client = client
        self._owned_client: KubeClient | None = None
        self._changes = Changes()
        self._gate = asyncio.Event()
        self._gate.set()
        rng = random.Random(seed)  # noqa: S311 - arbitrary choices, no secrets
        self._runtime = Runtime(rng, host_root=host_root, node_ip=node_ip)
        self._port = 0
        self._process: KubeletProcess | None = None

        def machine(connected: KubeClient) -> Machine:
            return Machine(
                node_name=node_name,
                node_ip=node_ip,
                labels=labels or {},
                client=connected,
                plugin_socket=self.plugin_socket,
                pod_resources_socket=self.pod_resources_socket,
                runtime=self._runtime,
                answer=self.pods_answer,
                gate=self._gate,
                rng=rng,
                topology_policy=topology_policy,
                reregistration_race=reregistration_race,
                dial_timeout_s=dial_timeout_s,
                stop_grace_s=stop_grace_s,
                now=now,
                monotonic=monotonic,
                changed=self._changes.pulse,
            )

        self._machine = machine

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            if self._owned_client is not None:
                await self._owned_client.close()

    @property
    def pods_url(self) -> str:
        """Where ``GET /pods`` is answered; the same after a restart."""
        return f"http://127.0.0.1:{self._port}/pods"

    @property
    def is_synced(self) -> bool:
        """Whether the pods there were at the kubelet's start have been through admission; later ones come in order."""
        return self._process is not None and self._process.devices.sources_ready

    @property
    def registrations(self) -> int:
        """How many Register calls this run of the kubelet got, refused ones included."""
        return self._running.plugins.registrations

    async def start(self) -> None:
        """Start the kubelet; returns once its sockets are served."""
        if self._process is None:
            process = KubeletProcess(self._machine(await self._connect()))
            try:
                self._port = await process.start(self._port)
            except BaseException:
                await process.stop()
                raise
            self._process = process
            self._changes.pulse()

    async def stop(self) -> None:
        """The kubelet exits; containers run on, the checkpoint stays."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def restart(self) -> None:
        """The kubelet's process is replaced (spec/kubernetes.md §1.13)."""
        await self.stop()
        await self.start()

    async def reboot(self) -> None:
        """The node is booted again: kubelet and containers are gone, the checkpoint stays."""
        await self.stop()
        self._runtime.end_all()
        await self.start()

    def hold_admission(self) -> None:
        """New pods wait from now on, before the kubelet even lists them; so does every change that comes after them."""
        self._gate.clear()

    def release_admission(self) -> None:
        """Go on admitting."""
        self._gate.set()

    def container(self, pod_key: str, name: str) -> Container:
        """The container of the pod ``namespace/name``; the newest where several pods had the name.

        Raises:
            NotFound: there is none.
        """
        for each in reversed(list(self._runtime.containers)):
            if (each.pod_key, each.name) == (pod_key, name):
                return each
        raise NotFound(f"pod {pod_key} has no container {name} on node {self.node_name}", status=404)

    def has_container(self, pod_key: str, name: str, *, running: bool = True) -> bool:
        """Whether a container is there, and runs unless ``running`` is False."""
        return any(
            (each.pod_key, each.name) == (pod_key, name) and (each.running or not running)
            for each in self._runtime.containers
        )

    async def restart_container(self, pod_key: str, name: str) -> None:
        """A container crashes, or could not be created: it is started again from the cached answer (§1.9)."""
        pod = self._find(pod_key)
        await self._running.workers.restart(pod, name)

    async def finish(self, pod_key: str, *, succeeded: bool = True) -> None:
        """All containers of a pod end by themselves."""
        await self._running.workers.finish(self._find(pod_key), exit_code=0 if succeeded else 1)

    def ledger(self) -> dict[tuple[str, str], frozenset[str]]:
        """Device ids by (``namespace/name`` of the pod, container), entries not yet freed included."""
        held: dict[tuple[str, str], frozenset[str]] = {}
        for each in self._running.ledger.allocations:
            key = (self._running.book.key(each.pod_uid), each.container)
            held[key] = held.get(key, frozenset()) | each.ids
        return held

    def devices(self, resource: str) -> dict[str, str]:
        """The health of every device of a resource by id; empty where the resource is not known."""
        return self._running.ledger.health().get(resource, {})

    def allocatable(self, resource: str) -> int | None:
        """How many devices the Node in the API server offers; None where the resource is absent."""
        text = self._running.node.status.allocatable.get(resource)
        return None if text is None else int(text)

    def listed(self) -> list[str]:
        """``namespace/name`` of the pods on the kubelet's own list, in the order they came."""
        return [each.key for each in self._running.book.pods.values()]

    def status(self, pod_key: str) -> JsonObject:
        """What the kubelet has come to about a pod, written or not."""
        return self._running.book.status(self._find(pod_key).uid)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait for a condition on this node.

        Raises:
            TimeoutError: it did not hold in time.
        """
        await self._changes.until(condition, timeout_s)

    @property
    def _running(self) -> KubeletProcess:
        if self._process is None:
            raise RuntimeError(f"the kubelet of {self.node_name} does not run")
        return self._process

    def _find(self, pod_key: str) -> FullPod:
        for each in reversed(list(self._running.book.pods.values())):
            if each.key == pod_key:
                return each
        raise NotFound(f"the kubelet of {self.node_name} has no pod {pod_key}", status=404)

    async def _connect(self) -> KubeClient:
        if isinstance(self._client, KubeClient):
            return self._client
        if self._owned_client is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            path = self.directory / "kubeconfig"
            path.write_text(json.dumps(self._client))
            self._owned_client = await KubeClient.connect(str(path))
        return self._owned_client
