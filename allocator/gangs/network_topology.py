"""The policy for gangs with Volcano's ``networkTopology``: all pods within one HyperNode, of the lowest tier that fits.

Mode ``hard``: of a tier up to the highest that is allowed, or not at all. Mode ``soft``: of any tier, else anywhere. As
Volcano does, of several HyperNodes of a tier that is taken of which the largest part of the chips is in use then. Pods
that run stay, so later ones join them in a HyperNode that has them all. Within a HyperNode pods are packed as others.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest, Policy
from allocator.rules.asked import Asked
from allocator.rules.job_products import TOR_AFFINITY, block_marks
from allocator.rules.verdicts import capacity
from allocator.state.cluster import Cluster
from allocator.state.hyper_nodes import HyperTree
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.location import Level
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.grammar import count, some
from ascend.kube.kept import NETWORK_TOPOLOGY, TOPOLOGY_MODE, TOPOLOGY_TIERS
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Steps

_MODES: Final = frozenset({"hard", "soft"})


class TopologyDemand(msgspec.Struct, frozen=True):
    """What a job of several pods asks of the network.

    Attributes:
        is_hard: whether its pods must be within one HyperNode.
        highest: the highest tier that is allowed; None for any.
        highest_name: the name of that tier, if there is no number.
    """

    is_hard: bool
    highest: int | None = None
    highest_name: str = ""

    @property
    def what(self) -> str:
        """For sentences."""
        highest = self.highest_name or ("" if self.highest is None else str(self.highest))
        return f"network topology {'hard' if self.is_hard else 'soft'}" + (highest and f", highest tier {highest}")


def read_topology(asked: Asked) -> TopologyDemand | None:
    """Read a job's demand; None without one, and for a single pod.

    Raises:
        Refusal: ``InvalidRequest`` if the tier is no number, ``UnsupportedPolicy`` if a job that asks for ``hard`` asks
            for blocks of nodes or switch affinity as well.
    """
    mode, tier, name = _stated(asked.pod)
    if mode not in _MODES or asked.pods == 1:
        return None
    others = [*block_marks(asked.pod), *(f"label {key}" for key in (TOR_AFFINITY,) if key in asked.pod.metadata.labels)]
    if others and mode == "soft":
        return None  # which is told
    if others:
        sentence = f"network topology hard and {', '.join(others)} exclude each other; remove one of them"
        raise Refusal(Reason.UNSUPPORTED_POLICY, f"job {asked.job}: {sentence}")
    if tier and not (tier.isascii() and tier.isdigit() and len(tier) <= len("2147483647")):
        sentence = f"the highest tier of its network topology, {tier[:40]!r}, is no number"
        raise Refusal(Reason.INVALID_REQUEST, f"job {asked.job}: {sentence}")
    return TopologyDemand(
        mode == "hard", int(tier) if tier and mode == "hard" else None, name if mode == "hard" else ""
    )


def asks_for_topology(pod: Pod) -> bool:
    """Whether a pod with the settings of its job asks for a network topology."""
    return _stated(pod)[0] in _MODES


def _stated(pod: Pod) -> tuple[str, str, str]:
    """Mode, highest tier and the name of that, as the field says, else the annotations or labels."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if field := annotations.get(NETWORK_TOPOLOGY):
        mode, _, highest = field.partition(" ")
        key, _, value = highest.partition("=")
        return (mode, "", value) if key == "highestTierName" else (mode, value, "")
    marks = labels | annotations
    return marks.get(TOPOLOGY_MODE, ""), next((marks[key] for key in TOPOLOGY_TIERS if key in marks), ""), ""


class HyperNodeAffinity(Policy, frozen=True):
    """Places the pods of a job within one HyperNode.

    Attributes:
        demand: what the job asks for.
    """

    demand: TopologyDemand

    @property
    def level(self) -> Level:
        """The pods of a job belong together."""
        return Level.HYPER_NODE

    @property
    def returns_pods(self) -> bool:
        """Pods return to previous nodes as those of other gangs do."""
        return False

    @property
    def gives_way(self) -> bool:
        """Mode ``soft`` refuses nobody."""
        return not self.demand.is_hard

    def read(self, cluster: Cluster) -> Steps[None]:
        """Read the HyperNodes."""
        yield from cluster.hyper_nodes.read()

    def sees(self, cluster: Cluster, job: Job, ended: frozenset[str]) -> HyperTree:  # noqa: ARG002 - pods are in none
        """The HyperNodes."""
        return cluster.hyper_nodes.tree()

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find a seat for each member within one HyperNode, or say why there is none."""
        tree = gang.seen
        assert isinstance(tree, HyperTree)  # noqa: S101 - see sees
        there = frozenset(peer.node for peer in gang.record.values() if peer.stays)
        fullest, found = (0, ""), None
        for tier in self._tiers(tree):
            ranked = []
            for name, nodes in tree.tiers[tier].items():
                if there <= nodes:
                    within = _within(gang, nodes)
                    room, part = _room(within, nodes, index)
                    fullest = max(fullest, (room, f"{name} of tier {tier}"))
                    if room >= len(gang.members):
                        ranked.append((-part, name, within))
                yield
            for _, _, within in sorted(ranked, key=lambda candidate: candidate[:2]):
                found = yield from pack(within, index)
                if not isinstance(found, Refusal):
                    return found
        if not self.demand.is_hard:
            return (yield from pack(gang, index))
        return self._refuse(gang, tree, there, fullest)

    def _tiers(self, tree: HyperTree) -> Iterator[int]:
        """The allowed tiers, the lowest first."""
        highest = tree.named.get(self.demand.highest_name, -1) if self.demand.highest_name else self.demand.highest
        return (tier for tier in sorted(tree.tiers) if highest is None or tier <= highest)

    def _refuse(self, gang: GangRequest, tree: HyperTree, there: Collection[str], fullest: tuple[int, str]) -> Refusal:
        known, allowed = [*map(str, sorted(tree.tiers)), *sorted(tree.named)], list(self._tiers(tree))
        room, where = fullest
        if not known:
            why = "no HyperNode is known"
        elif not allowed:
            why = f"there is no HyperNode of that tier or lower; known tiers: {some(known, 8)}"
        elif not where:
            why = f"its {count(len(there), 'placed pod')} are in no HyperNode of tier {allowed[-1]} or lower together"
        else:
            why = (
                f"its {count(len(gang.members), 'pod')} must be in one HyperNode of tier {allowed[-1]} or lower; the "
                f"most that fit in one: {room}, in {where}"
            )
        return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job} ({self.demand.what}): {why}")


def _within(gang: GangRequest, nodes: frozenset[str]) -> GangRequest:
    """The same gang on some nodes only."""
    own = {
        id(names): nodes.intersection(names)
        for names in (member.candidates for member in gang.members)
        if names is not None
    }
    members = tuple(
        member if member.candidates is None else replace(member, candidates=own[id(member.candidates)])
        for member in gang.members
    )
    common = nodes if gang.candidates is None else nodes.intersection(gang.candidates)
    return replace(gang, members=members, candidates=common)


def _room(gang: GangRequest, nodes: frozenset[str], index: NodeIndex) -> tuple[int, float]:
    """Count the members with room, each kind alone, and the part of all chips in use with all members."""
    kinds = Counter((member.request, id(gang.allowed(member))) for member in gang.members)
    names = {id(allowed): allowed for allowed in map(gang.allowed, gang.members)}
    room = 0
    for (request, allowed), number in kinds.items():
        buckets = index.buckets_of(names[allowed])
        room += min(number, sum(capacity(bucket.vacancy, request)[0] * many for bucket, many in buckets))
    counted = [(bucket.vacancy, many) for bucket, many in index.buckets_of(nodes)]
    healthy = sum(vacancy.healthy * many for vacancy, many in counted)
    free = sum(vacancy.free.bit_count() * many for vacancy, many in counted)
    asked = sum(member.request.chips for member in gang.members)
    return room, (healthy - free + asked) / healthy if healthy else math.inf
