"""Carries out ``npuctl defragment`` and lays out its answer."""

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from ascend.errors import InvalidValue
from ascend.grammar import count
from npuctl.chips import numbers
from npuctl.defragment.moves import Defragmentation, Move, Unit
from npuctl.evaluation import Evaluation
from npuctl.output import FittingTable, Output, show
from npuctl.queue.command import age
from npuctl.reading.source import Source, rfc3339


class UnitObstacle(msgspec.Struct, frozen=True):
    """What keeps units from becoming free, and how many."""

    what: str
    units: int


class DefragmentAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/defragment/v1"):
    """The answer at a time (RFC 3339): the pods to delete so that rings or servers become free.

    Attributes:
        time: the time of the objects.
        unit: what is to become free, ``rings`` or ``servers``.
        wanted: how many more.
        free_before: how many are free now.
        free_after: how many are free after all moves.
        moves: the pods to delete, in this order.
        obstacles: what keeps other units from becoming free.
    """

    time: str
    unit: Unit
    wanted: int
    free_before: int
    free_after: int
    moves: tuple[Move, ...]
    obstacles: tuple[UnitObstacle, ...]


async def run_defragment(source: Source, unit: Unit, wanted: int, product: str, output: Output) -> int:
    """Print which pods to delete so that more rings or servers become free; nothing is deleted.

    Args:
        source: the objects.
        unit: what is to become free.
        wanted: how many more.
        product: only servers of this product; empty for all.
        output: the format.

    Raises:
        InvalidValue: no usable node is of the product, or the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    evaluation = Evaluation(await source.read(), source.settings, source.now_ns)
    if product:
        there = {bucket.vacancy.product.name for bucket in evaluation.allocator.cluster.index.buckets}
        if product.lower() not in map(str.lower, there):
            raise InvalidValue(
                f"no usable node is of the product {product}; there is {', '.join(sorted(there)) or 'none'}"
            )
    search = Defragmentation(evaluation, unit, product)
    before = search.free()
    moves = search.find(wanted)
    obstacles = tuple(UnitObstacle(what, units) for what, units in search.obstacles.most_common())
    answer = DefragmentAnswer(rfc3339(source.now_ns), unit, wanted, before, search.free(), tuple(moves), obstacles)
    show(answer, output, lambda: _render(answer, source.now_ns))
    return 0


def _render(answer: DefragmentAnswer, now_ns: int) -> RenderableType:
    one, gained = answer.unit.removesuffix("s"), answer.free_after - answer.free_before
    now = f"{count(answer.free_before, one)} {'is' if answer.free_before == 1 else 'are'} free"
    then = f"{answer.free_after} after {count(len(answer.moves), 'move')}" if gained else "no move frees another"
    parts: list[RenderableType] = [Text(f"{now}, {then}", style="bold"), Text("")]
    if gained:
        table = FittingTable(("POD", "RUNS", "FROM", "CHIPS", "TO", "CHIPS"), numeric=("RUNS",))
        for move in answer.moves:
            runs = age(move.started, now_ns)
            table.add_row(move.pod, runs, move.node, numbers(move.chips), move.to, numbers(move.to_chips))
        parts.append(table)
    if gained < answer.wanted:
        parts.append(
            Text(f"{count(answer.wanted - gained, one)} more wanted; why no other becomes free:", style="yellow")
        )
        parts += [Text(f"  {count(obstacle.units, one)}: {obstacle.what} is there") for obstacle in answer.obstacles]
        parts.append(Text(f"  the others: their pods fit nowhere else, or only in another free {one}"))
    if gained:
        legend = (
            "Delete the pods one after the other, each once the one before runs again. RUNS: what a pod has not saved "
            "in this time is computed again. CPU, memory, taints and affinity are not considered"
        )
        parts.append(Text(legend, style="dim"))
    return Stack(*parts)
