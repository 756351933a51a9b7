"""Reads Kubernetes objects from files, as ``kubectl get -o …`` prints them or as people write them.

Defaults and conversions are those of the API server: null is the same as absent, a quantity may be a number, a whole
quantity of chips may be written in any form, and the default namespace is ``default``. Objects of other kinds are
counted and skipped.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from allocator.groups import KINDS
from ascend.chips import RESOURCE
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
from npuctl.reading.files import read_documents
from npuctl.reading.objects import ClusterObjects

Json: TypeAlias = dict[str, Any]

_CORE: Final = "v1"
_GROUP_VERSIONS: Final = tuple(resource.prefix.removeprefix("apis/") for resource in KINDS.values())
_KINDS: Final[dict[tuple[str, str], Resource[Any]]] = {
    ("Node", _CORE): NODES,
    ("Pod", _CORE): PODS,
    ("ConfigMap", _CORE): CONFIG_MAPS,
    ("StatefulSet", "apps/v1"): STATEFUL_SETS,
    ("Job", "batch/v1"): BATCH_JOBS,
    **{("PodGroup", version): resource for version, resource in zip(_GROUP_VERSIONS, KINDS.values(), strict=True)},
}

_QUANTITIES: Final = frozenset({"limits", "requests", "allocatable", "capacity"})
_STRINGS: Final = frozenset({"labels", "annotations", "nodeSelector", "data"})
"""Maps with strings as values. msgspec would not name the key of one that is not."""

_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
"""The grammar of k8s.io/apimachinery's ``resource.Quantity`` without the minus sign: resources are not negative."""

_CHIPS: Final = RESOURCE.partition("/")[0] + "/"

_LONGEST_QUANTITY: Final = 28
"""Characters. Decimal rounds numbers with more digits."""

_MOST_DIGITS: Final = 19
"""Digits of an integer of 64 bits, the API server's largest."""

_MOST_LEVELS: Final = 100
"""Nested objects and lists. No kind that is read has a fifth of it; an object that contains itself has more."""

_MOST_BITS: Final = 64
"""The API server has no larger integers."""

_MOST_SHOWN: Final = 300
"""Characters of a name or of a field's path in an error."""

_REPR = reprlib.Repr()
_REPR.maxstring = 100

_FIELD = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
"""How msgspec names the field that is wrong."""


class _Kind(msgspec.Struct, rename="camel"):
    kind: Annotated[str, msgspec.Meta(min_length=1)]
    api_version: str = _CORE


class _Metadata(msgspec.Struct, rename="camel"):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    creation_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    deletion_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Named(msgspec.Struct):
    metadata: _Metadata


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where an object comes from, for errors."""

    file: str
    document: int
    item: int | None = None
    kind: str = ""
    key: str = ""

    def error(self, path: str, what: str) -> InvalidValue:
        """Return the error of a field; the path is empty for the object itself."""
        item = "" if self.item is None else f" items[{self.item}]"
        named = " ".join(filter(None, (self.kind, self.key)))
        place = f"{self.file}: document {self.document}{item}{f' ({_clip(named)})' if named else ''}"
        return InvalidValue(": ".join(filter(None, (place, _clip(path), what))))

    def convert(self, value: object, kind: type[Any]) -> Any:
        """Convert plain values to a type.

        Raises:
            InvalidValue: a field is wrong.
        """
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            found = _FIELD.match(str(error))
            raise (self.error(found["path"], found["what"]) if found else self.error("", str(error))) from error


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


@dataclass(slots=True)
class Reading:
    """What was read.

    Attributes:
        objects: the objects. Of several with the same kind and name the last one counts.
        ignored: the number of skipped objects by kind.
        warnings: sentences on skipped objects that may change the answer.
    """

    objects: ClusterObjects
    ignored: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def read_manifests(files: Iterable[str]) -> Reading:
    """Read files; ``-`` is standard input.

    The files are taken to have all pod groups of the cluster, so a pod that names another one waits for it.

    Raises:
        InvalidValue: an object is invalid; the message has file, document number and field.
    """
    ignored: Counter[str] = Counter()
    warnings: dict[str, str] = {}
    found: dict[tuple[str, str], KubeObject] = {}
    owners: dict[str, str] = {}
    for file in files:
        for number, document in enumerate(read_documents(file), start=1):
            for origin, manifest in _objects(_Origin(file, number), document):
                version = origin.convert(manifest, _Kind).api_version
                resource = _KINDS.get((origin.kind, version))
                if resource is None:
                    ignored[origin.kind] += 1
                    if origin.kind == "PodGroup":
                        what = f"{_REPR.repr(version)} is not supported, only {' and '.join(_GROUP_VERSIONS)} are"
                        # Once per version: there are usually many of one.
                        warnings.setdefault(
                            version,
                            f"{origin.error('apiVersion', what)}; pods of this group are treated as without a group",
                        )
                    continue
                read = _convert(origin, manifest, resource)
                # Chips are booked by uid: of two pods with the same uid, one would lose its chips.
                owner = owners.setdefault(read.uid, read.key)
                if owner != read.key:
                    raise origin.error("metadata.uid", f"{_REPR.repr(read.uid)} is also the uid of {owner}")
                found[resource.path(), read.key] = read
    groups = {
        group: [each for (path, _), each in found.items() if path == resource.path() and isinstance(each, PodGroup)]
        for group, resource in KINDS.items()
    }
    return Reading(ClusterObjects.of(found.values(), groups), ignored, list(warnings.values()))


def _objects(origin: _Origin, document: object) -> Iterator[tuple[_Origin, Json]]:
    """Yield the objects of a document, normalized."""
    if document is None:  # an empty document
        return
    manifest = _mapping(origin, document)
    kind = manifest.get("kind")
    if not (isinstance(kind, str) and kind.endswith("List") and "items" in manifest):
        yield _normalized(origin, manifest)
        return
    items = manifest["items"] or []
    if not isinstance(items, list):
        raise origin.error("items", f"a list is expected, not {type(items).__name__}")
    # The items of the API server's own lists (NodeList …) have neither kind nor apiVersion.
    inherited = {"kind": kind.removesuffix("List"), "apiVersion": manifest.get("apiVersion")}
    for number, item in enumerate(items):
        place = replace(origin, item=number)
        yield _normalized(place, {**inherited, **_mapping(place, item)})


def _mapping(origin: _Origin, value: object) -> Json:
    if not isinstance(value, dict):
        raise origin.error("", f"an object is expected, not {type(value).__name__}")
    return value


def _normalized(origin: _Origin, manifest: Json) -> tuple[_Origin, Json]:
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    names = (metadata.get("namespace"), metadata.get("name")) if isinstance(metadata, dict) else ()
    key = "/".join(each for each in names if isinstance(each, str) and each)
    named = replace(origin, kind=kind if isinstance(kind, str) else "", key=key)
    try:
        return named, _Normalizer(named).normalize(manifest, "", 0)
    except UNREADABLE as error:
        raise named.error("", str(error)) from error


def _convert(origin: _Origin, manifest: Json, resource: Resource[T]) -> T:
    named: _Metadata = origin.convert({"metadata": {}, **manifest}, _Named).metadata
    metadata = dict(manifest["metadata"])
    if resource.namespaced:
        metadata["namespace"] = named.namespace
    else:
        metadata.pop("namespace", None)
    # Objects are told apart by uid, and one that was never submitted has none.
    metadata["uid"] = named.uid or f"{metadata.get('namespace', '')}/{named.name}"
    read: T = origin.convert({**manifest, "metadata": metadata}, resource.type)
    return read


class _Normalizer:
    """Removes nulls and makes quantities strings.

    Args:
        origin: the object.
    """

    def __init__(self, origin: _Origin) -> None:
        self._origin = origin
        # By identity: aliases of YAML can make billions of references to a few objects.
        self._done: dict[int, Any] = {}

    def normalize(self, value: Any, path: str, level: int) -> Any:
        """Return the value normalized.

        Args:
            value: a part of the object.
            path: its path.
            level: the number of objects and lists around it.

        Raises:
            InvalidValue: it is invalid.
            UnicodeEncodeError: a string is half of a surrogate pair, which JSON can express and nothing can print.
        """
        if isinstance(value, str) and not value.isascii():
            value.encode()
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise self._origin.error(path, f"an integer has at most {_MOST_BITS} bits, not {value.bit_length()}")
        if not isinstance(value, dict | list):
            return value
        if id(value) not in self._done:
            if level > _MOST_LEVELS:
                raise self._origin.error(path, f"nested more than {_MOST_LEVELS} levels deep, or contains itself")
            self._done[id(value)] = self._collection(value, path, level + 1)
        return self._done[id(value)]

    def _collection(self, value: Json | list[Any], path: str, level: int) -> Json | list[Any]:
        if isinstance(value, list):
            return [self.normalize(each, f"{path}[{at}]", level) for at, each in enumerate(value)]
        entries = {}
        for key, each in value.items():
            if each is None:
                continue
            entry_path = f"{path}.{key}" if path else str(key)
            if key in _QUANTITIES and isinstance(each, dict):
                entries[key] = self._quantities(each, entry_path)
            else:
                entries[key] = self.normalize(each, entry_path, level)
            if key in _STRINGS and isinstance(entries[key], dict):
                self._check_strings(entries[key], entry_path)
        return entries

    def _quantities(self, quantities: Json, path: str) -> Json:
        entries = {}
        for resource, quantity in quantities.items():
            if quantity is None:
                continue
            text = _read_quantity(resource, quantity)
            if text is None:
                raise self._origin.error(f'{path}["{resource}"]', f"{_REPR.repr(quantity)} is not a quantity")
            entries[resource] = text
        return entries

    def _check_strings(self, entries: dict[Any, Any], path: str) -> None:
        for key, value in entries.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                wrong = value if isinstance(key, str) else key
                raise self._origin.error(f'{path}["{key}"]', f"a string is expected, not {type(wrong).__name__}")


def _read_quantity(resource: str, written: object) -> str | None:
    """Return a quantity as a string; None if it is not a quantity.

    A whole quantity of chips becomes digits: ``8`` for ``8000m`` or ``8.0``. Any other stays as it is.

    Args:
        resource: the name of the resource.
        written: a string or a number.
    """
    text = str(written) if isinstance(written, int | float | str) and not isinstance(written, bool) else ""
    if not _QUANTITY.fullmatch(text):
        return None
    return text if text.isdigit() or not str(resource).startswith(_CHIPS) else _digits(text)


def _digits(text: str) -> str:
    if len(text) > _LONGEST_QUANTITY:
        return text
    # Imported here: it takes longer than a whole planning run, and few manifests need it.
    from kubernetes.utils.quantity import parse_quantity

    try:
        value: Decimal = parse_quantity(text)
    except ValueError:  # the exponent is too large
        return text
    # Checked before the number is written out: 1e999999999 would fill the memory.
    if value and not 0 <= value.adjusted() < _MOST_DIGITS:
        return text
    return str(int(value)) if value == value.to_integral_value() else text
