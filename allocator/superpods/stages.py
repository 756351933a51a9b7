"""Chooses the SuperPods for the blocks of a job, from the number of free nodes of each.

docs/spec/superpod.md#selection. A SuperPod of n free nodes has n - R beyond its reserve of R nodes: some whole blocks
of B nodes, the *column*, and nodes left over, the *row*. SuperPods of which few nodes are left over come first, those
that have room for more than the job needs come last; then the reserves are used.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from allocator.rules.asked import SuperPodLimits


class Share(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a block.

    Attributes:
        super_pod: the id of their SuperPod.
        nodes: how many they are.
    """

    super_pod: int
    nodes: int


class _Cell(msgspec.Struct, frozen=True, gc=False):
    """The position of a SuperPod in the table of the rule."""

    row: int
    column: int


def place_blocks(free: Mapping[int, int], size: int, need: int, limits: SuperPodLimits) -> list[Share]:
    """Choose a SuperPod for each of some blocks.

    Args:
        free: how many nodes each SuperPod has free, by its id.
        size: how many nodes a block has.
        need: how many blocks there are.
        limits: the size of a SuperPod, and its reserve.

    Returns:
        One share of ``size`` nodes for each block, in the order in which blocks are numbered; fewer if not all fit.
    """
    table = _Table(free, size, limits.reserve)
    chosen = list(table.beside_reserves(need))
    chosen += islice(table.with_reserves(), need - len(chosen))
    return [Share(number, size) for number in chosen]


def place_parts(free: Mapping[int, int], size: int, nodes: int, limits: SuperPodLimits) -> list[Share]:
    """Choose SuperPods for a job whose blocks may be split: whole blocks first, then as few parts as possible.

    docs/spec/superpod.md#soft-affinity.

    Args:
        free: how many nodes each SuperPod has free, by its id.
        size: how many nodes a whole block has.
        nodes: how many nodes are needed.
        limits: the size of a SuperPod, and its reserve.

    Returns:
        Shares of at most ``size`` nodes, in the order in which blocks are numbered; fewer nodes in all if there are not
        enough.
    """
    shares = place_blocks(free, size, nodes // size, limits)
    left = {number: nodes for number, nodes in sorted(free.items()) if nodes > 0}
    for share in shares:
        left[share.super_pod] -= share.nodes
    missing = nodes - sum(share.nodes for share in shares)
    while missing > 0 and any(left.values()):
        # The smallest SuperPod that has all that is missing of a block, else the largest.
        wanted = min(missing, size)
        enough = [super_pod for super_pod in left if left[super_pod] >= wanted]
        number = min(enough, key=left.__getitem__) if enough else max(left, key=left.__getitem__)
        share = Share(number, min(left[number], wanted))
        left[number] -= share.nodes
        missing -= share.nodes
        shares.append(share)
    return shares


class _Table:
    """The SuperPods with room for a block, by row and column.

    Args:
        free: how many nodes each SuperPod has free, by its id.
        size: how many nodes a block has.
        reserve: how many nodes of a SuperPod are kept free, where possible.
    """

    def __init__(self, free: Mapping[int, int], size: int, reserve: int) -> None:
        self._size = size
        self._left = {number: nodes for number, nodes in sorted(free.items()) if nodes >= size}
        self._cells: dict[_Cell, list[int]] = {}
        for number, nodes in self._left.items():
            spare = nodes - reserve
            cell = _Cell(nodes % size, 0) if spare < 0 else _Cell(spare % size, spare // size)
            self._cells.setdefault(cell, []).append(number)

    def beside_reserves(self, need: int) -> Iterator[int]:
        """Yield a SuperPod for each of at most ``need`` blocks, so that no reserve is used."""
        larger: list[_Cell] = []
        for cell in sorted(self._cells, key=lambda cell: (cell.row, cell.column)):
            if cell.column > need:  # what is needed becomes less
                larger.append(cell)
                continue
            for number in self._take(cell, need):
                need -= 1
                yield number
        for cell in sorted(larger, key=lambda cell: (cell.column, cell.row)):
            for number in self._take(cell, need):
                need -= 1
                yield number

    def with_reserves(self) -> Iterator[int]:
        """Yield a SuperPod for a block as long as any has room, one block of each in turn."""
        order = sorted(self._cells, key=lambda cell: (-cell.row, cell.column))
        is_room = True
        while is_room:
            is_room = False
            for cell in order:
                for number in sorted(self._cells[cell], key=lambda rack: (-self._left[rack], rack)):
                    if self._left[number] >= self._size:
                        self._left[number] -= self._size
                        is_room = True
                        yield number

    def _take(self, cell: _Cell, most: int) -> Iterator[int]:
        """Yield the SuperPods of a cell, each as often as it has room for a block beside its reserve."""
        for number in self._cells[cell]:
            for _ in range(cell.column):
                if most:
                    most -= 1
                    self._left[number] -= self._size
                    yield number
