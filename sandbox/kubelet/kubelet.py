"""A node: a kubelet that can be restarted, its containers, and the controls for tests."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ascend.daemon.observable import Observable, wait_until
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject
from sandbox.kubelet.allocation import TopologyPolicy
from sandbox.kubelet.endpoint import checked_socket
from sandbox.kubelet.process import Dependencies, KubeletProcess
from sandbox.kubelet.registration import SOCKET_NAME
from sandbox.kubelet.runtime import Runtime, RuntimeContainer
from sandbox.kubelet.server import PodsAnswer
from sandbox.pods import FullPod


class Kubelet:
    """A node whose kubelet serves the device plugin and pod-resources APIs. Use as an async context manager.

    Args:
        node_name: the name of its Node.
        client: the API server.
        directory: for its sockets and checkpoint; a short path, because a socket's path may have 107 bytes.
        seed: of every arbitrary choice: the devices of an allocation, their order, the order of lists.
        host_root: where the host's device nodes and mounts are looked up.
        topology_policy: ``none`` always asks for a preferred allocation, ``best-effort`` only if there is a choice.
        reregistration_race: reproduce the bug of kubelet ≤ 1.36: the end of an old stream disconnects the new plugin.
        dial_timeout_s: how long a registration waits for a connection to the plugin.
        stop_grace_s: how long a resource is kept after its plugin disconnected.
        node_status_period_s: the time between two looks after which it may update its Node; 0: it does so at once.

    Raises:
        InvalidValue: the path of the directory is too long.
    """

    def __init__(
        self,
        node_name: str,
        client: KubeClient,
        directory: Path,
        *,
        seed: int,
        host_root: Path = Path("/"),
        topology_policy: TopologyPolicy = "none",
        reregistration_race: bool = True,
        dial_timeout_s: float = 10.0,
        stop_grace_s: float = 300.0,
        node_status_period_s: float = 0.0,
    ) -> None:
        self.node_name = node_name
        self.pods_answer = PodsAnswer()
        """How ``GET /pods`` is answered."""
        self.directory = directory
        self.socket_dir = directory / "device-plugins"
        """The directory of ``kubelet.sock`` and the plugins' sockets."""
        self.plugin_socket = checked_socket(self.socket_dir / SOCKET_NAME)
        self.pod_resources_socket = checked_socket(directory / "pod-resources" / SOCKET_NAME)
        self._changes: Observable[None] = Observable(None)
        self._gate = asyncio.Event()
        self._gate.set()
        rng = random.Random(seed)  # noqa: S311 - arbitrary choices, no secrets
        self._runtime = Runtime(rng, host_root=host_root)
        self._port = 0
        self._process: KubeletProcess | None = None
        self._dependencies = Dependencies(
            node_name=node_name,
            client=client,
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
            node_status_period_s=node_status_period_s,
            changed=lambda: self._changes.set(None),
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pods_url(self) -> str:
        """The address of ``GET /pods``; a restart does not change it."""
        return f"http://127.0.0.1:{self._port}/pods"

    @property
    def is_synced(self) -> bool:
        """Whether the pods of the kubelet's start have been through admission; later ones come in order."""
        return self._process is not None and self._process.devices.sources_ready

    @property
    def registrations(self) -> int:
        """The number of Register calls since the kubelet's start, including refused ones."""
        return self._running.plugins.registrations.total()

    async def start(self) -> None:
        """Start the kubelet; return when it serves its sockets."""
        if self._process is None:
            process = self._new_process()
            try:
                self._port = await process.start(self._port)
            except BaseException:
                await process.stop()
                raise
            self._process = process
            self._changes.set(None)

    def _new_process(self) -> KubeletProcess:
        return KubeletProcess(self._dependencies)

    async def stop(self) -> None:
        """Stop the kubelet; containers keep running, the checkpoint remains."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def restart(self) -> None:
        """Restart the kubelet process (docs/spec/kubelet.md#restarts)."""
        await self.stop()
        await self.start()

    async def reboot(self) -> None:
        """Reboot the node: kubelet and containers end, the checkpoint remains."""
        await self.stop()
        self._runtime.end_all()
        await self.start()

    def hold_admission(self) -> None:
        """Let new pods wait before the kubelet even lists them, together with every later change."""
        self._gate.clear()

    def release_admission(self) -> None:
        """Admit the waiting pods."""
        self._gate.set()

    def container(self, pod_key: str, name: str) -> RuntimeContainer:
        """Return a container of the pod ``namespace/name``; of the latest pod, if the name was reused.

        Raises:
            NotFound: there is none.
        """
        for ended in reversed(list(self._runtime.containers)):
            if (ended.pod_key, ended.name) == (pod_key, name):
                return ended
        raise NotFound(f"pod {pod_key} has no container {name} on node {self.node_name}", status=404)

    def has_container(self, pod_key: str, name: str, *, running: bool = True) -> bool:
        """Whether a container exists and, unless ``running`` is False, runs."""
        return any(
            (container.pod_key, container.name) == (pod_key, name) and (container.running or not running)
            for container in self._runtime.containers
        )

    async def restart_container(self, pod_key: str, name: str) -> None:
        """Restart a container that crashed or could not be created, with the cached Allocate response.

        See docs/spec/kubelet.md#using-the-response.
        """
        pod = self._find(pod_key)
        await self._running.workers.restart(pod, name)

    async def finish(self, pod_key: str, *, succeeded: bool = True) -> None:
        """Let all containers of a pod exit by themselves."""
        await self._running.workers.finish(self._find(pod_key), exit_code=0 if succeeded else 1)

    def forget_devices(self) -> None:
        """Forget which devices pods have, as a kubelet whose checkpoint was lost; the pods go on."""
        self._running.ledger.free_all_but(frozenset())
        self._changes.set(None)

    def ledger(self) -> dict[tuple[str, str], frozenset[str]]:
        """Return device ids by pod (``namespace/name``) and container, including allocations that are not yet freed."""
        held: dict[tuple[str, str], frozenset[str]] = {}
        for allocation in self._running.ledger.allocations:
            key = (self._running.pod_store.key(allocation.pod_uid), allocation.container)
            held[key] = held.get(key, frozenset()) | allocation.ids
        return held

    def devices(self, resource: str) -> dict[str, str]:
        """Return the health of every device of a resource by id; empty for an unknown resource."""
        return self._running.ledger.health().get(resource, {})

    def allocatable(self, resource: str) -> int | None:
        """Return the allocatable devices of the Node in the API server; None if the resource is absent."""
        text = self._running.node.status.allocatable.get(resource)
        return None if text is None else int(text)

    def pod_keys(self) -> list[str]:
        """Return ``namespace/name`` of the pods on the kubelet's own list, in the order in which they came."""
        return [pod.key for pod in self._running.pod_store.pods.values()]

    def status(self, pod_key: str) -> JsonObject:
        """Return the status that the kubelet determined for a pod, whether or not it is written."""
        return self._running.pod_store.status(self._find(pod_key).uid)

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait for a condition on this node.

        Raises:
            TimeoutError: it did not become true in time.
        """
        if not await wait_until(lambda: bool(condition()), (self._changes,), timeout_s):
            raise TimeoutError

    @property
    def _running(self) -> KubeletProcess:
        if self._process is None:
            raise RuntimeError(f"the kubelet of {self.node_name} is not running")
        return self._process

    def _find(self, pod_key: str) -> FullPod:
        for pod in reversed(list(self._running.pod_store.pods.values())):
            if pod.key == pod_key:
                return pod
        raise NotFound(f"the kubelet of {self.node_name} has no pod {pod_key}", status=404)
