"""The description of a kind of job, from which everything is derived that depends on the kind."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from ascend.jobs.creation import Controller
from ascend.jobs.marks import Position, position_by_index
from ascend.jobs.templates import T
from ascend.kube.kept import short
from ascend.kube.objects import KubeObject, Metadata, Pod, Resource
from ascend.kube.workloads import OfJob

LEADERS: Final = frozenset({"master", "chief", "launcher", "leader", "head", "headgroup"})
"""Names of parts of jobs that come first, in lower case."""
VOLCANO_SCHEDULER: Final = "volcano"
"""The scheduler of jobs that name none, where their operator makes a PodGroup of Volcano."""

ALL: Final = "all of them"
ONE: Final = "1"
OF_OBJECT: Final = "the object's replicas"
ALONE: Final = "1: each pod is a job"
BINDINGS: Final = "by their Bindings"


class PodSet(NamedTuple, Generic[T]):
    """The pods of a job that are made from one template.

    Attributes:
        name: the name of the task, replica type, group or template.
        template: the template; None if the object has none.
        pods: the number of pods at one time.
        each: the number of pods of each of its Jobs, for a JobSet; 0 if the index within the set is unique.
        indexes: the number of indexes, if it is not that of the pods, since some pods run after others.
        most: the number of pods up to which the set is scaled; 0 if that is ``pods``.
    """

    name: str
    template: T | None
    pods: int
    each: int = 0
    indexes: int | None = None
    most: int = 0

    @property
    def part(self) -> str:
        """The name in lower case, as it is compared with that on pods."""
        return short(self.name).lower()

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.pods if self.indexes is None else self.indexes

    @property
    def requests_chips(self) -> bool:
        """Whether the pods request chips."""
        return self.template is not None and self.template.requests_chips

    @property
    def scheduler(self) -> str:
        """The scheduler that the template names; empty if it names none."""
        return self.template.scheduler if self.template is not None else ""


class JobFacts(msgspec.Struct, frozen=True, gc=False):
    """What an object says of its job.

    Attributes:
        parts: its parts, in the order of their ranks.
        minimum: how many pods must be placed together, as the object states; None if it does not.
        whole: the same by the rules of its own project, if nothing is stated; None if they start one by one.
        labels: the labels that decide how it is placed.
        annotations: the annotations that do.
        limit_s: the time after its start at which its operator deletes its pods; None for no limit.
        started: when it started, as its operator writes it; empty if that is unknown.
    """

    parts: tuple[PodSet[Any], ...] = ()
    minimum: int | None = None
    whole: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    limit_s: int | None = None
    started: str = ""

    @property
    def pods_with_chips(self) -> int:
        """The number of its pods that request chips."""
        return sum(part.pods for part in self.parts if part.requests_chips)

    @property
    def most_with_chips(self) -> int:
        """The same once it has grown as far as its object allows."""
        return sum(part.most or part.pods for part in self.parts if part.requests_chips)


class JobSpec(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    """The ``spec`` of an object from which a controller creates the pods of a job; ``T`` is the type of a template."""

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """Its pods, in the order of their ranks."""
        raise NotImplementedError

    @property
    def minimum(self) -> int | None:
        """How many pods must be placed together, as it states; None if it does not."""
        return None

    def whole(self, _labels: Mapping[str, str]) -> int | None:
        """The minimum by the rules of the project, given the labels of the object; None if pods start one by one."""
        return None

    @property
    def asked(self) -> dict[str, str]:
        """What else it says about the placement, as annotations."""
        return {}

    @property
    def schedulers(self) -> set[str]:
        """The schedulers of its pods, if its operator makes a PodGroup of Volcano."""
        return {pod_set.scheduler or VOLCANO_SCHEDULER for pod_set in self.pod_sets} or {VOLCANO_SCHEDULER}

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods, and the objects between them and the object, that its controller creates."""
        raise NotImplementedError


class JobObject(OfJob, frozen=True, kw_only=True):
    """An object from which an operator creates the pods of a job, as the allocator keeps it."""

    spec: Any

    @property
    def facts(self) -> JobFacts:
        """The facts about the job that the object states."""
        spec: JobSpec[Any] = self.spec
        labels, annotations = self.metadata.labels, self.metadata.annotations | spec.asked
        return JobFacts(spec.pod_sets, spec.minimum, spec.whole(labels), labels, annotations)


_Watched = TypeVar("_Watched", bound=JobObject)


def as_watched(kind: type[_Watched], metadata: Metadata, spec: JobSpec[Any]) -> _Watched:
    """An object that a controller creates between a workload and the pods, as the allocator keeps it."""
    return msgspec.convert({"metadata": msgspec.to_builtins(metadata), "spec": msgspec.to_builtins(spec)}, kind)


class Text(NamedTuple):
    """A row for readers: sentences for the documentation and for ``npuctl``.

    Attributes:
        title: what users call the kind.
        recognized: how its pods are recognized.
        size: where the number of its pods comes from.
        minimum: how many of its pods are placed together unless something else is stated.
        ranks: the order of its ranks.
        owner: what creates the successor of a pod that has ended.
    """

    title: str
    recognized: str
    size: str
    minimum: str
    ranks: str
    owner: str


class Workload(NamedTuple):
    """A kind of object from which pods are created, directly or through others.

    Attributes:
        kind: its kind.
        version: its ``apiVersion``.
        spec: the type of its ``spec``, whose ``create`` yields what its controller creates.
        pods: which pods these are, for readers.
        short_names: those of ``kubectl``.
        creates: the kind of the objects with generated names between it and its pods; empty if there are none.
        infix: what stands between its name and the generated part of theirs.
    """

    kind: str
    version: str
    spec: type[Any]
    pods: str
    short_names: tuple[str, ...] = ()
    creates: str = ""
    infix: str = "-"


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job.

    Attributes:
        name: the kind in keys of jobs.
        text: the row for readers.
        find: the name of the job of a pod with the kind's mark; None for other pods.
        position: the position of a pod in the job.
        marks: the labels and annotations that mark its pods; without any, a pod is recognized by its owner.
        owners: the controllers of its pods, *group kind*; a pod that has none of the marks of any kind is recognized by
            one of these.
        recreates: these create a deleted pod anew.
        objects: where the API server may serve the pod groups, or the objects from which the pods are created, if these
            are watched.
        object_name: the name of such an object; by default that of the job.
        workloads: what ``npuctl plan`` expands to pods of the kind.
        stated: the number of pods that start together, as written on a pod by the kind's own controller; None if it is
            not written there.
        is_group: a pod group; what else marks its pods is read as well.
        is_alone: its pods work alone, unless a minimum requires several of them.
        is_enqueued: its operator makes a PodGroup of Volcano, and no pods before that is in the queue.
        is_scaled: its users change the number of its pods while they run.
    """

    name: str
    text: Text
    find: Callable[[Pod], str | None]
    position: Callable[[Pod], Position] = position_by_index
    marks: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    recreates: bool = True
    objects: tuple[Resource[Any], ...] = ()
    object_name: Callable[[Pod], str | None] | None = None
    workloads: tuple[Workload, ...] = ()
    stated: tuple[str, ...] = ()
    is_group: bool = False
    is_alone: bool = False
    is_enqueued: bool = False
    is_scaled: bool = False
