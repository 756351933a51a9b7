"""Lays out the chips of nodes: panels side by side, a line per group of linked chips."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.grammar import count
from ascend.reasons import Reason
from ascend.vnpus import device_type
from npuctl.output import Filling
from npuctl.topo.nodes import ChipView, NodeView, VnpuView
from npuctl.topo.summary import Totals, fault_lines

# Pods are distinguished by colour; which pod has which colour does not matter.
COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_blue", "bright_magenta")

_IN_LINE: Final = 8
"""Chips per line if they are not in groups."""

_FRAME: Final = 6
"""Columns of a panel around its title."""

MARKS: Final = {
    "unhealthy": ("✗", "bold red", "unhealthy"),
    "separated": ("⊘", "bold red", "separated: removed from use"),
    "separating": ("⊖", "bold yellow", "separating: only for the pod that holds it"),
    "recovering": ("↻", "bold yellow", "being reset"),
    "network-unhealthy": ("≁", "bold yellow", "network unhealthy: not for distributed jobs"),
}
"""By health: the mark of a chip, its style, and what it means."""


def node_map(views: Sequence[NodeView]) -> RenderableType:
    """Lay out nodes side by side; a chip shows its number and its holder."""
    pods = sorted(
        {holder for view in views for chip in view.chips for device in chip.devices for holder in device.holders}
    )
    colours = {pod: COLOURS[number % len(COLOURS)] for number, pod in enumerate(pods)}
    panels = [_NodePanel(view, colours) for view in views]
    totals = Text("; ".join([str(Totals.of(views)), *_marks(views)]))
    return Group(Filling(Columns(panels)), totals, *fault_lines(views))


def _marks(views: Sequence[NodeView]) -> list[str]:
    """What the marks of their chips mean."""
    seen = {chip.health for view in views for chip in view.chips}
    return [f"{mark} {meaning}" for health, (mark, _, meaning) in MARKS.items() if health in seen]


class _NodePanel:
    """The panel of a node, as wide as it needs to be."""

    def __init__(self, view: NodeView, colours: dict[str, str]) -> None:
        self._view = view
        self._colours = colours

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._panel(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._panel(options))

    def _panel(self, options: ConsoleOptions) -> Panel:
        view = self._view
        title = Text.assemble((view.node, "bold"), "  ", self._facts())
        body: list[RenderableType] = []
        if title.cell_len + _FRAME > options.max_width:
            title, body = Text(view.node, style="bold"), [self._facts()]
        body.append(_ChipLines([(name, [self._cell(run) for run in _runs(chips)]) for name, chips in _lines(view)]))
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
            Text(f"{device.name} is held by {' and '.join(device.holders)}", style="red")
            for chip in view.chips
            for device in chip.devices
            if len(device.holders) > 1
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
        return Panel(Group(*body), title=title, title_align="left", expand=False)

    def _facts(self) -> Text:
        view = self._view
        facts = Text(f"{view.product}  {view.free} of {len(view.chips)} free")
        if view.vnpus:
            facts.append(f", {view.free_vnpus} of {count(view.vnpus, 'vNPU')}")
        if view.free_cores is not None:
            facts.append(f", {count(view.free_cores, 'AI core')}")
        return facts.append("  ").append(f"{view.unhealthy} unhealthy", style="red") if view.unhealthy else facts

    def _cell(self, run: Sequence[ChipView]) -> Text:
        """Chips that look alike: their numbers, and the pod that holds them."""
        chip, number = run[0], _number(run[0])
        number = number if len(run) == 1 else f"{number}-{_number(run[-1])}"
        if (chip.vnpus or chip.slices) and not chip.holders:
            cell = Text(f"[{number} cut", style="dim")
            return self._mark(cell, chip)
        if len(chip.holders) > 1:
            return Text(f"[{number} CONFLICT]", style="bold white on red")
        label = chip.holders[0].removeprefix("default/") if chip.holders else "·" if chip.healthy else ""
        cell = Text(f"[{number} {label}".rstrip(), style=self._colours[chip.holders[0]] if chip.holders else "dim")
        return self._mark(cell, chip)

    def _part(self, part: VnpuView) -> Text:
        """A vNPU: size, vdev id and holder."""
        name = f"{part.size}-{part.vdev_id}"
        if len(part.holders) > 1:
            return Text(f"[{name} CONFLICT]", style="bold white on red")
        label = part.holders[0].removeprefix("default/") if part.holders else "?" if part.unknown else "·"
        return Text(f"[{name} {label}]", style=self._colours[part.holders[0]] if part.holders else "dim")

    def _slices(self, chip: ChipView) -> list[Text]:
        """The vNPUs that were cut for pods, and what is left."""
        cells = [
            Text(f"[{part.template} {part.holders[0].removeprefix('default/')}]", style=self._colours[part.holders[0]])
            for part in chip.slices
        ]
        left = f"{count(chip.free_cores or 0, 'core')} free"
        return [*cells, Text(f"[{left}]", style="dim")]

    @staticmethod
    def _mark(cell: Text, chip: ChipView) -> Text:
        if chip.health in MARKS:
            mark, style, _ = MARKS[chip.health]
            cell.append(f" {mark}", style=style)
        return cell.append("]")


class _ChipLines:
    """Lines of chips; where they are too long, each continues below, but no chip is broken."""

    def __init__(self, lines: Sequence[tuple[str, Sequence[Text]]]) -> None:
        self._lines = lines
        self._indent = max((len(name) + 1 for name, _ in lines if name), default=0)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        for name, cells in self._lines:
            line = Text(name.ljust(self._indent), style="dim", no_wrap=True)
            for cell in cells:
                if line.cell_len > self._indent and line.cell_len + cell.cell_len > options.max_width:
                    line.rstrip()
                    yield line
                    line = Text(" " * self._indent, no_wrap=True)
                line.append_text(cell).append(" ")
            line.rstrip()
            yield line

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((sum(cell.cell_len + 1 for cell in cells) - 1 for _, cells in self._lines), default=0)
        width = min(self._indent + longest, options.max_width)
        return Measurement(width, width)


def _runs(chips: Sequence[ChipView]) -> Iterator[Sequence[ChipView]]:
    """Chips next to each other that look alike."""
    for _, run in groupby(chips, lambda chip: (chip.health, chip.holders, bool(chip.vnpus or chip.slices))):
        yield list(run)


def _number(chip: ChipView) -> str:
    return chip.name.removeprefix(NAME_PREFIX)


def _lines(view: NodeView) -> Iterator[tuple[str, Sequence[ChipView]]]:
    if not view.group:
        for first in range(0, len(view.chips), _IN_LINE):
            yield "", view.chips[first : first + _IN_LINE]
        return
    for number, linked in view.groups.items():
        yield f"{view.group} {number}", linked
