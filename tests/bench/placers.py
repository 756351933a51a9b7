"""The rules that are compared: the allocator's, and the two that need no thought."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from tests.allocator.builders import node, pod
from tests.bench.free_sets import node_name
from tests.bench.trace import Job

Place: TypeAlias = tuple[int, tuple[int, ...]]
"""The number of a node, and the chips taken there."""

_RINGS: Final = ((0, 1, 2, 3), (4, 5, 6, 7))
_ALL: Final = (*_RINGS[0], *_RINGS[1])


class Placer(ABC):
    """Places jobs on so many idle servers of 8 chips."""

    @abstractmethod
    def place(self, job: Job) -> Place | None:
        """Where the job goes, from now on; None where it has to wait."""

    @abstractmethod
    def end(self, job: Job) -> None:
        """A job that was placed is over."""


class Allocator(Placer):
    """The allocator's own engine, cluster and ledger, told of pods as its watch would tell them."""

    def __init__(self, nodes: int) -> None:
        # Time stands still for it: what is placed is bound at once.
        ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
        self._cluster = Cluster(ledger)
        self._engine = DecisionEngine(self._cluster, ledger)
        self._numbers = {node_name(number): number for number in range(nodes)}
        self._bound: dict[int, Place] = {}
        for name in self._numbers:
            self._cluster.node_applied(node(name))

    def place(self, job: Job) -> Place | None:
        name = f"job-{job.number}"
        try:
            kept = self._engine.place(pod(name, job.chips))
        except Refusal:
            return None
        self._cluster.pod_applied(pod(name, job.chips, node=kept.node, chips=kept.chips, phase="Running"))
        place = self._bound[job.number] = self._numbers[kept.node], kept.chips
        return place

    def end(self, job: Job) -> None:
        number, chips = self._bound.pop(job.number)
        name = f"job-{job.number}"
        self._cluster.pod_deleted(pod(name, job.chips, node=node_name(number), chips=chips, phase="Running"))


class _Counting(Placer):
    """What first-fit and random have in common: sets of free chips, and nothing known of anything else.

    Args:
        nodes: how many.
        keeps_rings: whether chips of one ring are looked for; otherwise only their number counts.
    """

    def __init__(self, nodes: int, *, keeps_rings: bool) -> None:
        self._free = [set(_ALL) for _ in range(nodes)]
        self._keeps_rings = keeps_rings
        self._placed: dict[int, Place] = {}

    def place(self, job: Job) -> Place | None:
        place = self._choose(job.chips)
        if place is not None:
            self._placed[job.number] = place
            self._free[place[0]] -= set(place[1])
        return place

    def end(self, job: Job) -> None:
        number, chips = self._placed.pop(job.number)
        self._free[number] |= set(chips)

    @abstractmethod
    def _choose(self, request: int) -> Place | None:
        """The place for a request."""

    def _choices(self, number: int, request: int) -> Sequence[Sequence[int]]:
        """The groups of free chips of a node from which the request may be taken."""
        groups = _RINGS if self._keeps_rings and request < len(_ALL) else (_ALL,)
        free = self._free[number]
        found = ([chip for chip in group if chip in free] for group in groups)
        return [group for group in found if len(group) >= request]


class FirstFit(_Counting):
    """The first node that has room, the lowest chips."""

    def _choose(self, request: int) -> Place | None:
        for number in range(len(self._free)):
            if choices := self._choices(number, request):
                return number, tuple(choices[0][:request])
        return None


class AtRandom(_Counting):
    """Any node that has room, any of its chips."""

    def __init__(self, nodes: int, rng: random.Random, *, keeps_rings: bool) -> None:
        super().__init__(nodes, keeps_rings=keeps_rings)
        self._rng = rng

    def _choose(self, request: int) -> Place | None:
        rooms = [(number, found) for number in range(len(self._free)) if (found := self._choices(number, request))]
        if not rooms:
            return None
        number, choices = self._rng.choice(rooms)
        return number, tuple(self._rng.sample(self._rng.choice(choices), request))


def placers(seed: int) -> dict[str, Callable[[int], Placer]]:
    """The rules by name; each is made for a number of nodes."""
    return {
        "the allocator": Allocator,
        "first fit, in rings": lambda nodes: FirstFit(nodes, keeps_rings=True),
        "random, in rings": lambda nodes: AtRandom(nodes, random.Random(seed), keeps_rings=True),
        "first fit by number": lambda nodes: FirstFit(nodes, keeps_rings=False),
        "random by number": lambda nodes: AtRandom(nodes, random.Random(seed), keeps_rings=False),
    }
