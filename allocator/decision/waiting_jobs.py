"""The jobs that wait for chips, the oldest of the highest priority first, and what each of them needs. No I/O.

A gang waits once its first pod exists; a pod that is placed alone from its first refusal on: before it, its scheduler
may be about to place it, and nothing has to be kept. A pod alone that can't use chips now (its scheduler refuses it for
other reasons, it would not fit on an empty node, what was kept for it was of no use) is passed over, and looked at
again when it changes, or after some time; so a decision does not take longer the more of them there are.

A gang that never starts, for a reason that only its scheduler knows, would be the oldest again after each try. So gangs
that have had chips in vain come after gangs that have had them less often; a pod alone comes before the first gang of
this order if the pod is older.

Pods with scheduling gates don't wait: nobody may place them. Without their gates they come by the time of their
creation, as all others, since nothing says when a gate was removed.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from allocator.decision.setbacks import Setbacks
from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import MANY
from allocator.gangs.one_model import known_models, there_of
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.scheduled import verdict_on
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Steps

_MOST: Final = 32
"""The most pods that are looked at again at one time."""

_Order = tuple[int, str, str]


class Need(NamedTuple):
    """What a waiting gang needs, or a pod that is placed alone.

    Attributes:
        order: the sort key, what comes first has the smallest: by priority, then by creation, then by owner.
        owner: of the promise: the name of the gang's plan, or the uid of the pod.
        job: the job.
        what: the gang or the pod, in sentences.
        pod: a pod that waits: that pod, or one of the gang.
        version: of the job and of the nodes' labels; it is valid for this one.
        priority: the lowest of the pods.
        request: what the largest pod requests.
        seats: how many pods must be placed.
        candidates: names of the only nodes to use; None for every node.
    """

    order: _Order
    owner: str
    job: JobKey
    what: str
    pod: Pod
    version: tuple[int, int]
    priority: int
    request: ChipRequest
    seats: int
    candidates: Collection[str] | None

    @property
    def is_alone(self) -> bool:
        """Whether it is a pod that is placed alone."""
        return self.owner == self.pod.uid

    @property
    def kind(self) -> object:
        """Equal for needs for which chips are kept alike."""
        spec = self.pod.spec
        return self.request, self.seats, spec.node_requirements, spec.tolerations

    @property
    def since(self) -> str:
        """When the pod, or the last one of the gang, was created."""
        return self.order[1]


class WaitingJobs:
    """Reads what waiting jobs need.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gangs: what is placed together; says what jobs lack besides chips.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        setbacks: for which jobs nothing is kept for some time.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        request_of: Callable[[Pod], ChipRequest],
        setbacks: Setbacks,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._request_of = request_of
        self._setbacks = setbacks
        self._gangs_known: dict[JobKey, tuple[tuple[int, int], Need | None] | None] = {}
        self._gangs_ordered: list[Need] = []
        self._alone: dict[str, _Order] = {}
        self._alone_ordered: list[_Order] = []
        self._passed_over: dict[str, None] = {}
        self._last: Need | None = None
        self._changes = 0

    def __len__(self) -> int:
        return len(self._gangs_known) + len(self._alone)

    def follow(self) -> None:
        """Note every gang with a waiting pod and every pod refused by its scheduler, as long as they wait."""
        for pod in self._cluster.waiting:
            self._on_pod(pod)
        self._cluster.followers.add(self._on_pod, self._forget)

    def note(self, pod: Pod) -> None:
        """Note a pod refused for lack of room, or its gang."""
        job = self._cluster.jobs.job_of(pod)
        if self._cluster.jobs.gang(job) is not None:
            self._gangs_known.setdefault(job.key, None)
        elif pod.uid not in self._alone and pod.uid in self._cluster.pods:
            order = self._alone[pod.uid] = -pod.priority, pod.metadata.creation_timestamp or "", pod.uid
            insort(self._alone_ordered, order)
            self._changes += 1

    @property
    def revision(self) -> tuple[int, int, int]:
        """Changes with the jobs that wait for chips or for a turn, and with the verdicts of their schedulers."""
        return len(self._gangs_known), self._changes, self._gangs.obstacles.revision + self._gangs.queue.revision

    @property
    def has_large(self) -> bool:
        """Whether many pods of a gang wait for a seat: reading what it needs takes long."""
        return any(map(self._is_large, self._gangs_known))

    def version(self, key: JobKey) -> tuple[int, int]:
        """The versions of a job and of the nodes' labels, which date a need."""
        job = self._cluster.jobs.by_key.get(key)
        return job.version if job is not None else 0, self._cluster.labels.version

    def refresh(self) -> Steps[bool]:
        """Read what has changed of gangs; returns whether anything has."""
        jobs, labels, is_changed = self._cluster.jobs.by_key, self._cluster.labels.version, False
        for key, known in tuple(self._gangs_known.items()):
            job = jobs.get(key)
            if job is None or not job.is_gang:
                self._gangs_known.pop(key, None)
            elif known is None or known[0] != (job.version, labels):
                need = yield from self._read_gang(job)
                self._gangs_known[key] = self.version(key) if need is None else need.version, need
            else:
                continue
            is_changed = True
        if is_changed:
            needs = (known[1] for known in self._gangs_known.values() if known is not None)
            self._gangs_ordered = sorted(filter(None, needs), key=self._order_of_gang)
        return is_changed

    def needs(self) -> Iterator[Need]:
        """The needs of the jobs that lack nothing but chips, in the order of the jobs."""
        return heapq.merge(self._needs_of_gangs(), self._needs_alone(), key=lambda need: need.order)

    def pass_over(self, need: Need) -> None:
        """Look at other pods first: this one can't use any chips now."""
        if need.is_alone:
            self._pass_over(need.order)

    def look_again(self) -> None:
        """Look again at jobs that needed nothing or were passed over, some of them at a time. Call it periodically."""
        for key, known in self._gangs_known.items():
            if known is not None and known[1] is None:
                self._gangs_known[key] = None
        for uid in list(self._passed_over)[:_MOST]:
            self._return(uid)

    def _order_of_gang(self, need: Need) -> tuple[int, int, _Order]:
        """The order of a gang: after gangs with fewer tries in vain, so a gang without prospects starves nobody."""
        return need.order[0], self._gangs.resting.tries[need.job], need.order

    def _needs_of_gangs(self) -> Iterator[Need]:
        for need in self._gangs_ordered:
            job = self._cluster.jobs.by_key.get(need.job)
            if job is None or self._setbacks.is_aside(need.job) or self._gangs.obstacles.of(job) is not None:
                continue
            # One in the queue waits for a turn, in which it may use all that is kept.
            if self._gangs.queue.get(job) is None and not self._gangs.resting.owes(job):
                yield need

    def _needs_alone(self) -> Iterator[Need]:
        position = 0
        while position < len(self._alone_ordered):
            order = self._alone_ordered[position]
            if self._ledger.get(order[2]) is None:
                need = self._read_alone(self._cluster.pods[order[2]], order)
                if need is None:
                    self._pass_over(order)
                else:
                    yield need
            if self._alone_ordered[position : position + 1] == [order]:
                position += 1

    def _read_alone(self, pod: Pod, order: _Order) -> Need | None:
        job = self._cluster.jobs.job_of(pod)
        if self._setbacks.is_aside(job.key) or self._gangs.obstacles.of_pod(pod) is not None:
            return None
        version, last = self.version(job.key), self._last
        if last is not None and last.pod is pod and last.version == version:
            return last
        try:
            request = self._request_of(pod)
        except Refusal:
            return None
        if not request.is_for_chips or self._cluster.jobs.gang(job) is not None:
            return None
        candidates = self._cluster.labels.only(pod.spec.node_requirements)
        what = f"pod {pod.key}"
        self._last = Need(order, pod.uid, job.key, what, pod, version, pod.priority, request, 1, candidates)
        return self._last

    def _read_gang(self, job: Job) -> Steps[Need | None]:
        if job.placed_beside("") >= job.min_available:
            return None
        read = yield from self._gangs.planner.pending.read(job)
        if self._is_large(job.key):
            yield
        version = self.version(job.key)
        waiting = [member.pod for member in read or () if self._ledger.get(member.pod.uid) is None]
        if not waiting or self._gangs.incomplete(job, waiting[0]):
            return None
        try:
            request = self._request_of(waiting[0])
            gang, needed = yield from self._gangs.gang_request(waiting[0], request, job, None)
        except Refusal:
            return None
        if not request.is_for_chips or gang.policy.level is not None:
            return None  # whole nodes would drain for parts of chips, or nodes of any SuperPods for blocks
        request = max((member.request for member in gang.members[:needed]), key=lambda asked: asked.chips)
        if request.model is not None:  # nodes of one drain
            known = yield from known_models(gang, self._cluster.index)
            models = known[request.products]
            among = there_of(gang, request.products) or models
            request = replace(request, model=max(among, key=lambda model: (models[model], model), default=""))
        priority = min(pod.priority for pod in waiting)
        since = max(pod.metadata.creation_timestamp or "" for pod in waiting)
        owner, what = job.key.plan, f"job {job.key}"
        order = -priority, since, owner
        return Need(
            order, owner, job.key, what, waiting[0], version, priority, request, needed, gang.candidates
        )  # fmt: skip

    def _is_large(self, key: JobKey) -> bool:
        """Whether many pods of a job wait for a seat."""
        job = self._cluster.jobs.by_key.get(key)
        return job is not None and job.size - job.placed_beside("") > MANY

    def _on_pod(self, pod: Pod) -> None:
        if not pod.waits_for_chips or pod.is_terminating:
            self._forget(pod)
        elif pod.uid in self._alone:
            self._return(pod.uid)
        elif self._cluster.jobs.job_of(pod).is_gang or (
            (verdict := verdict_on(pod)) is not None and verdict.status == "False"
        ):
            self.note(pod)

    def _pass_over(self, order: _Order) -> None:
        del self._alone_ordered[bisect_left(self._alone_ordered, order)]
        self._passed_over[order[2]] = None

    def _return(self, uid: str) -> None:
        if uid in self._passed_over:
            del self._passed_over[uid]
            insort(self._alone_ordered, self._alone[uid])
            self._changes += 1

    def _forget(self, pod: Pod) -> None:
        order = self._alone.pop(pod.uid, None)
        if order is None:
            return
        self._changes += 1
        if pod.uid in self._passed_over:
            del self._passed_over[pod.uid]
        else:
            del self._alone_ordered[bisect_left(self._alone_ordered, order)]
