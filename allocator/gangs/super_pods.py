"""The policy for jobs with blocks: the nodes of each block are in one SuperPod.

docs/spec/superpod.md#selection; which SuperPods and nodes is decided by ``allocator/superpods``, from what the index
has. A block of n nodes has n pods of consecutive ranks, each on a whole server.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.vacancy import Fit, Verdict
from allocator.state.index import NodeIndex
from allocator.state.location import Level
from allocator.state.ranking import Bucket
from allocator.state.reservation import InBlock, Seat
from allocator.superpods.demand import Demand, Kind
from allocator.superpods.inference import place_mind_ie, place_service
from allocator.superpods.repair import Lack, Nodes, Slot, place_job
from allocator.superpods.shares import Share
from allocator.superpods.stages import place_blocks, place_parts
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.reasons import Reason
from ascend.turn import Steps

_STEP: Final = 512
"""After so many nodes there is a pause."""
_MOST_NAMED: Final = 6
"""SuperPods in a sentence."""


class SuperPods(msgspec.Struct, frozen=True):
    """Places the pods of a job with blocks.

    Attributes:
        demand: what the job asks for.
    """

    demand: Demand

    @property
    def has_blocks(self) -> bool:
        """Each rank belongs to a block."""
        return True

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

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find a node for each member, or say why there is none."""
        fits = _Fits(gang, index)
        free = yield from fits.read()
        largest = max(free, key=lambda each: len(free[each]), default=None)
        if largest is not None and len(free[largest]) > self.demand.limits.size:
            return _too_large(largest, len(free[largest]), self.demand.limits.size)
        topology = index.topology
        nodes = Nodes(free, lambda name: topology.location(name).super_pod)
        blocks = self._blocks(gang)
        yield
        found = place_job(
            blocks, nodes, lambda free, need: self._choose(free, need, gang), may_split=self.demand.may_split
        )
        if isinstance(found, Lack):
            return self._refuse(gang, found, free)
        placed = [(member, found.placed[member.rank]) for member in gang.members]
        return [
            Seat(member.uid, member.pod, at.node, fits.chips[at.node], InBlock(at.block, member.rank))
            for member, at in placed
        ]

    def _blocks(self, gang: GangRequest) -> dict[int, list[Slot]]:
        """The slots of the members, and of the pods that stay, by block."""
        record, size, may_split = gang.record, self.demand.size, self.demand.may_split
        # Parts of blocks have the ids that are written on the pods; ranks without one are new.
        fresh = max((peer.block for peer in record.values()), default=-1) + 1
        members = {member.rank for member in gang.members}
        staying = {rank for rank, peer in record.items() if peer.stays}
        blocks: defaultdict[int, list[Slot]] = defaultdict(list)
        for rank in sorted(members | staying):
            peer = record.get(rank)
            block = rank // size if not may_split else peer.block if peer is not None else fresh
            blocks[block].append(Slot(rank, peer.node if peer is not None else "", rank not in members))
        return blocks

    def _choose(self, free: Mapping[int, int], need: int, gang: GangRequest) -> Sequence[Share]:
        """Choose SuperPods for so many new blocks, or nodes if blocks may be split."""
        demand = self.demand
        if demand.kind is Kind.SERVICE:
            return place_service(free, demand.size, need, [each for each, pods in gang.neighbours.items() if pods])
        if demand.kind is Kind.MIND_IE:
            near = gang.neighbours if demand.near else None
            return place_mind_ie(free, demand.size, need, demand.limits, idlest=demand.idlest, near=near)
        if demand.may_split:
            return place_parts(free, demand.size, need, demand.limits)
        return place_blocks(free, demand.size, need, demand.limits)

    def _refuse(self, gang: GangRequest, lack: Lack, free: Mapping[int, Sequence[str]]) -> Refusal:
        size = self.demand.size
        if lack.block is not None:
            where = f"SuperPod {lack.super_pod}" if lack.super_pod >= 0 else "a node that is in no SuperPod"
            what = (
                f"{count(lack.needed, 'pod')} of block {lack.block} must join the others of the block in {where}, which"
                f" has room for {lack.found}"
            )
        elif self.demand.may_split:
            what = f"{count(lack.needed, 'server')} of SuperPods are needed, {lack.found} are free"
        else:
            blocks = f"{count(lack.needed, 'block')} of {count(size, 'server')}"
            what = f"{blocks} must be placed at once, each in one SuperPod; there is room for {lack.found}"
        return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: {what}; {_rooms(free)}")


class _Fits:
    """The nodes on which the members of a gang fit.

    Attributes:
        chips: the chips that a pod takes on each node.
    """

    def __init__(self, gang: GangRequest, index: NodeIndex) -> None:
        self.chips: dict[str, tuple[int, ...]] = {}
        self._gang = gang
        self._topology = index.topology
        self._request = gang.members[0].request
        self._ranking = index.ranking(self._request)
        self._allowed = _common(gang, gang.members)

    def read(self) -> Steps[dict[int, list[str]]]:
        """The free nodes of each SuperPod, those that are not sub-healthy first, then by server index and name."""
        free: dict[int, list[str]] = {}
        read = 0
        for number, place in sorted(self._topology.places(Level.SUPER_POD).items()):
            names = sorted(self._usable(place.fitting(self._verdict)))
            if names:
                free[number] = [name for *_, name in names]
            read += len(names)
            if read >= _STEP:
                read = 0
                yield
        return free

    def _usable(self, fitting: Iterator[tuple[str, Bucket]]) -> Iterator[tuple[bool, int, str]]:
        allowed, gang = self._allowed, self._gang
        for name, bucket in fitting:
            if (allowed is None or name in allowed) and gang.limits.get(name, 1) > 0 and name not in gang.peers:
                fit = self._ranking.verdict(bucket)
                if isinstance(fit, Fit):
                    self.chips[name] = fit.chips
                    yield bucket.vacancy.sub_healthy, self._topology.location(name).server_index, name

    def _verdict(self, bucket: Bucket) -> Verdict:
        """Like the ranking's; a pod of a block takes a whole server."""
        if bucket.vacancy.product.chips != self._request.chips:
            return Refusal(Reason.NOT_ENOUGH_CHIPS, "a pod of a block takes a whole server")
        return self._ranking.verdict(bucket)


def _common(gang: GangRequest, members: Sequence[Member]) -> Collection[str] | None:
    """The names of the nodes on which every member may be; None for every node."""
    distinct = {id(allowed): allowed for member in members if (allowed := gang.allowed(member)) is not None}
    first, *others = distinct.values() or (None,)
    return frozenset(first).intersection(*others) if first is not None and others else first


def _too_large(number: int, nodes: int, most: int) -> Refusal:
    sentence = f"SuperPod {number} has {nodes} free nodes, more than the setting super_pod_size, {most}; raise that"
    return Refusal(Reason.GANG_DOES_NOT_FIT, sentence)


def _rooms(free: Mapping[int, Sequence[str]]) -> str:
    """How many whole servers each SuperPod has free, as a part of a sentence."""
    ordered = sorted(free, key=lambda each: (-len(free[each]), each))
    if not ordered:
        return "no server of a SuperPod is free for it"
    named = ", ".join(f"{len(free[each])} in SuperPod {each}" for each in ordered[:_MOST_NAMED])
    others = len(ordered) - _MOST_NAMED
    return f"servers that are free for it: {named}" + (f", and fewer in {others} others" if others > 0 else "")
