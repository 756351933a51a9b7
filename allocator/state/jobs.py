"""All jobs: groups pods by pod group and owner; each event takes constant time."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import msgspec

from allocator.rules.job import JobKey, find_job, find_object, is_group
from allocator.rules.job_products import is_mind_ie
from allocator.rules.unsupported import without_effect
from allocator.state.discovery import Discovery
from allocator.state.job import Job
from allocator.state.owned import Owners
from ascend.jobs.core import SINGLE
from ascend.jobs.kind import JobFacts, JobObject
from ascend.jobs.table import TABLE
from ascend.kube.kept import LONGEST, settings_among, short
from ascend.kube.objects import KubeObject, Pod
from ascend.kube.workloads import PodGroup, task_minima


class _Membership(msgspec.Struct, frozen=True, gc=False):
    key: JobKey
    present: bool
    needs_node: bool


class Jobs:
    """All jobs, kept current by the informers of pods, pod groups and owners."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Job] = {}
        self._members: dict[str, _Membership] = {}
        self._groups: dict[JobKey, JobFacts] = {}
        self.owners = Owners()
        self._sources: dict[JobKey, JobFacts] = {}
        self._made_from: dict[JobKey, set[JobKey]] = {}
        self._unreadable: dict[JobKey, str] = {}
        self.discovery = Discovery()
        self.reschedules = False
        """Whether pods are rescheduled after faults."""
        self.losses = 0
        """Incremented when a pod group, or an object from which pods are created, is deleted."""

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    @property
    def by_key(self) -> Mapping[JobKey, Job]:
        """Every job, including some without present pods."""
        return MappingProxyType(self._jobs)

    def job_of(self, pod: Pod) -> Job:
        """The job of a pod; an empty one if neither pod nor job has been seen."""
        member = self._members.get(pod.uid)
        key = member.key if member is not None else find_job(pod)
        job = self._jobs.get(key)
        if job is None:
            job = self._new(key, pod)
            job.note_minimum(pod)
        return job

    def without_pods(self) -> "Jobs":
        """The same groups, owners and objects without a pod: for pods that may be created."""
        empty = Jobs()
        empty._groups, empty.owners, empty._sources = self._groups, self.owners, self._sources
        empty._unreadable, empty.discovery.watched = self._unreadable, self.discovery.watched
        return empty

    def lacks_group(self, job: Job) -> bool:
        """Whether the job's pods name a group, or an owner, that does not exist, so that the minimum is unknown.

        Only if objects of that kind are watched, or may be served by now, and if the pods don't state the minimum
        themselves.
        """
        kind = _kind(job)
        if kind in self.discovery.watched:
            lacks = (job.group if is_group(job.key) else job.source) is None
        else:
            lacks = self.discovery.is_waiting(job.key)
        return lacks and job.stated_minimum is None

    def why_lacking(self, job: Job) -> str:
        """The end of a sentence on the group or owner of a job that lacks one: absent, or unreadable and why."""
        why = self._unreadable.get(job.key if is_group(job.key) else job.source_key or job.key)
        return f"which can't be read: {why}" if why is not None else "which does not exist"

    def unserved_group(self, job: Job) -> str | None:
        """The start of a job whose pods name a pod group of a kind not served, a sentence; None for other jobs.

        Such a group can't exist, so nothing says how many pods start together.
        """
        is_known = job.stated_minimum is not None or job.group is not None or job.source is not None
        if (
            is_known
            or not is_group(job.key)
            or job.kind in self.discovery.watched
            or self.discovery.is_waiting(job.key)
        ):
            return None
        return (
            f"its pods name {job.kind} {job.key}, but the API server does not serve that kind, so each of them starts "
            "when there is room for it; install the kind, or state huawei.com/schedule_minAvailable on the pods"
        )

    def without_effect(self, pod: Pod) -> tuple[str, ...]:
        """What a pod or its job asks for without effect, one sentence for each."""
        job = self.job_of(pod)
        pods = job.cooperation_with(pod).known if is_mind_ie(pod.metadata.labels) else None  # called for every new pod
        several = pods if pods is not None and pods > 1 else None  # pods that are placed by themselves have no blocks
        said = without_effect(pod, job.facts, several, reschedules=self.reschedules)
        return (*said, *self.owners.misplaced_settings(pod), *TABLE.several(pod.metadata.labels))

    def gang(self, job: Job) -> Job | None:
        """The job, if its pods are placed together or not at all, or if that is unknown; else None."""
        return job if job.is_gang or self.lacks_group(job) else None

    def pod_applied(self, pod: Pod) -> JobKey | None:
        """Add or update a pod.

        Returns:
            The job that the pod has left without any pod; None if there is none.
        """
        old, left = self._members.get(pod.uid), None
        key, present = find_job(pod), pod.status.phase != "Failed" and not pod.is_terminating
        present = present and not pod.is_gated
        if key.kind == SINGLE and not pod.requests_chips:
            return self.pod_deleted(pod)
        if old is not None and old.key != key:
            left = self.pod_deleted(pod)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._new(key, pod)
            if job.source_key is not None:
                self._made_from.setdefault(job.source_key, set()).add(key)
            self.discovery.job_seen(key, _kind(job))
        elif job.source_key is not None and pod.requests_chips and find_object(pod) != job.source_key:
            self._unlink(job)  # a group of pods of several objects
            job.source_key = None
            self._inform(job)
        self._members[pod.uid] = _Membership(key, present, present and pod.is_live and pod.requests_chips)
        if present:
            job.put(pod)
        else:
            job.remove(pod.uid)
        job.set_gated(pod.uid, gated=pod.is_gated and not pod.is_terminating)
        return left

    def pod_deleted(self, pod: Pod) -> JobKey | None:
        """Remove a pod.

        Returns:
            The job that the pod has left without any pod; None if there is none.
        """
        member = self._members.pop(pod.uid, None)
        job = self._jobs.get(member.key) if member is not None else None
        if job is None:
            return None
        job.remove(pod.uid)
        job.set_gated(pod.uid, gated=False)
        if job.present:
            return None
        # Its failed, terminating and gated pods add it again when they change, which does no harm.
        del self._jobs[job.key]
        self.discovery.forget(job.key)
        self._unlink(job)
        return job.key

    def on_watched(self, kind: str, informer: str = "") -> None:
        """Record that an informer watches the groups or objects of a kind, and has synced."""
        self.discovery.on_watched(kind, informer)
        self._renew(kind)

    def not_served(self, informer: str, keys: Collection[JobKey]) -> None:
        """Record an informer's vain look for its kind, after these jobs were seen."""
        for key in self.discovery.not_served(informer, keys):
            self._inform(self._jobs.get(key))

    def on_unserved(self, kind: str, informer: str = "") -> None:
        """Record that the kind of an informer is no longer served; without another informer, drop its objects."""
        if not self.discovery.on_unserved(kind, informer):
            return
        for facts in (self._groups, self._sources):
            for key in [key for key in facts if key.kind == kind]:
                del facts[key]
        self._unreadable = {key: why for key, why in self._unreadable.items() if key.kind != kind}
        self._renew(kind)

    def group_applied(self, kind: str, group: PodGroup) -> None:
        """Add or update a pod group."""
        metadata = group.metadata
        labels, annotations = settings_among(metadata.labels), settings_among(metadata.annotations) | group.spec.asked
        if metadata.controller is None:  # controllers write the number of all pods of each task
            annotations |= task_minima(group.spec.min_task_member or {}, group.spec.min_member)
        key = JobKey(metadata.namespace, group.name, kind)
        self._unreadable.pop(key, None)
        self._groups[key] = JobFacts(minimum=group.spec.min_member, labels=labels, annotations=annotations)
        self._inform(self._jobs.get(key))

    def group_deleted(self, kind: str, group: PodGroup) -> None:
        """Remove a pod group."""
        key = JobKey(group.metadata.namespace, group.name, kind)
        self._groups.pop(key, None)
        self.losses += 1
        self._inform(self._jobs.get(key))

    def on_unreadable(self, kind: str, obj: KubeObject, why: str) -> None:
        """Record why a pod group, or an object from which pods are created, can't be read; empty once it is gone."""
        key = JobKey(obj.metadata.namespace, obj.name, kind)
        self._unreadable.pop(key, None)
        if why:
            self._unreadable[key] = short(why, LONGEST)
        self._inform(self._jobs.get(key))
        self._inform_made_from(key)

    def source_applied(self, kind: str, source: JobObject) -> None:
        """Add or update an object from which an operator creates pods."""
        key, facts = JobKey(source.metadata.namespace, source.name, kind), source.facts
        self._unreadable.pop(key, None)
        if self._sources.get(key) != facts:
            self._sources[key] = facts
            self._inform_made_from(key)

    def source_deleted(self, kind: str, source: JobObject) -> None:
        """Remove such an object."""
        key = JobKey(source.metadata.namespace, source.name, kind)
        self._sources.pop(key, None)
        self.losses += 1
        self._inform_made_from(key)

    def end_of(self, pod: Pod, now_s: float) -> float:
        """When a pod has to have ended, Unix seconds; infinite if that is unknown."""
        return self.owners.end_of(pod, self.job_of(pod).source, now_s)

    def set_placed(self, uid: str, node: str) -> None:
        """Record on which node a pod is bound or has a reservation, if it needs chips; empty for none."""
        member = self._members.get(uid)
        if member is not None and member.present:
            self._jobs[member.key].set_placed(uid, node if member.needs_node else "")

    def _renew(self, kind: str) -> None:
        """Give jobs of a kind a new version: whether they lack their group or object may have changed."""
        for key, job in self._jobs.items():
            if key.kind == kind or (job.source_key is not None and job.source_key.kind == kind):
                self.discovery.forget(key)
                self._inform(job)

    def _inform_made_from(self, key: JobKey) -> None:
        for job_key in self._made_from.get(key, ()):
            self._inform(self._jobs.get(job_key))

    def _inform(self, job: Job | None) -> None:
        if job is not None:
            source = self._sources.get(job.source_key) if job.source_key is not None else None
            job.set_facts(self._groups.get(job.key), source)

    def _unlink(self, job: Job) -> None:
        made = self._made_from.get(job.source_key) if job.source_key is not None else None
        if made is not None and job.source_key is not None:
            made.discard(job.key)
            if not made:
                del self._made_from[job.source_key]

    def _new(self, key: JobKey, pod: Pod) -> Job:
        job = Job(key, self.owners.by_key, find_object(pod))
        if key in self._groups or job.source_key in self._sources:
            self._inform(job)
        return job


def _kind(job: Job) -> str:
    """The kind of the group or object that says how many pods of a job start together; empty if there is none."""
    if is_group(job.key):
        return job.kind
    return job.source_key.kind if job.source_key is not None else ""
