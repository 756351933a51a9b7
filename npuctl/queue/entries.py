"""The queue: the outcome of each waiting job in its turn, and the reason to wait."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from allocator.decision.backlog import WaitingFor
from allocator.rules.cores import fewest_chips
from allocator.rules.request import ChipRequest, counted_chips, counted_cores, requested_what
from allocator.rules.verdicts import capacity
from allocator.state.view import WITHOUT_PROMISES
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from npuctl.evaluation import Evaluation, PodVerdict
from npuctl.offline_allocator import OfflineAllocator


class Next(StrEnum):
    """What happens before a job starts."""

    STARTS = "starts"
    """Nothing: it starts now."""

    PREEMPTS = "preempts"
    """Pods of lower priority end for it."""

    BEHIND = "behind"
    """It would fit now, but jobs before it get the chips, or keep them."""

    CHIPS = "chips"
    """Running pods end."""

    NODES = "nodes"
    """Nodes are added or can be used again: it would not fit if all running pods had ended."""

    PODS = "pods"
    """The other pods of its gang, or its PodGroup, are created."""

    SCHEDULER = "scheduler"
    """Its scheduler gets what it lacks besides chips."""

    NEVER = "never"
    """Its author changes it: its request is invalid."""


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod that waits.

    Attributes:
        name: its name.
        state: ``fits`` (it gets chips now), ``preempts`` (once pods of lower priority have ended) or ``waits``.
        node: the node that it gets.
        preempts: the pods (``namespace/name``) that end for it there.
        reason: why it waits.
        message: the same as a sentence, as of ``npuctl explain``.
    """

    name: str
    state: Literal["fits", "preempts", "waits"]
    node: str = ""
    preempts: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


class QueueEntry(msgspec.Struct, frozen=True):
    """A waiting gang, or the waiting pods of the same job and priority.

    Attributes:
        position: its place in the queue, from 1.
        job: ``namespace/name`` of the job.
        namespace: that of the job.
        gang: its pods start together or not at all.
        priority: the highest of its pods.
        requests: the number of its pods by what each requests, as in ``8 chips``.
        chips: the whole chips that they request, also as AI cores.
        since: when the first of these pods was created, RFC 3339; empty if unknown.
        next: what happens before it starts; of pods that don't start together, before the first that waits does.
        starting: how many of its pods get chips now.
        behind: the jobs that get the chips, or keep them, on nodes where it would fit now.
        reason: why it waits, or the first of its pods that does.
        message: the same as a sentence.
        pods: its pods, in their order.
    """

    position: int
    job: str
    namespace: str
    gang: bool
    priority: int
    requests: dict[str, int]
    chips: int
    since: str
    next: Next
    starting: int
    behind: tuple[str, ...]
    reason: str
    message: str
    pods: tuple[QueuedPod, ...]


class _Room(NamedTuple):
    """Room for pods with a request: the nodes that have it, and for how many."""

    nodes: frozenset[str] = frozenset()
    pods: int = 0


class _Rooms:
    """Room by request and node selector, without promises, as it was when it was first asked for."""

    def __init__(self, allocator: OfflineAllocator) -> None:
        self._allocator = allocator
        self._known: dict[tuple[ChipRequest, frozenset[str]], _Room] = {}

    def for_pod(self, pod: Pod) -> _Room:
        """The room for pods like this one."""
        allocator, index = self._allocator, self._allocator.cluster.view(WITHOUT_PROMISES)
        try:
            request = allocator.engine.request_of(pod)
        except Refusal:
            return _Room()
        key = request, allocator.selected_nodes(pod)
        if key not in self._known:
            numbers = (
                (bucket, number, capacity(bucket.vacancy, request)[0]) for bucket, number in index.buckets_of(key[1])
            )
            fitting = [(bucket.names, number * pods) for bucket, number, pods in numbers if pods]
            names = frozenset(name for some, _ in fitting for name in some)
            self._known[key] = _Room(names & key[1], sum(number for _, number in fitting))
        return self._known[key]


class Queue:
    """Decides on all waiting pods, and says for each job why it waits.

    Args:
        evaluation: the evaluation; nothing has been decided yet.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._allocator = evaluation.allocator
        self._rooms = _Rooms(self._allocator)
        self._ahead: dict[str, set[str]] = {}
        self._owners: dict[str, str] = {}
        self._would_start: set[str] = set()

    async def read(self) -> tuple[QueueEntry, ...]:
        """Decide on everything that waits; returns the entries in their order."""
        queue = self._evaluation.queue()
        for pod in (pod for members in queue for pod in members):
            job = self._allocator.job_of(pod).key
            self._owners |= {pod.uid: str(job), job.plan: str(job)}
        self._would_start = {pod.uid for members in queue for pod in self._startable(members)}
        return tuple([await self._decide(position, members) for position, members in enumerate(queue, start=1)])

    async def _decide(self, position: int, members: Sequence[Pod]) -> QueueEntry:
        first, job = members[0], self._allocator.job_of(members[0]).key
        verdicts, follows, waits = [], Next.STARTS, None
        behind: tuple[str, ...] = ()
        for pod in members:
            verdict = await self._evaluation.decide(pod)
            verdicts.append(verdict)
            if verdict.refusal is not None and waits is None:
                waits = verdict
                follows, behind = self._next(verdict)
        if waits is None and any(verdict.victims for verdict in verdicts):
            follows = Next.PREEMPTS
        nodes = {verdict.held.node for verdict in verdicts if verdict.held is not None}
        if nodes:
            self._ahead.setdefault(str(job), set()).update(nodes)
        refusal = waits.refusal if waits is not None else None
        return QueueEntry(
            position,
            str(job),
            job.namespace,
            self._allocator.engine.is_of_gang(first),
            max(pod.priority for pod in members),
            dict(Counter(map(requested_what, members))),
            sum(counted_chips(pod) or fewest_chips(counted_cores(pod)) for pod in members),
            min((stamp for pod in members if (stamp := pod.metadata.creation_timestamp)), default=""),
            follows,
            sum(verdict.held is not None for verdict in verdicts),
            behind,
            refusal.reason if refusal is not None else "",
            refusal.message if refusal is not None else "",
            tuple(map(_queued, verdicts)),
        )

    def _startable(self, members: Sequence[Pod]) -> Sequence[Pod]:
        """Those of the pods of an entry that would start if nothing was before them."""
        fitting = [pod for pod in members if self._rooms.for_pod(pod).pods >= self._needed_chips(pod)]
        if not self._allocator.engine.is_of_gang(members[0]):
            return fitting
        return fitting if fitting and self._allocator.has_room(fitting[0], WITHOUT_PROMISES) else ()

    def _needed_chips(self, pod: Pod) -> int:
        gang = self._allocator.engine.gang_of(pod)
        return 1 if gang is None else max(1, gang.needed - gang.placed_beside(""))

    def _next(self, verdict: PodVerdict) -> tuple[Next, tuple[str, ...]]:
        """The next step of a waiting pod, and the jobs before the pod."""
        pod = verdict.pod
        match verdict.waits_for:
            case WaitingFor.CHANGE:
                return Next.NEVER, ()
            case WaitingFor.PODS:
                return Next.PODS, ()
            case WaitingFor.SCHEDULER:
                return Next.SCHEDULER, ()
        if pod.uid in self._would_start and (behind := self._holders(pod, str(verdict.job))):
            return Next.BEHIND, behind
        if verdict.waits_for is WaitingFor.NODES or self._emptied.for_pod(pod).pods < self._needed_chips(pod):
            return Next.NODES, ()
        return Next.CHIPS, ()

    def _holders(self, pod: Pod, job: str) -> tuple[str, ...]:
        """The jobs before a pod that take or keep chips where the pod would fit."""
        nodes = self._rooms.for_pod(pod).nodes
        found = [name for name, taken in self._ahead.items() if not taken.isdisjoint(nodes)]
        found += [
            self._owners.get(promise.owner, promise.what)
            for promise in self._allocator.ledger.promises
            if not nodes.isdisjoint(promise.chips)
        ]
        return tuple(name for name in dict.fromkeys(found) if name != job)

    @cached_property
    def _emptied(self) -> _Rooms:
        return _Rooms(self._evaluation.without_running())


def _queued(verdict: PodVerdict) -> QueuedPod:
    name, refusal = verdict.pod.name, verdict.refusal
    if verdict.held is not None:
        state: Literal["fits", "preempts"] = "preempts" if verdict.victims else "fits"
        return QueuedPod(name, state, verdict.held.node, verdict.victims)
    assert refusal is not None  # noqa: S101 - a pod that gets nothing is refused
    return QueuedPod(name, "waits", reason=refusal.reason, message=refusal.message)
