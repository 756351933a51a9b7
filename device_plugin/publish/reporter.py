"""Publishes what the node reports of its chips: its ConfigMap, and the annotations and labels of its Node.

Written when the content changes, at most once a second, and at least every five minutes, because readers take silence
for death (spec/node-agent.md §0.6). A chip is told free only once the kubelet has been told that it is healthy: readers
refuse a node that lists more free chips than its kubelet offers (§0.4).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from ascend.chips import ChipSet, chip_ids
from ascend.daemon.observable import Observable, first_change
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import ApiError, Conflict, Unreachable
from ascend.kube.backoff import Backoff
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter, node_annotations, node_labels
from device_plugin.publish.order import AdvertisedChips
from device_plugin.publish.report import make_report

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REFRESH_S = 300.0
MIN_GAP_S = 1.0
RETRY_LIMIT_S = 5.0
"""The longest wait after a failure: once the API server is back, what it is told is not much older than that."""
NODE_RETRY_LIMIT_S = 30.0
"""The same for a Node that is not written while the report is: each time everybody is told of the report again."""
KUBELET_FIRST_S = 1.0
"""How long the first report waits for the kubelet to be told of the chips, so that it need not be written twice."""
KUBELET_SHOWS_S = 1.5
"""How long the kubelet may take until its Node shows a chip that came back."""
SIGN_OFF_S = 1.0
SIGN_OFF_RETRY_S = 0.02

_RESULTS: Mapping[type[Exception], str] = {Conflict: "conflict", Unreachable: "unreachable"}


class Reporter:
    """Keeps the node's report true.

    Args:
        board: the ConfigMap.
        node_object: the Node.
        snapshots: the node's chips.
        kubelet_healthy: the chips the kubelet was last told are healthy.
        metrics: counts.
        now_s: wall clock, Unix seconds, for UpdateTime.
    """

    def __init__(
        self,
        board: DeviceInfoConfigMap,
        node_object: NodeWriter,
        *,
        snapshots: Observable[Snapshot | None],
        kubelet_healthy: Observable[ChipSet],
        metrics: Metrics,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._node_object = node_object
        self._snapshots = snapshots
        self._kubelet_healthy = kubelet_healthy
        self._metrics = metrics
        self._now_s = now_s
        self._has_reported = False
        self._offered = AdvertisedChips(KUBELET_SHOWS_S)
        self.problem: str | None = "the report has not been written yet"
        """Why the last report is not written; None where it is."""
        self.unhealthy: Observable[ChipSet] = Observable(0)
        """The chips the last written report calls unhealthy."""

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        backoff, node_backoff = Backoff(limit_s=RETRY_LIMIT_S), Backoff(limit_s=NODE_RETRY_LIMIT_S)
        written: tuple[DeviceReport, Mapping[str, str]] | None = None
        refresh_at_s, lost = 0.0, self._board.lost.version
        sources = (self._snapshots, self._kubelet_healthy, self._board.lost)
        await self._kubelet_knows()
        while True:
            versions = [source.version for source in sources]
            if self._board.lost.version != lost:
                written, lost = None, self._board.lost.version
            snapshot = self._snapshots.value
            if snapshot is None:
                await first_change(sources, versions, REFRESH_S)
                continue
            report, annotations = self._report(snapshot), node_annotations(snapshot)
            if (report, annotations) == written:
                left_s = min(refresh_at_s, self._offered.due_s) - loop.time()
                if left_s > 0:
                    await first_change(sources, versions, left_s)
                    continue
                self._node_object.forget()  # the refresh mends what others may have changed
            try:
                refused = await self._write(snapshot, report, annotations)
            except (ApiError, Unreachable) as error:
                written = None  # a part of it may be, or all of it with the answer lost
                gap_s, wait_s = self._waits(error, backoff)
                await asyncio.sleep(gap_s)
                await first_change(sources, versions, wait_s)  # what is new is tried at once
                continue
            backoff.reset()
            written = (report, annotations)
            if refused is None:
                node_backoff.reset()
                self.problem, refresh_at_s = None, loop.time() + REFRESH_S
            else:
                wait_s = node_backoff.next_s()
                self.problem, refresh_at_s = f"the Node is not written: {refused}", loop.time() + wait_s
                log.warning("Node not written", error=str(refused), retry_s=round(wait_s, 2))
            log.info("reported", free=f"{report.free:#x}", unhealthy=f"{report.unhealthy:#x}")
            await asyncio.sleep(MIN_GAP_S)

    async def sign_off(self) -> None:
        """Say that nobody keeps the report true any more; the kubelet stops offering the chips at the same time.

        Unless it is another plugin's by now, which does keep it true. To be called once nothing else writes it.
        """
        if not self._has_reported:
            return
        try:
            async with asyncio.timeout(SIGN_OFF_S):
                written = await self._write_last()
        except (ApiError, Unreachable, TimeoutError) as error:
            log.warning("the report does not say that the plugin ends", error=str(error) or "no answer in time")
        else:
            log.info("the report says that the plugin ends" if written else "another plugin keeps the report")

    async def _write_last(self) -> bool:
        while (snapshot := self._snapshots.value) is not None and self._board.is_ours:
            with contextlib.suppress(Conflict):  # an operator's edit, or a write of ours that the end cut off
                await self._post(self._report(snapshot))
                return True
            # A moment for whoever else writes; the deadline is the caller's.
            await asyncio.sleep(SIGN_OFF_RETRY_S)
        return False

    async def _write(
        self, snapshot: Snapshot, report: DeviceReport, annotations: Mapping[str, str]
    ) -> ApiError | Unreachable | None:
        """Write both; why the Node was not written, where it was not."""
        # First: a Node that takes no patch, or never says so, must not keep a fault out of the ConfigMap.
        await self._post(replace(report, update_time_s=int(self._now_s())))
        self._has_reported = True
        self.unhealthy.set(report.unhealthy)
        labels, problems = node_labels(snapshot.server)
        for problem in problems:
            log.warning("label not written", node_label=problem)
        try:
            await self._node_object.write(annotations, labels)
        except (ApiError, Unreachable) as error:
            return error
        return None

    async def _post(self, report: DeviceReport) -> None:
        try:
            await self._board.write(encode_report(report))
        except (ApiError, Unreachable) as error:
            self._metrics.report_writes.labels(result=_RESULTS.get(type(error), "refused")).inc()
            raise
        self._metrics.report_writes.labels(result="written").inc()

    def _waits(self, error: ApiError | Unreachable, backoff: Backoff) -> tuple[float, float]:
        """How long to wait after a failure whatever happens, and how long from then on while nothing does."""
        wait_s, gap_s = backoff.next_s(), MIN_GAP_S
        if isinstance(error, Conflict):
            log.info("the report is made anew, somebody has written meanwhile", error=str(error))
        else:
            self.problem = f"the report is not written: {error}"
            if isinstance(error, ApiError) and error.retry_after_s is not None:
                wait_s, gap_s = max(wait_s, error.retry_after_s), max(gap_s, error.retry_after_s)
            log.warning("report not written", error=str(error), retry_s=round(wait_s, 2))
        gap_s = min(gap_s, wait_s)
        return gap_s, wait_s - gap_s

    async def _kubelet_knows(self) -> None:
        snapshot = self._snapshots.value
        if snapshot is not None and snapshot.healthy != snapshot.all_chips:
            return  # the kubelet is not told of a fault before the report is: each would wait for the other
        if self._kubelet_healthy.version == 0:
            await first_change((self._kubelet_healthy,), (0,), KUBELET_FIRST_S)

    def _report(self, snapshot: Snapshot) -> DeviceReport:
        """What is to be told now; its time comes with the writing."""
        report = make_report(snapshot, update_time_s=0)
        self._count(snapshot)
        offered = self._offered.at(asyncio.get_running_loop().time(), self._kubelet_healthy.value)
        return replace(report, free=report.free & offered)

    def _count(self, snapshot: Snapshot) -> None:
        self._metrics.devices.clear()
        healthy, used = snapshot.healthy, snapshot.used
        for state, chips in (("free", healthy & ~used), ("used", healthy & used)):
            self._metrics.devices.labels(state=state, reason="").set(len(chip_ids(chips)))
        for chip in snapshot.chips:
            if not chip.healthy:
                self._metrics.devices.labels(state="unhealthy", reason=chip.verdict.reason).inc()
