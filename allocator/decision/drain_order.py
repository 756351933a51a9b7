"""The nodes in the order of draining: the fewest pods first. No I/O.

How long pods run is unknown, so the number of pods that have to end counts, not their chips: a pod of eight chips ends
once. Nodes with equally many pods come by name. So successive jobs that need whole nodes drain the same nodes, and the
smaller pods gather on the others. The order of a node that drains changes only for the better, so a job that keeps the
first nodes of this order gets them after a limited number of ends.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import msgspec

from allocator.gangs.obstacles import RELEASED_S
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.ranking import Bucket
from ascend.turn import Steps

_STEP: Final = 32
"""After so many nodes there may be a pause."""
SEEN_S: Final = RELEASED_S
"""After this time without pods a scheduler has seen the chips of a node, and tried again what waits for them."""
AT_ONCE: Final = 1024
"""Up to so many changed nodes are read within a decision, in a few milliseconds."""
_BLOCK: Final = 64
"""The most nodes in a block of the order: so many are copied by a change."""

_FEW: Final = 256
"""Up to so many allowed nodes are put in order by themselves."""

Entry: TypeAlias = tuple[int, str]
"""The number of pods of a node, and its name."""


class Part(NamedTuple):
    """A part of the order.

    Attributes:
        names: the names of single nodes.
        last: the last one of others, from the first on.
    """

    names: Collection[str] = ()
    last: Entry = (-1, "")


class _Place(msgspec.Struct, frozen=True, gc=False):
    product: str
    pods: int
    chips: int
    is_used: bool


class _Ordered:
    """Entries in order, in blocks, so that a change of one copies few of them.

    The garbage collector does not walk the tuples of tuples, as it would lists.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[Entry, ...]] = [()]

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._blocks)

    def add(self, entry: Entry) -> None:
        position = min(self._position(entry), len(self._blocks) - 1)
        block = self._blocks[position]
        at = bisect_left(block, entry)
        block = (*block[:at], entry, *block[at:])
        half = len(block) // 2
        self._blocks[position : position + 1] = (block[:half], block[half:]) if len(block) > _BLOCK else (block,)

    def remove(self, entry: Entry) -> None:
        position = self._position(entry)
        block = self._blocks[position]
        at = bisect_left(block, entry)
        left = block[:at] + block[at + 1 :]
        self._blocks[position : position + 1] = (left,) if left or len(self._blocks) == 1 else ()

    def _position(self, entry: Entry) -> int:
        """The first block whose last entry does not come before an entry."""
        return bisect_left(self._blocks, entry, key=_last) if len(self._blocks) > 1 else 0


def _last(block: tuple[Entry, ...]) -> Entry:
    return block[-1]


def _is_before(places: Iterable[_Place | None], name: str, last: Entry) -> bool:
    return any(place is not None and (place.pods, name) <= last for place in places)


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
        self._ordered: dict[str, _Ordered] = {}
        self._empty_s: dict[str, float] = {}  # since when a node has had these chips and no pods; seats don't count
        self.chips = 0

    @property
    def is_behind(self) -> bool:
        """Whether so many nodes have changed that reading them takes long."""
        changed = self._cluster.changes.revision - self._seen
        return changed > AT_ONCE and len(self._cluster.index.entries) > AT_ONCE

    def refresh(self, part: Part | None = None) -> Steps[bool]:
        """Read the nodes that have changed since the last call.

        Args:
            part: a part of the order; None for all of it.

        Returns:
            Whether any of them is in the part.
        """
        changes = self._cluster.changes
        names: Iterable[str] | None = changes.since(self._seen)
        revision = changes.revision
        if names is None:
            names = list({**self._places, **self._cluster.index.entries})
        is_changed = part is None
        for number, name in enumerate(names, start=1):
            if not number % _STEP:
                yield
            places = self._put(name)
            is_changed = is_changed or part is None or name in part.names or _is_before(places, name, part.last)
        self._seen = revision
        return is_changed

    def entries(self, products: Collection[str] | None, allowed: Collection[str] | None) -> Iterator[Entry]:
        """The nodes, first those that drain soonest.

        Args:
            products: names of products; None for all.
            allowed: names of nodes; None for every node.
        """
        if allowed is not None and len(allowed) < _FEW:
            known = {name: place for name in allowed if (place := self._places.get(name)) is not None}
            return iter(
                sorted(
                    (node.pods, name) for name, node in known.items() if products is None or node.product in products
                )
            )
        lists = [nodes for product, nodes in self._ordered.items() if products is None or product in products]
        ordered = lists[0] if len(lists) == 1 else heapq.merge(*lists)
        return (entry for entry in ordered if allowed is None or entry[1] in allowed)

    def is_seen_empty(self, name: str) -> bool:
        """Whether a node has been without pods for so long that chips are not what keeps schedulers off the node."""
        return self._ledger.monotonic() - self._empty_s.get(name, math.inf) >= SEEN_S

    def _put(self, name: str) -> tuple[_Place | None, _Place | None]:
        """Take over a change of a node; returns its place before and now."""
        old, new = self._places.get(name), self._place(name)
        if old == new:
            return old, new
        if new is None or new.is_used:
            self._empty_s.pop(name, None)
        elif old is None or old.is_used or old.chips != new.chips:
            self._empty_s[name] = self._ledger.monotonic()
        if old is not None:
            del self._places[name]
            self._ordered[old.product].remove((old.pods, name))
            self.chips -= old.chips
        if new is not None:
            self._places[name] = new
            self._ordered.setdefault(new.product, _Ordered()).add((new.pods, name))
            self.chips += new.chips
        return old, new

    def _place(self, name: str) -> _Place | None:
        entry, record = self._cluster.index.entries.get(name), self._cluster.nodes.get(name)
        if record is None or not isinstance(entry, Bucket):
            return None
        held, reserved = record.holdings, self._ledger.on(name)
        pods = len(held) + sum(uid not in held for uid in reserved) if reserved else len(held)
        return _Place(entry.vacancy.product.name, pods, entry.vacancy.healthy, bool(held))
