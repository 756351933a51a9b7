"""The state of nodes for dashboards: chips, their health and the pods that hold them."""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from typing import Final, TypeAlias

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server, unknown_node
from ascend.chips import chip_ids, chip_name
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.turn import Turn
from ascend.vnpus import Vnpu
from protos.ascend.allocator.v1 import allocator_pb2 as pb

PERIOD_S: Final = 0.2
"""Changes are collected for this time before they are sent."""

AT_ONCE: Final = 500
"""The most nodes in one message: gRPC clients accept 4 MiB by default, and a node with 16 chips takes about 2 KiB."""

_Part: TypeAlias = int | Vnpu | Cut
"""A chip, or a part of one."""


class NodeStates:
    """Reads the state of nodes."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger

    def read(self, name: str) -> pb.NodeState:
        """The state of one node, known or not."""
        record = self._cluster.nodes.get(name)
        if record is None:
            return pb.NodeState(node=name, refusal=refusal_message(unknown_node(name)))
        state = pb.NodeState(node=name)
        if isinstance(record.offer, Refusal):
            state.refusal.CopyFrom(refusal_message(record.offer))
        if isinstance(record.server, Server):
            state.product = record.server.product.name
            holders, unhealthy = self._holders(record), record.unhealthy if isinstance(record.unhealthy, int) else -1
            # The vNPUs that were cut for pods: of equal ones of a chip, one state with all pods.
            parts: list[Vnpu | Cut] = [*record.server.vnpus]
            parts += sorted(part for part in holders if isinstance(part, Cut))
            for chip in chip_ids(record.server.reported):
                state.chips.add(name=chip_name(chip), healthy=not unhealthy >> chip & 1, holders=holders[chip])
            for vnpu in parts:
                state.vnpus.add(name=vnpu.name, healthy=not unhealthy >> vnpu.chip & 1, holders=holders[vnpu])
        return state

    async def page(self, only: Collection[str], size: int, after: str) -> pb.GetStateResponse:
        """One page of nodes, in the order of their names.

        Args:
            only: names of nodes, known or not; empty for all known nodes.
            size: the most nodes; 0, or more than ``AT_ONCE``, means ``AT_ONCE``.
            after: the token of the previous page; empty for the first one.
        """
        names = sorted(set(only) or self._cluster.nodes)
        start = bisect_right(names, after) if after else 0
        end = start + min(size or AT_ONCE, AT_ONCE)
        page = pb.GetStateResponse(next_page_token=names[end - 1] if end < len(names) else "")
        turn = Turn()
        for name in names[start:end]:
            page.nodes.append(self.read(name))
            await turn.share()
        return page

    async def watch(self, only: Collection[str]) -> AsyncIterator[pb.WatchResponse]:
        """Yield every node, then the nodes that change, until cancelled.

        Args:
            only: names of nodes; empty for every node.
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
                    yield await self._response(names[start : start + AT_ONCE], revision)
                seen = revision
            await asyncio.sleep(PERIOD_S)

    async def _response(self, names: list[str], revision: int) -> pb.WatchResponse:
        response, turn = pb.WatchResponse(revision=revision), Turn()
        for name in names:
            if name in self._cluster.nodes:
                response.nodes.append(self.read(name))
            else:
                response.gone.append(name)
            await turn.share()
        return response

    def _holders(self, record: NodeRecord) -> defaultdict[_Part, list[pb.Holder]]:
        """Who holds each chip, or part of a chip, of a node, and for whom it is reserved."""
        found: defaultdict[_Part, list[pb.Holder]] = defaultdict(list)
        for uid, holding in record.holdings.items():
            held: list[_Part] = [*chip_ids(holding.chips), *holding.vnpus, *holding.cuts]
            for part in dict.fromkeys(held):
                found[part].append(pb.Holder(uid=uid, pod=holding.pod))
        for uid, take in self._ledger.on(record.name).items():
            reservation = self._ledger.get(uid)
            if uid not in record.holdings and reservation is not None:
                for taken in (*chip_ids(take.chip_set), take.vnpu, take.cut):
                    if taken is not None:
                        found[taken].append(pb.Holder(uid=uid, pod=reservation.pod, reserved=True))
        return found


def refusal_message(refusal: Refusal) -> pb.Refusal:
    """A refusal as a message."""
    return pb.Refusal(reason=refusal.reason, message=refusal.message)
