"""The servers below leaf switches that are free for all members of a gang."""

from collections.abc import Collection, Mapping
from typing import Final

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.verdicts import Fit
from allocator.state.index import NodeIndex
from allocator.state.location import Level
from allocator.state.ranking import Bucket
from allocator.state.reservation import OnSwitch, Seat
from allocator.state.switches import SwitchUse
from allocator.switches.rooms import Room
from ascend.leaf_switches import Spot
from ascend.turn import Steps

_STEP: Final = 64
"""After so many switches there is a pause."""


class Servers:
    """The free servers below switches on which every member of a gang fits.

    Args:
        index: the nodes.
        names: the names of the servers, by spot.
    """

    def __init__(self, index: NodeIndex, names: Mapping[Spot, str]) -> None:
        self._index = index
        self.names = names

    @classmethod
    def read(cls, gang: GangRequest, index: NodeIndex) -> "Steps[Servers]":
        """Find the servers; those of its peers are not free."""
        requests = list(dict.fromkeys(member.request for member in gang.members))
        verdicts = [index.ranking(request).verdict for request in requests]
        sets = {id(names): names for member in gang.members if (names := gang.allowed(member)) is not None}
        allowed = [frozenset(names) for names in sets.values()]
        taken = {name for name, most in gang.limits.items() if most <= 0} | set(gang.peers)
        taken |= {peer.node for peer in gang.record.values() if peer.stays}
        location = index.topology.location
        found: dict[Spot, str] = {}
        for number, place in enumerate(index.topology.places(Level.SWITCH).values(), start=1):
            for bucket, there in place.fitting(verdicts[0]):
                if all(isinstance(verdict(bucket), Fit) for verdict in verdicts[1:]):
                    for name in there:
                        spot = location(name).spot
                        if name not in taken and spot is not None and all(name in names for names in allowed):
                            found[spot] = min(name, found.get(spot, name))
            if not number % _STEP:
                yield
        return cls(index, found)

    def only(self, spot: Spot) -> "Servers":
        """Only one server."""
        return Servers(self._index, {spot: self.names[spot]})

    def rooms(
        self, others: Mapping[int, SwitchUse], without: Collection[Spot] = (), also: Collection[Spot] = ()
    ) -> list[Room]:
        """What a job sees of each switch.

        Args:
            others: how other jobs use the switches.
            without: servers that do not count, but their switches do.
            also: servers that count although they are not free.
        """
        slots: dict[int, list[int]] = {spot.switch: [] for spot in without}
        for spot in sorted({*self.names, *also}.difference(without)):
            slots.setdefault(spot.switch, []).append(spot.slot)
        uses = ((switch, tuple(free), others.get(switch, NOBODY)) for switch, free in slots.items())
        return [Room(switch, free, use.state, use.spanning) for switch, free, use in uses]

    def seat(self, member: Member, spot: Spot, part: OnSwitch) -> Seat:
        """The seat of a member on a server."""
        name = self.names[spot]
        bucket = self._index.entries[name]
        fit = self._index.ranking(member.request).verdict(bucket) if isinstance(bucket, Bucket) else None
        assert isinstance(fit, Fit)  # noqa: S101 - else it would not be among the free ones
        return Seat(member.uid, member.pod, name, fit.take, part)


NOBODY: Final = SwitchUse()
