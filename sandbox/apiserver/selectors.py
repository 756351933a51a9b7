"""Label and field selectors, parsed as by the packages `labels` and `fields` of apimachinery."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.apiserver.resources import Json, ServedResource
from sandbox.apiserver.status import bad_request

Labels = dict[str, str]

_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_SET_OPERATORS = ("in", "notin")
_EXPECTED_OPERATORS = "in, notin, =, ==, !=, gt, lt"
_SYMBOLS = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">", ""})


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """A requirement of a label selector; `values` is empty for the operators `exists` and `absent`."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, labels: Labels) -> bool:
        """Whether labels meet the requirement; `!=` and `notin` also match if the key is absent."""
        value = labels.get(self.key)
        if self.operator == "exists":
            return value is not None
        if self.operator == "absent":
            return value is None
        if self.operator in {"gt", "lt"}:
            return self._compares(value)
        return (value in self.values) == (self.operator == "in")

    def _compares(self, value: str | None) -> bool:
        try:
            found, limit = int(value or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return found > limit if self.operator == "gt" else found < limit


class _Tokens:
    """The tokens of a selector, read from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self._next += 1
        return token

    def word(self) -> str:
        token = self.take()
        if token in _SYMBOLS:
            raise _unparsable(token, "identifier")
        return token


def _unparsable(found: str, expected: str) -> Exception:
    return bad_request(f"unable to parse requirement: found '{found}', expected: {expected}")


def _parse_requirement(tokens: _Tokens) -> LabelRequirement:
    if tokens.peek() == "!":
        tokens.take()
        return LabelRequirement(tokens.word(), "absent", frozenset())
    key = tokens.word()
    operator = tokens.peek()
    if operator in {"", ","}:
        return LabelRequirement(key, "exists", frozenset())
    tokens.take()
    if operator in _SET_OPERATORS:
        return LabelRequirement(key, operator, _parse_values(tokens))
    if operator in {"<", ">"}:
        return LabelRequirement(key, "gt" if operator == ">" else "lt", frozenset({tokens.word()}))
    if operator in {"=", "==", "!="}:
        value = "" if tokens.peek() in {"", ","} else tokens.word()
        return LabelRequirement(key, "notin" if operator == "!=" else "in", frozenset({value}))
    raise _unparsable(operator, _EXPECTED_OPERATORS)


def _parse_values(tokens: _Tokens) -> frozenset[str]:
    if tokens.take() != "(":
        raise _unparsable(tokens.peek(), "'('")
    values = {""} if tokens.peek() == ")" else set()
    while tokens.peek() != ")":
        values.add(tokens.word())
        if tokens.peek() not in {",", ")"}:
            raise _unparsable(tokens.peek(), "',' or ')'")
        if tokens.peek() == ",":
            tokens.take()
    tokens.take()
    return frozenset(values)


def parse_label_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Parse a label selector into its requirements, all of which must be met.

    Args:
        text: Such as `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

    Raises:
        StatusError: 400 with the API server's message.
    """
    tokens = _Tokens(text)
    requirements: list[LabelRequirement] = []
    while tokens.peek():
        requirements.append(_parse_requirement(tokens))
        if tokens.peek() and tokens.take() != ",":
            raise _unparsable(tokens.peek(), "',' or 'end of string'")
    return tuple(requirements)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """A requirement of a field selector: a field equals, or does not equal, a value."""

    field: str
    read: Callable[[Json], str]
    equals: bool
    value: str

    def matches(self, document: Json) -> bool:
        """Whether a stored object meets the requirement."""
        return (self.read(document) == self.value) == self.equals


def _read_name(document: Json) -> str:
    return str(document["metadata"].get("name", ""))


def _read_namespace(document: Json) -> str:
    return str(document["metadata"].get("namespace", ""))


def _unsupported_field(resource: ServedResource, field: str) -> Exception:
    if resource.selectable_fields:
        return bad_request(f"field label not supported: {field}")
    return bad_request(f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"')


def parse_field_selector(text: str, resource: ServedResource) -> tuple[FieldRequirement, ...]:
    """Parse a field selector into its requirements, all of which must be met.

    Args:
        text: Such as `metadata.name=a,spec.nodeName!=b`.
        resource: The kind, which defines the selectable fields.

    Raises:
        StatusError: 400 for a malformed requirement or a field that is not selectable.
    """
    readers = {"metadata.name": _read_name, "metadata.namespace": _read_namespace, **resource.selectable_fields}
    requirements: list[FieldRequirement] = []
    for term in filter(None, text.split(",")):
        found = re.fullmatch(r"(.*?)(==|!=|=)(.*)", term)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        field, operator, value = found.groups()
        if field not in readers:
            raise _unsupported_field(resource, field)
        requirements.append(FieldRequirement(field, readers[field], operator != "!=", value))
    return tuple(requirements)


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a list or watch: kind, namespace (empty for all), and selectors."""

    resource: ServedResource
    namespace: str = ""
    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def is_filtered(self) -> bool:
        """Whether a selector is set."""
        return bool(self.labels or self.fields)

    @property
    def node_name(self) -> str | None:
        """The only node whose pods can match; None for any. Lets the store skip the watchers of other nodes."""
        for requirement in self.fields:
            if requirement.field == "spec.nodeName" and requirement.equals:
                return requirement.value
        return None

    def matches(self, document: Json) -> bool:
        """Whether a stored object of the kind matches."""
        if self.namespace and document["metadata"].get("namespace") != self.namespace:
            return False
        if self.labels:
            labels = document["metadata"].get("labels") or {}
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        return all(requirement.matches(document) for requirement in self.fields)
