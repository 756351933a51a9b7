"""Publishes the report of the chips: the ConfigMap, and the annotations and labels of the Node.

Written when the content changes, at most once a second, and at least every five minutes, because readers take an older
report for that of a dead plugin (docs/spec/node-report.md#freshness). ``order.py`` has the rule for report and kubelet.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from ascend.chips import chip_ids
from ascend.daemon.observable import Observable, wait_for_change
from ascend.deviceinfo import DeviceReport, encode_report, next_update_time
from ascend.errors import ApiError, Conflict, Unreachable
from ascend.fabric_switches import SwitchReport
from ascend.rate_limiters import Backoff
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter, node_annotations, node_labels
from device_plugin.publish.order import PublishingOrder
from device_plugin.publish.report import make_report

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REFRESH_S = 300.0
MIN_GAP_S = 1.0
RETRY_LIMIT_S = 5.0
"""The longest wait after a failure: once the API server is back, the report is not much older than that."""
NODE_RETRY_LIMIT_S = 30.0
"""The same if only the Node can't be written; each attempt writes the report again."""
BEHIND_S = 5.0
"""A clock that is set back by more than this is logged."""
GIVE_WAY_S = 1.0
SIGN_OFF_S = 1.0
SIGN_OFF_RETRY_S = 0.02

_RESULTS: Mapping[type[Exception], str] = {Conflict: "conflict", Unreachable: "unreachable"}


class Reporter:
    """Keeps the node's report up to date.

    Args:
        config_map: the node's ConfigMap.
        node_object: the Node.
        snapshots: the node's chips.
        switches: the state of its switches.
        order: decides whether the report or the kubelet comes first.
        metrics: counts writes, and chips by state.
        now_s: wall clock, Unix seconds, for UpdateTime.
    """

    def __init__(
        self,
        config_map: DeviceInfoConfigMap,
        node_object: NodeWriter,
        *,
        snapshots: Observable[Snapshot | None],
        switches: Observable[SwitchReport | None],
        order: PublishingOrder,
        metrics: Metrics,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._config_map = config_map
        self._node_object = node_object
        self._snapshots = snapshots
        self._switches = switches
        self._order = order
        self._metrics = metrics
        self._now_s = now_s
        self._may_have_reported = False
        self._is_behind = False
        self.gives_way: Callable[[], bool] = lambda: False
        """Whether another plugin reports the chips now: the two would overwrite each other's reports all the time."""
        self.problem: str | None = "the report has not been written yet"
        """Why the last report is not written; None if it is."""

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        backoff, node_backoff = Backoff(limit_s=RETRY_LIMIT_S), Backoff(limit_s=NODE_RETRY_LIMIT_S)
        written: tuple[DeviceReport, Mapping[str, str]] | None = None
        refresh_at_s, losses = 0.0, self._losses
        sources = (
            self._snapshots,
            self._switches,
            self._order.advertised,
            self._order.unshown,
            self._config_map.lost,
            self._node_object.lost,
        )
        await self._order.wait_before_first_report(self._snapshots)
        while True:
            versions = [source.version for source in sources]
            if self._losses != losses:
                written, losses = None, self._losses
            snapshot = self._snapshots.value
            if snapshot is None:
                await wait_for_change(sources, versions)
                continue
            if self.gives_way():
                written = None
                await asyncio.sleep(GIVE_WAY_S)
                continue
            report, annotations = self._report(snapshot), node_annotations(snapshot)
            if (report, annotations) == written:
                left_s = refresh_at_s - loop.time()
                if left_s > 0:
                    await wait_for_change(sources, versions, left_s)
                    continue
                self._node_object.forget()  # the refresh restores what others may have changed
            try:
                refused = await self._write(snapshot, report, annotations)
            except (ApiError, Unreachable) as error:
                written = None  # unknown: the write may have succeeded although its answer was lost
                gap_s, wait_s = self._waits(error, backoff)
                await asyncio.sleep(gap_s)
                await wait_for_change(sources, versions, wait_s)  # new content is tried at once
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

    @property
    def _losses(self) -> tuple[int, int]:
        return self._config_map.lost.version, self._node_object.lost.version

    async def sign_off(self) -> None:
        """Report that the plugin has ended; the kubelet stops offering the chips at the same time.

        Without effect if the report is another plugin's by now. To be called once nothing else writes the report.
        """
        if not self._may_have_reported:
            return
        try:
            async with asyncio.timeout(SIGN_OFF_S):
                written = await self._write_last()
        except (ApiError, Unreachable, TimeoutError) as error:
            log.warning("the end of the plugin is not reported", error=str(error) or "no answer in time")
        else:
            log.info("the end of the plugin is reported" if written else "another plugin keeps the report")

    async def _write_last(self) -> bool:
        while (snapshot := self._snapshots.value) is not None and self._config_map.is_ours:
            with contextlib.suppress(Conflict):  # an operator's edit, or our own write that the end interrupted
                await self._post(self._report(snapshot))
                return True
            # Gives the other writer time; the caller sets the deadline.
            await asyncio.sleep(SIGN_OFF_RETRY_S)
        return False

    async def _write(
        self, snapshot: Snapshot, report: DeviceReport, annotations: Mapping[str, str]
    ) -> ApiError | Unreachable | None:
        """Write the ConfigMap and the Node; return why the Node was not written, if it was not."""
        # The ConfigMap goes first: a Node that refuses patches, or never answers, must not delay the report of a fault.
        self._may_have_reported = True  # also if the plugin ends before this is answered
        await self._post(replace(report, update_time_s=self._update_time()))
        self._order.reported_unhealthy.set(report.unhealthy | report.recovering | snapshot.cut)
        labels, problems = node_labels(snapshot.server)
        for problem in problems:
            log.warning("label not written", node_label=problem)
        try:
            await self._node_object.write(annotations, labels)
        except (ApiError, Unreachable) as error:
            return error
        return None

    def _update_time(self) -> int:
        now_s, latest_s = self._now_s(), self._config_map.latest_s
        if (is_behind := latest_s > now_s + BEHIND_S) and not self._is_behind:
            log.warning("the clock is behind the report's last time", behind_s=round(latest_s - now_s))
        self._is_behind = is_behind
        return next_update_time(now_s, latest_s)

    async def _post(self, report: DeviceReport) -> None:
        try:
            await self._config_map.write(encode_report(report))
        except (ApiError, Unreachable) as error:
            self._metrics.report_writes.labels(result=_RESULTS.get(type(error), "refused")).inc()
            raise
        self._metrics.report_writes.labels(result="written").inc()

    def _waits(self, error: ApiError | Unreachable, backoff: Backoff) -> tuple[float, float]:
        """Return how long to wait after a failure in any case, and how long after that while nothing changes."""
        wait_s = backoff.after(error)
        if isinstance(error, Conflict):
            log.info("the report is made again after somebody else's write", error=str(error))
        else:
            self.problem = f"the report is not written: {error}"
            log.warning("report not written", error=str(error), retry_s=round(wait_s, 2))
        retry_after_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
        gap_s = min(max(MIN_GAP_S, retry_after_s), wait_s)
        return gap_s, wait_s - gap_s

    def _report(self, snapshot: Snapshot) -> DeviceReport:
        """Return the report to write now, without its time."""
        self._count(snapshot)
        report = make_report(snapshot, 0, self._switches.value)
        # A chip that the kubelet's Node doesn't show yet is not free for any reader, even if it ignores the free list.
        withheld = report.free & self._order.withheld
        free = report.free & self._order.advertised.value & ~withheld
        return replace(report, free=free, recovering=report.recovering | withheld)

    def _count(self, snapshot: Snapshot) -> None:
        self._metrics.devices.clear()
        healthy, used, cut = snapshot.healthy, snapshot.used, snapshot.cut
        states = (("free", healthy & ~used & ~cut), ("used", healthy & used & ~cut), ("cut", healthy & cut))
        for state, chips in states if cut else states[:2]:
            self._metrics.devices.labels(state=state, reason="").set(len(chip_ids(chips)))
        self._metrics.used_unhealthy.set(len(chip_ids(used & snapshot.all_chips & ~healthy)))
        for chip in snapshot.chips:
            if not chip.healthy:
                self._metrics.devices.labels(state="unhealthy", reason=chip.reason).inc()
