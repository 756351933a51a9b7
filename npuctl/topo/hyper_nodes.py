"""The HyperNodes of Volcano as the allocator sees them: their nodes, what is free, and the jobs within them."""

from collections import defaultdict
from dataclasses import dataclass

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from allocator.settings import Settings
from ascend.errors import InvalidValue
from ascend.grammar import count, some
from npuctl.offline_allocator import OfflineAllocator
from npuctl.output import FittingTable
from npuctl.reading.objects import ClusterObjects
from npuctl.topo.nodes import node_views


@dataclass(frozen=True, slots=True)
class HyperNodeView:
    """A HyperNode.

    Attributes:
        tier: its tier.
        name: its name.
        nodes: the names of its nodes with chips.
        free: the names of those all of whose chips are free.
        free_chips: the number of free chips of its nodes that can be used.
        jobs: the jobs whose pods it has all, and no HyperNode of a lower tier.
    """

    tier: int
    name: str
    nodes: tuple[str, ...]
    free: tuple[str, ...]
    free_chips: int
    jobs: tuple[str, ...]


class HyperNodeViews(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/hypernodes/v1"):
    """The HyperNodes of a cluster.

    Attributes:
        hyper_nodes: by tier and name, the lowest tier first.
        problems: what can't be read or is doubtful, a sentence each.
        outside: the names of the nodes with chips that are in none.
    """

    hyper_nodes: tuple[HyperNodeView, ...]
    problems: tuple[str, ...]
    outside: tuple[str, ...]


def hyper_node_views(objects: ClusterObjects, settings: Settings, now_ns: int) -> HyperNodeViews:
    """Read the HyperNodes.

    Raises:
        InvalidValue: there are none.
    """
    tree = OfflineAllocator(objects, settings, now_ns).cluster.hyper_nodes.tree()
    if not tree.tiers and not tree.problems:
        raise InvalidValue("there are no HyperNodes")
    nodes = {view.node: view for view in node_views(objects, settings, now_ns)}
    used: defaultdict[str, set[str]] = defaultdict(set)
    for view in nodes.values():
        for job in view.jobs.values():
            used[job].add(view.node)
    jobs: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for job, names in sorted(used.items()):
        if (within := tree.lowest(names)) is not None:
            jobs[within].append(job)
    usable = {name for name, view in nodes.items() if view.reason is None and view.chips}
    free = {name for name in usable if nodes[name].free == len(nodes[name].chips)}
    views = tuple(
        HyperNodeView(
            tier,
            name,
            tuple(sorted(nodes.keys() & members)),
            tuple(sorted(free & members)),
            sum(nodes[member].free for member in usable & members),
            tuple(jobs[tier, name]),
        )
        for tier, named in sorted(tree.tiers.items())
        for name, members in sorted(named.items())
    )
    inside = {name for view in views for name in view.nodes}
    return HyperNodeViews(views, tree.problems, tuple(sorted(nodes.keys() - inside)))


def hyper_node_table(views: HyperNodeViews) -> RenderableType:
    """Lay out a line per HyperNode, and one for each problem."""
    numbers = ("TIER", "NODES", "FREE", "CHIPS")
    table = FittingTable(("TIER", "HYPERNODE", "NODES", "FREE", "CHIPS", "JOBS"), numeric=numbers, drop=("CHIPS",))
    for view in views.hyper_nodes:
        sizes = (str(len(view.nodes)), str(len(view.free)), str(view.free_chips))
        table.add_row(str(view.tier), view.name, *sizes, some(view.jobs) if view.jobs else "-")
    legend = (
        "FREE: nodes all of whose chips are free; CHIPS: free ones; JOBS: those that are within it, and in no lower one"
    )
    lines = list(views.problems)
    if views.outside:
        lines.append(f"{count(len(views.outside), 'node')} with chips in no HyperNode: {some(views.outside)}")
    return Stack(table, Text(legend, style="dim"), *(Text(line, style="yellow") for line in lines))
