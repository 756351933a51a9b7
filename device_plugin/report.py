"""Publishes what the node reports: the ConfigMap and the node's annotations.

The ConfigMap is written when its content changes, at most once a second, and at least every five minutes, because its
readers take silence for death (spec/node-agent.md §0.6). Keys and labels of others are left as they are: only our keys
are patched.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from ascend.annotations import (
    BASE_DEVICE_INFOS,
    SERVER_INDEX,
    SERVER_TYPE,
    SUPER_POD_ID,
    write_base_device_infos,
)
from ascend.chips import ChipSet, chip_ids
from ascend.deviceinfo import LABELS, MANUALLY_SEPARATED, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES
from device_plugin.metrics import Metrics
from device_plugin.rules.report import make_report
from device_plugin.rules.snapshot import Snapshot
from device_plugin.state.grants import HandOvers
from device_plugin.state.observable import Observable
from device_plugin.state.pods import NodePods

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REFRESH_S = 300.0
MIN_GAP_S = 1.0


class Reporter:
    """Keeps the node's report true.

    Args:
        client: the API server.
        node: this node's name.
        snapshots: the node's chips.
        pods: the node's pods.
        handovers: what they were handed.
        metrics: counts.
        now_s: wall clock, Unix seconds, for UpdateTime.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        *,
        snapshots: Observable[Snapshot | None],
        pods: NodePods,
        handovers: HandOvers,
        metrics: Metrics,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._node = node
        self._snapshots = snapshots
        self._pods = pods
        self._handovers = handovers
        self._metrics = metrics
        self._now_s = now_s
        self._annotated: Mapping[str, str] | None = None
        self.problem: str | None = "the report has not been written yet"
        """Why the last report is not written; None where it is."""
        self.unhealthy: Observable[ChipSet] = Observable(0)
        """The chips the last written report calls unhealthy."""

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        written: tuple[DeviceReport, Mapping[str, str]] | None = None
        refresh_at_s = 0.0
        while True:
            versions = self._versions()
            snapshot = self._snapshots.value
            if snapshot is None:
                await self._changed(versions, REFRESH_S)
                continue
            report, annotations = self._report(snapshot), _node_annotations(snapshot)
            if (report, annotations) == written:
                left_s = refresh_at_s - loop.time()
                if left_s > 0 and await self._changed(versions, left_s):
                    continue
                self._annotated = None  # the refresh mends what others may have changed
            try:
                await self._annotate_node(annotations)
                await self._write(replace(report, update_time_s=int(self._now_s())))
            except (ApiError, Unreachable) as error:
                self.problem = f"the report is not written: {error}"
                written = None  # a part of it may be, or all of it with the answer lost
                wait_s = backoff.next_s()
                if isinstance(error, ApiError) and error.retry_after_s is not None:
                    wait_s = max(wait_s, error.retry_after_s)
                log.warning("report not written", error=str(error), retry_s=round(wait_s, 2))
                await asyncio.sleep(wait_s)
                continue
            backoff.reset()
            self.problem = None
            self.unhealthy.set(report.unhealthy)
            written = report, annotations
            refresh_at_s = loop.time() + REFRESH_S
            log.info("reported", free=f"{report.free:#x}", unhealthy=f"{report.unhealthy:#x}")
            await asyncio.sleep(MIN_GAP_S)

    def _versions(self) -> tuple[int, int, int]:
        return (self._snapshots.version, self._pods.changes.version, self._handovers.changes.version)

    async def _changed(self, versions: tuple[int, int, int], within_s: float) -> bool:
        sources: tuple[Observable[Any], ...] = (self._snapshots, self._pods.changes, self._handovers.changes)
        waits = [
            asyncio.ensure_future(source.newer_than(version)) for source, version in zip(sources, versions, strict=True)
        ]
        try:
            done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return bool(done)

    def _report(self, snapshot: Snapshot) -> DeviceReport:
        """What is to be told now; its time comes with the writing."""
        report = make_report(snapshot, self._used(), update_time_s=0)
        for state, chips in (
            ("free", report.free),
            ("used", snapshot.healthy & ~report.free),
            ("unhealthy", report.unhealthy),
        ):
            self._metrics.devices.labels(state=state).set(len(chip_ids(chips)))
        return report

    def _used(self) -> ChipSet:
        used = 0
        for handover in self._handovers:
            used |= handover.held
        for pod in self._pods:
            if pod.live and pod.count:
                used |= pod.held
        return used

    async def _annotate_node(self, annotations: Mapping[str, str]) -> None:
        if annotations != self._annotated:
            await self._client.patch(NODES, self._node, {"metadata": {"annotations": annotations}})
            self._annotated = annotations

    async def _write(self, report: DeviceReport) -> None:
        name = config_map_name(self._node)
        data = encode_report(report)
        # This key is for operators to edit: writing it would undo what they did.
        ours = {key: text for key, text in data.items() if key != MANUALLY_SEPARATED}
        try:
            await self._client.patch(
                CONFIG_MAPS, name, {"metadata": {"labels": LABELS}, "data": ours}, namespace=NAMESPACE
            )
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": LABELS},
                "data": data,
            }
            await self._client.create(CONFIG_MAPS, body, NAMESPACE)


def _node_annotations(snapshot: Snapshot) -> dict[str, str]:
    return {
        BASE_DEVICE_INFOS: write_base_device_infos({chip.chip_id: chip.address for chip in snapshot.chips}),
        SUPER_POD_ID: str(snapshot.super_pod_id),
        SERVER_INDEX: str(snapshot.server_index),
        SERVER_TYPE: "",
    }
