"""The options of ``npuctl topo``: which nodes are shown, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

View: TypeAlias = Literal["auto", "map", "nodes", "products"]
"""How nodes are laid out: a line per chip group, per node, or per product."""

By: TypeAlias = Literal["node", "switch"]
"""What is listed: nodes, or the leaf switches above them."""

Sort: TypeAlias = Literal["name", "free", "unhealthy"]
"""The order of nodes: by name, or those with the most free or unhealthy chips first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which nodes are shown, and how.

    Attributes:
        nodes: the names of the nodes; all if empty.
        selector: a label selector of nodes; empty for all.
        unhealthy: only nodes with unhealthy chips, or that can't be used.
        sort: their order.
        view: their layout.
        by: what is listed.
    """

    nodes: Sequence[str] = ()
    selector: str = ""
    unhealthy: bool = False
    sort: Sort = "name"
    view: View = "auto"
    by: By = "node"
