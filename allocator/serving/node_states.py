"""Nodes as dashboards see them: chips, their health and who holds them."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server, unknown_node
from ascend.chips import chip_ids, chip_name
from ascend.errors import Refusal
from protos.ascend.allocator.v1 import allocator_pb2 as pb

PERIOD_S: Final = 0.2
"""Changes are gathered for so long before they are sent."""

AT_ONCE: Final = 500
"""Nodes in one message; gRPC's clients take 4 MiB by default, and a node with 16 chips has about 2 KiB."""

_BREATH: Final = 64
"""After so many nodes others have a turn on the loop."""


class NodeStates:
    """Reads the state of nodes.

    Args:
        cluster: what is seen.
        ledger: what is decided.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger

    def read(self, name: str) -> pb.NodeState:
        """One node, known or not."""
        record = self._cluster.nodes.get(name)
        if record is None:
            return pb.NodeState(node=name, refusal=refusal_message(unknown_node(name)))
        state = pb.NodeState(node=name)
        if isinstance(record.offer, Refusal):
            state.refusal.CopyFrom(refusal_message(record.offer))
        if isinstance(record.server, Server):
            state.product = record.server.product.name
            state.chips.extend(self._chips(record, record.server))
        return state

    async def page(self, only: Collection[str], size: int, after: str) -> pb.GetStateResponse:
        """A part of the nodes, in the order of their names.

        Args:
            only: names of nodes, known or not; empty for all that are known.
            size: how many at most; ``AT_ONCE`` where it is 0 or more than that.
            after: the token of the page before; empty for the first one.
        """
        names = sorted(set(only) or self._cluster.nodes)
        start = bisect_right(names, after) if after else 0
        end = start + min(size or AT_ONCE, AT_ONCE)
        page = pb.GetStateResponse(next_page_token=names[end - 1] if end < len(names) else "")
        for number, name in enumerate(names[start:end], start=1):
            page.nodes.append(self.read(name))
            if number % _BREATH == 0:
                await asyncio.sleep(0)  # a whole page at once would hold everybody up
        return page

    async def watch(self, only: Collection[str]) -> AsyncIterator[pb.WatchResponse]:
        """Every node, then those that change, for ever.

        Args:
            only: names of nodes; empty for all.
        """
        seen: int | None = None
        while True:
            revision = self._cluster.changes.revision
            if seen is None or revision != seen:
                names = None if seen is None else self._cluster.changes.since(seen)
                if names is None:
                    names = sorted(self._cluster.nodes)
                if only:
                    names = [name for name in names if name in only]
                for start in range(0, max(len(names), 1 if seen is None else 0), AT_ONCE):
                    yield self._changed(names[start : start + AT_ONCE], revision)
                seen = revision
            await asyncio.sleep(PERIOD_S)

    def _changed(self, names: list[str], revision: int) -> pb.WatchResponse:
        here = [name for name in names if name in self._cluster.nodes]
        gone = [name for name in names if name not in self._cluster.nodes]
        return pb.WatchResponse(nodes=map(self.read, here), gone=gone, revision=revision)

    def _chips(self, record: NodeRecord, server: Server) -> Iterator[pb.ChipState]:
        healthy = server.reported & ~record.unhealthy if isinstance(record.unhealthy, int) else 0
        kept = {uid: chips for uid, chips in self._ledger.on(record.name).items() if uid not in record.holdings}
        for chip in chip_ids(server.reported):
            holders = [
                pb.Holder(uid=uid, pod=holding.pod)
                for uid, holding in record.holdings.items()
                if holding.chips >> chip & 1
            ]
            for uid, chips in kept.items():
                reservation = self._ledger.get(uid)
                if chips >> chip & 1 and reservation is not None:
                    holders.append(pb.Holder(uid=uid, pod=reservation.pod, reserved=True))
            yield pb.ChipState(name=chip_name(chip), healthy=bool(healthy >> chip & 1), holders=holders)


def refusal_message(refusal: Refusal) -> pb.Refusal:
    """A refusal on the wire."""
    return pb.Refusal(reason=refusal.reason, message=refusal.message)
