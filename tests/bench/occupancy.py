"""The used chips of servers of 8 chips, and how usable the free ones are; independent of the allocator's code.

Every placement is checked here, independently of the rule that made it: chips 0 to 3 of a server are one ring, 4 to 7
the other, and a pod of 1, 2 or 4 chips must stay within one ring (docs/spec/affinity-rules.md#hccs-rings).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

_CHIPS: Final = 8
_RING: Final = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the cluster at one moment.

    Attributes:
        taken: the number of used chips.
        nodes: the number of servers with used chips.
        stranded: the number of free chips in rings that are partly used: no pod of 4 or 8 chips can get them.
        largest: chips of the largest job that could be placed. A job of several pods takes whole servers
            (docs/spec/affinity-rules.md#single-pods-and-distributed-jobs), so if servers are idle, it is the chips of
            all idle servers.
    """

    taken: int
    nodes: int
    stranded: int
    largest: int


class Occupancy:
    """Records which chips are used on every server, and checks placements.

    Args:
        nodes: the number of servers.

    Attributes:
        placed: the number of placements.
        broken: the number of placements that violate the ring rule.
    """

    def __init__(self, nodes: int) -> None:
        self.placed = self.broken = 0
        self._taken: list[frozenset[int]] = [frozenset()] * nodes
        self._servers = Counter({frozenset[int](): nodes})

    def add(self, node: int, chips: tuple[int, ...], request: int) -> None:
        """Record a placement.

        Raises:
            AssertionError: a chip is already used, is listed twice or does not exist, or the number of chips is wrong.
        """
        assert len(set(chips)) == len(chips) == request, f"{chips} for a request of {request}"
        assert set(chips) <= set(range(_CHIPS)), f"{chips} are not chips of a server"
        assert not self._taken[node] & set(chips), f"{chips} of server {node} are already used"
        self._put(node, self._taken[node] | set(chips))
        self.placed += 1
        self.broken += request < _CHIPS and len({chip // _RING for chip in chips}) > 1

    def release(self, node: int, chips: tuple[int, ...]) -> None:
        """Remove a placement that ended."""
        self._put(node, self._taken[node] - set(chips))

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        free = {each: _free_by_ring(each) for each in self._servers}
        idle = self._servers[frozenset()]
        return Snapshot(
            taken=sum(len(each) * count for each, count in self._servers.items()),
            nodes=len(self._taken) - idle,
            stranded=sum(
                sum(ring for ring in free[each] if ring < _RING) * count for each, count in self._servers.items()
            ),
            largest=idle * _CHIPS or _request_up_to(max(max(rings) for rings in free.values())),
        )

    def _put(self, node: int, taken: frozenset[int]) -> None:
        old = self._taken[node]
        self._servers[old] -= 1
        if not self._servers[old]:
            del self._servers[old]
        self._servers[taken] += 1
        self._taken[node] = taken


def _free_by_ring(taken: frozenset[int]) -> tuple[int, int]:
    left = sum(chip < _RING for chip in taken)
    return _RING - left, _RING - (len(taken) - left)


def _request_up_to(chips: int) -> int:
    return max(request for request in (0, 1, 2, 4) if request <= chips)
