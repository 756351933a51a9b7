"""How many pods, gangs and blocks fit now, by the rules by which they are placed."""

from collections import Counter, defaultdict
from collections.abc import Container

import msgspec

from allocator.rules.request import ChipRequest
from allocator.rules.verdicts import capacity
from allocator.state.location import Level
from allocator.state.supply import gang_request, largest_gangs
from allocator.superpods.demand import PRODUCTS
from ascend.products import PRODUCTS as ORDER
from npuctl.offline_allocator import OfflineAllocator

BLOCKS = (2, 4, 8, 16, 32, 64)
"""The numbers of servers of a block for which is said how many blocks fit."""


class SizeCapacity(msgspec.Struct, frozen=True):
    """Room for pods of a size.

    Attributes:
        chips: the number of chips of each pod.
        pods: how many pods of jobs of their own fit, one after the other.
        gang: how many pods of one job fit at once; None if a job of several pods may not have such pods.
    """

    chips: int
    pods: int
    gang: int | None


class Blocks(msgspec.Struct, frozen=True):
    """Room for blocks: each within one SuperPod, of servers all of whose chips are free.

    Attributes:
        servers: the number of servers of each block.
        blocks: how many fit, if no reserve is kept.
    """

    servers: int
    blocks: int


class ProductRoom(msgspec.Struct, frozen=True):
    """What the usable nodes of a product have room for; chips that are kept for others are not free.

    Attributes:
        product: the product.
        nodes: the number of usable nodes.
        servers: how many of them have only free chips.
        rings: rings, meshes or cards all of whose chips are free.
        chips: the free chips.
        sizes: the room for pods, by size.
        blocks: the room for blocks, by size; none if no node is in a SuperPod.
    """

    product: str
    nodes: int
    servers: int
    rings: int
    chips: int
    sizes: tuple[SizeCapacity, ...]
    blocks: tuple[Blocks, ...]


def rooms(allocator: OfflineAllocator, sharing_products: Container[str]) -> tuple[ProductRoom, ...]:
    """Return the room by product; ``sharing_products`` name those whose servers may take several pods of one job."""
    found = defaultdict[str, Counter[str]](Counter)
    pods, gangs = Counter[tuple[str, int]](), Counter[tuple[str, int, str]]()
    for bucket in allocator.cluster.index.buckets:
        vacancy, number = bucket.vacancy, len(bucket)
        product = vacancy.product
        found[product.name] += Counter(
            nodes=number,
            servers=number * (vacancy.free == product.all_chips),
            rings=number * sum(not ring & ~vacancy.free for ring in product.rings),
            chips=number * vacancy.free.bit_count(),
        )
        cores = vacancy.cores.kind.cores if vacancy.cores is not None else 0
        for size in product.requests:
            alone = ChipRequest(0 if cores else size, cores=size * cores)
            pods[product.name, size] += number * capacity(vacancy, alone)[0]
        for size in product.allowed(distributed=True):
            request = gang_request(vacancy, size, sharing_products)
            gangs[product.name, size, vacancy.model] += number * capacity(vacancy, request)[0]
    blocks, largest = _blocks(allocator), largest_gangs(gangs)
    return tuple(
        ProductRoom(
            name,
            nodes=found[name]["nodes"],
            servers=found[name]["servers"],
            rings=found[name]["rings"],
            chips=found[name]["chips"],
            sizes=tuple(
                SizeCapacity(size, pods[name, size], largest.get((name, size)))
                for size in sorted({*product.requests, *product.allowed(distributed=True)})
            ),
            blocks=tuple(Blocks(size, blocks[name, size]) for size in BLOCKS if (name, size) in blocks),
        )
        for name, product in ORDER.items()
        if name in found
    )


def _blocks(allocator: OfflineAllocator) -> Counter[tuple[str, int]]:
    blocks = Counter[tuple[str, int]]()
    for place in allocator.cluster.index.topology.places(Level.SUPER_POD).values():
        free = Counter[str]()
        for bucket, names in place.buckets():
            product = bucket.vacancy.product
            if product in PRODUCTS:
                free[product.name] += len(names) * (bucket.vacancy.free == product.all_chips)
        for name, servers in free.items():
            for size in BLOCKS:
                blocks[name, size] += servers // size
    return blocks
