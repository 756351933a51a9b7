"""Lays out many nodes: a line per node, or a line per product."""

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from ascend.grammar import count
from npuctl.output import FittingTable, NodeRefusal, group
from npuctl.topo.chip_map import totals
from npuctl.topo.nodes import NodeView


def node_table(views: Sequence[NodeView]) -> RenderableType:
    """Lay out a line per node."""
    numbers = ("FREE", "CHIPS", "UNHEALTHY", "LARGEST")
    drop = ("LARGEST", "PRODUCT", "CHIPS", "UNHEALTHY")
    table = FittingTable(("NODE", "PRODUCT", *numbers, "STATUS"), numeric=numbers, drop=drop)
    for view in views:
        table.add_row(
            view.node,
            view.product or "-",
            str(view.free),
            str(len(view.chips)),
            str(view.unhealthy),
            str(view.largest or "-"),
            Text("ok") if view.reason is None else Text(view.reason, style="red"),
        )
    return Stack(table, totals(views, marks=False), Text("LARGEST: free chips in one ring or mesh", style="dim"))


def product_table(views: Sequence[NodeView]) -> RenderableType:
    """Lay out a line per product, and the unusable nodes by reason. Chips of unusable nodes are not free."""
    numbers = ("NODES", "USABLE", "EMPTY", "CHIPS", "FREE", "UNHEALTHY", "LARGEST")
    table = FittingTable(("PRODUCT", *numbers), numeric=numbers, drop=("LARGEST", "CHIPS", "EMPTY", "UNHEALTHY"))
    for product in sorted({view.product for view in views}):
        nodes = [view for view in views if view.product == product]
        usable = [view for view in nodes if view.reason is None]
        table.add_row(
            product or "-",
            str(len(nodes)),
            str(len(usable)),
            str(sum(view.free == len(view.chips) for view in usable)),
            str(sum(len(view.chips) for view in nodes)),
            str(sum(view.free for view in usable)),
            str(sum(view.unhealthy for view in nodes)),
            str(max((view.largest or 0 for view in usable), default=0) or "-"),
        )
    lines: list[RenderableType] = [table]
    unusable = {view.node: NodeRefusal(view.reason, view.message or "") for view in views if view.reason is not None}
    lines += [Text(f"{count(len(each.nodes), 'node')} {each.reason}: {each.names()}") for each in group(unusable)]
    lines.append(totals(views, marks=False))
    lines.append(Text("EMPTY: all chips are free; LARGEST: free chips in one ring or mesh of a node", style="dim"))
    return Stack(*lines)
