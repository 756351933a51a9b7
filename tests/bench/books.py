"""What is taken on servers of 8 chips, and how much of the rest is of use; kept without a line of the allocator's code.

It checks every placement by itself, so that no rule is judged by its own idea of rings: chips 0 to 3 of a server are
one ring, 4 to 7 the other, and a pod of 1, 2 or 4 chips must stay within one (docs/spec/affinity-rules.md#hccs-rings).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

_CHIPS: Final = 8
_RING: Final = 4


@dataclass(frozen=True, slots=True)
class Sight:
    """The state of a cluster at one moment.

    Attributes:
        taken: chips in use.
        nodes: servers in use.
        stranded: free chips beside taken ones of their ring: no pod of 4 or 8 chips can have them.
        largest: chips of the largest job that could be placed. A job of several pods takes whole servers
            (docs/spec/affinity-rules.md#single-pods-and-distributed-jobs), so with servers idle it is all of these
            together.
    """

    taken: int
    nodes: int
    stranded: int
    largest: int


class Books:
    """Every chip of so many servers.

    Args:
        nodes: how many.

    Attributes:
        placed: how many placements there were.
        broken: how many of them broke a ring.
    """

    def __init__(self, nodes: int) -> None:
        self.placed = self.broken = 0
        self._taken: list[frozenset[int]] = [frozenset()] * nodes
        self._alike = Counter({frozenset[int](): nodes})

    def take(self, node: int, chips: tuple[int, ...], request: int) -> None:
        """A placement.

        Raises:
            AssertionError: a chip is given twice or is none, or their number is wrong: that is no rule at all.
        """
        assert len(set(chips)) == len(chips) == request, f"{chips} for a request of {request}"
        assert set(chips) <= set(range(_CHIPS)), f"{chips} are not chips of a server"
        assert not self._taken[node] & set(chips), f"{chips} of server {node} are given twice"
        self._put(node, self._taken[node] | set(chips))
        self.placed += 1
        self.broken += request < _CHIPS and len({chip // _RING for chip in chips}) > 1

    def give_back(self, node: int, chips: tuple[int, ...]) -> None:
        """The end of a placement."""
        self._put(node, self._taken[node] - set(chips))

    def sight(self) -> Sight:
        """The state now."""
        free = {each: _free_by_ring(each) for each in self._alike}
        idle = self._alike[frozenset()]
        return Sight(
            taken=sum(len(each) * count for each, count in self._alike.items()),
            nodes=len(self._taken) - idle,
            stranded=sum(
                sum(ring for ring in free[each] if ring < _RING) * count for each, count in self._alike.items()
            ),
            largest=idle * _CHIPS or _request_up_to(max(max(rings) for rings in free.values())),
        )

    def _put(self, node: int, taken: frozenset[int]) -> None:
        old = self._taken[node]
        self._alike[old] -= 1
        if not self._alike[old]:
            del self._alike[old]
        self._alike[taken] += 1
        self._taken[node] = taken


def _free_by_ring(taken: frozenset[int]) -> tuple[int, int]:
    left = sum(chip < _RING for chip in taken)
    return _RING - left, _RING - (len(taken) - left)


def _request_up_to(chips: int) -> int:
    return max(request for request in (0, 1, 2, 4) if request <= chips)
