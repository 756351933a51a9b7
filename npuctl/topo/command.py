"""Carries out ``npuctl topo``: selects and sorts nodes, and chooses a view that fits the screen."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from ascend.errors import ApiError, InvalidValue, Unreachable
from ascend.grammar import count
from npuctl.output import Output, filled, make_console, print_table, show, warn
from npuctl.reading.source import Source, rfc3339
from npuctl.topo.chip_map import node_map
from npuctl.topo.choice import Sort, TopologyOptions, View, parse_selector
from npuctl.topo.hyper_nodes import hyper_node_table, hyper_node_views
from npuctl.topo.nodes import NodeView, node_views
from npuctl.topo.summary import Totals, by_product, node_table, product_table
from npuctl.topo.switches import switch_table, switch_views
from npuctl.topo.wall import Wall

WATCH_S: Final = 5.0
"""Seconds between two readings of a watched cluster."""

_PIPE_LINES: Final = 50
"""Lines of a screen if standard output is not a terminal."""

_PANEL_LINES: Final = 3
"""A node takes at least so many lines of the map."""

_PANEL_WIDTH: Final = 20
"""A node takes at least so many columns of the map."""


class TopologyAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/topo/v1"):
    """The answer for programs.

    Attributes:
        time: the time of the objects, RFC 3339.
        totals: sums over these nodes.
        products: the same by product.
        nodes: the nodes that were asked for, in the order that was asked for.
    """

    time: str
    totals: Totals
    products: tuple[Totals, ...]
    nodes: tuple[NodeView, ...]


_LAYOUTS: Final[dict[View, Callable[[Sequence[NodeView]], RenderableType]]] = {
    "map": node_map,
    "nodes": node_table,
    "products": product_table,
}

_ORDERS: Final[dict[Sort, Callable[[NodeView], object]]] = {
    "name": lambda view: view.node,
    "free": lambda view: (view.reason is not None, -view.free, view.node),
    "unhealthy": lambda view: (-view.unhealthy, view.reason is None, view.node),
    "fragmented": lambda view: (not view.is_broken_up, view.largest - view.free, -view.free, view.node),
}


async def run_topo(choice: TopologyOptions, source: Source, output: Output) -> int:
    """Print the nodes of a cluster.

    Raises:
        InvalidValue: one of the names is not an NPU node, or the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    if choice.by != "node":
        return await _show_groups(choice, source, output)
    views = await _read(choice, source)
    topology = TopologyAnswer(rfc3339(source.now_ns), Totals.of(views), by_product(views), tuple(views))
    show(topology, output, lambda: _lay_out(choice, views, make_console()))
    return 0


async def _show_groups(choice: TopologyOptions, source: Source, output: Output) -> int:
    if choice != TopologyOptions(by=choice.by):
        raise InvalidValue(
            f"--by {choice.by} shows all of the cluster: name no nodes, and select, sort or lay out nothing"
        )
    objects = await source.read()
    if choice.by == "switch":
        switches = switch_views(objects, source.settings, source.now_ns)
        show(switches, output, lambda: switch_table(switches))
    else:
        hyper_nodes = hyper_node_views(objects, source.settings, source.now_ns)
        show(hyper_nodes, output, lambda: hyper_node_table(hyper_nodes))
    return 0


async def watch_topo(choice: TopologyOptions, source: Source) -> None:
    """Show the nodes of a cluster, again and again, until cancelled.

    On a terminal they stay on one screen; otherwise they are printed when they have changed. While the API server does
    not answer, the last picture stays.

    Raises:
        InvalidValue: one of the names is not an NPU node, or the source is files.
        ApiError: the API server refused the first reading.
        Unreachable: the API server did not answer the first one.
    """
    if source.files:
        raise InvalidValue("--watch needs a cluster, not files")
    if choice.by != "node":
        raise InvalidValue(f"--watch shows nodes, and not --by {choice.by}")
    console = make_console()
    views, shown = await _read(choice, source), None
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        problem = ""
        while True:
            status = Text(f"{datetime.now().astimezone():%H:%M:%S}{problem}", style="dim")
            if console.is_terminal:
                live.update(Stack(_lay_out(choice, views, console), status), refresh=True)
            elif views != shown:
                print_table(console, Stack(_lay_out(choice, views, console), status))
            shown = views
            await asyncio.sleep(WATCH_S)
            try:
                views, problem = await _read(choice, source.at_present()), ""
            except (ApiError, Unreachable) as error:
                problem = f"  {error}"


async def _read(choice: TopologyOptions, source: Source) -> list[NodeView]:
    selects = parse_selector(choice.selector) if choice.selector else None
    objects = await source.read()
    views = node_views(objects, source.settings, source.now_ns)
    if absent := set(choice.nodes) - {node.name for node in objects.nodes}:
        raise InvalidValue(f"there is no node {', '.join(sorted(absent))}")
    if others := set(choice.nodes) - {view.node for view in views}:
        raise InvalidValue(f"not an NPU node: {', '.join(sorted(others))}")
    found = [view for view in views if choice.shows(view)]
    if selects is not None:
        selected = {node.name for node in objects.nodes if selects(node.metadata.labels)}
        found = [view for view in found if view.node in selected]
    if views and not found:
        warn(f"none of {count(len(views), 'NPU node')} is as the options say")
    return sorted(found, key=_ORDERS[choice.sort])  # type: ignore[arg-type]  # each order returns one comparable type


def _lay_out(choice: TopologyOptions, views: Sequence[NodeView], console: Console) -> RenderableType:
    if not views:
        return Text("no NPU nodes")
    lines = console.height - 1 if console.is_terminal else None
    view = choice.view if choice.view != "auto" or not choice.nodes else "map"
    if view == "wall":
        return Wall(views, filled(console), lines)
    if view != "auto":
        return _LAYOUTS[view](views)
    most = lines or _PIPE_LINES
    width = filled(console)
    if len(views) * _PANEL_LINES < most * max(width // _PANEL_WIDTH, 1):
        chips = node_map(views)
        if len(console.render_lines(chips, pad=False)) <= most:
            return chips
    if len(views) < most * width and (wall := Wall(views, width, most)).height <= most:
        return wall
    hint = "--view wall shows the chips of all nodes, --view map those of each, --view nodes has a line per node"
    return Stack(product_table(views), Text(hint, style="dim"))
