"""Starts and stops the containers of admitted pods; every pod on its own, none holds up admission."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from ascend.errors import AscendError
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.podbook import PodBook
from sandbox.kubelet.reports import PodReports
from sandbox.kubelet.runtime import CreateFailure, Runtime
from sandbox.kubelet.statuses import derive_status
from sandbox.pods import ContainerSpec, FullPod


class PodWorkers:
    """One worker per pod.

    Args:
        book: the pods.
        runtime: their containers.
        devices: what the containers get.
        reports: how their status gets to the API server.
        node_ip: the node's address.
        now: wall clock.
        changed: called after every change.
    """

    def __init__(
        self,
        book: PodBook,
        runtime: Runtime,
        devices: DeviceManager,
        reports: PodReports,
        *,
        node_ip: str,
        now: Callable[[], datetime],
        changed: Callable[[], None],
    ) -> None:
        self._book = book
        self._runtime = runtime
        self._devices = devices
        self._reports = reports
        self._node_ip = node_ip
        self._now = now
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, dict[str, tuple[str, str]]] = {}

    def start(self, pod: FullPod) -> None:
        """Start what does not run yet of a pod, in the background."""
        self._tasks[pod.uid] = asyncio.create_task(self._start(pod), name=f"start {pod.key}")

    async def restart(self, pod: FullPod, name: str) -> None:
        """A container has crashed, or could not be created: start it again, with what the plugins said at first."""
        await self._settle(pod.uid)
        self._runtime.end(pod.uid, name, exit_code=1)
        spec = next(each for each in (*pod.init_containers, *pod.containers) if each.name == name)
        await self._create(pod, spec)
        self._report(pod)

    async def finish(self, pod: FullPod, exit_code: int) -> None:
        """All containers of a pod end by themselves."""
        await self._settle(pod.uid)
        self._runtime.end_all(pod.uid, exit_code)
        self._report(pod)

    async def stop(self, pod: FullPod) -> None:
        """The pod is deleted: stop its containers, then let the API server forget it."""
        await self._cancel(pod.uid)
        self._runtime.end_all(pod.uid)
        self._book.stop(pod.uid)
        self._report(pod, delete=True)

    async def remove(self, pod: FullPod) -> None:
        """The API server has the pod no more, whether or not it told us before."""
        await self._cancel(pod.uid)
        self._runtime.end_all(pod.uid)
        self._runtime.remove(pod.uid)
        self._failures.pop(pod.uid, None)
        self._changed()

    async def close(self) -> None:
        """The kubelet exits; containers run on."""
        for uid in list(self._tasks):
            await self._cancel(uid)

    async def _start(self, pod: FullPod) -> None:
        self._report(pod)
        for spec in pod.init_containers:
            if self._runtime.find(pod.uid, spec.name) is None:
                if not await self._create(pod, spec):
                    self._report(pod)
                    return
                if not spec.is_sidecar:
                    self._runtime.end(pod.uid, spec.name, exit_code=0)
        for spec in pod.containers:
            if not self._runtime.is_running(pod.uid, spec.name):
                await self._create(pod, spec)
        self._report(pod)

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

    def _report(self, pod: FullPod, *, delete: bool = False) -> None:
        # A pod that was rejected or has finished keeps what was said about it last.
        if self._book.is_active(pod.uid) or (delete and self._has_containers(pod)):
            failures = self._failures.get(pod.uid, {})
            status = derive_status(pod, self._runtime, failures, node_ip=self._node_ip, now=self._now())
            status["startTime"] = self._book.status(pod.uid).get("startTime", status["startTime"])
            self._book.say(pod.uid, status)
            self._reports.report(pod, status, delete=delete)
        elif delete:
            self._reports.report(pod, None, delete=True)
        self._changed()

    def _has_containers(self, pod: FullPod) -> bool:
        return any(self._runtime.find(pod.uid, each.name) is not None for each in pod.containers)

    async def _settle(self, uid: str) -> None:
        task = self._tasks.get(uid)
        if task is not None:
            await asyncio.wait([task])

    async def _cancel(self, uid: str) -> None:
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
