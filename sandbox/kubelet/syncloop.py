"""The kubelet's one loop over the changes of its pods: admission happens here, one pod at a time.

Changes are taken in the order of the watch; the pods there are at the start come by creation time, ties in any order,
as ``HandlePodAdditions`` sorts what comes out of a Go map. A pod is added to the kubelet's own list right before its
admission, so while an Allocate call lasts, no later change of any pod is looked at (spec/test-cluster.md §4).
"""

import asyncio
import logging
import random
from collections.abc import Callable

from ascend.errors import AscendError
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.reflector import Reflector
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.ledger import Ledger
from sandbox.kubelet.nodereport import NodeReport
from sandbox.kubelet.podbook import PodBook
from sandbox.kubelet.predicate import Rejection, find_rejection
from sandbox.kubelet.reports import PodReports
from sandbox.kubelet.workers import PodWorkers
from sandbox.pods import ALL_OF_PODS, TERMINAL_PHASES, FullPod

log = logging.getLogger(__name__)


class SyncLoop:
    """Watches the node's pods, admits, starts and stops them.

    Args:
        client: the API server.
        node_name: whose pods.
        node: the Node as reported.
        book: the list of pods.
        ledger: for the predicate.
        devices: the device manager.
        workers: start and stop containers.
        reports: statuses.
        events: Events on pods.
        rng: stands for the order of a Go map.
        gate: admission waits while it is not set.
        changed: called after every change.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        *,
        node: NodeReport,
        book: PodBook,
        ledger: Ledger,
        devices: DeviceManager,
        workers: PodWorkers,
        reports: PodReports,
        events: EventRecorder,
        rng: random.Random,
        gate: asyncio.Event,
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._book = book
        self._ledger = ledger
        self._devices = devices
        self._workers = workers
        self._reports = reports
        self._events = events
        self._rng = rng
        self._gate = gate
        self._changed = changed
        self._initial: list[FullPod] = []
        self._queue: asyncio.Queue[tuple[FullPod, bool]] = asyncio.Queue()
        self._reflector = Reflector(client, ALL_OF_PODS, self, field_selector=f"spec.nodeName={node_name}")

    def applied(self, obj: FullPod) -> None:
        """A pod of the node is new or has changed."""
        if self._reflector.synced.is_set():
            self._queue.put_nowait((obj, True))
        else:
            self._initial.append(obj)

    def deleted(self, obj: FullPod) -> None:
        """The API server has a pod no more."""
        self._queue.put_nowait((obj, False))

    async def watch(self) -> None:
        """Follow the API server until cancelled."""
        await self._reflector.run()

    async def run(self) -> None:
        """Go through the changes until cancelled."""
        await self._reflector.synced.wait()
        await self._node.ready.wait()
        self._rng.shuffle(self._initial)
        for pod in sorted(self._initial, key=lambda each: each.metadata.creation_timestamp or ""):
            await self._apply(pod)
        self._devices.sources_ready = True
        self._changed()
        while True:
            pod, exists = await self._queue.get()
            if exists:
                await self._apply(pod)
            else:
                self._book.remove(pod.uid)
                await self._workers.remove(pod)

    async def _apply(self, pod: FullPod) -> None:
        known = pod.uid in self._book.pods
        if not known:
            await self._gate.wait()
        before = self._book.pods.get(pod.uid)
        self._book.put(pod)
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
        log.info("rejected a pod", extra={"pod": pod.key, "reason": rejection.reason, "detail": rejection.message})
        regarding = Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
        self._events.publish(regarding, rejection.reason, rejection.message, action="Admitting")
        status = {"phase": "Failed", "reason": rejection.reason, "message": f"Pod was rejected: {rejection.message}"}
        self._book.say(pod.uid, status)
        self._reports.report(pod, status)
        self._changed()

    async def _find_rejection(self, pod: FullPod) -> Rejection | None:
        others = [each for each in self._book.active() if each.uid != pod.uid]
        try:
            rejection = find_rejection(pod, self._node.node, others, self._ledger)
            if rejection is None:
                await self._devices.admit(pod)
        except AscendError as error:
            return Rejection("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
        return rejection
