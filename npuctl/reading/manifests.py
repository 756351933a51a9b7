"""Reads Kubernetes objects from files, as ``kubectl get -o …`` prints them or as people write them.

Defaults and conversions are those of the API server: null is the same as absent, a quantity may be a number, a whole
quantity of chips may be written in any form, and the default namespace is ``default``. Objects of other kinds are
counted and skipped.

What an API server has written needs none of this, so the items of a JSON list are first decoded as the allocator
decodes them; only an item that is not as the API server writes it is normalized and judged field by field.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from allocator.state.kinds import KINDS, all_kinds
from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import KubeObject, Resource
from ascend.kube.workloads import BATCH_JOBS, STATEFUL_SETS, PodGroup
from ascend.printable import shown
from npuctl.reading.files import RawList, read_documents
from npuctl.reading.manifest import Identity, Json, Manifest, Origin, loaded_from, mapping, normalize_at
from npuctl.reading.normalizing import Normalized
from npuctl.reading.objects import ClusterObjects

_GROUPS: Final = {kind.name: kind.resource for kind in KINDS if issubclass(kind.resource.type, PodGroup)}


class _Kind(msgspec.Struct, rename="camel"):
    kind: Annotated[str, msgspec.Meta(min_length=1)]
    api_version: str = "v1"


class _Head(msgspec.Struct, rename="camel"):
    metadata: Identity
    kind: str | msgspec.UnsetType = msgspec.UNSET
    api_version: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class ManifestReading:
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


def read_manifests(
    files: Iterable[str], *, strict: bool = True, documents: Callable[[str], Iterator[object]] = read_documents
) -> ManifestReading:
    """Read files; ``-`` is standard input.

    The files are taken to have all pod groups of the cluster, so a pod that names another one waits for it.

    Args:
        files: the files.
        strict: an invalid PodGroup is an error; otherwise it is skipped with a warning, as by the allocator.
        documents: yields the documents of a file.

    Raises:
        InvalidValue: an object is invalid; the message has file, document number and field.
    """
    watched = all_kinds()
    resources = {(kind.resource.kind, kind.resource.api_version): kind.resource for kind in watched}
    operators = {kind.name: kind.resource for kind in watched if kind.is_optional and kind.name not in _GROUPS}
    # Kinds whose controllers create pods, or may: those that are not read.
    controllers = (None, STATEFUL_SETS, BATCH_JOBS, *operators.values())
    ignored: Counter[str] = Counter()
    warnings: dict[str, str] = {}
    found: defaultdict[Resource[Any], dict[str, KubeObject]] = defaultdict(dict)
    manifests: list[Manifest] = []
    unsubmitted: dict[tuple[str, str, str], Manifest] = {}
    owners: dict[str, str] = {}
    generated: Counter[tuple[str, str]] = Counter()
    for file in files:
        for number, document in enumerate(documents(file), start=1):
            for manifest in _manifests(Origin(file, number), document, generated):
                origin, version = manifest.origin, manifest.version
                manifests.append(manifest)
                resource = resources.get((origin.kind, version))
                if resource in controllers and not manifest.uid:
                    unsubmitted[origin.kind, version, origin.key] = manifest
                if resource is None:
                    ignored[origin.kind] += 1
                    if origin.kind == "PodGroup":
                        supported = ", ".join(group.api_version for group in _GROUPS.values())
                        what = f"{shown(version)} is not supported, only {supported} are"
                        # Once per version: there are usually many of one.
                        warnings.setdefault(
                            version,
                            f"{origin.error('apiVersion', what)}; pods of this group are treated as without a group",
                        )
                    continue
                try:
                    read = manifest.read(resource)
                except InvalidValue as error:
                    if strict or resource not in _GROUPS.values():
                        raise
                    warnings.setdefault(str(error), f"{error}; the object is ignored")
                    continue
                # Chips are booked by uid: of two pods with the same uid, one would lose its chips.
                owner = owners.setdefault(read.uid, read.key)
                if owner != read.key:
                    raise origin.error("metadata.uid", f"{shown(read.uid)} is also the uid of {owner}")
                found[resource][read.key] = read
    optional = {name: list(found[resource].values()) for name, resource in (_GROUPS | operators).items()}
    # Pods may be given without the object of their operator, but not without their pod group.
    served = {name: obj for name, obj in optional.items() if obj or name in _GROUPS}
    objects = ClusterObjects.of(chain.from_iterable(map(dict.values, found.values())), served)
    return ManifestReading(objects, manifests, list(unsubmitted.values()), ignored, list(warnings.values()))


def _manifests(origin: Origin, document: object, generated: Counter[tuple[str, str]]) -> Iterator[Manifest]:
    """Yield the objects of a document; the numbers of ``generated`` names are counted."""
    if document is None:  # an empty document
        return
    if isinstance(document, RawList):
        manifest: Json = {"kind": document.kind, "apiVersion": document.api_version, "items": document.items}
    else:
        manifest = mapping(origin, document)
    kind, items = manifest.get("kind"), manifest.get("items") or []
    if not (isinstance(kind, str) and kind.endswith("List") and "items" in manifest):
        yield _judged(origin, manifest, generated)
        return
    if not isinstance(items, list):
        raise origin.error("items", f"a list is expected, not {type(items).__name__}")
    # The items of the API server's own lists (NodeList …) have neither kind nor apiVersion.
    inherited = {"kind": kind.removesuffix("List"), "apiVersion": manifest.get("apiVersion")}
    for number, item in enumerate(items):
        place = Origin(origin.file, origin.document, number)
        if not isinstance(item, msgspec.Raw):
            yield _judged(place, {**inherited, **mapping(place, item)}, generated)
        elif (written := _as_written(place, item, inherited)) is not None:
            yield written
        else:
            yield _judged(place, {**inherited, **mapping(place, loaded_from(place, item))}, generated)


def _as_written(place: Origin, raw: msgspec.Raw, inherited: Json) -> Manifest | None:
    """An item of a list that supplies kind and version; None unless the head has the form of an API server's."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except UNREADABLE:
        return None
    metadata = head.metadata
    # Only what an item leaves out is the list's: an empty string is a value, and is judged.
    kind = inherited["kind"] if head.kind is msgspec.UNSET else head.kind
    version = inherited["apiVersion"] if head.api_version is msgspec.UNSET else head.api_version
    key = "/".join(filter(None, (metadata.namespace, metadata.name)))
    if not (kind and version and key.isprintable()):
        return None
    origin = Origin(place.file, place.document, place.item, kind, key)
    return Manifest(origin, version, metadata.uid, metadata.labels, raw)


def _judged(origin: Origin, manifest: Json, generated: Counter[tuple[str, str]]) -> Manifest:
    """An object that anybody has written, normalized."""
    origin, normalized = normalize_at(origin, manifest)
    try:
        version = origin.convert(normalized.body, _Kind).api_version
    except InvalidValue as error:
        raise normalized.wrong or error from None
    origin, normalized = _named(origin, normalized, generated)
    metadata = normalized.body.get("metadata")
    uid, labels = (metadata.get("uid"), metadata.get("labels")) if isinstance(metadata, dict) else (None, None)
    return Manifest(origin, version, uid, labels if isinstance(labels, dict) else {}, _normalized=normalized)


def _named(origin: Origin, normalized: Normalized, generated: Counter[tuple[str, str]]) -> tuple[Origin, Normalized]:
    """An object with a name: ``generateName`` is completed by a number."""
    metadata = normalized.body.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") or not isinstance(metadata.get("generateName"), str):
        return origin, normalized
    prefix = metadata["generateName"]
    number = generated[origin.kind, prefix]
    generated[origin.kind, prefix] += 1
    named = {**normalized.body, "metadata": {**metadata, "name": f"{prefix}{number}"}}
    origin, again = normalize_at(origin, named)
    return origin, Normalized(again.body, normalized.wrong or again.wrong)
