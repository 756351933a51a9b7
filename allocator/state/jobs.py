"""All jobs: which pods belong together, by what is seen of pods, of groups and of owners, each in constant time."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from allocator.rules.job import INDEXED_JOB, SINGLE, STATEFUL_SET, JobKey, find_job
from allocator.state.job import Job
from ascend.kube.objects import BatchJob, Pod, PodGroup, StatefulSet


class _Place(NamedTuple):
    key: JobKey
    present: bool


class Jobs:
    """All jobs, told of pods, of groups and of owners."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Job] = {}
        self._places: dict[str, _Place] = {}
        self._groups: dict[JobKey, int] = {}
        self._owners: dict[JobKey, int] = {}
        self._watched: set[str] = set()

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def by_key(self) -> Mapping[JobKey, Job]:
        """Every job; one of which no pod is present may be among them."""
        return MappingProxyType(self._jobs)

    @property
    def groups(self) -> Mapping[JobKey, int]:
        """The minimum of each group there is."""
        return MappingProxyType(self._groups)

    @property
    def owners(self) -> Mapping[JobKey, int]:
        """How many pods each owner is to have."""
        return MappingProxyType(self._owners)

    @property
    def watched_kinds(self) -> frozenset[str]:
        """The kinds of which all groups are known."""
        return frozenset(self._watched)

    def job_of(self, pod: Pod) -> Job:
        """The job of a pod; one with nothing in it where neither pod nor job has been seen."""
        place = self._places.get(pod.uid)
        key = place.key if place is not None else find_job(pod)
        job = self._jobs.get(key)
        return job if job is not None else self._new(key, pod)

    def is_distributed(self, pod: Pod) -> bool:
        """Whether the pod's job is distributed."""
        return self.job_of(pod).is_distributed_with(pod)

    def lacks_group(self, job: Job) -> bool:
        """Whether the job's pods name a group that is not there, so that its minimum is not known.

        So it is only where groups of that kind are watched, and where the pods don't state the minimum themselves.
        """
        return job.kind in self._watched and job.key not in self._groups and job.stated_minimum is None

    def gang(self, job: Job) -> Job | None:
        """The job where its pods are placed together or not at all, as far as is known; else None."""
        return job if job.is_gang or self.lacks_group(job) else None

    def pod_applied(self, pod: Pod) -> JobKey | None:
        """A pod is new or has changed.

        Returns:
            The job it has left without anybody; None where there is none.
        """
        old, left = self._places.get(pod.uid), None
        key, present = find_job(pod), pod.status.phase != "Failed" and not pod.is_terminating
        if key.kind == SINGLE and not pod.asks_for_chips:
            return self.pod_deleted(pod)
        if old is not None and old.key != key:
            left = self.pod_deleted(pod)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._new(key, pod)
        self._places[pod.uid] = _Place(key, present)
        if present:
            job.put(pod)
        else:
            job.remove(pod.uid)
        return left

    def pod_deleted(self, pod: Pod) -> JobKey | None:
        """A pod is gone.

        Returns:
            The job it has left without anybody; None where there is none.
        """
        place = self._places.pop(pod.uid, None)
        job = self._jobs.get(place.key) if place is not None else None
        if job is None:
            return None
        job.remove(pod.uid)
        if job.present:
            return None
        # Those that have failed or are being deleted bring it back when they change, which does no harm.
        del self._jobs[job.key]
        return job.key

    def watched(self, kind: str) -> None:
        """Groups of a kind are known completely from now on."""
        self._watched.add(kind)

    def unwatched(self, kind: str) -> None:
        """Groups of a kind are there no more."""
        self._watched.discard(kind)
        for key in [key for key in self._groups if key.kind == kind]:
            self._drop_group(key)

    def group_applied(self, kind: str, group: PodGroup) -> None:
        """A group is new or has changed."""
        key = JobKey(group.metadata.namespace, group.name, kind)
        self._groups[key] = group.spec.min_member
        if key in self._jobs:
            self._jobs[key].group_minimum = group.spec.min_member

    def group_deleted(self, kind: str, group: PodGroup) -> None:
        """A group is gone."""
        self._drop_group(JobKey(group.metadata.namespace, group.name, kind))

    def owner_applied(self, owner: StatefulSet | BatchJob) -> None:
        """An owner of pods is new or has changed."""
        self._owners[_owned(owner)] = owner.size

    def owner_deleted(self, owner: StatefulSet | BatchJob) -> None:
        """An owner of pods is gone."""
        self._owners.pop(_owned(owner), None)

    def _drop_group(self, key: JobKey) -> None:
        self._groups.pop(key, None)
        if key in self._jobs:
            self._jobs[key].group_minimum = None

    def _new(self, key: JobKey, pod: Pod) -> Job:
        job = Job(key, self._owners)
        job.group_minimum = self._groups.get(key)
        job.note_minimum(pod)
        return job


def _owned(owner: StatefulSet | BatchJob) -> JobKey:
    # The pods of a Job without an index don't work together, however many it has.
    kind = STATEFUL_SET if isinstance(owner, StatefulSet) else INDEXED_JOB
    return JobKey(owner.metadata.namespace, owner.name, kind)
