"""The servers of SuperPods that are free for all members of a gang."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.verdicts import Fit
from allocator.state.index import NodeIndex
from allocator.state.ranking import Bucket
from allocator.state.reservation import InBlock, Seat
from allocator.state.topology import TopologyDomain
from ascend.takes import Take


class FreeServers:
    """The servers of SuperPods that are free for all members of a gang; sorted only on use.

    Each pod takes a whole server of the job's one product (``allocator/superpods/demand.py``), so a server with a peer
    is never free.

    Args:
        gang: the gang.
        index: the nodes.

    Attributes:
        rooms: how many servers each SuperPod has free, by its id.
    """

    def __init__(self, gang: GangRequest, index: NodeIndex) -> None:
        self.rooms: dict[int, int] = {}
        self._request = gang.members[0].request
        self._verdict_on = index.ranking(self._request).verdict
        self._index = index
        self._allowed = _common(gang, gang.members)
        self._excluded = {name for name, most in gang.limits.items() if most <= 0}
        self._free: dict[int, list[tuple[bool, frozenset[str]]]] = {}

    def read(self, number: int, place: TopologyDomain) -> None:
        """Read the free servers of a SuperPod."""
        free = [(bucket.vacancy.sub_healthy, self._usable(names)) for bucket, names in place.fitting(self._verdict_on)]
        if (room := sum(len(names) for _, names in free)) > 0:
            self.rooms[number], self._free[number] = room, free

    @property
    def in_no_super_pod(self) -> int:
        """How many servers are free for all members, but in no SuperPod: their agents and labels name none."""
        fitting = (bucket.names.keys() for bucket in self._index.buckets if isinstance(self._verdict_on(bucket), Fit))
        return sum(map(self._count, fitting)) - sum(self.rooms.values())

    def names(self, number: int) -> list[str]:
        """The free servers of a SuperPod, those that are not sub-healthy first, then by server index and name."""
        location = self._index.topology.location
        ordered = (
            (is_degraded, location(name).server_index, name)
            for is_degraded, names in self._free.get(number, ())
            for name in names
        )
        return [name for *_, name in sorted(ordered)]

    def seat(self, member: Member, name: str, block: int) -> Seat:
        """The seat of a member of a block on a free server."""
        part = InBlock(block, member.rank, self._index.topology.location(name).super_pod)
        return Seat(member.uid, member.pod, name, self._take(name), part)

    def _take(self, name: str) -> Take:
        bucket = self._index.entries[name]
        fit = self._verdict_on(bucket) if isinstance(bucket, Bucket) else None
        assert isinstance(fit, Fit)  # noqa: S101 - else it would not be among the free ones
        return fit.take

    def _count(self, names: AbstractSet[str]) -> int:
        if self._allowed is None:  # a bucket may have all nodes: they are not copied
            return len(names) - len(names & self._excluded)
        return len(self._usable(names))

    def _usable(self, names: AbstractSet[str]) -> frozenset[str]:
        found = names if self._allowed is None else names & self._allowed
        return frozenset(found - self._excluded)


def _common(gang: GangRequest, members: Sequence[Member]) -> frozenset[str] | None:
    """The names of the nodes on which every member may be; None for every node."""
    distinct = {id(allowed): allowed for member in members if (allowed := gang.allowed(member)) is not None}
    first, *others = map(frozenset, distinct.values()) if distinct else (None,)
    return first.intersection(*others) if first is not None else None
