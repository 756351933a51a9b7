"""Kinds of jobs from the settings: where an operator's objects have templates, numbers and minimum of their pods.

The paths of a description become the types of what is decoded, so nothing else of an object is kept, and a value of
another type is an error with its place.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic

import msgspec

from ascend.errors import InvalidValue
from ascend.grammar import some
from ascend.jobs.creation import Controller
from ascend.jobs.kind import JobKind, JobObject, JobSpec, PodSet, Text, Workload
from ascend.jobs.marks import Position, by_label, by_owner, number
from ascend.jobs.templates import Count, PodTemplate, T, Template
from ascend.kube.kept import POD_KEYS
from ascend.kube.objects import KubeObject, Pod, Resource
from ascend.printable import shown

_VERSION: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/v[0-9][a-z0-9]{0,20}")
"""Of custom resources: a group of Kubernetes without a dot has no jobs that are not known, but it has Secrets."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PATH: Final = re.compile(r"spec(\.[A-Za-z_][-A-Za-z0-9_]{0,62}){1,15}")
_IS_PATH: Final = "must be names of fields with dots between them, from spec on, as spec.worker.replicas"
_MOST_ROLES: Final = 16
_OF_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
"""How the prefixes of labels end that many pods have, whatever created them."""


class DescribedRole(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """Pods of one template, as a description states them.

    Attributes:
        template: where the template of the pods is.
        replicas: where their number is; empty for 1.
        name: the value of the role label on the pods.
        optional: an object may be without the template, and has no such pods then.
    """

    template: str
    replicas: str = ""
    name: str = ""
    optional: bool = False


class JobDescription(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """A kind of job as the settings describe it.

    Attributes:
        api_version: that of its objects.
        kind: their kind.
        plural: its name in paths of the API.
        roles: the pods of an object, in the order of their ranks.
        job_label: the label of pods with the name of their object; empty: the object owns them.
        role_label: the label with the name of the role.
        index_label: the label with the index within the role.
        min_available: where the number of pods is that start together.
        starts_whole: without such a number all pods start together; otherwise each when there is room for it.
        recreates: the operator creates a deleted pod anew, so that it may be rescheduled.
    """

    api_version: str
    kind: str
    plural: str
    roles: tuple[DescribedRole, ...]
    job_label: str = ""
    role_label: str = ""
    index_label: str = ""
    min_available: str = ""
    starts_whole: bool = True
    recreates: bool = False

    @property
    def group(self) -> str:
        """The API group."""
        return self.api_version.partition("/")[0]

    @property
    def name(self) -> str:
        """What keys of jobs call the kind."""
        return f"{self.kind}.{self.group}"

    def check(self) -> None:
        """Check what the types don't.

        Raises:
            InvalidValue: a field is wrong; the sentence names it.
        """
        _require(_VERSION, "apiVersion", self.api_version, "must be group/version of a custom resource")
        _require(_NAME, "kind", self.kind, "must be the kind of a custom resource")
        _require(_NAME, "plural", self.plural, "must be the plural in the paths of the kind, in lower case")
        labels = {"jobLabel": self.job_label, "roleLabel": self.role_label, "indexLabel": self.index_label}
        for field, label in labels.items():
            if label:
                _require(_LABEL, field, label, "must be the key of a label")
        if self.job_label in POD_KEYS or self.job_label.partition("/")[0].endswith(_OF_KUBERNETES):
            raise InvalidValue(f"jobLabel: pods of other kinds have it (got {shown(self.job_label)})")
        if not 0 < len(self.roles) <= _MOST_ROLES:
            raise InvalidValue(f"roles: must be 1 to {_MOST_ROLES} (got {len(self.roles)})")
        for at, role in enumerate(self.roles):
            _require(_PATH, f"roles.{at}.template", role.template, _IS_PATH)
            if role.replicas:
                _require(_PATH, f"roles.{at}.replicas", role.replicas, _IS_PATH)
        if self.min_available:
            _require(_PATH, "minAvailable", self.min_available, _IS_PATH)
        names = [role.name.lower() for role in self.roles]
        if len(self.roles) > 1 and not self.role_label:
            raise InvalidValue("roleLabel: must be given, since there are several roles")
        if len(set(names)) < len(names) or (self.role_label and "" in names):
            raise InvalidValue("roles: each must have a name of its own")
        _type_of_spec(self, Template)


def _require(pattern: re.Pattern[str], field: str, value: str, must: str) -> None:
    if not pattern.fullmatch(value):
        raise InvalidValue(f"{field}: {must} (got {shown(value)})")


class DescribedSpec(JobSpec[T], Generic[T], frozen=True):
    """What an object of a described kind says of its pods."""

    described: ClassVar[JobDescription]

    def __post_init__(self) -> None:
        for role in self.described.roles:
            there = _value(self, role.template) is not None
            if not there and not role.optional:
                raise ValueError(f"there is no {role.template}, where job_kinds has a template of pods")
            if there and role.replicas and _value(self, role.replicas) is None:
                raise ValueError(f"there is no {role.replicas}, where job_kinds has a number of pods")

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """The roles that the object has."""
        return tuple(
            PodSet(role.name, template, _value(self, role.replicas) if role.replicas else 1)
            for role in self.described.roles
            if (template := _value(self, role.template)) is not None
        )

    @property
    def minimum(self) -> int | None:
        """The number at ``minAvailable``."""
        path = self.described.min_available
        return _value(self, path) if path else None

    def whole(self, _labels: Mapping[str, str]) -> int | None:
        """All pods, unless the description says otherwise."""
        return sum(pod_set.pods for pod_set in self.pod_sets) if self.described.starts_whole else None

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods of the roles."""
        kind = self.described
        for pod_set in self.pod_sets:
            labels = {kind.job_label: controller.name, kind.role_label: pod_set.name}
            labels.pop("", None)
            numbers, role = range(pod_set.pods), pod_set.part
            yield from controller.pods(pod_set.template, numbers, role=role, index=kind.index_label, labels=labels)


def _value(spec: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        spec = getattr(spec, _field(name), None)
    return spec


def _field(name: str) -> str:
    return f"of_{name.encode().hex()}"  # any name of JSON is a name in Python that no base class has


def _type_of_spec(kind: JobDescription, template: type[Any]) -> type[Any]:
    leaves: dict[str, Any] = {}
    for path, leaf in (
        *((role.template, template) for role in kind.roles),
        *((role.replicas, Count) for role in kind.roles if role.replicas),
        *([(kind.min_available, Count)] if kind.min_available else ()),
    ):
        if leaves.setdefault(path, leaf) is not leaf:
            raise InvalidValue(f"roles: {path} can't be both a template and a number")
    for path in leaves:
        if within := next((other for other in leaves if path.startswith(f"{other}.")), None):
            raise InvalidValue(f"roles: {path} is a part of {within}")
    return _type_of("spec", leaves, DescribedSpec, {"described": kind})


def _type_of(path: str, leaves: Mapping[str, Any], base: type[Any], namespace: dict[str, Any]) -> type[Any]:
    below = f"{path}."
    names = sorted({leaf[len(below) :].partition(".")[0] for leaf in leaves if leaf.startswith(below)})
    types = {name: leaves.get(below + name) or _type_of(below + name, leaves, msgspec.Struct, {}) for name in names}
    fields = [(_field(name), kind | None, None) for name, kind in types.items()]
    renamed = {_field(name): name for name in names}
    return msgspec.defstruct("Described", fields, bases=(base,), namespace=namespace, rename=renamed, frozen=True)


def described_kinds(descriptions: Iterable[JobDescription], built_in: Container[str]) -> tuple[JobKind, ...]:
    """The kinds that the settings describe.

    Args:
        descriptions: those of the setting ``job_kinds``.
        built_in: the kinds that are known without settings, *group kind*.

    Raises:
        InvalidValue: a description is wrong, or is that of a kind which is there already; the sentence has its number.
    """
    there: dict[str, int] = {}
    found = []
    for at, kind in enumerate(descriptions):
        try:
            if f"{kind.group} {kind.kind}" in built_in:
                raise InvalidValue(f"kind: {kind.name} is known without a description")
            for field, what in (("kind", kind.name), ("jobLabel", kind.job_label)):
                if what and there.setdefault(f"{field} {what}", at) != at:
                    raise InvalidValue(f"{field}: job_kinds.{there[f'{field} {what}']} has {what}, too")
            kind.check()
        except InvalidValue as error:
            raise InvalidValue(f"job_kinds.{at}.{error}") from error
        found.append(_kind(kind))
    return tuple(found)


def _kind(kind: JobDescription) -> JobKind:
    owned = by_owner(kind.kind, f"{kind.group}/")
    labelled = by_label(kind.job_label) if kind.job_label else owned
    is_single = len(kind.roles) == 1

    def position(pod: Pod) -> Position:
        labels = pod.metadata.labels
        part = kind.roles[0].name if is_single else labels.get(kind.role_label, "")
        index = number(labels.get(kind.index_label, ""))
        return Position(part.lower(), index, own=index if is_single else None)

    spec = _type_of_spec(kind, Template)
    fields = [("spec", spec)]
    made: type[Any] = msgspec.defstruct(kind.kind, fields, bases=(JobObject,), frozen=True, kw_only=True)
    recognized = f"label `{kind.job_label}`, or its owner" if kind.job_label else "its owner"
    numbers = some([f"`{role.replicas}`" if role.replicas else "1" for role in kind.roles])
    minimum = "all of them" if kind.starts_whole else "1"
    text = Text(kind.kind, recognized, numbers, f"`{kind.min_available}`, else {minimum}" if kind.min_available else
                minimum, "by role, then by index", "its operator")  # fmt: skip
    return JobKind(
        kind.name,
        text,
        lambda pod: labelled(pod) or owned(pod),
        position,
        marks=(kind.job_label,) if kind.job_label else (),
        owners=(f"{kind.group} {kind.kind}",),
        recreates=kind.recreates,
        objects=(Resource(made, kind.kind, f"apis/{kind.api_version}", kind.plural),),
        workloads=(Workload(kind.kind, kind.api_version, _type_of_spec(kind, PodTemplate), f"{numbers} of its roles"),),
    )
