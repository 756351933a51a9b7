"""Reads Kubernetes objects from files: YAML or JSON, as ``kubectl get -o …`` prints them or as people write them.

What the API server would make of a manifest is made here too: null counts as absent, a quantity may be a number, a
missing namespace is ``default``. Objects of kinds nobody here reads are counted and left alone.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

from allocator.groups import KINDS
from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, KubeObject, PodGroup, Resource, T
from npuctl.snapshot import Snapshot

STDIN = "-"

_Json: TypeAlias = dict[str, Any]

_CORE = "v1"
_KINDS: dict[tuple[str, str], Resource[Any]] = {
    ("Node", _CORE): NODES,
    ("Pod", _CORE): PODS,
    ("ConfigMap", _CORE): CONFIG_MAPS,
    **{("PodGroup", resource.prefix.removeprefix("apis/")): resource for resource in KINDS.values()},
}

_QUANTITIES = frozenset({"limits", "requests", "allocatable", "capacity"})
_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
_TIMES = ("creationTimestamp", "deletionTimestamp")

_PLACE = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$\.?(?P<field>.*)`$", re.DOTALL)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C where it was built in
    """YAML as Kubernetes reads it: a time is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where an object stands: for errors."""

    file: str
    document: int
    item: int | None = None
    kind: str = ""
    key: str = ""

    def error(self, field_path: str, what: str) -> InvalidValue:
        """What is wrong with a field."""
        item = "" if self.item is None else f" items[{self.item}]"
        named = " ".join(filter(None, (self.kind, self.key)))
        return InvalidValue(
            f"{self.file}: document {self.document}{item}{f' ({named})' if named else ''}: {field_path}: {what}"
        )


@dataclass(slots=True)
class Reading:
    """What was read.

    Attributes:
        snapshot: the objects; of two of one name the later counts.
        ignored: how many objects were of which other kind.
    """

    snapshot: Snapshot
    ignored: Counter[str] = field(default_factory=Counter)


def read_manifests(files: Iterable[str]) -> Reading:
    """Read files, one after another; ``-`` is standard input.

    Raises:
        InvalidValue: something can't be used; the message has file, document number and field.
    """
    ignored: Counter[str] = Counter()
    # By kind and name: files may overlap.
    found: dict[tuple[str, str], KubeObject] = {}
    owners: dict[tuple[str, str], str] = {}
    for file in files:
        for number, document in enumerate(_documents(file), start=1):
            for origin, manifest in _objects(_Origin(file, number), document):
                kind = _kind(origin, manifest)
                if kind is None:
                    ignored[origin.kind] += 1
                else:
                    read = _convert(origin, manifest, kind)
                    # Who holds which chips is kept by uid: of two pods with one, the other's chips would count as free.
                    owner = owners.setdefault((kind.path(), read.uid), read.key)
                    if owner != read.key:
                        raise origin.error("metadata.uid", f"{read.uid!r} is that of {origin.kind} {owner}")
                    found[kind.path(), read.key] = read
    groups: dict[str, list[PodGroup]] = {}
    for group, resource in KINDS.items():
        some = [each for (path, _), each in found.items() if path == resource.path() and isinstance(each, PodGroup)]
        groups |= {group: some} if some else {}
    return Reading(Snapshot.of(found.values(), groups), ignored)


def _documents(file: str) -> Iterator[object]:
    name = "standard input" if file == STDIN else file
    try:
        text = sys.stdin.buffer.read().decode() if file == STDIN else Path(file).read_bytes().decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue(f"{name}: it can't be read: {reason}") from error
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        # JSON is YAML too, but what a large cluster prints would take minutes to read as that.
        try:
            yield from list(_json_documents(text))
        except UNREADABLE as error:
            if file.endswith(".json"):
                raise InvalidValue(f"{name}: it is no JSON: {error}") from error
        else:
            return
    number = 0
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            number += 1
            yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InvalidValue(f"{name}: document {number + 1}: it is no YAML: {error.problem}{place}") from error
    except (*UNREADABLE, yaml.YAMLError) as error:
        raise InvalidValue(f"{name}: document {number + 1}: it is no YAML: {error}") from error


def _json_documents(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        yield document


def _objects(origin: _Origin, document: object) -> Iterator[tuple[_Origin, _Json]]:
    if document is None:  # nothing between two lines of dashes
        return
    manifest = _mapping(origin, document, "the document")
    kind = manifest.get("kind")
    if not isinstance(kind, str) or not kind:
        raise origin.error("kind", "it is missing" if kind is None else f"{kind!r} is no kind")
    if not kind.endswith("List") or "items" not in manifest:
        yield _named(origin, manifest, kind), manifest
        return
    items = manifest["items"] or []
    if not isinstance(items, list):
        raise origin.error("items", f"a list is expected, not {type(items).__name__}")
    for number, item in enumerate(items):
        place = _Origin(origin.file, origin.document, number)
        each = _mapping(place, item, "the item")
        # The API server's own lists (NodeList …) leave out of their items what the list says.
        each = {"kind": kind.removesuffix("List"), "apiVersion": manifest.get("apiVersion"), **each}
        if not isinstance(each["kind"], str) or not each["kind"]:
            raise place.error("kind", "it is missing")
        yield _named(place, each, each["kind"]), each


def _mapping(origin: _Origin, value: object, what: str) -> _Json:
    if not isinstance(value, dict):
        raise origin.error(what, f"an object is expected, not {type(value).__name__}")
    return value


def _named(origin: _Origin, manifest: _Json, kind: str) -> _Origin:
    metadata = manifest.get("metadata")
    name = namespace = None
    if isinstance(metadata, dict):
        name, namespace = metadata.get("name"), metadata.get("namespace")
    key = "/".join(str(each) for each in (namespace, name) if each)
    return _Origin(origin.file, origin.document, origin.item, kind, key)


def _kind(origin: _Origin, manifest: _Json) -> Resource[Any] | None:
    version = manifest.get("apiVersion") or _CORE
    if not isinstance(version, str):
        raise origin.error("apiVersion", f"{version!r} is no version")
    return _KINDS.get((origin.kind, version))


def _convert(origin: _Origin, manifest: _Json, resource: Resource[T]) -> T:
    metadata = _mapping(origin, manifest.get("metadata") or {}, "metadata")
    if not metadata.get("name"):
        raise origin.error("metadata.name", "it is missing")
    completed = dict(metadata)
    if resource.namespaced:
        completed["namespace"] = metadata.get("namespace") or "default"
    else:
        completed.pop("namespace", None)
    for name in _TIMES:
        _check_time(origin, f"metadata.{name}", completed.get(name))
    # Chips are kept by uid, and what nobody has submitted yet has none.
    completed["uid"] = metadata.get("uid") or f"{completed.get('namespace', '')}/{metadata['name']}"
    clean = _clean(origin, {**manifest, "metadata": completed}, "")
    try:
        return msgspec.convert(clean, resource.type)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        if found is None:
            raise origin.error("the object", str(error)) from error
        raise origin.error(found["field"] or "the object", found["what"]) from error


def _check_time(origin: _Origin, field_path: str, value: object) -> None:
    if value is None:
        return
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise origin.error(field_path, f"{value!r} is no RFC 3339 time, such as 2026-01-31T12:00:00Z")


def _clean(origin: _Origin, value: Any, path: str) -> Any:
    """Without nulls, and with quantities as text."""
    if isinstance(value, list):
        return [_clean(origin, each, f"{path}[{number}]") for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    prefix = f"{path}." if path else ""
    return {
        key: _quantities(origin, each, f"{prefix}{key}")
        if key in _QUANTITIES and isinstance(each, dict)
        else _clean(origin, each, f"{prefix}{key}")
        for key, each in value.items()
        if each is not None
    }


def _quantities(origin: _Origin, quantities: _Json, path: str) -> _Json:
    clean = {}
    for resource, quantity in quantities.items():
        if quantity is None:
            continue
        text = str(quantity) if isinstance(quantity, int | float | str) and not isinstance(quantity, bool) else ""
        if not _QUANTITY.fullmatch(text):
            raise origin.error(f'{path}["{resource}"]', f"{quantity!r} is no quantity")
        clean[resource] = text
    return clean
