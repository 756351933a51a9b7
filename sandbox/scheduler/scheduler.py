"""The scheduler: runs one scheduling cycle at a time, and binding cycles beside it (k/k:pkg/scheduler/schedule_one.go).

While a pod is being bound, the cycles of the next pods continue. An extender therefore gets filter calls between its
response for a pod and the bind of that pod, and must assume the pod by itself
(docs/spec/kube-api.md#extender-semantics).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from ascend.chips import RESOURCE
from ascend.daemon.observable import Observable, wait_until
from ascend.errors import ApiError, AscendError, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.objects import NODES, JsonObject, Node
from ascend.kube.reflector import Reflector
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of
from sandbox.pods import ALL_OF_PODS, TERMINAL_PHASES, FullPod, timestamp_now
from sandbox.scheduler.cache import SchedulerCache
from sandbox.scheduler.extender import ExtenderClient, ExtenderFailure
from sandbox.scheduler.filters import filter_node, fit_error
from sandbox.scheduler.queue import SchedulingQueue

log = logging.getLogger(__name__)

_EVENT_REFILL_S = 0.001
"""kube-scheduler drops no Events of its own accord."""


class _Unschedulable(AscendError):
    """The pod fits on no node."""


class Scheduler:
    """A scheduler for all pods with its name in ``schedulerName``. Use as an async context manager.

    Args:
        client: the API server.
        extender_url: ``urlPrefix`` of the extender; None for a scheduler that only counts, and binds by itself.
        seed: chooses among the nodes that fit.
        scheduler_name: its name.
        backoff_s: the first and the maximum backoff of a pod.
        wait: waits for a number of seconds; the clock of the backoff.
    """

    def __init__(
        self,
        client: KubeClient,
        extender_url: str | None,
        *,
        seed: int,
        scheduler_name: str = "default-scheduler",
        backoff_s: tuple[float, float] = (1.0, 10.0),
        wait: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._extender_url = extender_url
        self._rng = random.Random(seed)  # noqa: S311 - arbitrary choices, no secrets
        self._name = scheduler_name
        self._cache = SchedulerCache()
        self._queue = SchedulingQueue(first_s=backoff_s[0], limit_s=backoff_s[1], wait=wait)
        self._events = EventRecorder(client, scheduler_name, scheduler_name, refill_s=_EVENT_REFILL_S)
        self._changes: Observable[None] = Observable(None)
        self._gate = asyncio.Event()
        self._gate.set()
        self._extender: ExtenderClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._binds: set[asyncio.Task[None]] = set()
        self.cycles = 0
        """The number of scheduling cycles started."""

    async def __aenter__(self) -> Self:
        if self._extender_url is not None:
            self._extender = ExtenderClient(self._extender_url)
        nodes = Reflector(self._client, NODES, _NodeHandler(self._cache, self._queue))
        pods = Reflector(self._client, ALL_OF_PODS, self)
        synced = [nodes.synced, pods.synced]
        for work in (nodes.run(), pods.run(), self._events.run(), self._loop(synced)):
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
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup("the scheduler failed", failures)

    @property
    def binding(self) -> int:
        """The number of pods that are being bound."""
        return len(self._binds)

    def hold(self) -> None:
        """Start no scheduling cycle until ``release``."""
        self._gate.clear()

    def release(self) -> None:
        """Start scheduling cycles again."""
        self._gate.set()

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait for a condition on this scheduler.

        Raises:
            TimeoutError: it did not become true in time.
        """
        if not await wait_until(lambda: bool(condition()), (self._changes,), timeout_s):
            raise TimeoutError

    def on_apply(self, obj: FullPod) -> None:
        """Take over a pod that was added or modified."""
        known = self._cache.pod(obj.uid)
        self._cache.put(obj)
        if obj.node_name or obj.phase in TERMINAL_PHASES:
            self._queue.remove(obj.uid)
            self._queue.move_all()
        elif obj.is_gated:
            self._queue.remove(obj.uid)
        elif obj.spec.get("schedulerName", "default-scheduler") == self._name and not obj.is_terminating:
            self._queue.add(obj.uid)
            # A change of the status only, such as why the pod is pending, does not let it fit.
            if known is not None and _without_status(known) != _without_status(obj):
                self._queue.move(obj.uid)

    def on_delete(self, obj: FullPod) -> None:
        """Remove a deleted pod."""
        self._cache.remove(obj.uid)
        self._queue.remove(obj.uid)
        self._queue.move_all()

    async def _loop(self, synced: list[asyncio.Event]) -> None:
        for event in synced:
            await event.wait()
        while True:
            await self._gate.wait()
            uid = await self._queue.pop()
            await self._gate.wait()
            pod = self._cache.pod(uid)
            if pod is None or pod.node_name or pod.is_terminating or self._cache.is_assumed(uid):
                continue
            self.cycles += 1
            await self._schedule(pod)
            self._changes.set(None)

    async def _schedule(self, pod: FullPod) -> None:
        try:
            node = await self._choose(pod)
        except _Unschedulable as error:
            await self._fail(pod, "Unschedulable", error)
        except AscendError as error:
            await self._fail(pod, "SchedulerError", error)
        else:
            self._cache.assume(pod.uid, node)
            task = asyncio.create_task(self._bind(pod, node), name=f"bind {pod.key}")
            self._binds.add(task)
            task.add_done_callback(self._bound)

    async def _choose(self, pod: FullPod) -> str:
        nodes, requested = list(self._cache.nodes.values()), self._cache.requests_by_node(pod)
        extender = self._extender if _is_managed(pod) else None
        nominated = self._cache.nodes.get(pod.nominated_node)
        if nominated is not None:
            try:
                feasible, _ = await self._filter(pod, [nominated], requested, extender)
            except ExtenderFailure as error:
                log.warning("evaluation failed on nominated node", extra={"pod": pod.key, "error": str(error)})
                feasible = []
            if feasible:
                return feasible[0]
        feasible, rejected = await self._filter(pod, nodes, requested, extender)
        if not feasible:
            raise _Unschedulable(fit_error(len(nodes), (reason for reasons in rejected.values() for reason in reasons)))
        return self._rng.choice(feasible)

    async def _filter(
        self,
        pod: FullPod,
        nodes: list[Node],
        requested: Mapping[str, Mapping[str, int]],
        extender: ExtenderClient | None,
    ) -> tuple[list[str], dict[str, list[str]]]:
        """Return the nodes that fit, and the reasons of the others."""
        rejected = {node.name: filter_node(pod, node, requested[node.name]) for node in nodes}
        feasible = [name for name, reasons in rejected.items() if not reasons]
        if extender is not None and feasible:
            filtered = await extender.filter(pod, feasible)
            rejected |= {name: [reason] for name, reason in filtered.reasons.items() if name in rejected}
            feasible = list(filtered.nodes)
        return feasible, rejected

    async def _bind(self, pod: FullPod, node: str) -> None:
        try:
            if self._extender is not None and _is_managed(pod):
                await self._extender.bind(pod, node)
            else:
                await self._client.bind(
                    namespace=pod.metadata.namespace, name=pod.name, uid=pod.uid, node=node, annotations={}
                )
        except (ExtenderFailure, ApiError, Unreachable) as error:
            self._cache.forget(pod.uid)
            self._queue.move_all()
            await self._fail(pod, "SchedulerError", error)
        else:
            note = f"Successfully assigned {pod.key} to {node}"
            self._events.publish(_regarding(pod), "Scheduled", note, action="Binding", warning=False)

    def _bound(self, task: asyncio.Task[None]) -> None:
        self._binds.discard(task)
        self._changes.set(None)

    async def _fail(self, pod: FullPod, reason: str, error: AscendError) -> None:
        """Requeue a pod, and report the failure as an Event and a condition.

        Args:
            pod: as it was at the start of its cycle.
            reason: ``Unschedulable`` if it fits on no node, ``SchedulerError`` for an error.
            error: why.
        """
        current = self._cache.pod(pod.uid)
        if current is None or current.node_name:
            # The extender may have bound it although its response was lost.
            return
        self._queue.fail(pod.uid, needs_change=reason == "Unschedulable")
        message = str(error)
        self._events.publish(_regarding(current), "FailedScheduling", message, action="Scheduling")
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        # A pod that may not preempt others never gets as far as having its nomination cleared.
        clears = bool(pod.nominated_node) and (reason != "Unschedulable" or pod.spec.get("preemptionPolicy") != "Never")
        known = any(condition.items() <= present.items() for present in current.status.get("conditions") or ())
        if known and not clears:
            return
        status: JsonObject = {"conditions": [{**condition, "lastTransitionTime": timestamp_now()}]}
        if clears:
            status["nominatedNodeName"] = None
        body = {"metadata": {"uid": current.uid}, "status": status}
        try:
            await self._client.patch(
                ALL_OF_PODS,
                current.name,
                body,
                namespace=current.metadata.namespace,
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except (ApiError, Unreachable) as failure:
            log.warning("failed to update pod condition", extra={"pod": current.key, "error": str(failure)})


class _NodeHandler:
    """Takes over changes of nodes, each of which may let any pod fit."""

    def __init__(self, cache: SchedulerCache, queue: SchedulingQueue) -> None:
        self._cache = cache
        self._queue = queue

    def on_apply(self, obj: Node) -> None:
        self._cache.nodes[obj.name] = obj
        self._queue.move_all()

    def on_delete(self, obj: Node) -> None:
        self._cache.nodes.pop(obj.name, None)
        self._queue.move_all()


def _is_managed(pod: FullPod) -> bool:
    """Whether the pod names a resource that the extender manages (``managedResources``)."""
    containers = (*pod.init_containers, *pod.containers)
    names = {name for container in containers for name in (*container.resources.limits, *container.resources.requests)}
    return any(name in {RESOURCE, RESOURCE_CORES} or suffix_of(name) is not None for name in names)


def _regarding(pod: FullPod) -> Regarding:
    return Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)


def _without_status(pod: FullPod) -> tuple[object, object]:
    return msgspec.structs.replace(pod.metadata, resource_version=""), pod.spec
