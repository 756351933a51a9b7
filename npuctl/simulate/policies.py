"""Policies of placement to compare with the allocator's: on which servers, and on which chips.

Each of them takes one pod at a time. A job starts if all its pods have a place, and nothing is kept for jobs that wait.
"""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.products import PRODUCTS, Product
from ascend.rules.families import RULES
from npuctl.simulate.jobs import SimulatedJob
from npuctl.simulate.servers import Fleet, PodPlace, ServerState
from npuctl.simulate.simulation import VirtualScheduler

Choice: TypeAlias = tuple[tuple[float, ...], tuple[int, ...]]
"""How good a server is, smaller is better, and the chips there."""

_ORDER: Final = {name: number for number, name in enumerate(PRODUCTS)}


class PlacementPolicy(VirtualScheduler):
    """A policy of placement.

    Args:
        servers: where jobs are placed.
        seed: of all random choices.
    """

    def __init__(self, servers: Fleet, seed: int) -> None:
        self._servers = servers
        self._rng = random.Random(seed)  # noqa: S311 - not for secrets

    def judge(self, kind: ServerState, chips: int) -> Choice | None:
        """How good servers in a state are for a pod with so many chips; None if it does not fit."""
        raise NotImplementedError

    def start(self, job: SimulatedJob, candidates: Collection[str] | None = None) -> Sequence[PodPlace] | None:
        """Take the chips of all pods of a job, or none."""
        taken = list[PodPlace]()
        for _ in range(job.pods):
            place = self._choose(job, {place.node for place in taken}, candidates)
            if place is None:
                for earlier in taken:
                    self._servers.give_back(earlier)
                return None
            self._servers.take(place)
            taken.append(place)
        return taken

    def _choose(self, job: SimulatedJob, peers: Collection[str], candidates: Collection[str] | None) -> PodPlace | None:
        found = list[tuple[tuple[float, ...], ServerState, tuple[int, ...]]]()
        for kind in self._servers.alike:
            if job.chips not in kind.product.allowed(distributed=job.pods > 1):
                continue
            if (choice := self.judge(kind, job.chips)) is not None:
                found.append(((_ORDER[kind.product.name], *choice[0]), kind, choice[1]))
        found.sort(key=lambda fitting: fitting[0])
        at = 0
        while at < len(found):  # the best servers first, those that are equally good at random
            equal = [fitting for fitting in found[at:] if fitting[0] == found[at][0]]
            at += len(equal)
            names = [
                (name, chips)
                for _, kind, chips in equal
                for name in self._servers.alike[kind]
                if (kind.product.shared_by_peers or name not in peers) and (candidates is None or name in candidates)
            ]
            if names:
                name, chips = names[int(self._rng.random() * len(names))]
                return PodPlace(name, self.chips(self._servers.state(name), chips))
        return None

    def chips(self, kind: ServerState, chosen: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - for those that choose anew
        """The chips of a pod on the chosen server."""
        return chosen


class Counting(PlacementPolicy):
    """Counts chips only, as kube-scheduler does; which ones a pod gets is left to chance.

    Args:
        servers: where jobs are placed.
        seed: of all random choices.
        packs: prefers servers with few free chips; else those with many, as kube-scheduler does by default.
    """

    keeps = False

    def __init__(self, servers: Fleet, seed: int, *, packs: bool) -> None:
        super().__init__(servers, seed)
        self._sign = 1 if packs else -1

    def judge(self, kind: ServerState, chips: int) -> Choice | None:
        """By the number of free chips."""
        free = kind.free.bit_count()
        return ((self._sign * free,), (0,) * chips) if free >= chips else None

    def chips(self, kind: ServerState, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Any free chips."""
        return tuple(self._rng.sample(chip_ids(kind.free), len(chosen)))


class Tables(PlacementPolicy):
    """The tables of Huawei's documents alone, as MindCluster applies them to each pod; ties are random."""

    def judge(self, kind: ServerState, chips: int) -> Choice | None:
        """By the rule of the product."""
        return _by_table(kind, chips)


@lru_cache(maxsize=1 << 16)
def _by_table(kind: ServerState, chips: int) -> Choice | None:
    product, rule = kind.product, RULES[kind.product.family]
    placement = rule.place(product, kind.free, chips) if kind.free.bit_count() >= chips else None
    if placement is None:
        return None
    faulty = kind.broken.bit_count()
    return rule.key(placement, product.chips - faulty, faulty), placement.chips


class LeastFragmentation(PlacementPolicy):
    """Fragmentation gradient descent (FGD, Weng et al., USENIX ATC '23), among chips that are linked as required.

    A server is fragmented for a pod by the free chips that the pod can't use; in the mean over the jobs of the
    workload, by how often they come. A pod gets the chips that make this least larger.

    Args:
        servers: where jobs are placed.
        seed: of all random choices.
        jobs: the workload.
    """

    def __init__(self, servers: Fleet, seed: int, jobs: Collection[SimulatedJob]) -> None:
        super().__init__(servers, seed)
        counted = Counter(job.chips for job in jobs for _ in range(job.pods))
        self._shares = {chips: number / counted.total() for chips, number in counted.items()}
        self._judged: dict[tuple[ServerState, int], Choice | None] = {}

    def judge(self, kind: ServerState, chips: int) -> Choice | None:
        """By the increase of fragmentation."""
        key = kind, chips
        if key not in self._judged:
            before = self._fragmentation(kind.product, kind.free)
            sets = _linked_sets(kind.product, kind.free, chips)
            choices = (((self._fragmentation(kind.product, kind.free & ~chosen) - before,), chosen) for chosen in sets)
            best = min(choices, default=None)
            self._judged[key] = ((round(best[0][0], 9),), chip_ids(best[1])) if best is not None else None
        return self._judged[key]

    def _fragmentation(self, product: Product, free: ChipSet) -> float:
        return sum(share * (free.bit_count() - _usable(product, free, chips)) for chips, share in self._shares.items())


@lru_cache(maxsize=1 << 17)
def _usable(product: Product, free: ChipSet, chips: int) -> int:
    """The number of free chips that pods of a size can use: in rings with room for one."""
    place = RULES[product.family].place
    if chips not in product.requests or free.bit_count() < chips or place(product, free, chips) is None:
        return 0
    parts = (ring & free for ring in product.rings)
    if chips == 1 or not any(ring.bit_count() >= chips for ring in product.rings):
        whole = [ring for ring in product.rings if not ring & ~free]  # a pod of several rings takes whole ones
        return free.bit_count() if chips == 1 else sum(map(int.bit_count, whole))
    return sum(part.bit_count() for part in parts if part.bit_count() >= chips)


@lru_cache(maxsize=1 << 16)
def _linked_sets(product: Product, free: ChipSet, chips: int) -> tuple[ChipSet, ...]:
    """The sets of free chips that a pod may have; of several in one ring, the set of lowest ids."""
    if free.bit_count() < chips:
        return ()
    parts = (ring & free for ring in product.rings)
    within = {chip_set(chip_ids(part)[:chips]) for part in parts if part.bit_count() >= chips}
    place = RULES[product.family].place
    linked = {chosen for chosen in within if place(product, chosen, chips) is not None}
    if not linked and (placement := place(product, free, chips)) is not None:  # of whole rings, which are all alike
        linked = {placement.taken}
    return tuple(sorted(linked))


POLICIES: Final[dict[str, Any]] = {
    "spread": lambda servers, seed, _jobs: Counting(servers, seed, packs=False),
    "packed": lambda servers, seed, _jobs: Counting(servers, seed, packs=True),
    "tables": lambda servers, seed, _jobs: Tables(servers, seed),
    "fgd": LeastFragmentation,
}
"""By name; each is called with the servers, the seed and the jobs."""
