"""The nodes in the order in which they drain soonest: those with the fewest pods first. No I/O.

How long pods run is unknown, so the number of pods that have to end counts, not their chips: a pod of eight chips ends
once. Nodes with equally many pods come by name. So successive jobs that need whole nodes drain the same nodes, and the
smaller pods gather on the others. The order of a node that drains changes only for the better, so a job that keeps the
first nodes of this order gets them after a limited number of ends.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.ranking import Bucket
from ascend.turn import Steps

_STEP: Final = 32
"""After so many nodes there may be a pause."""


class _Place(NamedTuple):
    product: str
    pods: int
    chips: int


class DrainOrder:
    """The usable nodes, by product and number of pods with chips or seats; ``refresh`` reads what has changed.

    Args:
        cluster: nodes and pods.
        ledger: the reservations.

    Attributes:
        chips: the number of healthy chips of all usable nodes.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._seen = -1
        self._places: dict[str, _Place] = {}
        self._ordered: dict[str, list[tuple[int, str]]] = {}
        self.chips = 0

    def refresh(self) -> Steps[None]:
        """Read the nodes that have changed since the last call."""
        changes = self._cluster.changes
        names: Iterable[str] | None = changes.since(self._seen)
        self._seen = changes.revision
        if names is None:
            names = list({**self._places, **self._cluster.index.entries})
        for number, name in enumerate(names, start=1):
            if not number % _STEP:
                yield
            self._put(name)

    def names(self, products: Collection[str] | None, allowed: Collection[str] | None) -> Iterator[str]:
        """The names of the nodes, first those that drain soonest.

        Args:
            products: names of products; None for all.
            allowed: names of nodes; None for every node.
        """
        lists = [nodes for product, nodes in self._ordered.items() if products is None or product in products]
        ordered = lists[0] if len(lists) == 1 else heapq.merge(*lists)
        return (name for _, name in ordered if allowed is None or name in allowed)

    def _put(self, name: str) -> None:
        old, new = self._places.get(name), self._read(name)
        if old == new:
            return
        if old is not None:
            del self._places[name]
            nodes = self._ordered[old.product]
            del nodes[bisect_left(nodes, (old.pods, name))]
            self.chips -= old.chips
        if new is not None:
            self._places[name] = new
            insort(self._ordered.setdefault(new.product, []), (new.pods, name))
            self.chips += new.chips

    def _read(self, name: str) -> _Place | None:
        entry, record = self._cluster.index.entries.get(name), self._cluster.nodes.get(name)
        if record is None or not isinstance(entry, Bucket):
            return None
        pods = record.holdings.keys() | self._ledger.on(name).keys()
        return _Place(entry.vacancy.product.name, len(pods), entry.vacancy.healthy)
