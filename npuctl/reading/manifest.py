"""A manifest: its place in a file, and its conversion to an object, with errors of the place."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import KubeObject, Node, Pod, Resource, T
from ascend.printable import shown
from npuctl.reading.normalizing import Normalized, is_plain, normalize

Json: TypeAlias = dict[str, Any]


_MOST_SHOWN: Final = 300
"""Characters of a name or of a field's path in an error."""


D = TypeVar("D")


_FIELD = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
"""How msgspec names the field that is wrong."""


class Identity(msgspec.Struct, rename="camel"):
    """The name of an object."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    deletion_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class NamedMetadata(Identity):
    """The metadata that every object has."""

    namespace: str = "default"
    annotations: dict[str, str] = {}


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


@dataclass(slots=True)
class Manifest:
    """An object of a file.

    Attributes:
        origin: where it is, with its kind.
        version: its ``apiVersion``.
        uid: that of the object, whatever its type is; empty for an object that was not submitted yet.
        labels: its labels.
    """

    origin: Origin
    version: str
    uid: object
    labels: Mapping[str, object]
    _raw: msgspec.Raw | None = None
    _normalized: Normalized | None = None

    def _normalize(self) -> Normalized:
        if self._normalized is None:
            loaded = mapping(self.origin, loaded_from(self.origin, self._raw))
            whole = {**loaded, "kind": self.origin.kind, "apiVersion": self.version}
            self._normalized = normalize_at(self.origin, whole)[1]
        return self._normalized

    @property
    def body(self) -> Json:
        """Its fields, normalized; wrong fields are as they are written.

        Raises:
            InvalidValue: it is not valid JSON.
        """
        body: Json = self._normalize().body
        return body

    def convert(self, kind: type[Any]) -> Any:
        """Convert it to a type.

        Raises:
            InvalidValue: a field is wrong.
        """
        return self.origin.convert(self._valid_body(), kind)

    def _valid_body(self) -> Json:
        normalized = self._normalize()
        if normalized.wrong is not None:
            raise normalized.wrong
        body: Json = normalized.body
        return body

    def part(self, kind: type[D]) -> D:
        """The same for a type without quantities and without defaults for null: it needs no normalizing.

        Raises:
            InvalidValue: a field is wrong.
        """
        if self._raw is not None:
            with contextlib.suppress(*UNREADABLE):
                return msgspec.json.decode(self._raw, type=kind)
        converted: D = self.convert(kind)
        return converted

    def read(self, resource: Resource[T]) -> T:
        """Decode it as the allocator does.

        Raises:
            InvalidValue: a field is wrong.
        """
        if self._raw is not None:
            with contextlib.suppress(*UNREADABLE):
                read = msgspec.json.decode(self._raw, type=resource.type)
                if _has_plain_quantities(read):
                    return _identified(read, resource)
        body = self._valid_body()
        self.origin.convert({"metadata": {}, **body}, Named)
        converted: T = self.origin.convert(body, resource.type)
        return _identified(converted, resource)


def _has_plain_quantities(read: KubeObject) -> bool:
    """Whether the quantities that are kept of an object are as the API server writes them, those of chips in digits."""
    if isinstance(read, Pod):
        spec = read.spec
        resources = [container.resources for container in (*spec.containers, *spec.init_containers)]
        given = [quantities for resource in resources for quantities in (resource.limits, resource.requests)]
    elif isinstance(read, Node):
        given = [read.status.allocatable, read.status.capacity]
    else:
        return True
    return all(is_plain(name, text) for quantities in given for name, text in quantities.items())


def _identified(read: T, resource: Resource[T]) -> T:
    """The object with a namespace and a uid: objects are told apart by uid, and those never submitted have none."""
    metadata = read.metadata
    namespace = (metadata.namespace or "default") if resource.namespaced else ""
    uid = metadata.uid or f"{namespace}/{metadata.name}"
    if (namespace, uid) == (metadata.namespace, metadata.uid):
        return read
    return structs.replace(read, metadata=structs.replace(metadata, namespace=namespace, uid=uid))


def loaded_from(origin: Origin, raw: msgspec.Raw | None) -> object:
    """The value of raw JSON."""
    try:
        return json.loads(bytes(raw or b"null"))
    except UNREADABLE as error:
        raise origin.error("", f"not valid JSON: {error}") from error


def mapping(origin: Origin, value: object) -> Json:
    """A value that has to be an object."""
    if not isinstance(value, dict):
        raise origin.error("", f"an object is expected, not {type(value).__name__}")
    return value


def normalize_at(origin: Origin, manifest: Json) -> tuple[Origin, Normalized]:
    """The normal form of a manifest, and its place with its name."""
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    names = (metadata.get("namespace"), metadata.get("name")) if isinstance(metadata, dict) else ()
    key = "/".join(name for name in names if isinstance(name, str) and name)
    named = replace(origin, kind=kind if isinstance(kind, str) else "", key=key)
    if not key.isprintable():
        raise named.error("metadata.name", f"{shown(key)} is not a name: it has control characters")
    return named, normalize(manifest, named.error)
