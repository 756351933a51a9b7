"""The state of nodes for dashboards: chips, their health and the pods that hold them."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Final

from allocator.state.cluster import Cluster
from allocator.state.holding import Holding
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server, unknown_node
from ascend.chips import chip_ids, chip_name
from ascend.errors import Refusal
from ascend.takes import Take
from ascend.turn import Turn
from protos.ascend.allocator.v1 import allocator_pb2 as pb

PERIOD_S: Final = 0.2
"""Changes are collected for this time before they are sent."""

AT_ONCE: Final = 500
"""The most nodes in one message: gRPC clients accept 4 MiB by default, and a node with 16 chips takes about 2 KiB."""


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
            state.chips.extend(self._chips(record, record.server))
            state.vnpus.extend(self._vnpus(record, record.server))
            state.vnpus.extend(self._cuts(record))
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

    def _chips(self, record: NodeRecord, server: Server) -> Iterator[pb.ChipState]:
        healthy = server.reported & ~record.unhealthy if isinstance(record.unhealthy, int) else 0
        for chip in chip_ids(server.reported):
            holders = self._holders(
                record,
                lambda holding, chip=chip: holding.chips >> chip & 1,  # type: ignore[misc]  # bound
                lambda take, chip=chip: take.chip_set >> chip & 1,  # type: ignore[misc]  # bound
            )
            yield pb.ChipState(name=chip_name(chip), healthy=bool(healthy >> chip & 1), holders=holders)

    def _vnpus(self, record: NodeRecord, server: Server) -> Iterator[pb.ChipState]:
        unhealthy = record.unhealthy if isinstance(record.unhealthy, int) else -1
        for vnpu in server.vnpus:
            holders = self._holders(
                record,
                lambda holding, vnpu=vnpu: vnpu in holding.vnpus,  # type: ignore[misc]  # bound
                lambda take, vnpu=vnpu: take.vnpu == vnpu,  # type: ignore[misc]  # bound
            )
            yield pb.ChipState(name=vnpu.name, healthy=not unhealthy >> vnpu.chip & 1, holders=holders)

    def _cuts(self, record: NodeRecord) -> Iterator[pb.ChipState]:
        """The vNPUs that were cut for pods: of equal ones of a chip, one state with all pods."""
        unhealthy = record.unhealthy if isinstance(record.unhealthy, int) else -1
        held = {cut for holding in record.holdings.values() for cut in holding.cuts}
        reserved = {take.cut for take in self._ledger.on(record.name).values() if take.cut is not None}
        for cut in sorted(held | reserved):
            holders = self._holders(
                record,
                lambda holding, cut=cut: cut in holding.cuts,  # type: ignore[misc]  # bound
                lambda take, cut=cut: take.cut == cut,  # type: ignore[misc]  # bound
            )
            yield pb.ChipState(name=cut.name, healthy=not unhealthy >> cut.chip & 1, holders=holders)

    def _holders(
        self, record: NodeRecord, holds: Callable[[Holding], object], takes: Callable[[Take], object]
    ) -> list[pb.Holder]:
        found = [pb.Holder(uid=uid, pod=holding.pod) for uid, holding in record.holdings.items() if holds(holding)]
        for uid, take in self._ledger.on(record.name).items():
            reservation = self._ledger.get(uid)
            if uid not in record.holdings and reservation is not None and takes(take):
                found.append(pb.Holder(uid=uid, pod=reservation.pod, reserved=True))
        return found


def refusal_message(refusal: Refusal) -> pb.Refusal:
    """A refusal as a message."""
    return pb.Refusal(reason=refusal.reason, message=refusal.message)
