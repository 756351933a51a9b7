"""Reads Kubernetes objects from files: YAML or JSON, as ``kubectl get -o …`` prints them or as people write them.

What the API server would make of a manifest is made here too: null counts as absent, a quantity may be a number, one
of chips that is whole may be written in any way, a missing namespace is ``default``. Objects of kinds nobody here reads
are counted and left alone.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from allocator.watch.pod_groups import KINDS
from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import (
    BATCH_JOBS,
    CONFIG_MAPS,
    NODES,
    PODS,
    STATEFUL_SETS,
    KubeObject,
    PodGroup,
    Resource,
    T,
)
from npuctl.documents import read_documents
from npuctl.quantities import read_quantity
from npuctl.snapshot import Snapshot

_Json: TypeAlias = dict[str, Any]

_CORE = "v1"
_GROUP_VERSIONS = tuple(resource.prefix.removeprefix("apis/") for resource in KINDS.values())
_KINDS: dict[tuple[str, str], Resource[Any]] = {
    ("Node", _CORE): NODES,
    ("Pod", _CORE): PODS,
    ("ConfigMap", _CORE): CONFIG_MAPS,
    ("StatefulSet", "apps/v1"): STATEFUL_SETS,
    ("Job", "batch/v1"): BATCH_JOBS,
    **{("PodGroup", version): resource for version, resource in zip(_GROUP_VERSIONS, KINDS.values(), strict=True)},
}

_QUANTITIES = frozenset({"limits", "requests", "allocatable", "capacity"})
_TIMES = ("creationTimestamp", "deletionTimestamp")

_MOST_LEVELS = 100
"""Of objects and lists within each other. None of the kinds has a fifth of it; what contains itself has more."""

_LONGEST_NAME = 253
_MOST_BITS = 64
"""The API server takes none above."""

_MOST_TOLD = 300
"""Characters of a name or of a field's path in an error."""

_REPR = reprlib.Repr()
_REPR.maxstring = 100

_PLACE = re.compile(r"^(?P<what>.*) - at (?P<key>`key` in )?`\$\.?(?P<field>.*)`$", re.DOTALL)
_SOME_KEY = "[...]"
_STEP = re.compile(r"\[(?P<number>\d+)\]|(?P<name>[^.\[\]]+)")


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
            f"{self.file}: document {self.document}{item}{f' ({_clip(named)})' if named else ''}: "
            f"{_clip(field_path)}: {what}"
        )


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"


def _told(value: object) -> str:
    """A value for an error: in short, and however deep or large it is."""
    try:
        return _REPR.repr(value)
    except UNREADABLE:
        return f"this {type(value).__name__}"


@dataclass(slots=True)
class Reading:
    """What was read.

    Attributes:
        snapshot: the objects; of two of one name the later counts.
        ignored: how many objects were of which other kind.
        warnings: sentences on what was not read, but means that an answer may not be what was hoped for.
    """

    snapshot: Snapshot
    ignored: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def read_manifests(files: Iterable[str]) -> Reading:
    """Read files, one after another; ``-`` is standard input.

    All pod groups there are count as read, even where there are none: who names another one waits for it.

    Raises:
        InvalidValue: something can't be used; the message has file, document number and field.
    """
    ignored: Counter[str] = Counter()
    warnings: dict[str, str] = {}
    # By kind and name: files may overlap.
    found: dict[tuple[str, str], KubeObject] = {}
    owners: dict[str, str] = {}
    for file in files:
        for number, document in enumerate(read_documents(file), start=1):
            for origin, manifest in _objects(_Origin(file, number), document):
                kind = _kind(origin, manifest)
                if kind is None:
                    ignored[origin.kind] += 1
                    if origin.kind == "PodGroup":
                        version = _told(manifest.get("apiVersion") or _CORE)
                        told = f"nobody here knows {version}, but {' and '.join(_GROUP_VERSIONS)}"
                        # Once for each version: where there is one, there are many.
                        warnings.setdefault(
                            version, f"{origin.error('apiVersion', told)}; its pods count as without their group"
                        )
                else:
                    try:
                        read = _convert(origin, manifest, kind)
                    except UNREADABLE as error:
                        raise origin.error("the object", str(error)) from error
                    # Who holds which chips is kept by uid: of two pods with one, the other's chips would count as free.
                    owner = owners.setdefault(read.uid, read.key)
                    if owner != read.key:
                        raise origin.error("metadata.uid", f"{_told(read.uid)} is that of {owner} already")
                    found[kind.path(), read.key] = read
    groups = {
        group: [each for (path, _), each in found.items() if path == resource.path() and isinstance(each, PodGroup)]
        for group, resource in KINDS.items()
    }
    return Reading(Snapshot.of(found.values(), groups), ignored, list(warnings.values()))


def _objects(origin: _Origin, document: object) -> Iterator[tuple[_Origin, _Json]]:
    if document is None:  # nothing between two lines of dashes
        return
    manifest = _mapping(origin, document, "the document")
    kind = manifest.get("kind")
    if not isinstance(kind, str) or not kind:
        raise origin.error("kind", "it is missing" if kind is None else f"{_told(kind)} is no kind")
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
    key = "/".join(each for each in (namespace, name) if isinstance(each, str) and each)
    return _Origin(origin.file, origin.document, origin.item, kind, key)


def _kind(origin: _Origin, manifest: _Json) -> Resource[Any] | None:
    version = manifest.get("apiVersion") or _CORE
    if not isinstance(version, str):
        raise origin.error("apiVersion", f"{_told(version)} is no version")
    return _KINDS.get((origin.kind, version))


def _convert(origin: _Origin, manifest: _Json, resource: Resource[T]) -> T:
    metadata = _mapping(origin, manifest.get("metadata") or {}, "metadata")
    name = metadata.get("name")
    if not name:
        raise origin.error("metadata.name", "it is missing")
    if not isinstance(name, str):
        raise origin.error("metadata.name", f"{_told(name)} is no name")
    if len(name) > _LONGEST_NAME:
        raise origin.error("metadata.name", f"a name has at most {_LONGEST_NAME} characters, not {len(name)}")
    completed = dict(metadata)
    if resource.namespaced:
        completed["namespace"] = metadata.get("namespace") or "default"
    else:
        completed.pop("namespace", None)
    for each in _TIMES:
        _check_time(origin, f"metadata.{each}", completed.get(each))
    # Chips are kept by uid, and what nobody has submitted yet has none.
    completed["uid"] = metadata.get("uid") or f"{completed.get('namespace', '')}/{name}"
    clean = _clean(origin, {**manifest, "metadata": completed}, "", {})
    try:
        return msgspec.convert(clean, resource.type)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        if found is None:
            raise origin.error("the object", str(error)) from error
        path = found["field"].removesuffix(_SOME_KEY)
        if found["key"] or path != found["field"]:
            path += _odd_entry(clean, path)
        raise origin.error(path or "the object", found["what"]) from error


def _odd_entry(clean: _Json, path: str) -> str:
    """Of a map of texts, as all are that are read here: the first key that is no text, or whose value is none."""
    entries: Any = clean
    for step in _STEP.finditer(path):
        entries = entries[int(step["number"]) if step["number"] else step["name"]]
    odd = (key for key, each in entries.items() if not (isinstance(key, str) and isinstance(each, str)))
    return f'["{next(odd)}"]'


def _check_time(origin: _Origin, field_path: str, value: object) -> None:
    if value is None:
        return
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise origin.error(field_path, f"{_told(value)} is no RFC 3339 time, such as 2026-01-31T12:00:00Z")


def _clean(origin: _Origin, value: Any, path: str, done: dict[int, Any], level: int = 0) -> Any:
    """Without nulls, and with quantities as text.

    Args:
        origin: the object.
        value: a part of it.
        path: where that is.
        done: parts that are clean already, by identity: YAML's aliases can make billions of a few.
        level: within how many others it is.
    """
    if isinstance(value, str) and not value.isascii():
        value.encode()  # JSON can write half a character, which could never be printed
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise origin.error(path, f"a whole number has at most {_MOST_BITS} bits, not {value.bit_length()}")
    if not isinstance(value, dict | list):
        return value
    if id(value) in done:
        return done[id(value)]
    if level > _MOST_LEVELS:
        raise origin.error(path, f"it is nested over {_MOST_LEVELS} deep, or contains itself")
    clean: Any
    if isinstance(value, list):
        clean = [_clean(origin, each, f"{path}[{at}]", done, level + 1) for at, each in enumerate(value)]
    else:
        prefix = f"{path}." if path else ""
        clean = {
            key: _quantities(origin, each, f"{prefix}{key}")
            if key in _QUANTITIES and isinstance(each, dict)
            else _clean(origin, each, f"{prefix}{key}", done, level + 1)
            for key, each in value.items()
            if each is not None
        }
    done[id(value)] = clean
    return clean


def _quantities(origin: _Origin, quantities: _Json, path: str) -> _Json:
    clean = {}
    for resource, quantity in quantities.items():
        if quantity is None:
            continue
        text = read_quantity(resource, quantity)
        if text is None:
            raise origin.error(f'{path}["{resource}"]', f"{_told(quantity)} is no quantity")
        clean[resource] = text
    return clean
