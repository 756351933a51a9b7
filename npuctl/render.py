"""Lays a cluster's chips out for eyes."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from npuctl.view import ChipView, NodeView

# Neighbouring pods are told apart by colour; which pod has which does not matter.
_COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_blue", "bright_magenta")


def node_map(views: Sequence[NodeView]) -> RenderableType:
    """A map of nodes, one line per ring; a chip shows its id and who holds it."""
    if not views:
        return Text("no NPU nodes")
    pods = sorted({holder for view in views for chip in view.chips for holder in chip.holders})
    colours = {pod: _COLOURS[number % len(_COLOURS)] for number, pod in enumerate(pods)}
    return Group(*(_panel(view, colours) for view in views))


def _panel(view: NodeView, colours: dict[str, str]) -> Panel:
    free = sum(chip.healthy and not chip.holders for chip in view.chips)
    unhealthy = sum(not chip.healthy for chip in view.chips)
    title = f"[bold]{view.node}[/]  {view.product}  {free} of {len(view.chips)} free"
    if unhealthy:
        title += f"  [red]{unhealthy} unhealthy[/]"
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    rings: dict[int, list[ChipView]] = {}
    for chip in view.chips:
        rings.setdefault(chip.ring, []).append(chip)
    for ring, chips in sorted(rings.items()):
        table.add_row(Text(f"ring {ring}", style="dim"), *(_cell(chip, colours) for chip in chips))
    body: RenderableType = table
    if view.reason is not None:
        body = Group(table, Text(f"not used: {view.message} ({view.reason})", style="red"))
    return Panel(body, title=title, title_align="left", expand=False)


def _cell(chip: ChipView, colours: dict[str, str]) -> Text:
    number = chip.name.removeprefix(NAME_PREFIX)
    if len(chip.holders) > 1:
        return Text(f"[{number} CONFLICT {' '.join(chip.holders)}]", style="bold white on red")
    label = chip.holders[0].removeprefix("default/") if chip.holders else "·" if chip.healthy else ""
    cell = Text(f"[{number} {label}".rstrip(), style=colours[chip.holders[0]] if chip.holders else "dim")
    if not chip.healthy:
        cell.append(" ✗", style="bold red")
    return cell.append("]")
