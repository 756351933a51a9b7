"""Sums over many nodes, and a line per node or per product."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from ascend.fault_codes import explained
from ascend.grammar import count, some
from npuctl.output import FittingTable
from npuctl.refusals import NodeRefusal, group
from npuctl.topo.nodes import NodeView


class Totals(msgspec.Struct, frozen=True):
    """Sums over nodes. Chips, vNPUs and AI cores of nodes that can't be used are not free.

    Attributes:
        product: the product of all of these nodes; empty if it is unknown, or for nodes of all products.
        nodes: the number of nodes.
        usable: how many of them can be used.
        empty: how many of these have only free chips.
        chips: the number of chips.
        free: how many are free.
        used: how many are held by pods, as a whole.
        unhealthy: how many can't be allocated because of their health.
        largest: the most free chips in one ring or mesh, or on a node whose chips are in none.
        vnpus: the number of vNPUs that were cut beforehand.
        free_vnpus: how many of them are free.
        free_cores: the number of free AI cores; None if no chips are cut while pods run.
    """

    product: str
    nodes: int
    usable: int
    empty: int
    chips: int
    free: int
    used: int
    unhealthy: int
    largest: int
    vnpus: int
    free_vnpus: int
    free_cores: int | None

    @classmethod
    def of(cls, views: Sequence[NodeView], product: str = "") -> "Totals":
        """The sums over these nodes."""
        usable = [view for view in views if view.reason is None]
        cores = [view.free_cores for view in usable if view.free_cores is not None]
        return cls(
            product,
            nodes=len(views),
            usable=len(usable),
            empty=sum(view.free == len(view.chips) for view in usable),
            chips=sum(len(view.chips) for view in views),
            free=sum(view.free for view in usable),
            used=sum(bool(chip.holders) for view in views for chip in view.chips),
            unhealthy=sum(view.unhealthy for view in views),
            largest=max((view.largest for view in usable), default=0),
            vnpus=sum(view.vnpus for view in views),
            free_vnpus=sum(view.free_vnpus for view in usable),
            free_cores=sum(cores) if cores else None,
        )

    def __str__(self) -> str:
        """Return one line."""
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield count(self.nodes, "node")
        yield f"{self.free} of {count(self.chips, 'chip')} free"
        if self.vnpus:
            yield f"{self.free_vnpus} of {count(self.vnpus, 'vNPU')} free"
        if self.free_cores is not None:
            yield f"{count(self.free_cores, 'AI core')} free"
        if self.unhealthy:
            yield f"{self.unhealthy} unhealthy"
        if self.usable < self.nodes:
            yield f"{count(self.nodes - self.usable, 'node')} not used"


def by_product(views: Sequence[NodeView]) -> tuple[Totals, ...]:
    """Return the sums over the nodes of each product."""
    products = sorted({view.product for view in views})
    return tuple(Totals.of([view for view in views if view.product == product], product) for product in products)


def node_table(views: Sequence[NodeView]) -> RenderableType:
    """Lay out a line per node."""
    numbers = ("FREE", "CHIPS", "UNHEALTHY", "LARGEST")
    drop = ("JOBS", "LARGEST", "PRODUCT", "CHIPS", "UNHEALTHY")
    table = FittingTable(("NODE", "PRODUCT", *numbers, "STATUS", "JOBS"), numeric=numbers, drop=drop)
    for view in views:
        jobs = list(dict.fromkeys(view.jobs.values()))
        table.add_row(
            view.node,
            view.product or "-",
            str(view.free),
            str(len(view.chips)),
            str(view.unhealthy),
            str(view.largest),
            _status(view),
            some(jobs) if jobs else "-",
        )
    legend = Text(f"LARGEST: {_LARGEST}", style="dim")
    return Stack(table, Text(str(Totals.of(views))), *fault_lines(views), legend)


def fault_lines(views: Sequence[NodeView]) -> list[Text]:
    """A line for each fault code and each cordon: the meaning, the chips, and the holders of the chips."""
    chips: dict[str, list[str]] = {}
    for view in views:
        for chip in view.chips:
            held = f" ({some(chip.holders)})" if chip.holders else ""
            for said in (*map(explained, chip.faults), *filter(None, (chip.cordon,))):
                chips.setdefault(said, []).append(f"{view.node}/{chip.name}{held}")
    return [Text(f"{said}: {some(names)}", style="red") for said, names in sorted(chips.items())]


_LARGEST = "the most free chips in one ring or mesh, or on a node whose chips are in none"


def _status(view: NodeView) -> Text:
    if view.reason is not None:
        return Text(view.reason, style="red")
    if view.unhealthy == len(view.chips):
        return Text("no healthy chip", style="red")
    return Text("ok")


def product_table(views: Sequence[NodeView]) -> RenderableType:
    """Lay out a line per product, and the unusable nodes by reason."""
    numbers = ("NODES", "USABLE", "EMPTY", "CHIPS", "FREE", "UNHEALTHY", "LARGEST")
    table = FittingTable(("PRODUCT", *numbers), numeric=numbers, drop=("LARGEST", "CHIPS", "EMPTY", "UNHEALTHY"))
    for totals in by_product(views):
        cells = (totals.nodes, totals.usable, totals.empty, totals.chips, totals.free, totals.unhealthy, totals.largest)
        table.add_row(totals.product or "-", *map(str, cells))
    lines: list[RenderableType] = [table]
    unusable = {view.node: NodeRefusal(view.reason, view.message or "") for view in views if view.reason is not None}
    lines += [
        Text(f"{count(len(refusing.nodes), 'node')} {refusing.reason}: {refusing.names()}")
        for refusing in group(unusable)
    ]
    lines.append(Text(str(Totals.of(views))))
    lines.append(Text(f"EMPTY: all chips are free; LARGEST: {_LARGEST}", style="dim"))
    return Stack(*lines)
