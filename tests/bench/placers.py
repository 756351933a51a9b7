"""The placement rules that are compared: the allocator's, first fit, and random."""

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
    """Places jobs on servers of 8 chips, which are idle at first."""

    @abstractmethod
    def place(self, job: Job) -> Place | None:
        """Place the job; return None if it has to wait."""

    @abstractmethod
    def end(self, job: Job) -> None:
        """Remove a placed job, which has ended."""


class Allocator(Placer):
    """The allocator's own engine, cluster and ledger, with pods applied as by its informers."""

    def __init__(self, nodes: int) -> None:
        # The clock does not advance, because every placed pod is bound at once.
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
            reservation = self._engine.place(pod(name, job.chips))
        except Refusal:
            return None
        self._cluster.pod_applied(
            pod(name, job.chips, node=reservation.node, chips=reservation.take.chips, phase="Running")
        )
        place = self._bound[job.number] = self._numbers[reservation.node], reservation.take.chips
        return place

    def end(self, job: Job) -> None:
        number, chips = self._bound.pop(job.number)
        name = f"job-{job.number}"
        self._cluster.pod_deleted(pod(name, job.chips, node=node_name(number), chips=chips, phase="Running"))


class _Counting(Placer):
    """The common part of first fit and random: the free chips of each server.

    Args:
        nodes: the number of servers.
        keeps_rings: whether all chips must be in one ring; otherwise only their number counts.
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
        """Choose a server and chips for a request."""

    def _choices(self, number: int, request: int) -> Sequence[Sequence[int]]:
        """Return the groups of free chips of a server that are large enough for the request."""
        groups = _RINGS if self._keeps_rings and request < len(_ALL) else (_ALL,)
        free = self._free[number]
        found = ([chip for chip in group if chip in free] for group in groups)
        return [group for group in found if len(group) >= request]


class FirstFit(_Counting):
    """The first server that fits, its lowest chips."""

    def _choose(self, request: int) -> Place | None:
        for number in range(len(self._free)):
            if choices := self._choices(number, request):
                return number, tuple(choices[0][:request])
        return None


class AtRandom(_Counting):
    """A random server that fits, random chips of it."""

    def __init__(self, nodes: int, rng: random.Random, *, keeps_rings: bool) -> None:
        super().__init__(nodes, keeps_rings=keeps_rings)
        self._rng = rng

    def _choose(self, request: int) -> Place | None:
        fitting = [(number, found) for number in range(len(self._free)) if (found := self._choices(number, request))]
        if not fitting:
            return None
        number, choices = self._rng.choice(fitting)
        return number, tuple(self._rng.sample(self._rng.choice(choices), request))


def placers(seed: int) -> dict[str, Callable[[int], Placer]]:
    """Return the rules by name; each is called with the number of servers."""
    return {
        "the allocator": Allocator,
        "first fit, in rings": lambda nodes: FirstFit(nodes, keeps_rings=True),
        "random, in rings": lambda nodes: AtRandom(nodes, random.Random(seed), keeps_rings=True),
        "first fit by number": lambda nodes: FirstFit(nodes, keeps_rings=False),
        "random by number": lambda nodes: AtRandom(nodes, random.Random(seed), keeps_rings=False),
    }
