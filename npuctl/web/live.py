"""The cluster as it is now, kept current by the allocator's own watches; and a node as the browser draws it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from enum import IntFlag
from itertools import chain
from typing import Any, Final

from allocator.state.cluster import Cluster
from allocator.state.kinds import all_kinds, fill
from allocator.state.ledger import Ledger
from allocator.state.location import Level, Location
from allocator.watch.informers import Informers
from ascend.chips import ChipSet, parse_chip_name
from ascend.cordons import read_cordons
from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import InvalidReport
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, PODS, ConfigMap, Pod
from ascend.turn import Turn
from npuctl.reading.objects import HEALTH_NAMESPACE, ClusterObjects
from npuctl.reading.source import Source
from npuctl.topo.nodes import ChipView, NodeView, node_view
from npuctl.topo.summary import Totals

TICK_S: Final = 0.2
"""Changes of this time come to the page together."""

Changed = Callable[[list[str]], None]
"""Is called with the names of nodes that have changed, or are gone; with none if only pods that wait have changed."""


MANY_NODES: Final = 1_000
"""From so many nodes on groups of them are shown."""

LEVELS: Final = (*Level, "product")
"""By what nodes are grouped, in the order of the places of a tile."""

Tile = list[Any]
"""Name, product, why it is not used, its places, the sizes of its groups of linked chips, its jobs, and its chips: each
the number of its job, from 1, times 64 plus its ``ChipMark``; 0 times 64 without one."""


class ChipMark(IntFlag):
    """What is drawn on a chip beside its job; ``wall.js`` has the same numbers."""

    BROKEN = 1
    NETWORK = 2
    CUT = 4
    KEPT = 8
    NEXT = 16
    CONFLICT = 32


class KeptChips(dict[str, tuple[ChipSet, ChipSet]]):
    """By node, the chips kept for waiting jobs, and the chips that pods get next."""


class LiveCluster:
    """The nodes of a cluster, and the objects by which waiting pods are decided on.

    Args:
        source: the settings; its clock is read anew.

    Attributes:
        views: the NPU nodes by name.
    """

    def __init__(self, source: Source) -> None:
        settings = source.settings
        self.source = source
        self.views: dict[str, NodeView] = {}
        self._cluster = Cluster(
            Ledger(ttl_s=settings.reservation_ttl_s, monotonic=time.monotonic),
            clock=lambda: source.at_present().now_ns / 1e9,
            max_report_age_s=settings.max_report_age_s,
            reported_s=lambda _node, updated_s: float(updated_s),  # nothing has been seen before
        )
        self._pods = 0
        self._cluster.followers.add(self._count, self._count)
        self._seen = self._revision = 0
        self._informers: Informers | None = None
        self._files = ClusterObjects()

    def _count(self, _pod: Pod) -> None:
        self._pods += 1

    def location(self, node: str) -> Location:
        """Where a node is."""
        return self._cluster.index.topology.location(node)

    def objects(self) -> Callable[[], ClusterObjects]:
        """Copy the objects as they are now; the function that is returned sorts them, in any thread."""
        if self._informers is None:
            return lambda: self._files
        copies = {kind: list(copy.values()) for kind, copy in self._informers.objects.items()}
        optional = {kind.name for kind in all_kinds() if kind.is_optional}

        def sort() -> ClusterObjects:
            fixed: Iterable[Any] = chain.from_iterable(some for kind, some in copies.items() if kind not in optional)
            return ClusterObjects.of(fixed, {kind: some for kind, some in copies.items() if kind in optional})

        return sort

    def read_files(self) -> None:
        """Show the files of the source.

        Raises:
            InvalidValue: a file is invalid.
        """
        self._files = self.source.read_files(strict=False).objects
        health = self.source.settings.node_health_namespace or HEALTH_NAMESPACE
        fill(self._cluster, self._files.watched_objects(health))

    async def run(self, client: KubeClient | None, changed: Changed) -> None:
        """Follow the cluster until cancelled.

        Args:
            client: the API server; None if files were read.
            changed: called when nodes have changed, at most every ``TICK_S``.
        """
        if client is None:
            await self._follow(changed)
            await asyncio.Event().wait()
            return
        self._informers = Informers(client, self._cluster, health_namespace=self.source.settings.node_health_namespace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informers.run())
            await self._informers.wait_until_synced()
            while True:
                self._cluster.reports.age()
                await self._follow(changed)
                await asyncio.sleep(TICK_S)

    async def _follow(self, changed: Changed) -> None:
        if self._revision == (revision := self._cluster.changes.revision + self._pods):
            return
        self._revision = revision
        found = self._cluster.changes.since(self._seen)
        names = list(self._cluster.nodes.keys() | self.views.keys()) if found is None else found
        self._seen = self._cluster.changes.revision
        reports, turn = self._reports(), Turn()
        for name in names:
            await turn.share()
            view = self._view(name, reports.get(f"{NAMESPACE}/{config_map_name(name)}"))
            if view is not None and view.is_npu:
                self.views[name] = view
            else:
                self.views.pop(name, None)
        changed(names)

    def _view(self, name: str, written: ConfigMap | None) -> NodeView | None:
        record = self._cluster.nodes.get(name)
        if record is None:
            return None
        jobs = {
            holding.pod: str(self._cluster.jobs.job_of(pod).key)
            for uid, holding in record.holdings.items()
            if (pod := self._cluster.pods.get(uid)) is not None
        }
        report = None
        if written is not None:
            with contextlib.suppress(InvalidReport):
                report = decode_report(written.data)
        return node_view(record, report, jobs, read_cordons(written) if written is not None else {})

    def _reports(self) -> Mapping[str, ConfigMap]:
        if self._informers is None:
            return {config_map.key: config_map for config_map in self._files.config_maps}
        return self._informers.objects["device reports"]


async def require_rights(client: KubeClient) -> None:
    """Read a node and a pod, or say why not.

    Raises:
        ApiError: the API server refused.
        Unreachable: it did not answer.
    """
    for resource in (NODES, PODS):
        await client.request("GET", resource.path(), query={"limit": "1"})


def groups_of(views: Iterable[NodeView], where: Mapping[str, Location]) -> dict[str, list[Totals]]:
    """The sums over the nodes of each place, by level, those with the most trouble first; no level with one place."""
    found: dict[str, dict[str, list[NodeView]]] = {level: {} for level in LEVELS}
    for view in views:
        for level, place in zip(LEVELS, places(view, where[view.node]), strict=True):
            if place:
                found[level].setdefault(place, []).append(view)
    return {
        level: sorted(
            (Totals.of(some, place) for place, some in sums.items()),
            key=lambda group: (-group.unhealthy, group.usable - group.nodes, group.product),
        )
        for level, sums in found.items()
        if len(sums) > 1
    }


def tile_of(view: NodeView, location: Location, kept: KeptChips) -> Tile:
    """Return the tile of a node."""
    names = dict.fromkeys(view.jobs.get(holder, holder) for chip in view.chips for holder in _holders(chip))
    jobs = {name: number for number, name in enumerate(names, start=1)}
    waiting, due = kept.get(view.node, (0, 0))
    chips = []
    for chip in view.chips:
        bit, holders = 1 << parse_chip_name(chip.name), _holders(chip)
        mark = ChipMark.BROKEN if not chip.healthy else ChipMark(0)
        mark |= ChipMark.NETWORK if chip.healthy and chip.health != "healthy" else ChipMark(0)
        mark |= ChipMark.CUT if chip.vnpus or chip.slices else ChipMark(0)
        mark |= ChipMark.KEPT if waiting & bit else ChipMark(0)
        mark |= ChipMark.NEXT if due & bit else ChipMark(0)
        mark |= ChipMark.CONFLICT if len(chip.holders) > 1 else ChipMark(0)
        chips.append((jobs[view.jobs.get(holders[0], holders[0])] if holders else 0) * 64 + mark)
    sizes = [len(group) for group in view.groups.values()] if view.group else [len(view.chips)]
    return [view.node, view.product, view.reason or "", places(view, location), sizes, list(jobs), chips]


def _holders(chip: ChipView) -> list[str]:
    return [holder for device in chip.devices for holder in device.holders]


def places(view: NodeView, location: Location) -> list[str]:
    """The places of a node at each of ``LEVELS``; empty where it is in none."""
    known = dict(location.places)
    return [*(f"{level} {known[level]}" if level in known else "" for level in Level), view.product or "-"]
