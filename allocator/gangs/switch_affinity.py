"""The policy for jobs with switch affinity: their servers are below few leaf switches.

docs/spec/switch-affinity.md; which servers is decided by ``allocator/switches``, from what the index has. Each pod gets
a server of its own, in the order of the ranks.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.gangs.switch_servers import NOBODY, Servers
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.location import Level
from allocator.state.reservation import OnSwitch, Seat
from allocator.state.switches import SwitchView
from allocator.switches.demand import SwitchDemand, Version
from allocator.switches.replacing import (
    Staying,
    replace_single_layer,
    replace_v1,
    replace_v2,
    return_single_layer,
    return_v1,
    return_v2,
)
from allocator.switches.rooms import UNUSED, NoFit, Room, ServerSet, SwitchState, Use
from allocator.switches.v1 import place_single_layer, place_v1
from allocator.switches.v2 import place_v2
from ascend.errors import Refusal
from ascend.grammar import count, some
from ascend.leaf_switches import Spot, SwitchTable
from ascend.reasons import Reason
from ascend.turn import Steps


class SwitchAffinity(Policy, frozen=True):
    """Places the pods of a job with switch affinity.

    Attributes:
        demand: what the job asks for.
    """

    demand: SwitchDemand

    @property
    def level(self) -> Level:
        """Pods exchange seats below one switch only, so consecutive ranks stay near."""
        return Level.SWITCH

    def sees(self, cluster: Cluster, job: Job, ended: frozenset[str]) -> SwitchView | str:
        """The leaf switches, or why they are unknown; jobs that have ended span none."""
        return cluster.switches.seen_by(job, ended)

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find a server for each member, or say why there is none."""
        if isinstance(gang.seen, str):
            return Refusal(Reason.SWITCHES_UNKNOWN, f"job {gang.job} asks for switch affinity: {gang.seen}")
        found: list[Seat] | Refusal | None = None
        if gang.faulty:  # on nodes where no pod of the job has failed, if that is possible
            found = yield from self._place(
                replace(gang, limits={**gang.limits, **dict.fromkeys(gang.faulty, 0)}), index
            )
        if found is None or isinstance(found, Refusal):
            found = yield from self._place(gang, index)
        return found

    def _place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        view = gang.seen
        assert isinstance(view, SwitchView)  # noqa: S101 - see place
        location = index.topology.location
        there = [spot for peer in gang.record.values() if peer.stays and (spot := location(peer.node).spot) is not None]
        only = gang.allowed(gang.members[0]) if len(gang.members) == 1 else None
        if only is not None and len(only) == 1:
            return (yield from self._place_on(gang, view, there, next(iter(only)), index))
        servers = yield from Servers.read(gang, index)
        homes = self._usable_homes(self._homes(gang, servers), there, servers, view, len(gang.members))
        placed = self._complete(servers, [*there, *homes.values()], view, len(gang.members) - len(homes))
        if isinstance(placed, NoFit) and homes:
            homes = {}
            placed = self._complete(servers, there, view, len(gang.members))
        if isinstance(placed, NoFit):
            return self._refuse(gang, placed, servers)
        spots = iter(placed.spots)
        seats = ((member, homes[member.rank] if member.rank in homes else next(spots)) for member in gang.members)
        return [self._seat(member, spot, servers, placed.states) for member, spot in seats]

    def _homes(self, gang: GangRequest, servers: "Servers") -> dict[int, Spot]:
        """The spots of members by rank that return to the servers of their predecessors."""
        past = {rank: peer.node for rank, peer in gang.record.items() if not peer.stays}
        by_name = {name: spot for spot, name in servers.names.items()}
        found = {
            member.rank: by_name[node]
            for member in gang.members
            if (node := past.get(member.rank)) is not None and node in by_name
        }
        return found if len(set(found.values())) == len(found) else {}

    def _usable_homes(
        self,
        homes: dict[int, Spot],
        there: Collection[Spot],
        servers: "Servers",
        view: SwitchView,
        missing: int,
    ) -> dict[int, Spot]:
        """The homes below switches that the job may still use: others may have taken these meanwhile."""
        demand, rooms = self.demand, servers.rooms(view.others, there)
        rest = Staying(there, self._own_states(there, view, rooms, missing), demand.pods)
        homes_on = Counter(spot.switch for spot in homes.values())
        if view.table.is_single_layer:
            switches = return_single_layer(rooms, missing, rest, homes_on)
        elif demand.version is Version.V1:
            switches = return_v1(rooms, missing, rest, homes_on, demand.schema)
        else:
            switches = return_v2(rooms, missing, rest, homes_on, demand.schema, most_shared=demand.most_shared)
        return {rank: spot for rank, spot in homes.items() if spot.switch in switches}

    def _complete(
        self, servers: "Servers", staying: Collection[Spot], view: SwitchView, missing: int
    ) -> ServerSet | NoFit:
        """Servers for the missing pods of a job, and the states of all its switches."""
        demand, table, rooms = self.demand, view.table, servers.rooms(view.others, staying)
        if not staying:
            return self._anew(rooms, missing, table)
        rest = Staying(staying, self._own_states(staying, view, rooms, missing), self.demand.pods)
        if not missing:
            return ServerSet([], rest.states)
        if table.is_single_layer:
            return replace_single_layer(rooms, missing, rest)
        if demand.version is Version.V1:
            return replace_v1(rooms, missing, rest, demand.schema)
        return replace_v2(rooms, missing, rest, demand.schema, demand.most_shared)

    def _anew(self, rooms: Sequence[Room], pods: int, table: SwitchTable) -> ServerSet | NoFit:
        """Servers for the first pods of a job, or all of them."""
        if table.is_single_layer:
            return place_single_layer(rooms, table.width, pods)
        demand = self.demand
        if demand.version is Version.V1:
            return place_v1(rooms, table.width, pods, demand.schema, job_pods=demand.pods)
        return place_v2(rooms, table.width, pods, demand.schema, demand.most_shared, job_pods=demand.pods)

    def _own_states(
        self, staying: Collection[Spot], view: SwitchView, rooms: Sequence[Room], missing: int
    ) -> dict[int, SwitchState]:
        """How the job uses the switches of the pods that stay: as is written on them, else as others leave them.

        A switch with more servers left than pods are missing is not taken whole, so it is shared, as far as the job may
        share more.
        """
        switches = sorted({spot.switch for spot in staying})
        found = {switch: view.own[switch] for switch in switches if view.own.get(switch, UNUSED) != UNUSED}
        if len(switches) == 1:
            return found
        shared, most = sum(state.use is Use.SHARED for state in found.values()), self.demand.most_shared
        left = {room.switch for room in rooms if room.size > missing}
        used = {switch for switch in switches if view.others.get(switch, NOBODY).state.use is not Use.FREE}
        for switch in sorted(set(switches).difference(found), key=lambda switch: (switch not in used, switch)):
            is_shared = switch in used or (switch in left and shared < most)
            shared += is_shared
            is_healthy = not is_shared or shared <= most
            found[switch] = SwitchState(Use.SHARED if is_shared else Use.EXCLUSIVE, is_healthy)
        return found

    def _place_on(
        self,
        gang: GangRequest,
        view: SwitchView,
        there: Collection[Spot],
        node: str,
        index: NodeIndex,
    ) -> Steps[list[Seat] | Refusal]:
        """Place a pod on the node of its scheduler's choice.

        Of a job that starts: below a switch where the job as a whole would have one more server, or its minimum, if it
        does not fit as a whole. What its other pods have counts as free for that, so it does not matter in which order
        they come. The successor of a pod that has ended may be where it could be placed as well.
        """
        member = gang.members[0]
        any_pod = replace(member, uid="", pod="", rank=0, candidates=None)
        elsewhere = replace(gang, members=(any_pod,), candidates=None)
        spot = index.topology.location(node).spot
        servers, found = yield from self._everywhere(elsewhere, view, there, index)
        if spot is None or servers.names.get(spot) != node:
            return self._refuse(gang, NoFit("the node is below no known switch, or not free for it"), servers)
        if there and member.rank in gang.record:
            found = self._complete(servers.only(spot), there, view, 1)
            if isinstance(found, ServerSet) and spot.switch not in {other.switch for other in there}:
                found = self._of_whole_switch(found, spot, there, servers, view)
        elif isinstance(found, ServerSet):
            planned, used = (Counter(other.switch for other in spots)[spot.switch] for spots in (found.spots, there))
            if planned <= used:
                names = some(sorted({view.table.switches[other.switch] for other in found.spots}))
                found = NoFit(f"its servers would be below other switches: {names}")
        if isinstance(found, NoFit):
            return self._refuse(gang, found, servers)
        return [self._seat(member, spot, servers, found.states)]

    def _everywhere(
        self, gang: GangRequest, view: SwitchView, there: Collection[Spot], index: NodeIndex
    ) -> "Steps[tuple[Servers, ServerSet | NoFit]]":
        """The servers for a pod, and the placement of the job as a whole, with all its pods.

        Both are the same for every node, and kept: a scheduler that chooses nodes asks about one after the other.
        """
        recent, version = RECENT.setdefault(index, deque(maxlen=_MOST_KNOWN)), index.version
        known = next((entry for entry in recent if entry.version == version and entry.gang == gang), None)
        if known is None:
            servers = yield from Servers.read(gang, index)
            rooms, more = servers.rooms(view.others, also=there), len(there) + 1
            found = self._anew(rooms, max(self.demand.pods, more), view.table)
            if isinstance(found, NoFit) and (fewer := max(gang.minimum, more)) < self.demand.pods:
                found = self._anew(rooms, fewer, view.table)
            known = _Known(version, gang, servers.names, found)
            recent.append(known)
        return Servers(index, known.names), known.whole

    def _of_whole_switch(
        self, found: ServerSet, spot: Spot, there: Collection[Spot], servers: "Servers", view: SwitchView
    ) -> ServerSet:
        """The same placement, with the state of a switch of which the rule has seen a single server."""
        if found.states.get(spot.switch, UNUSED).use is not Use.EXCLUSIVE:
            return found
        together = [*there, spot]
        missing = max(0, self.demand.pods - len(together))
        states = self._own_states(together, view, servers.rooms(view.others, together), missing)
        return replace(found, states={**found.states, spot.switch: states[spot.switch]})

    def _seat(self, member: Member, spot: Spot, servers: "Servers", states: Mapping[int, SwitchState]) -> Seat:
        state = states.get(spot.switch, UNUSED) if self.demand.version is Version.V2 else None
        return servers.seat(member, spot, OnSwitch(spot.switch, member.rank, state))

    def _refuse(self, gang: GangRequest, lack: NoFit, servers: "Servers") -> Refusal:
        switches = {spot.switch for spot in servers.names}
        free = f"{count(len(servers.names), 'server')} below {count(len(switches), 'switch', 'switches')}"
        schema = f"switch affinity {self.demand.schema}"
        return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job} ({schema}): {lack.sentence}; free for it: {free}")


class _Known(NamedTuple):
    """What was found, and for what."""

    version: int
    gang: GangRequest
    names: Mapping[Spot, str]
    whole: ServerSet | NoFit


_MOST_KNOWN: Final = 2
"""With and without the nodes on which pods of the job have failed."""
RECENT: Final[WeakKeyDictionary[NodeIndex, deque[_Known]]] = WeakKeyDictionary()
"""What was found last in each index."""
