"""The policy for jobs with blocks: the nodes of each block are in one SuperPod.

docs/spec/superpod.md#selection; which SuperPods and nodes is decided by ``allocator/superpods``, from what the index
has. A block of n nodes has n pods of consecutive ranks, each on a whole server.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from allocator.gangs.free_servers import FreeServers
from allocator.gangs.policy import GangRequest, Peer, Policy
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.location import Level, Location
from allocator.state.reservation import Seat
from allocator.superpods.choice import advise
from allocator.superpods.demand import Demand, Kind
from allocator.superpods.inference import place_mind_ie, place_service
from allocator.superpods.repair import BlockLack, Nodes, Slot, place_job
from allocator.superpods.stages import Share, place_blocks, place_parts
from ascend.annotations import RANK, SUPER_POD_ID
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.reasons import Reason
from ascend.rules.identity import SUPER_POD_LABEL
from ascend.turn import Steps

_STEP: Final = 64
"""After so many SuperPods there is a pause."""
_MOST_NAMED: Final = 6
"""SuperPods in a sentence."""


class SuperPods(Policy, frozen=True):
    """Places the pods of a job with blocks.

    Attributes:
        demand: what the job asks for.
    """

    demand: Demand

    @property
    def level(self) -> Level:
        """The nodes of a block are in one SuperPod."""
        return Level.SUPER_POD

    @property
    def needs_network(self) -> bool:
        """A block communicates over HCCS, several blocks do so over the network of their chips."""
        return self.demand.blocks > 1 or self.demand.may_split

    @property
    def near(self) -> Mapping[str, str]:
        """The labels of the pods to which the job prefers to be near; empty for none."""
        return dict(self.demand.near)

    def fewest(self, gang: GangRequest, needed: int) -> int:
        """As many as the minimum needs, and the others of their blocks."""
        if self.demand.may_split:
            return needed
        last = gang.members[needed - 1].rank // self.demand.size
        return sum(member.rank // self.demand.size <= last for member in gang.members)

    def advice(self, cluster: Cluster) -> tuple[str, ...]:
        """Against more blocks than the cluster has SuperPods for."""
        super_pods = len(cluster.index.topology.places(Level.SUPER_POD))
        return advise(self.demand, super_pods) if super_pods else ()

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find a node for each member, or say why there is none.

        A single member with a single node, as in a Binding that names it, is placed there if its block fits then.
        """
        if (refusal := self._contradiction(gang, index.topology.location)) is not None:
            return refusal
        if len(gang.members) == 1 and (replaced := gang.record.get(gang.members[0].rank)) and replaced.stays:
            return (yield from self._place_beside(replaced, gang, index))
        if len(gang.members) == 1 and len(only := gang.allowed(gang.members[0]) or ()) == 1:
            return (yield from self._place_on(next(iter(only)), gang, index))
        free = yield from self.free(gang, index)
        largest = max(free.rooms, key=free.rooms.__getitem__, default=None)
        if largest is not None and free.rooms[largest] > self.demand.limits.size:
            return _too_large(largest, free.rooms[largest], self.demand.limits.size)
        topology = index.topology
        nodes = Nodes(free.rooms, free.names, lambda name: topology.location(name).super_pod, gang.faulty)
        blocks = self._blocks(gang)
        yield
        found = place_job(
            blocks, nodes, lambda rooms, need: self._choose(rooms, need, gang), may_split=self.demand.may_split
        )
        if isinstance(found, BlockLack):
            return self._refuse(gang, found, free)
        return [free.seat(member, at.node, at.block) for member in gang.members for at in (found.placed[member.rank],)]

    def _place_beside(self, replaced: Peer, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Place the backup of a running pod, of the same rank, in the SuperPod of the pod."""
        (member,) = gang.members
        free = yield from self.free(gang, index)
        here = index.topology.location(replaced.node).super_pod
        block = (
            member.rank // self.demand.size if not self.demand.may_split or replaced.block is None else replaced.block
        )
        names = free.names(here)
        if not names:
            return self._refuse(gang, BlockLack(1, 0, block, here), free)
        return [free.seat(member, names[0], block)]

    def _place_on(self, node: str, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        (member,) = gang.members
        elsewhere = replace(gang, members=(replace(member, candidates=None),), candidates=None)
        free = yield from self.free(elsewhere, index)
        location = index.topology.location
        here = location(node).super_pod
        block, lack = self._block_on(here, member.rank, gang, free.rooms, location)
        if lack is not None:
            return self._refuse(gang, lack, free)
        if node not in free.names(here):
            return self._refuse(gang, BlockLack(1, 0, block, here), free)
        return [free.seat(member, node, block)]

    def _block_on(
        self, here: int, rank: int, gang: GangRequest, rooms: Mapping[int, int], location: Callable[[str], Location]
    ) -> tuple[int, BlockLack | None]:
        """The block of a rank that is placed in a SuperPod, and the reason against the place."""
        size = self.demand.size
        staying = [(at, peer.block, location(peer.node).super_pod) for at, peer in gang.record.items() if peer.stays]
        if self.demand.may_split:
            parts = Counter(block for _, block, super_pod in staying if super_pod == here and block is not None)
            return min((block for block, pods in parts.items() if pods < size), default=_unused(gang)), None
        own = rank // size
        home = next((super_pod for at, _, super_pod in staying if at // size == own), None)
        if home is None:
            room = rooms.get(here, 0)
            return own, None if room >= size else BlockLack(size, room, None, here)
        return own, None if home == here else BlockLack(1, rooms.get(home, 0), own, home)

    def free(self, gang: GangRequest, index: NodeIndex) -> "Steps[FreeServers]":
        """The servers of SuperPods that are free for all members of a gang."""
        servers = FreeServers(gang, index)
        for number, place in enumerate(index.topology.places(Level.SUPER_POD).items(), start=1):
            servers.read(*place)
            if not number % _STEP:
                yield
        return servers

    def _blocks(self, gang: GangRequest) -> dict[int, list[Slot]]:
        """The slots of the members, and of the pods that stay, by block."""
        record, size, may_split = gang.record, self.demand.size, self.demand.may_split
        # Parts of blocks have the ids that are written on the pods; ranks without one are new.
        fresh = _unused(gang)
        members = {member.rank for member in gang.members}
        staying = {rank for rank, peer in record.items() if peer.stays}
        blocks: defaultdict[int, list[Slot]] = defaultdict(list)
        for rank in sorted(members | staying):
            peer = record.get(rank)
            known = peer.block if peer is not None else None
            block = rank // size if not may_split else known if known is not None else fresh
            blocks[block].append(Slot(rank, peer.node if peer is not None else "", rank not in members))
        return blocks

    def _contradiction(self, gang: GangRequest, location: Callable[[str], Location]) -> Refusal | None:
        """Why ranks and running pods make no whole blocks, each in one SuperPod; None if they do."""
        size = self.demand.size
        if self.demand.may_split:
            return None
        staying = {rank: peer for rank, peer in gang.record.items() if peer.stays}
        for rank, peer in staying.items():
            if peer.block is not None and peer.block != rank // size:
                return _changed(gang, rank, peer.block, rank // size)
        affected = {member.rank // size for member in gang.members}
        blocks = affected | {rank // size for rank in staying}
        if len(blocks) > self.demand.blocks:
            return _misnumbered(gang, len(blocks), self.demand)
        homes: defaultdict[int, set[int]] = defaultdict(set)
        for rank, peer in staying.items():
            if rank // size in affected and (super_pod := location(peer.node).super_pod) >= 0:
                homes[rank // size].add(super_pod)
        return next((_torn(gang, block, there) for block, there in homes.items() if len(there) > 1), None)

    def _choose(self, free: Mapping[int, int], need: int, gang: GangRequest) -> Sequence[Share]:
        """Choose SuperPods for so many new blocks, or nodes if blocks may be split."""
        demand = self.demand
        if demand.kind is Kind.SERVICE:
            return place_service(free, demand.size, need, gang.neighbours.keys())
        if demand.kind is Kind.MIND_IE:
            near = gang.neighbours if demand.near else None
            return place_mind_ie(free, demand.size, need, demand.limits, idlest=demand.idlest, near=near)
        if demand.may_split:
            return place_parts(free, demand.size, need, demand.limits)
        return place_blocks(free, demand.size, need, demand.limits)

    def _refuse(self, gang: GangRequest, lack: BlockLack, free: "FreeServers") -> Refusal:
        size = self.demand.size
        if lack.block is None and lack.super_pod >= 0:
            where = f"SuperPod {lack.super_pod} has {lack.found} free"
            what = f"a block of {count(size, 'server')} must be in one SuperPod; {where}"
        elif lack.block is not None:
            what = f"{count(lack.needed, 'pod')} of block {lack.block} must join the others of the block "
            if lack.super_pod >= 0:
                what += f"in SuperPod {lack.super_pod}, which has room for {lack.found}"
            else:
                what += "on nodes whose SuperPod is unknown"
        elif self.demand.may_split:
            what = f"{count(lack.needed, 'server')} of SuperPods are needed, {lack.found} are free"
        else:
            blocks = f"{count(lack.needed, 'block')} of {count(size, 'server')}"
            what = f"{blocks} must be placed at once, each in one SuperPod; there is room for {lack.found}"
        there = f"{_rooms(free.rooms)}{_in_no_super_pod(free.in_no_super_pod)}"
        return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: {what}; {there}")


def _unused(gang: GangRequest) -> int:
    """The id of a block that no pod of a gang is or was in."""
    return max((peer.block for peer in gang.record.values() if peer.block is not None), default=-1) + 1


def _changed(gang: GangRequest, rank: int, old: int, new: int) -> Refusal:
    sentence = (
        f"rank {rank} runs in block {old}, but would be in block {new} now; make sp-block and super-pod-affinity again "
        "what they were when the job started, or delete the pods of the job"
    )
    return Refusal(Reason.INVALID_REQUEST, f"job {gang.job}: {sentence}")


def _misnumbered(gang: GangRequest, found: int, demand: Demand) -> Refusal:
    sentence = (
        f"its ranks would be in {count(found, 'block')} of {count(demand.size, 'server')}, but its pods fill "
        f"{demand.blocks}; number the pods that request chips from 0 without gaps ({RANK}, or the index of the pod)"
    )
    return Refusal(Reason.INVALID_REQUEST, f"job {gang.job}: {sentence}")


def _torn(gang: GangRequest, block: int, there: Collection[int]) -> Refusal:
    numbers = " and ".join(map(str, sorted(there)))
    sentence = (
        f"the pods of block {block} that run are in the SuperPods {numbers}, so no other pod can join all of them"
    )
    return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: {sentence}")


def _too_large(number: int, nodes: int, most: int) -> Refusal:
    sentence = f"SuperPod {number} has {nodes} free nodes, more than the setting super_pod_size, {most}; raise that"
    return Refusal(Reason.GANG_DOES_NOT_FIT, sentence)


def _rooms(rooms: Mapping[int, int]) -> str:
    """How many whole servers each SuperPod has free, as a part of a sentence."""
    ordered = sorted(rooms, key=lambda number: (-rooms[number], number))
    if not ordered:
        return "no server of a SuperPod is free for it"
    named = ", ".join(f"{rooms[number]} in SuperPod {number}" for number in ordered[:_MOST_NAMED])
    others = len(ordered) - _MOST_NAMED
    return f"servers that are free for it: {named}" + (f", and fewer in {others} others" if others > 0 else "")


def _in_no_super_pod(number: int) -> str:
    """What is said about free servers in no SuperPod, as the end of a sentence."""
    if not number:
        return ""
    what = count(number, "free server is", "free servers are")
    where = f"no SuperPodID in the report, no annotation {SUPER_POD_ID} or label {SUPER_POD_LABEL} with a number"
    return f"; {what} in no SuperPod ({where})"
