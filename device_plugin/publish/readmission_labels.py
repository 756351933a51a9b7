"""Recovered chips that await readmission, as labels on the Node (setting ``readmission: manual``).

The labels list the waiting ids, joined by dots. An operator readmits a chip by removing its id, or the whole label
(MindCluster's ``autoStowing=false``, docs/spec/node-report.md#writing-the-report).
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from ascend.chips import MAX_CHIP_ID, ChipSet, chip_ids
from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import ApiError, Conflict, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, Node, is_newer
from ascend.rate_limiters import Backoff
from device_plugin.health.snapshot import Snapshot

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHIPS = "huawei.com/Ascend910-Recover"
PORTS = "huawei.com/Ascend910-NetworkRecover"

OnReadmit = Callable[[ChipSet, ChipSet], None]
"""Receives the chips, and the chips whose network ports, an operator readmits."""


def read_label(labels: Mapping[str, str], key: str) -> ChipSet:
    """Read the chips of a label; invalid ids are ignored."""
    chips = 0
    for text in labels.get(key, "").split("."):
        if text.isascii() and text.isdigit() and int(text[:4]) <= MAX_CHIP_ID:
            chips |= 1 << int(text[:4])
    return chips


def write_label(chips: ChipSet) -> str | None:
    """Return the label's value; None if there is nothing to list."""
    return ".".join(map(str, chip_ids(chips))) or None


def _listed_on(node: Node) -> tuple[ChipSet, ChipSet]:
    labels = node.metadata.labels
    return read_label(labels, CHIPS), read_label(labels, PORTS)


class ReadmissionLabels:
    """Keeps the two labels up to date and applies operators' edits; a reader of the Node's changes.

    Args:
        client: the API server.
        node: this node's object as it was when the waiting chips were read from its labels; later differences are
            edits.
        snapshots: the node's chips.
        on_readmit: receives what is readmitted.
    """

    def __init__(
        self, client: KubeClient, node: Node, *, snapshots: Observable[Snapshot | None], on_readmit: OnReadmit
    ) -> None:
        self._client = client
        self._name = node.name
        self._snapshots = snapshots
        self._on_readmit = on_readmit
        self._uid, self._version = node.uid, node.metadata.resource_version
        self._listed: tuple[ChipSet, ChipSet] | None = _listed_on(node)
        self._seen: Observable[None] = Observable(None)

    def on_apply(self, obj: Node) -> None:
        """Take over a change of the Node: ids that are no longer listed are readmitted."""
        if not is_newer(obj.metadata.resource_version, self._version):
            return  # the watch shows our own writes too, later
        now = _listed_on(obj)
        before = self._listed if obj.uid == self._uid else None
        self._uid, self._version, self._listed = obj.uid, obj.metadata.resource_version, now
        if before is not None and (before[0] & ~now[0] or before[1] & ~now[1]):
            self._on_readmit(before[0] & ~now[0], before[1] & ~now[1])
        self._seen.set(None)

    def on_delete(self, obj: Node) -> None:  # noqa: ARG002 - a handler's signature
        """Note that the Node is gone, which readmits no chip."""
        self._listed = None

    async def run(self) -> None:
        """Keep the labels up to date until cancelled."""
        backoff = Backoff(limit_s=5.0)
        sources = (self._snapshots, self._seen)
        while True:
            versions = [source.version for source in sources]
            snapshot = self._snapshots.value
            if snapshot is not None and self._listed is not None:
                waiting = (snapshot.awaiting_readmission, snapshot.network_awaiting_readmission)
                if waiting != self._listed:
                    try:
                        await self._list(waiting)
                    except Conflict:
                        pass  # the watch is about to show the change
                    except (ApiError, Unreachable) as error:
                        log.warning("labels not written", error=str(error))
                        await asyncio.sleep(backoff.next_s())
                        continue
                    else:
                        backoff.reset()
                        continue
            await wait_for_change(sources, versions)

    async def _list(self, waiting: tuple[ChipSet, ChipSet]) -> None:
        # The version makes the write fail after an operator's edit, which is then applied first.
        labels = {CHIPS: write_label(waiting[0]), PORTS: write_label(waiting[1])}
        body = {"metadata": {"resourceVersion": self._version, "labels": labels}}
        written = await self._client.patch(NODES, self._name, body)
        self._version, self._listed = written.metadata.resource_version, waiting
        log.info("awaiting readmission", chips=labels[CHIPS], ports=labels[PORTS])
