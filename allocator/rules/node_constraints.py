"""Whether kube-scheduler lets a pod on a node, by the pod's required node affinity and by the node's taints. No I/O.

See k8s.io/component-helpers/scheduling/corev1. In nodeaffinity terms are alternatives, the requirements of a term hold
together, and a term without requirements admits no node; for taints see FindMatchingUntoleratedTaint in helpers.go.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from ascend.kube.objects import Taint

_NAME: Final = "metadata.name"
"""The only field that requirements may name."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class Requirement(msgspec.Struct, frozen=True):
    """What a label, or a field, of a node has to be."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def admits(self, value: str | None) -> bool:
        """Whether a value is admitted; None for a node without the label."""
        match self.operator:
            case "In" | "NotIn":
                return (value in self.values) is (self.operator == "In")
            case "Exists" | "DoesNotExist":
                return (value is not None) is (self.operator == "Exists")
            case "Gt" | "Lt":
                numbers = [int(text) for text in (value or "", *self.values) if _INTEGER.fullmatch(text)]
                if len(numbers) != 2 or len(self.values) != 1:  # noqa: PLR2004 - the label's and the limit
                    return False
                return numbers[0] > numbers[1] if self.operator == "Gt" else numbers[0] < numbers[1]
        return False


class Term(msgspec.Struct, rename="camel", frozen=True):
    """Requirements that hold together."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node is admitted."""
        if not self.match_expressions and not self.match_fields:
            return False
        return all(label.admits(labels.get(label.key)) for label in self.match_expressions) and self.admits_name(name)

    def admits_name(self, name: str) -> bool:
        """Whether the requirements of fields admit a name."""
        return all(field.admits(name if field.key == _NAME else None) for field in self.match_fields)


class _Selector(msgspec.Struct, rename="camel", frozen=True):
    node_selector_terms: tuple[Term, ...] = ()


class _NodeAffinity(msgspec.Struct, rename="camel", frozen=True):
    required_during_scheduling_ignored_during_execution: _Selector | None = None


class _Affinity(msgspec.Struct, rename="camel", frozen=True):
    node_affinity: _NodeAffinity | None = None


def admits(affinity: str | None, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node satisfies the required node affinity of a pod.

    Args:
        affinity: that of the pod, JSON; other JSON than an affinity requires nothing here.
        name: the node's name.
        labels: the node's labels.
    """
    terms = required_terms(affinity)
    return terms is None or any(term.admits(name, labels) for term in terms)


def required_terms(affinity: str | None) -> tuple[Term, ...] | None:
    """The terms of the required node affinity of a pod, which are alternatives; None if it requires nothing."""
    return _terms(affinity) if affinity is not None else None


@lru_cache(maxsize=256)
def _terms(affinity: str) -> tuple[Term, ...] | None:
    try:
        nodes = msgspec.json.decode(affinity, type=_Affinity).node_affinity
    except msgspec.DecodeError:
        return None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes is not None else None
    return None if required is None else required.node_selector_terms


class _Toleration(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


def untolerated(taints: Iterable[Taint], tolerations: str | None) -> Taint | None:
    """The first taint that keeps a pod off a node, or evicts the pod; None if all are tolerated.

    Args:
        taints: those of the node.
        tolerations: those of the pod, JSON; other JSON than a list of tolerations tolerates nothing.
    """
    for taint in taints:
        repels = taint.effect in {"NoSchedule", "NoExecute"}
        if repels and not any(toleration.tolerates(taint) for toleration in _tolerations(tolerations or "[]")):
            return taint
    return None


@lru_cache(maxsize=256)
def _tolerations(tolerations: str) -> tuple[_Toleration, ...]:
    try:
        return msgspec.json.decode(tolerations, type=tuple[_Toleration, ...])
    except msgspec.DecodeError:
        return ()
