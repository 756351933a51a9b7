"""Nodes that refuse a pod, grouped by the reason."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from allocator.rules.summary import example
from ascend.errors import Refusal
from ascend.grammar import some
from ascend.reasons import Reason


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why a node refuses a pod."""

    reason: Reason
    message: str


class Group(msgspec.Struct, frozen=True):
    """Nodes that refuse for the same reason; if their messages differ, an example with the node's name."""

    reason: Reason
    message: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.reason}: {self.message}"

    def names(self) -> str:
        """The names of the first few nodes, and the number of the others."""
        return some(self.nodes)


def as_values(refusals: Mapping[str, Refusal]) -> dict[str, NodeRefusal]:
    """Return refusals by node as plain values, ordered by node."""
    return {node: NodeRefusal(refusal.reason, refusal.message) for node, refusal in sorted(refusals.items())}


def group(refusals: Mapping[str, NodeRefusal]) -> tuple[Group, ...]:
    """Group nodes by the reason of their refusal, the most frequent reason first."""
    alike: dict[NodeRefusal, list[str]] = {}
    for node, refusal in refusals.items():
        alike.setdefault(refusal, []).append(node)
    return group_alike(alike.items())


def group_alike(said: Iterable[tuple[NodeRefusal, Sequence[str]]]) -> tuple[Group, ...]:
    """The same, for nodes by sentence."""
    by_reason: dict[Reason, dict[str, Sequence[str]]] = {}
    for refusal, nodes in said:
        by_reason.setdefault(refusal.reason, {})[refusal.message] = nodes
    groups = [
        Group(reason, _message(sentences), tuple(sorted(chain.from_iterable(sentences.values()))))
        for reason, sentences in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.reason)))


def _message(sentences: Mapping[str, Sequence[str]]) -> str:
    """The sentence of several nodes; if their sentences differ, an example with the node's name."""
    first_nodes = {min(nodes): sentence for sentence, nodes in sentences.items()}
    first = example(dict(sorted(first_nodes.items())))
    message = first_nodes[first]
    return message if len(sentences) == 1 or first in message else f"{first}, for example: {message}"
