"""What usable nodes have free, by product."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

import msgspec

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.state.index import NodeIndex
from ascend.turn import Turn

SIZES: Final = (1, 2, 4, 8, 16)
"""The numbers of chips of a pod for which the largest gang is measured."""


class Supply(msgspec.Struct, frozen=True):
    """What usable nodes have free, by name of the product.

    Attributes:
        chips: free chips.
        healthy: healthy chips, free or not.
        servers: servers all of whose chips are free.
        rings: rings (or meshes, or cards of two dies) all of whose chips are free.
        vnpus: free vNPUs, by size, also of sizes of which none is free.
        cores: free AI cores of chips that are cut while pods run, by name of the product.
        largest_gang: the most pods of a job of several pods that would fit at once, by product and chips of each pod.
    """

    chips: Mapping[str, int] = {}
    healthy: Mapping[str, int] = {}
    servers: Mapping[str, int] = {}
    rings: Mapping[str, int] = {}
    vnpus: Mapping[str, int] = {}
    largest_gang: Mapping[tuple[str, int], int] = {}
    cores: Mapping[str, int] = {}


class _Figures(NamedTuple):
    """The figures of one node."""

    is_whole: bool
    rings: int
    pods: tuple[tuple[int, int], ...]
    """The size of a pod, and how many of them fit."""


class SupplyReader:
    """Measures what usable nodes have free.

    Args:
        index: the nodes.
        sharing_products: names of products whose servers may take several pods of one job.
    """

    def __init__(self, index: NodeIndex, sharing_products: Container[str] = ()) -> None:
        self._index = index
        self._sharing_products = sharing_products
        self._known: dict[Vacancy, _Figures] = {}

    async def read(self) -> Supply:
        """Measure what is free; other tasks run meanwhile, so nodes may have changed since."""
        turn, known, self._known = Turn(), self._known, {}
        chips: Counter[str] = Counter()
        healthy: Counter[str] = Counter()
        servers: Counter[str] = Counter()
        rings: Counter[str] = Counter()
        vnpus: Counter[str] = Counter()
        cores: Counter[str] = Counter()
        gangs: Counter[tuple[str, int, str]] = Counter()
        for bucket in self._index.buckets:
            await turn.share()
            vacancy, nodes, product = bucket.vacancy, len(bucket), bucket.vacancy.product.name
            figures = self._known[vacancy] = known.get(vacancy) or self._figures(vacancy)
            chips[product] += nodes * vacancy.free.bit_count()
            healthy[product] += nodes * vacancy.healthy
            servers[product] += nodes * figures.is_whole
            rings[product] += nodes * figures.rings
            if vacancy.vnpus is not None:
                for suffix, number in vacancy.vnpus.numbers.items():
                    vnpus[suffix] += nodes * number
            if vacancy.cores is not None:
                cores[product] += nodes * vacancy.cores.cores(vacancy.free)
            for size, pods in figures.pods:
                gangs[product, size, vacancy.model] += nodes * pods
        return Supply(chips, healthy, servers, rings, vnpus, largest_gangs(gangs), cores)

    def _figures(self, vacancy: Vacancy) -> _Figures:
        product = vacancy.product
        sizes = [size for size in SIZES if size in product.allowed(distributed=True)]
        requests = [gang_request(vacancy, size, self._sharing_products) for size in sizes]
        return _Figures(
            vacancy.free == product.all_chips,
            sum(not ring & ~vacancy.free for ring in product.rings),
            # Not from its cache, which is kept for decisions.
            tuple((size, capacity.__wrapped__(vacancy, asked)[0]) for size, asked in zip(sizes, requests, strict=True)),
        )


def largest_gangs(pods: Mapping[tuple[str, int, str], int]) -> dict[tuple[str, int], int]:
    """The most pods of a gang that would fit at once, by product and chips of each pod: on one model, or unknown ones.

    Args:
        pods: how many fit, by product, chips of each pod and model.
    """
    largest: dict[tuple[str, int], int] = {}
    for (product, size, model), number in pods.items():
        unknown = pods.get((product, size, ""), 0) if model else 0
        largest[product, size] = max(largest.get((product, size), 0), number + unknown)
    return largest


def gang_request(vacancy: Vacancy, chips: int, sharing_products: Container[str]) -> ChipRequest:
    """What a pod of a job of several pods requests of such a node for so many chips."""
    product = vacancy.product
    is_spread = not product.shared_by_peers and product.name not in sharing_products
    # Where chips are offered as AI cores, a request for all of those of a chip is for the whole chip.
    cores = vacancy.cores.kind.cores if vacancy.cores is not None else 0
    return ChipRequest(
        0 if cores else chips, distributed=True, needs_network=True, is_spread=is_spread, cores=chips * cores
    )
