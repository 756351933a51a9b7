"""What waits for chips, and for what. No I/O.

Computed from the watched pods, so that they are true for pods that no scheduler has called for: kube-scheduler doesn't
call for a pod while no node has enough chips. A verdict here is cheaper than a decision: a gang counts its pods by what
nodes have left, without a plan for all of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from allocator.decision.engine import DecisionEngine
from allocator.rules.cores import fewest_chips
from allocator.rules.request import ChipRequest, counted_chips, counted_cores
from allocator.rules.verdicts import capacity
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import NodeRequirements, Pod
from ascend.reasons import Category, Reason
from ascend.turn import Turn


class WaitingFor(StrEnum):
    """What a pod waits for; the value is a label of the gauges."""

    BINDING = "binding"
    """It fits now, or has its chips reserved: for its scheduler."""

    CHIPS = "chips"
    """It fits once other pods have ended."""

    NODES = "nodes"
    """No node that it could use is usable."""

    SCHEDULER = "scheduler"
    """Its scheduler refuses it, or a pod that its gang needs, on every node for other reasons than chips."""

    PODS = "pods"
    """Pods of its gang, or its PodGroup, don't exist yet."""

    CHANGE = "change"
    """Its request is invalid on every node."""


_WORSE: Final = (WaitingFor.BINDING, WaitingFor.CHIPS, WaitingFor.NODES, WaitingFor.CHANGE)
"""What the pods of a gang may wait for; the last of these counts for all of them."""


class Backlog(msgspec.Struct, frozen=True):
    """What waits.

    Attributes:
        pods: the number of waiting pods by namespace and what they wait for.
        chips: the number of whole chips they request, also as AI cores, likewise.
        oldest: when the oldest of these pods was created, RFC 3339, likewise. Pods that fit count, too: their scheduler
            may refuse a pod of their gang again and again, for its CPU.
    """

    pods: Mapping[tuple[str, WaitingFor], int] = {}
    chips: Mapping[tuple[str, WaitingFor], int] = {}
    oldest: Mapping[tuple[str, WaitingFor], str] = {}


_Kind: TypeAlias = tuple[ChipRequest, NodeRequirements]


class _Read(msgspec.Struct, frozen=True, gc=False):
    """What a pod requests, and the state it was read from."""

    pod: Pod
    job_version: int
    labels_version: int
    request: ChipRequest | None
    chips: int


class _Gang(NamedTuple):
    job: Job
    kinds: Counter[_Kind]
    pods: list[Pod]


class BacklogReader:
    """Measures what waits.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        engine: reads what pods request.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, engine: DecisionEngine) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._obstacles = engine.gangs.obstacles
        self._known: dict[str, _Read] = {}

    async def read(self) -> Backlog:
        """Measure what waits; other tasks run meanwhile, so pods may have changed since."""
        turn, known = Turn(), self._known
        pods: Counter[tuple[str, WaitingFor]] = Counter()
        chips: Counter[tuple[str, WaitingFor]] = Counter()
        alone: dict[_Kind, WaitingFor] = {}
        gangs: dict[object, _Gang] = {}
        oldest: dict[tuple[str, WaitingFor], str] = {}

        def count(pod: Pod, waits_for: WaitingFor) -> None:
            key = pod.metadata.namespace, waits_for
            pods[key] += 1
            chips[key] += self._known[pod.uid].chips
            created = pod.metadata.creation_timestamp or ""
            oldest[key] = min(oldest.get(key, created), created)

        self._known = {}
        for pod in list(self._cluster.waiting):
            await turn.share()
            if not pod.requests_chips:
                continue
            job = self._cluster.jobs.job_of(pod)
            read = self._known[pod.uid] = self._request(pod, job, known.get(pod.uid))
            kind = (read.request, pod.spec.node_requirements) if read.request is not None else None
            in_gang = self._cluster.jobs.gang(job) is not None
            if kind is None:
                waits = WaitingFor.CHANGE
            elif self._ledger.get(pod.uid) is not None:
                waits = WaitingFor.BINDING
            elif not in_gang and self._obstacles.refusal_of(pod) is not None:
                waits = WaitingFor.SCHEDULER
            elif in_gang:
                gang = gangs.setdefault(job.key, _Gang(job, Counter(), []))
                gang.kinds[kind] += 1
                gang.pods.append(pod)
                continue
            else:
                waits = alone.get(kind) or alone.setdefault(kind, await self._verdict(kind, 1, turn))
            count(pod, waits)
        for gang in gangs.values():
            await turn.share()
            waits = await self._of_gang(gang, turn)
            for pod in gang.pods:
                count(pod, waits)
        return Backlog(dict(pods), dict(chips), oldest)

    def _request(self, pod: Pod, job: Job, last: _Read | None) -> _Read:
        versions = job.version, self._cluster.labels.version
        if last is not None and last.pod is pod and (last.job_version, last.labels_version) == versions:
            return last
        try:
            request = self._engine.request_of(pod)
        except Refusal:
            return _Read(pod, *versions, None, counted_chips(pod) or fewest_chips(counted_cores(pod)))
        return _Read(pod, *versions, request, request.chips or fewest_chips(request.cores))

    async def _of_gang(self, gang: _Gang, turn: Turn) -> WaitingFor:
        job = gang.job
        if self._cluster.jobs.lacks_group(job) or job.present < job.min_available:
            return WaitingFor.PODS
        if self._obstacles.refusal(job) is not None:
            return WaitingFor.SCHEDULER
        needed = max(1, job.needed - job.placed_beside(""))
        verdicts = {await self._verdict(kind, min(number, needed), turn) for kind, number in gang.kinds.items()}
        return max(verdicts, key=_WORSE.index)

    async def _verdict(self, kind: _Kind, number: int, turn: Turn) -> WaitingFor:
        """What pods with a request wait for, if so many of them have to fit at once."""
        request, requirements = kind
        index, candidates = self._cluster.index, self._cluster.labels.only(requirements)
        await turn.share_between(index.count(candidates))
        if sum(nodes * capacity(left.vacancy, request)[0] for left, nodes in index.buckets_of(candidates)) >= number:
            return WaitingFor.BINDING
        return waiting_for(index.reasons_when_full(request, candidates))


def waiting_for(reasons: Iterable[Reason]) -> WaitingFor:
    """What a pod waits for that every node refuses, by the reasons of the nodes."""
    categories = {reason.category for reason in reasons}
    if Category.OCCUPIED in categories:
        return WaitingFor.CHIPS
    usable = categories - {Category.NOT_NPU, Category.MISMATCH}
    return WaitingFor.CHANGE if usable == {Category.REQUEST} else WaitingFor.NODES
