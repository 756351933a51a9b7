"""Reads Kubernetes objects from files, as ``kubectl get -o …`` prints them or as people write them.

Defaults and conversions are those of the API server: null is the same as absent, a quantity may be a number, a whole
quantity of chips may be written in any form, and the default namespace is ``default``. Objects of other kinds are
counted and skipped.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from allocator.state.kinds import KINDS
from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import KubeObject, Resource, T
from ascend.kube.workloads import BATCH_JOBS, STATEFUL_SETS, PodGroup
from ascend.printable import shown
from npuctl.reading.files import read_documents
from npuctl.reading.normalizing import normalize
from npuctl.reading.objects import ClusterObjects

Json: TypeAlias = dict[str, Any]

_RESOURCES: Final[dict[tuple[str, str], Resource[Any]]] = {
    (kind.resource.kind, kind.resource.api_version): kind.resource for kind in KINDS
}
_OPTIONAL: Final = {kind.name: kind.resource for kind in KINDS if kind.is_optional}
_GROUPS: Final = {name: resource for name, resource in _OPTIONAL.items() if resource.type is PodGroup}

_CONTROLLERS: Final = (
    None,
    STATEFUL_SETS,
    BATCH_JOBS,
    *(resource for name, resource in _OPTIONAL.items() if name not in _GROUPS),
)
"""Kinds whose controllers create pods, or may: those that are not read."""

_MOST_SHOWN: Final = 300
"""Characters of a name or of a field's path in an error."""

_FIELD = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
"""How msgspec names the field that is wrong."""


class _Kind(msgspec.Struct, rename="camel"):
    kind: Annotated[str, msgspec.Meta(min_length=1)]
    api_version: str = "v1"


class NamedMetadata(msgspec.Struct, rename="camel"):
    """The metadata that every object has."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    deletion_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Named(msgspec.Struct):
    """What every object has."""

    metadata: NamedMetadata


@dataclass(frozen=True, slots=True)
class Origin:
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


class Manifest(NamedTuple):
    """An object of a file, normalized; ``origin`` has its kind."""

    origin: Origin
    version: str
    body: Json

    def convert(self, kind: type[Any]) -> Any:
        """Convert it to a type.

        Raises:
            InvalidValue: a field is wrong.
        """
        return self.origin.convert(self.body, kind)


@dataclass(slots=True)
class Reading:
    """What was read.

    Attributes:
        objects: the objects. Of several with the same kind and name the last one counts.
        manifests: all objects as they were read, those of skipped kinds too.
        unsubmitted: the objects without a uid, so not submitted yet, of skipped kinds, StatefulSets and Jobs:
            controllers may create pods for them.
        ignored: the number of skipped objects by kind.
        warnings: sentences on skipped objects that may change the answer.
    """

    objects: ClusterObjects = field(default_factory=ClusterObjects)
    manifests: list[Manifest] = field(default_factory=list)
    unsubmitted: list[Manifest] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def read_manifests(files: Iterable[str], *, strict: bool = True) -> Reading:
    """Read files; ``-`` is standard input.

    The files are taken to have all pod groups of the cluster, so a pod that names another one waits for it.

    Args:
        files: the files.
        strict: an invalid PodGroup is an error; otherwise it is skipped with a warning, as by the allocator.

    Raises:
        InvalidValue: an object is invalid; the message has file, document number and field.
    """
    ignored: Counter[str] = Counter()
    warnings: dict[str, str] = {}
    found: dict[tuple[str, str], KubeObject] = {}
    manifests: list[Manifest] = []
    unsubmitted: dict[tuple[str, str, str], Manifest] = {}
    owners: dict[str, str] = {}
    generated: Counter[tuple[str, str]] = Counter()
    for file in files:
        for number, document in enumerate(read_documents(file), start=1):
            for origin, manifest in _objects(Origin(file, number), document):
                version = origin.convert(manifest, _Kind).api_version
                origin, manifest = _named(origin, manifest, generated)  # noqa: PLW2901 - its name is part of both
                manifests.append(Manifest(origin, version, manifest))
                resource = _RESOURCES.get((origin.kind, version))
                metadata = manifest.get("metadata")
                if resource in _CONTROLLERS and not (isinstance(metadata, dict) and metadata.get("uid")):
                    unsubmitted[origin.kind, version, origin.key] = manifests[-1]
                if resource is None:
                    ignored[origin.kind] += 1
                    if origin.kind == "PodGroup":
                        supported = " and ".join(each.api_version for each in _GROUPS.values())
                        what = f"{shown(version)} is not supported, only {supported} are"
                        # Once per version: there are usually many of one.
                        warnings.setdefault(
                            version,
                            f"{origin.error('apiVersion', what)}; pods of this group are treated as without a group",
                        )
                    continue
                try:
                    read = _convert(origin, manifest, resource)
                except InvalidValue as error:
                    if strict or resource not in _GROUPS.values():
                        raise
                    warnings.setdefault(str(error), f"{error}; the object is ignored")
                    continue
                # Chips are booked by uid: of two pods with the same uid, one would lose its chips.
                owner = owners.setdefault(read.uid, read.key)
                if owner != read.key:
                    raise origin.error("metadata.uid", f"{shown(read.uid)} is also the uid of {owner}")
                found[resource.path(), read.key] = read
    optional = {
        name: [each for (path, _), each in found.items() if path == resource.path()]
        for name, resource in _OPTIONAL.items()
    }
    # Pods may be given without the object of their operator, but not without their pod group.
    served = {name: each for name, each in optional.items() if each or name in _GROUPS}
    objects = ClusterObjects.of(found.values(), served)
    return Reading(objects, manifests, list(unsubmitted.values()), ignored, list(warnings.values()))


def _objects(origin: Origin, document: object) -> Iterator[tuple[Origin, Json]]:
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


def _mapping(origin: Origin, value: object) -> Json:
    if not isinstance(value, dict):
        raise origin.error("", f"an object is expected, not {type(value).__name__}")
    return value


def _normalized(origin: Origin, manifest: Json) -> tuple[Origin, Json]:
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    names = (metadata.get("namespace"), metadata.get("name")) if isinstance(metadata, dict) else ()
    key = "/".join(each for each in names if isinstance(each, str) and each)
    named = replace(origin, kind=kind if isinstance(kind, str) else "", key=key)
    if not key.isprintable():
        raise named.error("metadata.name", f"{shown(key)} is not a name: it has control characters")
    try:
        return named, normalize(manifest, named.error)
    except UNREADABLE as error:
        raise named.error("", str(error)) from error


def _named(origin: Origin, manifest: Json, generated: Counter[tuple[str, str]]) -> tuple[Origin, Json]:
    """An object with a name: one that has only ``generateName`` gets a number after it."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") or not isinstance(metadata.get("generateName"), str):
        return origin, manifest
    prefix = metadata["generateName"]
    number = generated[origin.kind, prefix]
    generated[origin.kind, prefix] += 1
    return _normalized(origin, {**manifest, "metadata": {**metadata, "name": f"{prefix}{number}"}})


def _convert(origin: Origin, manifest: Json, resource: Resource[T]) -> T:
    named: NamedMetadata = origin.convert({"metadata": {}, **manifest}, Named).metadata
    metadata = dict(manifest["metadata"])
    if resource.namespaced:
        metadata["namespace"] = named.namespace
    else:
        metadata.pop("namespace", None)
    # Objects are distinguished by uid, and objects that were never submitted have none.
    metadata["uid"] = named.uid or f"{metadata.get('namespace', '')}/{named.name}"
    read: T = origin.convert({**manifest, "metadata": metadata}, resource.type)
    return read
