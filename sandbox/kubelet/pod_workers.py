"""The pod workers: start and stop the containers of admitted pods, each pod on its own, without delaying admission."""

import asyncio
from collections.abc import Callable

from ascend.errors import AscendError
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.pod_status import PodStatusWriter, derive_status
from sandbox.kubelet.pod_store import PodStore
from sandbox.kubelet.runtime import CreateFailure, Runtime
from sandbox.pods import ContainerSpec, FullPod


class PodWorkers:
    """One worker per pod.

    Args:
        pod_store: the pods.
        runtime: their containers.
        devices: the device manager.
        statuses: writes pod statuses.
        changed: called after every change.
    """

    def __init__(
        self,
        pod_store: PodStore,
        runtime: Runtime,
        devices: DeviceManager,
        statuses: PodStatusWriter,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._pod_store = pod_store
        self._runtime = runtime
        self._devices = devices
        self._statuses = statuses
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, dict[str, tuple[str, str]]] = {}

    def start(self, pod: FullPod) -> None:
        """Start the containers of a pod that do not run yet, in the background."""
        self._tasks[pod.uid] = asyncio.create_task(self._start(pod), name=f"start {pod.key}")

    async def restart(self, pod: FullPod, name: str) -> None:
        """Restart a container that crashed or could not be created, with the cached Allocate response."""
        await self._settle(pod.uid)
        self._runtime.end(pod.uid, name, exit_code=1)
        spec = next(container for container in (*pod.init_containers, *pod.containers) if container.name == name)
        await self._create(pod, spec)
        self._update_status(pod)

    async def finish(self, pod: FullPod, exit_code: int) -> None:
        """Let all containers of a pod exit by themselves."""
        await self._settle(pod.uid)
        self._runtime.end_all(pod.uid, exit_code)
        self._update_status(pod)

    async def stop(self, pod: FullPod) -> None:
        """Stop the containers of a terminating pod, then complete its deletion in the API server."""
        await self._cancel(pod.uid)
        self._runtime.end_all(pod.uid)
        self._pod_store.mark_stopped(pod.uid)
        self._update_status(pod, delete=True)

    async def remove(self, pod: FullPod) -> None:
        """Remove a pod that the API server has deleted, terminated before or not."""
        await self._cancel(pod.uid)
        self._runtime.end_all(pod.uid)
        self._runtime.remove(pod.uid)
        self._failures.pop(pod.uid, None)
        self._changed()

    async def close(self) -> None:
        """Stop the workers when the kubelet exits; containers keep running."""
        for uid in list(self._tasks):
            await self._cancel(uid)

    async def _start(self, pod: FullPod) -> None:
        self._update_status(pod)
        for spec in pod.init_containers:
            if self._runtime.find(pod.uid, spec.name) is None:
                if not await self._create(pod, spec):
                    self._update_status(pod)
                    return
                if not spec.is_sidecar:
                    self._runtime.end(pod.uid, spec.name, exit_code=0)
        for spec in pod.containers:
            if not self._runtime.is_running(pod.uid, spec.name):
                await self._create(pod, spec)
        self._update_status(pod)

    async def _create(self, pod: FullPod, spec: ContainerSpec) -> bool:
        failures = self._failures.setdefault(pod.uid, {})
        try:
            responses = await self._devices.container_options(pod, spec)
        except AscendError as error:
            failures[spec.name] = ("CreateContainerConfigError", str(error))
            return False
        try:
            self._runtime.create(pod, spec, responses)
        except CreateFailure as error:
            failures[spec.name] = ("CreateContainerError", str(error))
            return False
        failures.pop(spec.name, None)
        return True

    def _update_status(self, pod: FullPod, *, delete: bool = False) -> None:
        # A rejected or finished pod keeps its last status.
        if self._pod_store.is_active(pod.uid) or (delete and self._has_containers(pod)):
            status = derive_status(pod, self._runtime, self._failures.get(pod.uid, {}))
            status["startTime"] = self._pod_store.status(pod.uid).get("startTime", status["startTime"])
            self._pod_store.set_status(pod.uid, status)
            self._statuses.write(pod, status, delete=delete)
        elif delete:
            self._statuses.write(pod, None, delete=True)
        self._changed()

    def _has_containers(self, pod: FullPod) -> bool:
        return any(self._runtime.find(pod.uid, container.name) is not None for container in pod.containers)

    async def _settle(self, uid: str) -> None:
        task = self._tasks.get(uid)
        if task is not None:
            await asyncio.wait([task])

    async def _cancel(self, uid: str) -> None:
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
