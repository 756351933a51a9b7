"""Lays out the chips of nodes: a panel per node, a line per group of linked chips."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.grammar import count
from npuctl.topo.nodes import ChipView, NodeView

# Pods are distinguished by colour; which pod has which colour does not matter.
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_blue", "bright_magenta")

_IN_LINE: Final = 8
"""Chips per line if they are not in groups."""

_FRAME: Final = 6
"""Columns of a panel around its title."""

_MARKS: Final = {
    "unhealthy": ("✗", "bold red"),
    "separated": ("⊘", "bold red"),
    "separating": ("⊖", "bold yellow"),
    "recovering": ("↻", "bold yellow"),
    "network-unhealthy": ("≁", "bold yellow"),
}
_MEANINGS: Final = {
    "unhealthy": "unhealthy",
    "separated": "separated: removed from use",
    "separating": "separating: only for the pod that holds it",
    "recovering": "being reset",
    "network-unhealthy": "network unhealthy: not for distributed jobs",
}


def node_map(views: Sequence[NodeView]) -> RenderableType:
    """Lay out nodes; a chip shows its number and the pod that holds it."""
    if not views:
        return Text("no NPU nodes")
    pods = sorted({holder for view in views for chip in view.chips for holder in chip.holders})
    colours = {pod: _COLOURS[number % len(_COLOURS)] for number, pod in enumerate(pods)}
    return Group(*(_NodePanel(view, colours) for view in views), totals(views, marks=True))


def totals(views: Sequence[NodeView], *, marks: bool) -> Text:
    """Return a line with the sums over all nodes.

    Args:
        views: the nodes.
        marks: also explain the marks of chips.
    """
    chips = [chip for view in views for chip in view.chips]
    unusable = sum(view.reason is not None for view in views)
    free = sum(view.free for view in views if view.reason is None)
    parts = [count(len(views), "node"), f"{free} of {count(len(chips), 'chip')} free"]
    unhealthy = sum(view.unhealthy for view in views)
    parts += [f"{unhealthy} unhealthy"] if unhealthy else []
    parts += [f"{count(unusable, 'node')} not used"] if unusable else []
    seen = {chip.health for chip in chips} if marks else set()
    legend = [f"{mark} {_MEANINGS[health]}" for health, (mark, _) in _MARKS.items() if health in seen]
    return Text("; ".join([", ".join(parts), *legend]))


class _NodePanel:
    """The panel of a node, as wide as it needs to be.

    Args:
        view: the node.
        colours: the colour of each pod.
    """

    def __init__(self, view: NodeView, colours: dict[str, str]) -> None:
        self._view = view
        self._colours = colours

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        view = self._view
        title = Text.assemble((view.node, "bold"), "  ", self._facts())
        body: list[RenderableType] = []
        if title.cell_len + _FRAME > options.max_width:
            title, body = Text(view.node, style="bold"), [self._facts()]
        body.append(_ChipLines([(name, [self._cell(chip) for chip in chips]) for name, chips in _lines(view)]))
        body += [
            Text(f"{chip.name} {chip.health}: {', '.join(chip.faults)}", style="dim")
            for chip in view.chips
            if chip.faults
        ]
        body += [
            Text(f"{chip.name} is held by {' and '.join(chip.holders)}", style="red")
            for chip in view.chips
            if len(chip.holders) > 1
        ]
        if view.reason is not None:
            body.append(Text(f"not used: {view.message} ({view.reason})", style="red"))
        yield Panel(Group(*body), title=title, title_align="left", expand=False)

    def _facts(self) -> Text:
        view = self._view
        facts = Text(f"{view.product}  {view.free} of {len(view.chips)} free")
        return facts.append("  ").append(f"{view.unhealthy} unhealthy", style="red") if view.unhealthy else facts

    def _cell(self, chip: ChipView) -> Text:
        number = chip.name.removeprefix(NAME_PREFIX)
        if len(chip.holders) > 1:
            return Text(f"[{number} CONFLICT]", style="bold white on red")
        label = chip.holders[0].removeprefix("default/") if chip.holders else "·" if chip.healthy else ""
        cell = Text(f"[{number} {label}".rstrip(), style=self._colours[chip.holders[0]] if chip.holders else "dim")
        if chip.health in _MARKS:
            mark, style = _MARKS[chip.health]
            cell.append(f" {mark}", style=style)
        return cell.append("]")


class _ChipLines:
    """Lines of chips in columns; where they are too long, each continues on further lines with half as many chips.

    Args:
        lines: the name of each group, and its chips.
    """

    def __init__(self, lines: Sequence[tuple[str, Sequence[Text]]]) -> None:
        self._lines = lines

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._grid(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._grid(options.max_width))

    def _grid(self, width: int) -> Table:
        longest = max((len(cells) for _, cells in self._lines), default=1)
        rows = list(self._broken(longest))
        while longest > 1 and _width(rows) > width:
            longest = (longest + 1) // 2
            rows = list(self._broken(longest))
        grid = Table.grid(padding=(0, 1))
        for _ in range(1 + longest):
            grid.add_column(no_wrap=True)
        for name, cells in rows:
            grid.add_row(Text(name, style="dim"), *cells)
        return grid

    def _broken(self, longest: int) -> Iterator[tuple[str, Sequence[Text]]]:
        for name, cells in self._lines:
            for first in range(0, len(cells), longest):
                yield name if first == 0 else "", cells[first : first + longest]


def _width(rows: Sequence[tuple[str, Sequence[Text]]]) -> int:
    """The columns of a grid of these rows, with a blank between cells."""
    names = max((cell_len(name) for name, _ in rows), default=0)
    longest = max((len(cells) for _, cells in rows), default=0)
    widths = [max(cells[at].cell_len for _, cells in rows if at < len(cells)) for at in range(longest)]
    return names + sum(1 + width for width in widths)


def _lines(view: NodeView) -> Iterator[tuple[str, Sequence[ChipView]]]:
    if not view.group:
        for first in range(0, len(view.chips), _IN_LINE):
            yield "", view.chips[first : first + _IN_LINE]
        return
    for number, linked in view.groups.items():
        yield f"{view.group} {number}", linked
