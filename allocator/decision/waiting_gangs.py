"""The gangs that wait for chips, and what each of them needs. No I/O."""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from allocator.decision.setbacks import Setbacks
from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import MANY
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Steps


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

    order: tuple[int, str, str]
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
        return self.request, self.seats, frozenset(spec.node_selector.items()), spec.tolerations

    @property
    def since(self) -> str:
        """When the pod, or the last one of the gang, was created."""
        return self.order[1]


class WaitingGangs:
    """Reads what waiting gangs need.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gangs: what is placed together.
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
        self._waiting: dict[JobKey, tuple[tuple[int, int], Need | None] | None] = {}
        self._ordered: list[Need] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def follow(self) -> None:
        """Note every gang of which a pod begins to wait."""
        self._cluster.waiting.subscribe(self._appeared)

    def note(self, job: Job) -> None:
        """Note a gang that was refused because it does not fit."""
        self._waiting.setdefault(job.key, None)

    @property
    def revision(self) -> int:
        """Changes with the verdicts of schedulers on waiting pods."""
        return self._gangs.obstacles.revision

    @property
    def has_large(self) -> bool:
        """Whether many pods of a gang wait for a seat: reading what it needs takes long."""
        return any(map(self._is_large, self._waiting))

    def version(self, key: JobKey) -> tuple[int, int]:
        """What a need was read from: it is valid for this one."""
        job = self._cluster.jobs.by_key.get(key)
        return job.version if job is not None else 0, self._cluster.labels.version

    def look_again(self) -> None:
        """Read again what the gangs need that need nothing as far as is known. Call it periodically."""
        for key, known in self._waiting.items():
            if known is not None and known[1] is None:
                self._waiting[key] = None

    def refresh(self) -> Steps[bool]:
        """Read what has changed; returns whether anything has."""
        jobs, labels, is_changed = self._cluster.jobs.by_key, self._cluster.labels.version, False
        for key, known in tuple(self._waiting.items()):
            job = jobs.get(key)
            if job is None or not job.is_gang:
                self._waiting.pop(key, None)
            elif known is None or known[0] != (job.version, labels):
                need = yield from self._read(job)
                self._waiting[key] = self.version(key) if need is None else need.version, need
            else:
                continue
            is_changed = True
        if is_changed:
            needs = (known[1] for known in self._waiting.values() if known is not None)
            self._ordered = sorted(filter(None, needs), key=lambda each: each.order)
        return is_changed

    def needs(self) -> Iterator[Need]:
        """What the gangs need that lack nothing but chips, in the order in which they come first."""
        for need in self._ordered:
            job = self._cluster.jobs.by_key.get(need.job)
            if job is not None and not self._setbacks.is_aside(need.job) and self._gangs.obstacles.of(job) is None:
                yield need

    def _read(self, job: Job) -> Steps[Need | None]:
        if job.placed_beside("") >= job.min_available:
            return None
        read = yield from self._gangs.planner.pending.read(job)
        if self._is_large(job.key):
            yield
        version = self.version(job.key)
        waiting = [each.pod for each in read or () if self._ledger.get(each.pod.uid) is None]
        if not waiting or self._gangs.incomplete(job, waiting[0]):
            return None
        setback = self._gangs.turns.get(job)
        if setback is not None and setback.tries:
            return None  # its scheduler has refused it: it lacks something else
        try:
            request = self._request_of(waiting[0])
            gang, needed = yield from self._gangs.gang_request(waiting[0], request, job, None)
        except Refusal:
            return None
        if not request.is_for_chips or gang.policy.level is not None:
            return None  # whole nodes would drain for parts of chips, or nodes of any SuperPods for blocks
        request = max((each.request for each in gang.members[:needed]), key=lambda each: each.chips)
        priority = min(each.priority for each in waiting)
        since = max(each.metadata.creation_timestamp or "" for each in waiting)
        owner, what = job.key.plan, f"job {job.key}"
        order = -priority, since, owner
        return Need(
            order, owner, job.key, what, waiting[0], version, priority, request, needed, gang.candidates
        )  # fmt: skip

    def _appeared(self, pod: Pod) -> None:
        job = self._cluster.jobs.job_of(pod)
        if job.is_gang:
            self._waiting.setdefault(job.key, None)

    def _is_large(self, key: JobKey) -> bool:
        """Whether many pods of a job wait for a seat."""
        job = self._cluster.jobs.by_key.get(key)
        return job is not None and job.size - job.placed_beside("") > MANY
