"""The options of ``npuctl topo``: which nodes are shown, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class View(StrEnum):
    """How nodes are laid out: a line per chip group, per node, or per product."""

    AUTO = "auto"
    MAP = "map"
    NODES = "nodes"
    PRODUCTS = "products"


class Sort(StrEnum):
    """The order of nodes: by name, or those with the most free or unhealthy chips first."""

    NAME = "name"
    FREE = "free"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which nodes are shown, and how.

    Attributes:
        nodes: the names of the nodes; all if empty.
        selector: a label selector of nodes; empty for all.
        unhealthy: only nodes with unhealthy chips, or that can't be used.
        sort: their order.
        view: their layout.
    """

    nodes: Sequence[str] = ()
    selector: str = ""
    unhealthy: bool = False
    sort: Sort = Sort.NAME
    view: View = View.AUTO
