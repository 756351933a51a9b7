"""The leaf switches as the allocator sees them: their free servers, and the jobs that span them."""

from dataclasses import dataclass

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from allocator.settings import Settings
from allocator.state.switches import SwitchUse
from ascend.errors import InvalidValue
from ascend.grammar import count, some
from npuctl.offline_allocator import OfflineAllocator
from npuctl.output import FittingTable
from npuctl.reading.objects import ClusterObjects
from npuctl.topo.nodes import node_views


@dataclass(frozen=True, slots=True)
class LeafSwitchView:
    """A leaf switch.

    Attributes:
        switch: its number.
        address: its IP address.
        nodes: the names of the nodes below it, by slot.
        free: the names of those all of whose chips are free.
        use: ``free``, ``shared`` or ``exclusive``; how jobs that span switches use it, by version 2.
        healthy: whether no job on it shares more switches than it should.
        jobs: the jobs that span it and other switches.
    """

    switch: int
    address: str
    nodes: tuple[str, ...]
    free: tuple[str, ...]
    use: str
    healthy: bool
    jobs: tuple[str, ...]


class SwitchViews(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/switches/v1"):
    """The leaf switches of a cluster.

    Attributes:
        switches: the switches by number.
        problems: what the allocator leaves out of their table, a sentence each.
        unknown: the addresses of the servers in it that are the InternalIP of no node.
        outside: the names of the nodes with chips that are below no switch.
        rule: by which rule jobs are placed: ``1.0`` or ``2.0``, or ``single_layer``.
    """

    switches: tuple[LeafSwitchView, ...]
    problems: tuple[str, ...]
    unknown: tuple[str, ...]
    outside: tuple[str, ...]
    rule: str


def switch_views(objects: ClusterObjects, settings: Settings, now_ns: int) -> SwitchViews:
    """Return the leaf switches of a cluster, as an allocator sees them at a time in Unix nanoseconds.

    Raises:
        InvalidValue: they are unknown.
    """
    cluster = OfflineAllocator(objects, settings, now_ns).cluster
    table = cluster.switches.table
    if isinstance(table, str):
        raise InvalidValue(f"the leaf switches are unknown: {table}")
    below: dict[int, list[tuple[int, str]]] = {switch: [] for switch in table.switches}
    for name in cluster.nodes:
        if (spot := cluster.index.topology.location(name).spot) is not None:
            below[spot.switch].append((spot.slot, name))
    nodes = node_views(objects, settings, now_ns)
    free = {view.node for view in nodes if view.reason is None and view.chips and view.free == len(view.chips)}
    uses, spanning = cluster.switches.uses(), cluster.switches.spanning()
    views = []
    for switch, address in sorted(table.switches.items()):
        names = tuple(name for _, name in sorted(below[switch]))
        jobs = tuple(sorted(str(key) for key, job in spanning.items() if switch in job.states))
        state = uses.get(switch, SwitchUse()).state
        free_names = tuple(name for name in names if name in free)
        views.append(LeafSwitchView(switch, address, names, free_names, state.use.name.lower(), state.is_healthy, jobs))
    known = {record.node.internal_ip for record in cluster.nodes.values() if record.node is not None}
    unknown = tuple(address for address in table.servers if address not in known)
    location = cluster.index.topology.location
    outside = tuple(view.node for view in nodes if location(view.node).spot is None)
    rule = "single_layer" if table.is_single_layer else settings.nslb_version
    return SwitchViews(tuple(views), tuple(table.problems), unknown, outside, rule)


def switch_table(views: SwitchViews) -> RenderableType:
    """Lay out a line per switch, and one for each problem."""
    numbers = ("NODES", "FREE")
    table = FittingTable(("SWITCH", "ADDRESS", *numbers, "USE", "JOBS"), numeric=numbers, drop=("ADDRESS", "USE"))
    for view in views.switches:
        use = view.use if view.healthy else f"{view.use}, unhealthy"
        table.add_row(
            str(view.switch),
            view.address or "-",
            str(len(view.nodes)),
            str(len(view.free)),
            Text(use, style="" if view.healthy else "yellow"),
            some(view.jobs) if view.jobs else "-",
        )
    rule = "there is a single layer of switches" if views.rule == "single_layer" else f"by version {views.rule}"
    legend = f"FREE: nodes all of whose chips are free; JOBS: those that span this switch and others; {rule}"
    lines = list(views.problems)
    if views.unknown:
        lines.append(f"{count(len(views.unknown), 'server')} of the table: no node's InternalIP: {some(views.unknown)}")
    if views.outside:
        lines.append(f"{count(len(views.outside), 'node')} with chips below no switch: {some(views.outside)}")
    return Stack(table, Text(legend, style="dim"), *(Text(line, style="yellow") for line in lines))
