"""Lays out the chips of nodes: a panel per node, a line per group of linked chips."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.grammar import count
from ascend.reasons import Reason
from ascend.vnpus import device_type
from npuctl.output import full_width
from npuctl.topo.nodes import ChipView, NodeView, VnpuView

# Pods are distinguished by colour; which pod has which colour does not matter.
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_blue", "bright_magenta")

_IN_LINE: Final = 8
"""Chips per line if they are not in groups."""

_FRAME: Final = 6
"""Columns of a panel around its title."""

_MARKS: Final = {
    "unhealthy": ("✗", "bold red", "unhealthy"),
    "separated": ("⊘", "bold red", "separated: removed from use"),
    "separating": ("⊖", "bold yellow", "separating: only for the pod that holds it"),
    "recovering": ("↻", "bold yellow", "being reset"),
    "network-unhealthy": ("≁", "bold yellow", "network unhealthy: not for distributed jobs"),
}
"""By health: the mark of a chip, its style, and what it means."""


def node_map(views: Sequence[NodeView]) -> RenderableType:
    """Lay out nodes; a chip shows its number and the pod that holds it."""
    if not views:
        return Text("no NPU nodes")
    pods = sorted({holder for view in views for chip in view.chips for each in chip.devices for holder in each.holders})
    colours = {pod: _COLOURS[number % len(_COLOURS)] for number, pod in enumerate(pods)}
    return Group(*(_NodePanel(view, colours) for view in views), totals(views, marks=True))


def totals(views: Sequence[NodeView], *, marks: bool) -> Text:
    """Return a line with the sums over all nodes, and what the ``marks`` of chips mean."""
    chips = [chip for view in views for chip in view.chips]
    unusable = sum(view.reason is not None for view in views)
    free = sum(view.free for view in views if view.reason is None)
    parts = [count(len(views), "node"), f"{free} of {count(len(chips), 'chip')} free"]
    if vnpus := sum(view.vnpus for view in views):
        usable = sum(view.free_vnpus for view in views if view.reason is None)
        parts.append(f"{usable} of {count(vnpus, 'vNPU')} free")
    if cores := [view.free_cores for view in views if view.free_cores is not None and view.reason is None]:
        parts.append(f"{count(sum(cores), 'AI core')} free")
    unhealthy = sum(view.unhealthy for view in views)
    parts += [f"{unhealthy} unhealthy"] if unhealthy else []
    parts += [f"{count(unusable, 'node')} not used"] if unusable else []
    seen = {chip.health for chip in chips} if marks else set()
    legend = [f"{mark} {meaning}" for health, (mark, _, meaning) in _MARKS.items() if health in seen]
    return Text("; ".join([", ".join(parts), *legend]))


class _NodePanel:
    """The panel of a node, as wide as it needs to be."""

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
        if view.vnpus:
            cut = [chip for chip in view.chips if chip.vnpus]
            body.append(_ChipLines([(f"chip {_number(chip)}", list(map(self._part, chip.vnpus))) for chip in cut]))
        if sliced := [chip for chip in view.chips if chip.slices]:
            body.append(_ChipLines([(f"chip {_number(chip)}", self._slices(chip)) for chip in sliced]))
        body += [
            Text(f"{chip.name} {chip.health}: {', '.join(chip.faults)}", style="dim")
            for chip in view.chips
            if chip.faults
        ]
        body += [
            Text(f"{each.name} is held by {' and '.join(each.holders)}", style="red")
            for chip in view.chips
            for each in chip.devices
            if len(each.holders) > 1
        ]
        body += [
            Text(f"{chip.name} is held by {' and '.join(chip.holders)}, and {part.name} of it by {holder}", style="red")
            for chip in view.chips
            for part in chip.vnpus
            for holder in part.holders
            if set(chip.holders) - {holder}
        ]
        unknown = {part.size: part.unknown for chip in view.chips for part in chip.vnpus if part.unknown}
        body += [
            Text(f"not used: the vNPUs {device_type(size)}: {sentence} ({Reason.UNREADABLE_POD})", style="red")
            for size, sentence in unknown.items()
        ]
        if view.reason is not None:
            body.append(Text(f"not used: {view.message} ({view.reason})", style="red"))
        yield Panel(Group(*body), title=title, title_align="left", expand=False)

    def _facts(self) -> Text:
        view = self._view
        facts = Text(f"{view.product}  {view.free} of {len(view.chips)} free")
        if view.vnpus:
            facts.append(f", {view.free_vnpus} of {count(view.vnpus, 'vNPU')}")
        if view.free_cores is not None:
            facts.append(f", {count(view.free_cores, 'AI core')}")
        return facts.append("  ").append(f"{view.unhealthy} unhealthy", style="red") if view.unhealthy else facts

    def _cell(self, chip: ChipView) -> Text:
        number = _number(chip)
        if (chip.vnpus or chip.slices) and not chip.holders:
            cell = Text(f"[{number} cut", style="dim")
            return self._marked(cell, chip)
        if len(chip.holders) > 1:
            return Text(f"[{number} CONFLICT]", style="bold white on red")
        label = chip.holders[0].removeprefix("default/") if chip.holders else "·" if chip.healthy else ""
        cell = Text(f"[{number} {label}".rstrip(), style=self._colours[chip.holders[0]] if chip.holders else "dim")
        return self._marked(cell, chip)

    def _part(self, part: VnpuView) -> Text:
        """A vNPU: its size and vdev id, and the pod that holds it."""
        name = f"{part.size}-{part.vdev_id}"
        if len(part.holders) > 1:
            return Text(f"[{name} CONFLICT]", style="bold white on red")
        label = part.holders[0].removeprefix("default/") if part.holders else "?" if part.unknown else "·"
        return Text(f"[{name} {label}]", style=self._colours[part.holders[0]] if part.holders else "dim")

    def _slices(self, chip: ChipView) -> list[Text]:
        """The vNPUs that were cut for pods, and what is left."""
        cells = [
            Text(f"[{each.template} {each.holders[0].removeprefix('default/')}]", style=self._colours[each.holders[0]])
            for each in chip.slices
        ]
        left = f"{count(chip.free_cores or 0, 'core')} free"
        return [*cells, Text(f"[{left}]", style="dim")]

    @staticmethod
    def _marked(cell: Text, chip: ChipView) -> Text:
        if chip.health in _MARKS:
            mark, style, _ = _MARKS[chip.health]
            cell.append(f" {mark}", style=style)
        return cell.append("]")


class _ChipLines:
    """Lines of chips in columns; where they are too long, each continues on further lines with half as many chips."""

    def __init__(self, lines: Sequence[tuple[str, Sequence[Text]]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._fitting(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._fitting(console, options))

    def _fitting(self, console: Console, options: ConsoleOptions) -> Table:
        longest = max((len(cells) for _, cells in self._lines), default=1)
        grid = self._grid(longest)
        while longest > 1 and full_width(console, options, grid) > options.max_width:
            longest = (longest + 1) // 2
            grid = self._grid(longest)
        return grid

    def _grid(self, longest: int) -> Table:
        grid = Table.grid(padding=(0, 1))
        for _ in range(1 + longest):
            grid.add_column(no_wrap=True)
        for name, cells in self._lines:
            for first in range(0, len(cells), longest):
                grid.add_row(Text("" if first else name, style="dim"), *cells[first : first + longest])
        return grid


def _number(chip: ChipView) -> str:
    return chip.name.removeprefix(NAME_PREFIX)


def _lines(view: NodeView) -> Iterator[tuple[str, Sequence[ChipView]]]:
    if not view.group:
        for first in range(0, len(view.chips), _IN_LINE):
            yield "", view.chips[first : first + _IN_LINE]
        return
    for number, linked in view.groups.items():
        yield f"{view.group} {number}", linked
