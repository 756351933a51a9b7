"""Lays out the chips of nodes: a panel per node, a line per group of linked chips."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.grammar import count
from npuctl.topo.nodes import ChipView, NodeView

# Pods are told apart by colour; which pod has which colour does not matter.
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_blue", "bright_magenta")

_IN_LINE: Final = 8
"""Chips per line if they are not in groups."""

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
    return Group(*(_panel(view, colours) for view in views), _totals(views))


def _totals(views: Sequence[NodeView]) -> Text:
    chips = [chip for view in views for chip in view.chips]
    unusable = sum(view.reason is not None for view in views)
    free = sum(_is_free(chip) for view in views if view.reason is None for chip in view.chips)
    parts = [count(len(views), "node"), f"{free} of {count(len(chips), 'chip')} free"]
    unhealthy = sum(not chip.healthy for chip in chips)
    parts += [f"{unhealthy} unhealthy"] if unhealthy else []
    parts += [f"{count(unusable, 'node')} not used"] if unusable else []
    seen = {chip.health for chip in chips}
    legend = [f"{mark} {_MEANINGS[health]}" for health, (mark, _) in _MARKS.items() if health in seen]
    return Text("; ".join([", ".join(parts), *legend]))


def _is_free(chip: ChipView) -> bool:
    return chip.healthy and not chip.holders


def _panel(view: NodeView, colours: dict[str, str]) -> Panel:
    free = sum(_is_free(chip) for chip in view.chips)
    unhealthy = sum(not chip.healthy for chip in view.chips)
    title = Text.assemble((view.node, "bold"), f"  {view.product}  {free} of {len(view.chips)} free")
    if unhealthy:
        title.append("  ").append(f"{unhealthy} unhealthy", style="red")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    for name, chips in _lines(view):
        table.add_row(Text(name, style="dim"), *(_cell(chip, colours) for chip in chips))
    lines: list[RenderableType] = [table]
    lines += [
        Text(f"{chip.name} {chip.health}: {', '.join(chip.faults)}", style="dim") for chip in view.chips if chip.faults
    ]
    if view.reason is not None:
        lines.append(Text(f"not used: {view.message} ({view.reason})", style="red"))
    return Panel(Group(*lines), title=title, title_align="left", expand=False)


def _lines(view: NodeView) -> Iterator[tuple[str, Sequence[ChipView]]]:
    if not view.group:
        for first in range(0, len(view.chips), _IN_LINE):
            yield "", view.chips[first : first + _IN_LINE]
        return
    rings: dict[int, list[ChipView]] = {}
    for chip in view.chips:
        rings.setdefault(chip.ring, []).append(chip)
    for ring, linked in sorted(rings.items()):
        yield f"{view.group} {ring}", linked


def _cell(chip: ChipView, colours: dict[str, str]) -> Text:
    number = chip.name.removeprefix(NAME_PREFIX)
    if len(chip.holders) > 1:
        return Text(f"[{number} CONFLICT {' '.join(chip.holders)}]", style="bold white on red")
    label = chip.holders[0].removeprefix("default/") if chip.holders else "·" if chip.healthy else ""
    cell = Text(f"[{number} {label}".rstrip(), style=colours[chip.holders[0]] if chip.holders else "dim")
    if chip.health in _MARKS:
        mark, style = _MARKS[chip.health]
        cell.append(f" {mark}", style=style)
    return cell.append("]")
