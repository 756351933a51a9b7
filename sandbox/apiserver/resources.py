"""The table of the kinds that this server serves; a new kind is one more row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """How an API version of a kind maps to the stored version: the stored names of the top-level fields it renames."""

    renamed: Mapping[str, str]

    def to_stored(self, document: Json) -> Json:
        """Return a document of this version in the stored form."""
        return {self.renamed.get(key, key): value for key, value in document.items()}

    def from_stored(self, document: Json) -> Json:
        """Return a stored document in this version."""
        names = {stored: shown for shown, stored in self.renamed.items()}
        return {names.get(key, key): value for key, value in document.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ServedResource:
    """A served kind. Rows of the table are compared by identity.

    Attributes:
        group: API group, empty for the core group.
        version: API version.
        plural: Name in paths.
        singular: Name that kubectl accepts.
        kind: Go kind.
        namespaced: Whether its objects belong to a namespace.
        subresources: Subresources with their verbs.
        short_names: Other names that kubectl accepts.
        selectable_fields: Fields that a fieldSelector may use besides metadata.name and metadata.namespace.
        unconditional_update: Whether a PUT without resourceVersion overwrites the object.
        create_on_update: Whether a PUT of an unknown name creates the object.
        returns_deleted: Whether DELETE returns the object instead of a Status.
        stored_as: "group/plural" under which objects are stored, if another group's version is the stored one.
        conversion: Conversion from and to the stored version.
    """

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool = True
    subresources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    short_names: tuple[str, ...] = ()
    selectable_fields: Mapping[str, Callable[[Json], str]] = field(default_factory=dict)
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    stored_as: str = ""
    conversion: Conversion | None = None

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Its name in messages about objects: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """Its name in messages about validation: `Pod`, `Lease.coordination.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def storage(self) -> str:
        """The name under which the store keeps the objects of all versions of a kind."""
        return self.stored_as or f"{self.group}/{self.plural}"

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs of the main resource, for discovery."""
        if self.plural == "bindings":
            return ("create",)
        collection = () if self.plural == "namespaces" else ("deletecollection",)
        return tuple(sorted(("create", "delete", *collection, "get", "list", "patch", "update", "watch")))


def _at(*path: str, default: str = "") -> Callable[[Json], str]:
    def read(document: Json) -> str:
        value: Any = document
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return default if value is None else str(value)

    return read


_STATUS = {"status": ("get", "patch", "update")}
_EVENT_FIELDS = {
    "involvedObject.kind": _at("involvedObject", "kind"),
    "involvedObject.name": _at("involvedObject", "name"),
    "involvedObject.namespace": _at("involvedObject", "namespace"),
    "involvedObject.uid": _at("involvedObject", "uid"),
    "reason": _at("reason"),
    "type": _at("type"),
}

NODES = ServedResource(
    "",
    "v1",
    "nodes",
    "node",
    "Node",
    namespaced=False,
    subresources=_STATUS,
    short_names=("no",),
    selectable_fields={"spec.unschedulable": _at("spec", "unschedulable", default="false")},
)
PODS = ServedResource(
    "",
    "v1",
    "pods",
    "pod",
    "Pod",
    subresources={"binding": ("create",), **_STATUS},
    short_names=("po",),
    selectable_fields={
        "spec.nodeName": _at("spec", "nodeName"),
        "spec.restartPolicy": _at("spec", "restartPolicy"),
        "spec.schedulerName": _at("spec", "schedulerName"),
        "spec.serviceAccountName": _at("spec", "serviceAccountName"),
        "status.phase": _at("status", "phase"),
        "status.podIP": _at("status", "podIP"),
        "status.nominatedNodeName": _at("status", "nominatedNodeName"),
    },
    returns_deleted=True,
)
BINDINGS = ServedResource("", "v1", "bindings", "binding", "Binding")
CONFIGMAPS = ServedResource("", "v1", "configmaps", "configmap", "ConfigMap", short_names=("cm",))
NAMESPACES = ServedResource(
    "",
    "v1",
    "namespaces",
    "namespace",
    "Namespace",
    namespaced=False,
    subresources=_STATUS,
    short_names=("ns",),
    selectable_fields={"status.phase": _at("status", "phase")},
    returns_deleted=True,
)
CORE_EVENTS = ServedResource(
    "",
    "v1",
    "events",
    "event",
    "Event",
    short_names=("ev",),
    selectable_fields=_EVENT_FIELDS,
    create_on_update=True,
)
EVENTS = ServedResource(
    "events.k8s.io",
    "v1",
    "events",
    "event",
    "Event",
    short_names=("ev",),
    selectable_fields={
        key.replace("involvedObject.", "regarding."): read for key, read in _EVENT_FIELDS.items()
    },  # the values are read from the stored form, so only the names differ
    create_on_update=True,
    stored_as=CORE_EVENTS.storage,
    conversion=Conversion(
        {
            "regarding": "involvedObject",
            "note": "message",
            "reportingController": "reportingComponent",
            "deprecatedSource": "source",
            "deprecatedFirstTimestamp": "firstTimestamp",
            "deprecatedLastTimestamp": "lastTimestamp",
            "deprecatedCount": "count",
        }
    ),
)
LEASES = ServedResource(
    "coordination.k8s.io",
    "v1",
    "leases",
    "lease",
    "Lease",
    unconditional_update=False,
    create_on_update=True,
)

VOLCANO_POD_GROUPS = ServedResource(
    "scheduling.volcano.sh", "v1beta1", "podgroups", "podgroup", "PodGroup", unconditional_update=False
)
COSCHEDULING_POD_GROUPS = ServedResource(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "podgroup", "PodGroup", unconditional_update=False
)

POD_EXPLANATIONS = ServedResource(
    "ascend-affinity.io",
    "v1alpha1",
    "podexplanations",
    "podexplanation",
    "PodExplanation",
    unconditional_update=False,
)

STATEFUL_SETS = ServedResource(
    "apps", "v1", "statefulsets", "statefulset", "StatefulSet", subresources=_STATUS, short_names=("sts",)
)
JOBS = ServedResource("batch", "v1", "jobs", "job", "Job", subresources=_STATUS)

SERVED: tuple[ServedResource, ...] = (
    BINDINGS,
    CONFIGMAPS,
    CORE_EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    LEASES,
    STATEFUL_SETS,
    JOBS,
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names: a collection (`name` empty), an object, or a subresource; `namespace` is empty for all."""

    resource: ServedResource
    namespace: str
    name: str
    subresource: str


_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_DEEPEST = 3  # plural, name, subresource


class Catalogue:
    """The served kinds by API version and path.

    Args:
        resources: The kinds to serve.
    """

    def __init__(self, resources: tuple[ServedResource, ...] = SERVED) -> None:
        self.resources = resources
        self._by_path = {(resource.api_version, resource.plural): resource for resource in resources}
        self.api_versions = tuple(dict.fromkeys(resource.api_version for resource in resources))

    def serves(self, api_version: str) -> bool:
        """Whether a kind of this group and version is served."""
        return api_version in self.api_versions

    def of(self, api_version: str) -> list[ServedResource]:
        """Return the kinds of one group and version."""
        return [resource for resource in self.resources if resource.api_version == api_version]

    def target(self, api_version: str, parts: list[str]) -> Target | None:
        """Return what the path below `/api/v1` or `/apis/<group>/<version>` names; None if it is not served."""
        namespace = ""
        if len(parts) >= _DEEPEST and parts[0] == "namespaces" and parts[2] not in _NAMESPACE_SUBRESOURCES:
            namespace, parts = parts[1], parts[2:]
        if not 1 <= len(parts) <= _DEEPEST or not all(parts):
            return None
        plural, name, subresource = [*parts, "", ""][:3]
        resource = self._by_path.get((api_version, plural))
        if resource is None or (namespace and not resource.namespaced):
            return None
        if (name and resource.namespaced and not namespace) or (
            subresource and subresource not in resource.subresources
        ):
            return None
        return Target(resource, namespace, name, subresource)
