"""The allocator's plans for jobs with faulty pods: the pods to delete, and the places of their successors.

By the allocator's own code, as if every fault had lasted long enough, every deleted pod had ended and every controller
had created its successor, before any other pod that waits is placed. What an allocator remembers of earlier deletions
(retries, the limits of a minute and an hour) is not known here.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from allocator.rescheduling.decision import (
    Depth,
    JobPod,
    PodChoice,
    choose,
    failing_nodes,
    member_of,
    switches_of,
    why_it_stays,
)
from allocator.rescheduling.fault_watch import Extent, FaultWatch
from allocator.rescheduling.faults import FAULT_TYPE, is_counted
from allocator.rescheduling.limits import DeletionLimits
from allocator.rescheduling.memory import Recovery
from allocator.rescheduling.owners import owner_uid
from allocator.rules.job import JobKey, writes_rank
from allocator.rules.rescheduling_labels import FaultLabels, Mode, Reach
from allocator.settings import Settings
from allocator.superpods.repair import Verdict
from ascend.annotations import BLOCK, BLOCK_SUPER_POD, RANK, is_ours, read_block
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod, PodStatus
from npuctl.evaluation import position
from npuctl.plan.placement import BlockAfter, Planning, Rescheduled

_LONG_S: Final = 1e9
_HOT_SWITCH: Final = "needVolcanoOpe"


async def reschedule(planning: Planning, settings: Settings, *, held: Callable[[str], None]) -> tuple[Rescheduled, ...]:
    """Delete the pods that an allocator would delete, and place their successors, job after job.

    Args:
        planning: the planning run; nothing has been placed yet.
        settings: the allocator's settings.
        held: called with a sentence on each job with faulty pods of which none may be deleted.
    """
    clock_s = 0.0
    watch = FaultWatch(planning.allocator.cluster, settings.reschedule_not_ready_s, lambda: clock_s)
    await watch.look()
    clock_s = _LONG_S
    await watch.look()
    share = settings.reschedule_faulty_share
    preview = _Preview(planning, settings, watch, await watch.extent(share))
    found = []
    for key, failed in sorted(preview.jobs().items()):
        try:
            found.append(await preview.reschedule(key, failed))
        except _HeldError as error:
            held(f"job {key} is not rescheduled: {error}")
    return tuple(job for job in found if job is not None)


class _HeldError(Exception):
    """Nothing of a job may be deleted."""


@dataclass(slots=True)
class _Case:
    """A job, and what has been done about it."""

    key: JobKey
    switches: FaultLabels
    damaged: set[int] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    deleted: dict[str, Pod] = field(default_factory=dict)
    why: str = ""
    stays: str = ""


class _Preview:
    def __init__(
        self,
        planning: Planning,
        settings: Settings,
        watch: FaultWatch,
        extent: Extent,
    ) -> None:
        self._planning = planning
        self._cluster = planning.allocator.cluster
        self._watch = watch
        self._extent = extent
        per_minute, per_hour = settings.reschedule_pods_per_minute, settings.reschedules_per_hour
        self._limits = DeletionLimits(self._cluster, per_minute, per_hour)

    def jobs(self) -> dict[JobKey, list[Pod]]:
        """The jobs of the pods on faulty nodes and of failed pods, each with its pods that are no longer present."""
        found: dict[JobKey, list[Pod]] = {}
        for pod in self._watch.pods():
            job = self._cluster.jobs.job_of(pod)
            failed = found.setdefault(job.key, [])
            if pod.uid not in job.pods and not pod.is_terminating:
                failed.append(pod)
        return found

    async def reschedule(self, key: JobKey, failed: Sequence[Pod]) -> Rescheduled | None:
        """Reschedule a job; None if none of its pods has to go.

        Raises:
            _HeldError: none of them may.
        """
        bound = self._bound(key, failed)
        if not any(pod.requests_chips for pod in bound):
            return None
        try:
            switches = switches_of(self._cluster.jobs.job_of(bound[0]), bound)
        except InvalidValue as error:
            raise _HeldError(error.message) from None
        if switches.mode is Mode.OFF:
            return None
        before, case = self._blocks(bound), _Case(key, switches)
        stage = await self._delete(case, bound, Depth.PODS)
        while stage is not None:
            stage = await self._delete(case, self._bound(key, ()), stage)
        if not case.deleted:
            return None
        names = tuple(pod.name for pod in sorted(case.deleted.values(), key=position))
        return Rescheduled(str(key), names, self._compare(before, self._blocks(self._bound(key, ()))), case.why)

    async def _delete(self, case: "_Case", pods: Sequence[Pod], stage: Depth) -> Depth | None:
        """Delete pods, and place their successors; returns how far the deletion reaches next, because these wait.

        Raises:
            _HeldError: no pod of the job may be deleted.
        """
        members, switches = [self._member(pod, case) for pod in pods], case.switches
        choice = choose(members, switches, stage, case.damaged)
        if (held := self._why_not(members, choice, case)) is not None and not case.deleted:
            raise _HeldError(held)
        if held is not None or not choice.pods:
            return Depth.JOB if held is None and stage is Depth.BLOCKS else None  # all pods of the block have gone
        case.why = case.why or choice.why
        case.damaged |= choice.damaged
        case.faulty |= failing_nodes(choice)
        case.deleted = {member.pod.name: member.pod for member in choice.pods} | case.deleted
        self._cluster.faulty_nodes.note(case.key, case.faulty)
        self._planning.returning.add(str(case.key))
        all_are_placed = await self._replace(case.key, [member.pod for member in choice.pods])
        if all_are_placed or choice.is_switch or switches.reach is not Reach.WIDER or stage is Depth.JOB:
            return None
        has_blocks = any(member.block is not None for member in members)
        return Depth.BLOCKS if has_blocks and stage is Depth.PODS else Depth.JOB

    def _why_not(self, members: Sequence[JobPod], choice: PodChoice, case: "_Case") -> str | None:
        if not choice.pods:
            return case.stays or None
        if case.switches.mode.is_external:
            return f"another program deletes its pods (fault-scheduling={case.switches.mode})"
        recovery = Recovery(sorted({owner_uid(member.pod) for member in members}))
        dark = (self._watch.why_dark(member.pod.spec.node_name, self._extent) for member in choice.pods)
        stopped = self._extent.stopped or next(filter(None, dark), None)
        return self._limits.why_not(choice, recovery, case.switches, stopped=stopped, recent=(), now_s=0.0)

    def _bound(self, key: JobKey, failed: Sequence[Pod]) -> list[Pod]:
        job = self._cluster.jobs.by_key.get(key)
        pods = job.pods.values() if job is not None else ()
        return [*failed, *(pod for pod in pods if pod.spec.node_name and pod.is_live)]

    def _member(self, pod: Pod, case: "_Case") -> JobPod:
        node = pod.spec.node_name
        member = member_of(pod, self._cluster.nodes.get(node), self._watch.of(node), case.switches)
        stays = why_it_stays(member, self._watch, self._extent)
        if stays is None:
            return member
        case.stays = stays
        return replace(member, fault=None)

    async def _replace(self, key: JobKey, pods: Sequence[Pod]) -> bool:
        """Delete pods, and place the pods of their job that wait; returns whether all of these have a place."""
        for pod in pods:
            self._planning.delete(pod)
        for pod in pods:
            if not is_counted(pod):  # a Job has replaced its failed pods already
                self._planning.apply(anew(pod))
        waiting = [pod for pod in self._planning.waiting() if self._cluster.jobs.job_of(pod).key == key]
        return not [pod for pod in waiting if (await self._planning.decide(pod)).held is None]

    def _blocks(self, pods: Sequence[Pod]) -> dict[int, dict[int, tuple[str, int]]]:
        """The node of each rank and its SuperPod, by block."""
        found: defaultdict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
        for pod in pods:
            annotations, node = pod.metadata.annotations, pod.spec.node_name
            if (block := read_block(annotations)) is not None:
                written = annotations.get(BLOCK_SUPER_POD, "")
                number = int(written) if written.isdecimal() else self._cluster.index.topology.location(node).super_pod
                rank = self._cluster.jobs.job_of(pod).rank_of(pod)
                found[block][rank] = node, number
        return found

    @staticmethod
    def _compare(
        before: dict[int, dict[int, tuple[str, int]]], after: dict[int, dict[int, tuple[str, int]]]
    ) -> dict[str, BlockAfter]:
        """What has become of the blocks of which every rank has a place again."""
        placed = {rank for ranks in after.values() for rank in ranks}
        compared = {}
        for number, ranks in sorted(after.items()):
            old = before.get(number, {})
            if not placed.issuperset(old):
                continue
            verdict = Verdict.MOVED
            if set(old.values()) == set(ranks.values()):
                verdict = Verdict.KEPT
            elif {super_pod for _, super_pod in ranks.values()} == {super_pod for _, super_pod in old.values()}:
                verdict = Verdict.PATCHED
            compared[str(number)] = BlockAfter(verdict, tuple(node for _, (node, _) in sorted(ranks.items())))
        return compared


def anew(pod: Pod) -> Pod:
    """The pod as its controller creates it anew."""
    metadata = pod.metadata
    annotations = {key: text for key, text in metadata.annotations.items() if not is_ours(key) and key != _HOT_SWITCH}
    ranked = {key: value for key, value in annotations.items() if key != RANK}
    labels = {key: value for key, value in metadata.labels.items() if key != FAULT_TYPE}
    new = replace(
        pod,
        metadata=replace(metadata, uid=f"{metadata.uid}+", labels=labels, annotations=ranked, deletion_timestamp=None),
        spec=replace(pod.spec, node_name=""),
        status=PodStatus(phase="Pending"),
    )
    # The rank is written by whoever has written it before: the allocator writes it anew.
    if BLOCK in metadata.annotations or writes_rank(new):
        return new
    return replace(new, metadata=replace(new.metadata, annotations=annotations))
