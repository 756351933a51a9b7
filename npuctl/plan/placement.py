"""A planning run: the outcome for every pod without a node, and remarks on its job."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from allocator.rules.own_devices import named_node
from allocator.settings import Settings
from allocator.state.location import Level
from allocator.superpods.choice import advise, describe
from allocator.superpods.demand import Demand
from allocator.superpods.repair import Verdict as BlockVerdict
from ascend.annotations import BLOCK_SUPER_POD, read_block
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.takes import Take
from npuctl.evaluation import Evaluation, PodVerdict
from npuctl.offline_allocator import OfflineAllocator
from npuctl.plan.node_verdicts import NodesRefusal, NodeVerdicts
from npuctl.reading.objects import ClusterObjects


class Candidate(msgspec.Struct, frozen=True):
    """A node that a pod fits on.

    Attributes:
        node: its name.
        rank: 1 is the best; equally good nodes share a rank.
        score: the reference scheduler's number for the placement.
        chips: the chips the pod would get.
        vnpus: the vNPU it would get instead.
    """

    node: str
    rank: int
    score: int
    chips: tuple[str, ...]
    vnpus: tuple[str, ...]


class Placement(msgspec.Struct, frozen=True):
    """A pod that gets chips or a vNPU, and the annotations its Binding would carry.

    ``preempts`` has the pods (``namespace/name``) of lower priority that end for it on its node first.
    """

    namespace: str
    name: str
    job: str
    node: str
    chips: tuple[str, ...]
    vnpus: tuple[str, ...]
    annotations: dict[str, str]
    preempts: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] | msgspec.UnsetType = msgspec.UNSET


class PendingPod(msgspec.Struct, frozen=True):
    """A pod that gets nothing, and why.

    ``verdict`` is the number of what nodes say of it, among the ``verdicts`` of the plan; None if they were not asked.
    """

    namespace: str
    name: str
    job: str
    reason: str
    message: str
    verdict: int | None


class UnplannedWorkload(msgspec.Struct, frozen=True):
    """A workload that requests chips and whose pods are not known."""

    kind: str
    namespace: str
    name: str
    message: str


class Told(msgspec.Struct, frozen=True):
    """A sentence about a job, and the first pod that it is about."""

    namespace: str
    name: str
    job: str
    message: str


class PlannedJob(msgspec.Struct, frozen=True):
    """A job of several pods.

    Attributes:
        job: ``namespace/name``.
        pods: the number of its pods, with those that have a place already or request no chips.
        together: how many of its pods must be placed together; 1 if each may be placed alone.
        blocks: sentences about the SuperPods of its blocks, and why not others; none for a job without blocks.
        switches: which of its pods are below which leaf switch, a sentence each; none without switch affinity.
    """

    job: str
    pods: int
    together: int
    blocks: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


class BlockAfter(msgspec.Struct, frozen=True):
    """A block of a rescheduled job: the verdict, and the nodes afterwards in the order of ranks."""

    verdict: BlockVerdict
    nodes: tuple[str, ...]


class Rescheduled(msgspec.Struct, frozen=True):
    """A job of which the allocator would delete pods after a fault.

    Attributes:
        job: ``namespace/name``.
        delete: the names of these pods; their successors, which have the same names here, are among the planned pods.
        blocks: the blocks that are whole again, by id; none for a job without blocks.
        why: what has failed, a sentence.
    """

    job: str
    delete: tuple[str, ...]
    blocks: dict[str, BlockAfter]
    why: str


class PlacementPlan(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/plan/v1"):
    """The answer; pods in the order in which they were decided on.

    Attributes:
        pods: what gets something.
        pending: what waits.
        verdicts: what nodes say of pods that wait: the numbers of refusals, from 0; each distinct verdict once.
        refusals: what nodes say; each distinct sentence with its nodes once.
        node_sets: the sets of nodes that refusals name by their numbers, from 0; each distinct one once.
        jobs: the jobs of several pods.
        rescheduled: the jobs of which pods are deleted.
        unplanned: what is not known.
        without_effect: what jobs request without effect.
        warnings: by what containers get chips of others, and which pods nobody places.
    """

    pods: tuple[Placement, ...]
    pending: tuple[PendingPod, ...]
    verdicts: tuple[tuple[int, ...], ...] = ()
    refusals: tuple[NodesRefusal, ...] = ()
    node_sets: tuple[tuple[str, ...], ...] = ()
    jobs: tuple[PlannedJob, ...] = ()
    rescheduled: tuple[Rescheduled, ...] = ()
    unplanned: tuple[UnplannedWorkload, ...] = ()
    without_effect: tuple[Told, ...] = ()
    warnings: tuple[Told, ...] | msgspec.UnsetType = msgspec.UNSET


class Planning(Evaluation):
    """A planning run.

    Args:
        objects: the objects.
        settings: the allocator's settings.
        now_ns: the time, Unix nanoseconds.
        candidates: also list every node that each pod fits on.

    Attributes:
        returning: the jobs whose pods return to their blocks, which are not chosen anew.
    """

    def __init__(self, objects: ClusterObjects, settings: Settings, now_ns: int, *, candidates: bool = False) -> None:
        super().__init__(objects, settings, now_ns)
        self.returning: set[str] = set()
        self._candidates = candidates
        self._placed: dict[str, Placement] = {}
        self._ignored: dict[tuple[str, str], Told] = {}
        self._asked: dict[str, tuple[Demand, dict[int, int]]] = {}
        self._seen: list[Pod] = []

    async def decide(self, pod: Pod) -> PodVerdict:
        """Decide on a pod, bind it to the chosen node, and note the placement for the plan."""
        allocator = self.allocator
        namespace, name, job = pod.metadata.namespace, pod.name, str(allocator.job_of(pod).key)
        for sentence in allocator.engine.without_effect(pod):
            self._ignored.setdefault((job, sentence), Told(namespace, name, job, sentence))
        is_new = job not in self._asked and job not in self.returning
        if is_new and (found := allocator.free_for_blocks(pod)) is not None:
            self._asked[job] = found
        offered = find_candidates(allocator, pod) if self._candidates else msgspec.UNSET
        verdict = await self.judge(pod)
        if (held := verdict.held) is not None:
            annotations = self.bind(pod, held)
            own = namespace, name, job, held.node, *devices(held.take), annotations, verdict.victims, offered
            self._placed[pod.uid] = Placement(*own)
            self._seen.append(pod)
        return verdict

    def delete(self, pod: Pod) -> None:
        """Delete a pod, also one that was placed before."""
        super().delete(pod)
        self._placed.pop(pod.uid, None)

    async def rest(self) -> PlacementPlan:
        """Decide on all pods that wait, in their order."""
        allocator, pending = self.allocator, list(self._on_named_nodes())
        ordered, verdicts = self.waiting(), NodeVerdicts(allocator)
        for pod in ordered:
            if (refusal := (await self.decide(pod)).refusal) is not None:
                number, job = verdicts.number(pod), str(allocator.job_of(pod).key)
                pending.append(
                    PendingPod(pod.metadata.namespace, pod.name, job, refusal.reason, refusal.message, number)
                )
        placed = tuple(self._placed.values())
        super_pods = len(allocator.cluster.index.topology.places(Level.SUPER_POD))
        blocks = {
            job: (*_blocks_of(job, placed, *asked), *advise(asked[0], super_pods)) for job, asked in self._asked.items()
        }
        unplanned = tuple(
            UnplannedWorkload("Pod", pod.metadata.namespace, pod.name, "; ".join(allocator.engine.without_effect(pod)))
            for pod in self._pods.values()
            if allocator.is_for_others(pod)
        )
        return PlacementPlan(
            placed,
            tuple(pending),
            verdicts.verdicts,
            verdicts.refusals,
            verdicts.node_sets,
            _several((*self._seen, *ordered), allocator, blocks),
            unplanned=unplanned,
            without_effect=tuple(self._ignored.values()),
            warnings=self._warnings() or msgspec.UNSET,
        )

    def _on_named_nodes(self) -> Iterator[PendingPod]:
        for pod in self._pods.values():
            if (sentence := named_node(pod)) is not None:
                job = str(self.allocator.job_of(pod).key)
                yield PendingPod(pod.metadata.namespace, pod.name, job, Reason.NOT_PLACED, sentence, None)

    def _warnings(self) -> tuple[Told, ...]:
        found: dict[tuple[str, str], Told] = {}
        for pod in (pod for pod in self._objects.pods if pod.is_live):
            for sentence in self.warnings(pod):
                job = str(self.allocator.job_of(pod).key)
                found.setdefault((job, sentence), Told(pod.metadata.namespace, pod.name, job, sentence))
        return tuple(found.values())


def _blocks_of(job: str, placed: Iterable[Placement], demand: Demand, free: Mapping[int, int]) -> tuple[str, ...]:
    """What is said about the blocks of a job that was placed."""
    blocks: dict[int, list[int]] = {}
    for pod in placed:
        block, super_pod = read_block(pod.annotations), pod.annotations.get(BLOCK_SUPER_POD)
        if pod.job == job and block is not None and super_pod is not None:
            blocks.setdefault(block, []).append(int(super_pod))
    return describe(free, blocks, demand) if blocks else ()


def _several(
    pods: Iterable[Pod], allocator: OfflineAllocator, blocks: Mapping[str, tuple[str, ...]]
) -> tuple[PlannedJob, ...]:
    """The jobs of several pods among those of these pods, in this order."""
    jobs = dict.fromkeys(allocator.job_of(pod) for pod in pods)
    found = (
        PlannedJob(
            str(job.key), job.present, job.min_available, blocks.get(str(job.key), ()), allocator.switches_of(job)
        )
        for job in jobs
    )
    return tuple(job for job in found if job.pods > 1 or job.together > 1)


def devices(take: Take) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the chips and of the vNPUs that a pod takes."""
    return (take.names, ()) if take.is_whole else ((), take.names)


def find_candidates(allocator: OfflineAllocator, pod: Pod) -> tuple[Candidate, ...]:
    """Return every node that a pod fits on, best first; none if its request is invalid."""
    try:
        found = allocator.fits(pod)
    except Refusal:
        return ()
    ranks: dict[object, int] = {}
    return tuple(
        Candidate(
            node,
            ranks.setdefault((fit.key, fit.score), len(ranks) + 1),
            fit.score,
            *devices(fit.take),
        )
        for node, fit in found
    )
