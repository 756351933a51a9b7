"""Carries out ``npuctl capacity`` and lays out its answer."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from ascend.errors import InvalidValue
from ascend.grammar import count
from npuctl.capacity.room import ProductRoom, rooms
from npuctl.offline_allocator import OfflineAllocator
from npuctl.output import FittingTable, Output, show
from npuctl.reading.source import Source, rfc3339

_SHOWN: Final = (1, 2, 4, 8, 16)
"""The sizes in the table, unless one is asked for."""


class CapacityAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/capacity/v1"):
    """The answer: what fits, by product, at a time (RFC 3339)."""

    time: str
    products: tuple[ProductRoom, ...]


async def run_capacity(source: Source, product: str, chips: int | None, output: Output) -> int:
    """Print how many pods, gangs and blocks fit now.

    Args:
        source: the objects.
        product: only this product; empty for all.
        chips: only pods with so many chips; None for all.
        output: the format.

    Raises:
        InvalidValue: there is no such product, or no product has such pods; or the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    allocator = OfflineAllocator(await source.read(), source.settings, source.now_ns)
    found = rooms(allocator, source.settings.sharing_products)
    if product:
        known = found
        found = tuple(row for row in found if row.product.lower() == product.lower())
        if known and not found:
            there = ", ".join(row.product for row in known)
            raise InvalidValue(f"no usable node is of the product {product}; there is {there}")
    if chips is not None:
        of_size = [[room for room in capacity.sizes if room.chips == chips] for capacity in found]
        if found and not any(of_size):
            raise InvalidValue(f"no server here takes a pod with {count(chips, 'chip')}")
        found = tuple(
            msgspec.structs.replace(row, sizes=tuple(sizes)) for row, sizes in zip(found, of_size, strict=True)
        )
    answer = CapacityAnswer(rfc3339(source.now_ns), found)
    show(answer, output, lambda: _render(found, chips))
    return 0


def _render(products: Sequence[ProductRoom], chips: int | None) -> RenderableType:
    if not products:
        return Text("no node with chips can be used")
    numbers = ("CHIPS", "PODS", "ONE JOB")
    table = FittingTable(("PRODUCT", *numbers), numeric=numbers)
    parts: list[RenderableType] = []
    for product in products:
        servers = f"{count(product.servers, 'server')} of {count(product.nodes, 'usable node')}"
        parts.append(Text(f"{product.product}: {count(product.chips, 'chip')} free, {servers} with all chips free"))
        for room in product.sizes:
            if room.chips in _SHOWN or chips is not None:
                table.add_row(
                    product.product, str(room.chips), str(room.pods), "-" if room.gang is None else str(room.gang)
                )
    parts.append(table)
    blocks = [(product.product, block) for product in products for block in product.blocks if block.blocks]
    if blocks:
        grid = FittingTable(("PRODUCT", "SERVERS", "BLOCKS"), numeric=("SERVERS", "BLOCKS"))
        for name, block in blocks:
            grid.add_row(name, str(block.servers), str(block.blocks))
        parts += [Text(""), grid]
    legend = "PODS: of so many chips that fit now, one after the other; ONE JOB: that fit at once as pods of one job"
    more = "; BLOCKS: within one SuperPod each, without a reserve" if blocks else ""
    limits = "CPU, memory, taints and affinity are not considered"
    return Stack(*parts, Text(f"{legend}{more}; {limits}", style="dim"))
