"""The scheduling loop: one cycle at a time, binding beside it (k/k:pkg/scheduler/schedule_one.go).

While a pod is being bound the cycles of the next ones go on, so an extender gets filter and prioritize calls between
its answer about a pod and the bind of that pod, and must hold an assumption of its own (spec/kubernetes.md §3.3).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import msgspec

from ascend.chips import RESOURCE
from ascend.errors import ApiError, AscendError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.objects import NODES, Node
from ascend.kube.reflector import Reflector
from sandbox.changes import Changes
from sandbox.pods import ALL_OF_PODS, TERMINAL_PHASES, FullPod
from sandbox.scheduler.extender import Extender, ExtenderFailure
from sandbox.scheduler.failures import Announcer
from sandbox.scheduler.filters import describe_misfit, find_obstacle
from sandbox.scheduler.queue import SchedulingQueue
from sandbox.scheduler.view import ClusterView

log = logging.getLogger(__name__)


class _Misfit(AscendError):
    """No node is for the pod."""


class Scheduler:
    """A scheduler for all pods of the cluster that name it. Use as a context manager.

    Args:
        client: the API server.
        extender_url: ``urlPrefix`` of the extender; None to count only, and to bind by itself.
        seed: decides among nodes of equal score.
        weight: of the extender's scores.
        scheduler_name: which pods are its.
        managed_resource: pods that name it are the extender's business.
        backoff_s: the first and the longest time before a pod is tried again.
        http_timeout_s: of calls to the extender.
        wait: waits for some seconds; the clock of the back-off.
        now: wall clock.
    """

    def __init__(
        self,
        client: KubeClient,
        extender_url: str | None,
        *,
        seed: int,
        weight: int = 1,
        scheduler_name: str = "default-scheduler",
        managed_resource: str = RESOURCE,
        backoff_s: tuple[float, float] = (1.0, 10.0),
        http_timeout_s: float = 5.0,
        wait: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._extender_url = extender_url
        self._rng = random.Random(seed)  # noqa: S311 - arbitrary choices, no secrets
        self._weight = weight
        self._name = scheduler_name
        self._managed_resource = managed_resource
        self._http_timeout_s = http_timeout_s
        self._view = ClusterView()
        self._queue = SchedulingQueue(first_s=backoff_s[0], limit_s=backoff_s[1], wait=wait)
        self._events = EventRecorder(client, scheduler_name, scheduler_name)
        self._announcer = Announcer(client, self._events, now=now)
        self._changes = Changes()
        self._gate = asyncio.Event()
        self._gate.set()
        self._extender: Extender | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._binds: set[asyncio.Task[None]] = set()
        self.cycles = 0
        """How many scheduling cycles were begun."""

    async def __aenter__(self) -> Self:
        if self._extender_url is not None:
            self._extender = Extender(self._extender_url, timeout_s=self._http_timeout_s)
        nodes = Reflector(self._client, NODES, _NodeWatch(self._view, self._moved))
        pods = Reflector(self._client, ALL_OF_PODS, _PodWatch(self))
        reflectors = [nodes.run(), pods.run()]
        synced = [nodes.synced, pods.synced]
        for work in (*reflectors, self._events.run(), self._loop(synced)):
            self._tasks.append(asyncio.create_task(work, name="scheduler"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *self._binds]
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await self._queue.close()
        if self._extender is not None:
            await self._extender.close()
        failures = [each for each in outcomes if isinstance(each, Exception)]
        if failures:
            raise ExceptionGroup("the scheduler failed", failures)

    @property
    def binding(self) -> int:
        """How many pods are being bound."""
        return len(self._binds)

    def hold(self) -> None:
        """Begin no further cycle."""
        self._gate.clear()

    def release(self) -> None:
        """Go on."""
        self._gate.set()

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait for a condition on this scheduler.

        Raises:
            TimeoutError: it did not hold in time.
        """
        await self._changes.until(condition, timeout_s)

    def pod_applied(self, pod: FullPod) -> None:
        """A pod is new or has changed."""
        known = self._view.pod(pod.uid)
        self._view.put(pod)
        if pod.node_name or pod.phase in TERMINAL_PHASES:
            self._queue.remove(pod.uid)
            self._moved()
        elif pod.spec.get("schedulerName", "default-scheduler") == self._name and not pod.is_terminating:
            self._queue.add(pod.uid)
            # A change of its status alone, such as why it is pending, is none that lets it fit.
            if known is not None and _wanted(known) != _wanted(pod):
                self._queue.move(pod.uid)

    def pod_deleted(self, pod: FullPod) -> None:
        """A pod is gone."""
        self._view.remove(pod.uid)
        self._queue.remove(pod.uid)
        self._moved()

    def _moved(self) -> None:
        self._queue.move_all()

    async def _loop(self, synced: list[asyncio.Event]) -> None:
        for each in synced:
            await each.wait()
        while True:
            await self._gate.wait()
            uid = await self._queue.pop()
            await self._gate.wait()
            pod = self._view.pod(uid)
            if pod is None or pod.node_name or pod.is_terminating or self._view.is_assumed(uid):
                continue
            self.cycles += 1
            await self._cycle(pod)
            self._changes.pulse()

    async def _cycle(self, pod: FullPod) -> None:
        try:
            node = await self._choose(pod)
        except _Misfit as misfit:
            await self._fail(pod, "Unschedulable", misfit)
        except AscendError as error:
            await self._fail(pod, "SchedulerError", error)
        else:
            self._view.assume(pod.uid, node)
            task = asyncio.create_task(self._bind(pod, node), name=f"bind {pod.key}")
            self._binds.add(task)
            task.add_done_callback(self._bound)

    async def _choose(self, pod: FullPod) -> str:
        used = self._view.used()
        nodes = list(self._view.nodes.values())
        obstacles = {each.name: find_obstacle(pod, each, used[each.name]) for each in nodes}
        feasible = [name for name, reasons in obstacles.items() if not reasons]
        extender = self._extender if self._is_managed(pod) else None
        if extender is not None and feasible:
            filtered = await extender.filter(pod, feasible)
            obstacles |= {name: [reason] for name, reason in filtered.reasons.items() if name in obstacles}
            feasible = list(filtered.nodes)
        if not feasible:
            reasons = (reason for reasons in obstacles.values() for reason in reasons)
            raise _Misfit(describe_misfit(len(nodes), reasons))
        if len(feasible) == 1:
            return feasible[0]
        scores = await self._score(extender, pod, feasible)
        best = max(scores.values())
        return self._rng.choice([name for name in feasible if scores[name] == best])

    async def _score(self, extender: Extender | None, pod: FullPod, nodes: list[str]) -> dict[str, int]:
        scores: dict[str, int] = {}
        if extender is not None:
            try:
                scores = await extender.prioritize(pod, nodes)
            except ExtenderFailure as error:
                # kube-scheduler goes on without scores.
                log.warning("prioritize failed", extra={"pod": pod.key, "error": str(error)})
        return {name: scores.get(name, 0) * self._weight for name in nodes}

    async def _bind(self, pod: FullPod, node: str) -> None:
        try:
            if self._extender is not None and self._is_managed(pod):
                await self._extender.bind(pod, node)
            else:
                await self._client.bind(
                    namespace=pod.metadata.namespace, name=pod.name, uid=pod.uid, node=node, annotations={}
                )
        except (ExtenderFailure, ApiError, Unreachable) as error:
            self._view.forget(pod.uid)
            self._moved()
            await self._fail(pod, "SchedulerError", error)
        else:
            self._announcer.announce_bound(pod, node)

    def _bound(self, task: asyncio.Task[None]) -> None:
        self._binds.discard(task)
        self._changes.pulse()

    async def _fail(self, pod: FullPod, reason: str, error: AscendError) -> None:
        current = self._view.pod(pod.uid)
        if current is None or current.node_name:
            # The extender may have bound it although its answer was lost.
            return
        self._queue.fail(pod.uid, needs_change=reason == "Unschedulable")
        await self._announcer.announce_failure(current, reason, str(error))

    def _is_managed(self, pod: FullPod) -> bool:
        containers = (*pod.init_containers, *pod.containers)
        return any(
            self._managed_resource in each.resources.limits or self._managed_resource in each.resources.requests
            for each in containers
        )


class _PodWatch:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def applied(self, obj: FullPod) -> None:
        self._scheduler.pod_applied(obj)

    def deleted(self, obj: FullPod) -> None:
        self._scheduler.pod_deleted(obj)


class _NodeWatch:
    def __init__(self, view: ClusterView, moved: Callable[[], None]) -> None:
        self._view = view
        self._moved = moved

    def applied(self, obj: Node) -> None:
        self._view.nodes[obj.name] = obj
        self._moved()

    def deleted(self, obj: Node) -> None:
        self._view.nodes.pop(obj.name, None)
        self._moved()


def _wanted(pod: FullPod) -> tuple[object, object]:
    return msgspec.structs.replace(pod.metadata, resource_version=""), pod.spec
