"""The table of the kinds of jobs, built-in ones and described ones.

The rows are tried from the most specific mark of a pod, a pod group, to the most general, an owner; a pod without any
mark is a job of its own. Derived from it: how the allocator recognizes jobs and which objects it watches, who creates a
deleted pod anew, which pod groups are admitted to Volcano's queue, what ``npuctl plan`` expands and ``npuctl explain``
finds, the chart's rights, and the table in ``docs/jobs.md``.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ascend.errors import InvalidValue
from ascend.grammar import some
from ascend.jobs import (
    argo,
    core,
    infer_service_set,
    job_set,
    kubeflow,
    kueue,
    leader_worker_set,
    model_serving,
    pod_groups,
    ray,
    role_based_group,
    spark,
    storm_service,
    train_job,
    volcano_job,
)
from ascend.jobs.described import JobDescription, described_kinds
from ascend.jobs.kind import JobKind
from ascend.kube.kept import DESCRIBED
from ascend.kube.objects import Pod, Resource

JOB_KINDS: Final = (
    *pod_groups.KINDS,
    leader_worker_set.KIND,
    *kubeflow.KINDS,
    job_set.KIND,
    ray.KIND,
    model_serving.KIND,
    storm_service.KIND,
    spark.KIND,
    kueue.KIND,
    volcano_job.KIND,
    argo.KIND,
    *core.KINDS,
)
"""From the most specific mark to the most general."""

MARKS: Final = frozenset(key for kind in JOB_KINDS for key in kind.marks)
"""The labels and annotations that mark pods; without any, a pod is recognized by its owner."""
WORKLOADS: Final = {
    (row.kind, row.version): row
    for rows in (
        *(kind.workloads for kind in JOB_KINDS),
        train_job.WORKLOADS,
        infer_service_set.WORKLOADS,
        role_based_group.WORKLOADS,
    )
    for row in rows
}
"""What is expanded to pods; those of the last three are of kinds above."""
ENQUEUED: Final[dict[str, Resource[Any]]] = {
    f"{resource.api_version.partition('/')[0]} {resource.kind}": resource
    for kind in JOB_KINDS
    if kind.is_enqueued
    for resource in reversed(kind.objects)
}
"""The jobs whose operators create no pods before their PodGroup is in Volcano's queue, by *group kind*."""
_BUILT_IN: Final = frozenset(
    f"{version.partition('/')[0]} {kind}"
    for kind, version in (*WORKLOADS, *((obj.kind, obj.api_version) for row in JOB_KINDS for obj in row.objects))
)


def check_descriptions(descriptions: Iterable[JobDescription]) -> tuple[JobKind, ...]:
    """The kinds that settings describe.

    Raises:
        InvalidValue: a description is wrong.
    """
    return described_kinds(descriptions, _BUILT_IN)


class JobTable:
    """The kinds of jobs of a program: the rows above, and the descriptions in the settings.

    There is one in a process: a decoder, which keeps the labels by which pods are recognized, has nothing of its caller
    but a type. So programs of one process must have the same descriptions; other ones are an error while one runs.

    Attributes:
        described: the kinds of the settings.
        kinds: all kinds, from the most specific mark to the most general.
        by_name: the same by name.
        workloads: what is expanded to pods, by kind and version.
        recreating: the controllers that create a deleted pod anew, *group kind*.
        everything: how pods are recognized.
        without_groups: how they are, regardless of their pod groups.
    """

    def __init__(self) -> None:
        self._descriptions: tuple[JobDescription, ...] = ()
        self._users = 0
        self.describe(())

    @contextmanager
    def using(self, descriptions: Iterable[JobDescription]) -> Iterator[None]:
        """Have the kinds of the settings, for as long as a program runs.

        Raises:
            InvalidValue: as for ``describe``.
        """
        self.describe(descriptions)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.describe(())

    def describe(self, descriptions: Iterable[JobDescription]) -> None:
        """Replace the kinds of the settings by others.

        Raises:
            InvalidValue: a description is wrong, or a program that runs in this process has others.
        """
        given = tuple(descriptions)
        if self._users and given != self._descriptions:
            raise InvalidValue("job_kinds: another program in this process runs with other descriptions")
        self._descriptions, self.described = given, check_descriptions(given)
        groups = len(pod_groups.KINDS)
        self.kinds = (*JOB_KINDS[:groups], *self.described, *JOB_KINDS[groups:])
        self.by_name = {kind.name: kind for kind in self.kinds}
        self.workloads = WORKLOADS | {(row.kind, row.version): row for kind in self.described for row in kind.workloads}
        DESCRIBED.clear()
        DESCRIBED.update(key for kind in given for key in (kind.job_label, kind.role_label, kind.index_label) if key)
        self.recreating = frozenset(owner for kind in self.kinds if kind.recreates for owner in kind.owners)
        self.everything = Recognition(self.kinds)
        self.without_groups = Recognition(tuple(kind for kind in self.kinds if not kind.is_group))

    def several(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """A sentence if the labels are those of several kinds of the settings."""
        found = [f"{kind.name} by label {key}" for kind in self.described for key in kind.marks if key in labels]
        if found[1:]:
            return (f"the pod is of {some(found)} in the setting job_kinds; only the first one has an effect",)
        return ()


class Recognition:
    """The kinds among which that of a pod is found."""

    def __init__(self, kinds: tuple[JobKind, ...]) -> None:
        by_name = {kind.name: kind for kind in kinds}
        self.kinds = kinds
        self._marks = frozenset(key for kind in kinds for key in kind.marks)
        self._alone = (by_name[core.SINGLE],)
        self._others = (by_name[""], by_name[core.SINGLE])
        owners = {owner.partition(" ")[2] for row in kinds for owner in row.owners}
        self._by_owners_kind = {
            kind: (*(row for row in kinds if any(owner.endswith(f" {kind}") for owner in row.owners)), *self._others)
            for kind in owners
        }

    def among(self, pod: Pod) -> tuple[JobKind, ...]:
        """The kinds that a pod may be of: all, unless no label and no annotation marks it."""
        # Most pods of a cluster have no mark but their owner; called several times for each change of a pod.
        metadata, owner = pod.metadata, pod.metadata.controller
        is_marked = not (self._marks.isdisjoint(metadata.labels) and self._marks.isdisjoint(metadata.annotations))
        if is_marked or pod.spec.scheduling_group is not None:
            return self.kinds
        return self._alone if owner is None else self._by_owners_kind.get(owner.kind, self._others)


TABLE: Final = JobTable()
"""The table of this process; its settings are known before it reads objects."""
