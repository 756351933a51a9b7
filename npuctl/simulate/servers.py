"""The servers of a simulation: which chips are free, in use or broken, and how usable the free ones are."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from ascend.annotations import SERVER_TYPE as SERVER_TYPE_ANNOTATION
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set
from ascend.errors import InvalidValue
from ascend.kube.objects import Condition, Metadata, Node, NodeStatus
from ascend.printable import shown
from ascend.products import PRODUCTS, Product
from ascend.rules.families import RULES
from ascend.rules.identity import ACCELERATOR_TYPE

_PART: Final = re.compile(r"([0-9]{1,6})x(.+)")
_MOST_NODES: Final = 100_000
_NAMES: Final = {
    name.lower(): product
    for product in PRODUCTS.values()
    for name in (product.name, *([f"{product.chip}-{product.chips}"] if product.chip else []))
    if name == product.name or name not in PRODUCTS
}
"""The products by their names, and by those of their chips with the number: ``910A-8``."""


def described_nodes(text: str) -> list[Node]:
    """Return the nodes of a description like ``48x910A-8,10xA3-16``.

    Raises:
        InvalidValue: it is malformed, or names an unknown product.
    """
    nodes = list[Node]()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        product = _NAMES.get(found.group(2).lower()) if found else None
        if found is None or product is None or not 0 < int(found.group(1)) <= _MOST_NODES - len(nodes):
            known = ", ".join(PRODUCTS)
            raise InvalidValue(
                f"--servers: {shown(part)} is not NUMBERxPRODUCT, as in 300x910B-8; the products are {known}"
            )
        nodes += (_node(f"s{number:05}", product) for number in range(len(nodes), len(nodes) + int(found.group(1))))
    return nodes


def _node(name: str, product: Product) -> Node:
    infos = write_base_device_infos({chip: ChipAddress() for chip in range(product.chips)})
    annotations = {BASE_DEVICE_INFOS: infos, **({SERVER_TYPE_ANNOTATION: "A3"} if product.chip == "A3" else {})}
    return Node(
        metadata=Metadata(name=name, labels={ACCELERATOR_TYPE: product.node_types[0]}, annotations=annotations),
        status=NodeStatus(allocatable={RESOURCE: str(product.chips)}, conditions=(Condition("Ready", "True"),)),
    )


class PodPlace(NamedTuple):
    """The chips of a pod, and their node."""

    node: str
    chips: tuple[int, ...]


def is_linked(product: Product, chips: Iterable[int]) -> bool:
    """Whether a pod can run on these chips: the rule of the product, offered only these, gives all of them."""
    chosen = chip_set(chips)
    return RULES[product.family].place(product, chosen, chosen.bit_count()) is not None


@lru_cache(maxsize=1 << 16)
def _stranded(product: Product, free: ChipSet) -> int:
    return sum((ring & free).bit_count() for ring in product.rings if ring & ~free)


class ServerState(NamedTuple):
    """The state of a server: those in the same state are interchangeable."""

    product: Product
    broken: ChipSet
    free: ChipSet


@dataclass(slots=True)
class _Server:
    product: Product
    free: ChipSet
    broken: ChipSet = 0


class Fleet:
    """The servers.

    Attributes:
        chips: the number of chips of all of them.
        free: how many are free.
        broken: how many are broken.
        stranded: how many of the free ones are in a ring, mesh, card or server of which others are not free.
        alike: the names of the servers in each state, in order of their arrival there.
    """

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self.chips = self.free = self.broken = self.stranded = 0
        self.alike: dict[ServerState, dict[str, None]] = {}

    def add(self, name: str, product: Product, free: ChipSet, broken: ChipSet = 0) -> None:
        """Add a server."""
        server = self._servers[name] = _Server(product, free, broken)
        self.chips += product.chips
        self._count(name, server, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def product(self, name: str) -> Product:
        """The product of a server."""
        return self._servers[name].product

    def state(self, name: str) -> ServerState:
        """The state of a server."""
        server = self._servers[name]
        return ServerState(server.product, server.broken, server.free)

    def take(self, place: PodPlace) -> None:
        """Put chips into use.

        Raises:
            ValueError: one of them is not free.
        """
        chips = chip_set(place.chips)
        server = self._servers[place.node]
        if chips & ~server.free or chips.bit_count() != len(place.chips):
            raise ValueError(f"chips {place.chips} of {place.node}, of which {chip_ids(server.free)} are free")
        self._set(place.node, server.free & ~chips, server.broken)

    def give_back(self, place: PodPlace) -> None:
        """End the use of chips; those that are broken don't become free.

        Raises:
            ValueError: one of them is free.
        """
        chips, server = chip_set(place.chips), self._servers[place.node]
        if chips & server.free:
            raise ValueError(f"chips {place.chips} of {place.node}, of which {chip_ids(server.free)} are free already")
        self._set(place.node, server.free | chips & ~server.broken, server.broken)

    def break_chip(self, node: str, chip: int) -> None:
        """Take a chip, which nobody uses, out of use."""
        server = self._servers[node]
        self._set(node, server.free & ~(1 << chip), server.broken | 1 << chip)

    def repair(self, node: str, chip: int) -> None:
        """Make a broken chip free."""
        server = self._servers[node]
        self._set(node, server.free | 1 << chip, server.broken & ~(1 << chip))

    def _set(self, name: str, free: ChipSet, broken: ChipSet) -> None:
        server = self._servers[name]
        self._count(name, server, -1)
        server.free, server.broken = free, broken
        self._count(name, server, 1)

    def _count(self, name: str, server: _Server, sign: int) -> None:
        self.free += sign * server.free.bit_count()
        self.broken += sign * server.broken.bit_count()
        self.stranded += sign * _stranded(server.product, server.free)
        kind = ServerState(server.product, server.broken, server.free)
        if sign > 0:
            self.alike.setdefault(kind, {})[name] = None
        elif len(names := self.alike[kind]) > 1:
            del names[name]
        else:
            del self.alike[kind]
