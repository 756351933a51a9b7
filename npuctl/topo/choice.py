"""The options of ``npuctl topo``: which nodes are shown, also by labels as kubectl selects them, and how."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ascend.errors import InvalidValue
from npuctl.topo.nodes import NodeView

View: TypeAlias = Literal["auto", "map", "wall", "nodes", "products"]
"""How nodes are laid out: a line per chip group, a glyph per chip, a line per node, or a line per product."""

By: TypeAlias = Literal["node", "switch", "hypernode"]
"""What is listed: nodes, the leaf switches above them, or the HyperNodes of Volcano that have them."""

Sort: TypeAlias = Literal["name", "free", "unhealthy", "fragmented"]
"""The order of nodes: by name; those with the most free or unhealthy chips first; those in part free first."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Which nodes are shown, and how.

    Attributes:
        nodes: the names of the nodes; all if empty.
        selector: a label selector of nodes; empty for all.
        unhealthy: only nodes with unhealthy chips, or that can't be used.
        sort: their order.
        view: their layout.
        by: what is listed.
        job: only nodes with chips of this job, ``NAME`` or ``NAMESPACE/NAME``; empty for all.
        namespace: only nodes with chips of pods in this namespace, or of the ``job`` there; None for all.
        product: only nodes of this product; empty for all.
        fault: only nodes with a chip that has this fault code; empty for all.
        free: only nodes that can be used and have at least so many free chips.
    """

    nodes: Sequence[str] = ()
    selector: str = ""
    unhealthy: bool = False
    sort: Sort = "name"
    view: View = "auto"
    by: By = "node"
    job: str = ""
    namespace: str | None = None
    product: str = ""
    fault: str = ""
    free: int = 0

    def shows(self, view: NodeView) -> bool:
        """Whether a node is shown, as far as names and labels don't decide."""
        if self.nodes and view.node not in self.nodes:
            return False
        if self.unhealthy and not view.unhealthy and view.reason is None:
            return False
        if self.free and (view.reason is not None or view.free < self.free):
            return False
        if self.product and view.product.lower() != self.product.lower():
            return False
        if self.fault and not any(self.fault.upper() == code.upper() for chip in view.chips for code in chip.faults):
            return False
        return self._has_pods(view)

    def _has_pods(self, view: NodeView) -> bool:
        if not self.job and self.namespace is None:
            return True
        jobs = {job.partition("/")[::2] for job in view.jobs.values()}
        space, slash, name = self.job.rpartition("/")
        wanted = space if slash else self.namespace
        return any((wanted is None or wanted == there) and (not name or name == job) for there, job in jobs)


Selector: TypeAlias = Callable[[Mapping[str, str]], bool]

_REQUIREMENTS_END: Final = re.compile(r",(?![^(]*\))")
_KEY: Final = r"(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)"
_VALUE: Final = r"(?P<value>[A-Za-z0-9._-]*)"
_EQUALITY: Final = re.compile(rf"{_KEY}\s*(?P<operator>==?|!=)\s*{_VALUE}")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[A-Za-z0-9._,\s-]+)\)")
_EXISTENCE: Final = re.compile(rf"(?P<operator>!?)\s*{_KEY}")


def parse_selector(text: str) -> Selector:
    """Return a predicate on labels. As in Kubernetes, ``!=`` and ``notin`` match objects without the label too.

    Raises:
        InvalidValue: it is not a label selector.
    """
    requirements = [_requirement(part.strip()) for part in _REQUIREMENTS_END.split(text)]
    return lambda labels: all(matches(labels) for matches in requirements)


def _requirement(text: str) -> Selector:
    if found := _EQUALITY.fullmatch(text):
        key, values, wanted = found["key"], {found["value"]}, found["operator"] != "!="
    elif found := _SET.fullmatch(text):
        key, wanted = found["key"], found["operator"] == "in"
        values = {value.strip() for value in found["values"].split(",")}
    elif found := _EXISTENCE.fullmatch(text):
        key, wanted = found["key"], not found["operator"]
        return lambda labels: (key in labels) == wanted
    else:
        raise InvalidValue(
            f"--selector: {text!r} is not a requirement like a=b, a!=b, a in (b,c), a notin (b,c), a or !a"
        )
    return lambda labels: (labels.get(key) in values) == wanted
