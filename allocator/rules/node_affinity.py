"""Whether a node satisfies the required node affinity of a pod. No I/O.

See k8s.io/component-helpers/scheduling/corev1/nodeaffinity: terms are alternatives, the requirements of a term hold
together, and a term without requirements admits no node.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

_NAME: Final = "metadata.name"
"""The only field that requirements may name."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class _Requirement(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def admits(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
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


class _Term(msgspec.Struct, rename="camel", frozen=True):
    match_expressions: tuple[_Requirement, ...] = ()
    match_fields: tuple[_Requirement, ...] = ()

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {_NAME: name}
        return all(expression.admits(labels) for expression in self.match_expressions) and all(
            field.admits(fields) for field in self.match_fields
        )


class _Selector(msgspec.Struct, rename="camel", frozen=True):
    node_selector_terms: tuple[_Term, ...] = ()


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
    terms = _terms(affinity) if affinity is not None else None
    return terms is None or any(term.admits(name, labels) for term in terms)


@lru_cache(maxsize=256)
def _terms(affinity: str) -> tuple[_Term, ...] | None:
    try:
        nodes = msgspec.json.decode(affinity, type=_Affinity).node_affinity
    except msgspec.DecodeError:
        return None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes is not None else None
    return None if required is None else required.node_selector_terms
