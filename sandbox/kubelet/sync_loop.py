"""The kubelet's sync loop: takes the changes of its pods one at a time and admits new pods.

It takes changes in the order of the watch. Pods that exist at the start come by creation time, ties in any order, as
``HandlePodAdditions`` sorts the content of a Go map. A pod enters the kubelet's own list right before its admission, so
during an Allocate call no later change of any pod is processed (docs/spec/kubelet.md#which-pod-is-being-admitted).
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ascend.errors import AscendError
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.objects import Node
from ascend.kube.reflector import Reflector
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.ledger import ResourceLedger
from sandbox.kubelet.node_status import NodeStatusUpdater
from sandbox.kubelet.pod_status import PodStatusWriter
from sandbox.kubelet.pod_store import PodStore
from sandbox.kubelet.pod_workers import PodWorkers
from sandbox.pods import ALL_OF_PODS, TERMINAL_PHASES, FullPod, matches

log = logging.getLogger(__name__)


class SyncLoop:
    """Watches the pods of a node; admits, starts and stops them.

    Args:
        client: the API server.
        node_name: the node.
        node: the Node object.
        pod_store: the pods.
        ledger: the devices that pods hold.
        devices: the device manager.
        workers: start and stop containers.
        statuses: writes pod statuses.
        events: records Events on pods.
        rng: replaces the random order of Go maps.
        gate: admission waits while it is not set.
        changed: called after every change.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        *,
        node: NodeStatusUpdater,
        pod_store: PodStore,
        ledger: ResourceLedger,
        devices: DeviceManager,
        workers: PodWorkers,
        statuses: PodStatusWriter,
        events: EventRecorder,
        rng: random.Random,
        gate: asyncio.Event,
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._pod_store = pod_store
        self._ledger = ledger
        self._devices = devices
        self._workers = workers
        self._statuses = statuses
        self._events = events
        self._rng = rng
        self._gate = gate
        self._changed = changed
        self._initial: list[FullPod] = []
        self._queue: asyncio.Queue[tuple[FullPod, bool]] = asyncio.Queue()
        self._reflector = Reflector(client, ALL_OF_PODS, self, field_selector=f"spec.nodeName={node_name}")

    def on_apply(self, obj: FullPod) -> None:
        """Queue a pod that was added or modified."""
        if self._reflector.synced.is_set():
            self._queue.put_nowait((obj, True))
        else:
            self._initial.append(obj)

    def on_delete(self, obj: FullPod) -> None:
        """Queue the removal of a deleted pod."""
        self._queue.put_nowait((obj, False))

    async def watch(self) -> None:
        """Watch the node's pods until cancelled."""
        await self._reflector.run()

    async def run(self) -> None:
        """Process the changes until cancelled."""
        await self._reflector.synced.wait()
        await self._node.ready.wait()
        self._rng.shuffle(self._initial)
        for pod in sorted(self._initial, key=lambda queued: queued.metadata.creation_timestamp or ""):
            await self._apply(pod)
        self._devices.sources_ready = True
        self._changed()
        while True:
            pod, exists = await self._queue.get()
            if exists:
                await self._apply(pod)
            else:
                self._pod_store.remove(pod.uid)
                await self._workers.remove(pod)

    async def _apply(self, pod: FullPod) -> None:
        known = pod.uid in self._pod_store.pods
        if not known:
            await self._gate.wait()
        before = self._pod_store.pods.get(pod.uid)
        self._pod_store.put(pod)
        self._changed()
        if pod.is_terminating:
            if before is None or not before.is_terminating:
                await self._workers.stop(pod)
        elif not known and pod.phase not in TERMINAL_PHASES:
            await self._admit(pod)

    async def _admit(self, pod: FullPod) -> None:
        rejection = await self._find_rejection(pod)
        if rejection is None:
            self._workers.start(pod)
            return
        log.info("pod rejected", extra={"pod": pod.key, "reason": rejection.reason, "detail": rejection.message})
        regarding = Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
        self._events.publish(regarding, rejection.reason, rejection.message, action="Admitting")
        status = {"phase": "Failed", "reason": rejection.reason, "message": f"Pod was rejected: {rejection.message}"}
        self._pod_store.set_status(pod.uid, status)
        self._statuses.write(pod, status)
        self._changed()

    async def _find_rejection(self, pod: FullPod) -> "_Rejection | None":
        others = [other for other in self._pod_store.active() if other.uid != pod.uid]
        try:
            rejection = _check_predicates(pod, self._node.node, others, self._ledger)
            if rejection is None:
                await self._devices.admit(pod)
        except AscendError as error:
            return _Rejection("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
        return rejection


@dataclass(frozen=True, slots=True)
class _Rejection:
    """Why admission rejects a pod: the reason of its status, and the message without "Pod was rejected: "."""

    reason: str
    message: str


def _check_predicates(pod: FullPod, node: Node, others: Iterable[FullPod], ledger: ResourceLedger) -> _Rejection | None:
    """Return why the node's resources or labels reject a pod, before any device is allocated (predicate.go).

    Requests for resources that the Node does not have are ignored: only an explicit 0 rejects the pod
    (docs/spec/kubelet.md#silent-skip).

    Raises:
        InvalidValue: a quantity is not a whole number.
    """
    allocatable = _quantities(node.status.allocatable)
    if ledger.holds_any(pod.uid):
        # A pod that holds devices must be admitted again, even before its plugin has registered
        # (docs/spec/kubelet.md#restarts).
        for resource, devices in ledger.in_use.items():
            allocatable[resource] = max(allocatable.get(resource, 0), len(devices))
    used: Counter[str] = Counter()
    for other in others:
        used.update(other.requests)
    for resource, requested in pod.requests.items():
        if resource in allocatable and requested > allocatable[resource] - used[resource]:
            return _Rejection(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used[resource]},"
                f" capacity: {allocatable[resource]}",
            )
    if not matches(pod.node_selector, node.metadata.labels):
        return _Rejection("NodeAffinity", "Predicate NodeAffinity failed")
    return None


def _quantities(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: int(text) for name, text in quantities.items() if text.isascii() and text.isdigit()}
