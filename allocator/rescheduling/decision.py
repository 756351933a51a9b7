"""Which pods of a job are faulty, and deleted after a fault: docs/spec/rescheduling.md#which-pods-are-deleted."""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from allocator.rescheduling.fault_watch import Extent, FaultWatch
from allocator.rescheduling.faults import FaultKind, NodeFaults, PodFault, fault_of
from allocator.rescheduling.owners import goes_together
from allocator.rules.rescheduling_labels import FaultLabels, Mode, Reach, Strategy, read_switches
from allocator.state.job import Job
from allocator.state.node import NodeRecord
from ascend.annotations import RANK, read_block
from ascend.kube.objects import Pod

BLOCKS_AFTER_S: Final = 6.0
"""For so long a successor waits for chips in its block before all pods of the block go, and these before the job."""
JOB_AFTER_S: Final = 12.0
"""The same without blocks, before all pods of the job go. The reference counts sessions of about one second, also those
in which the pods of the block end and are created anew: its job goes before the block could move."""


class Depth(IntEnum):
    """How far the deletion reaches."""

    PODS = 0
    BLOCKS = 1
    JOB = 2


class JobPod(msgspec.Struct, frozen=True, gc=False):
    """A bound pod of a job.

    Attributes:
        pod: the pod.
        fault: why it is faulty; None if it is not.
        block: the id of its block; None if its job has none.
        is_master: whether the others can't go on without it.
    """

    pod: Pod
    fault: PodFault | None = None
    block: int | None = None
    is_master: bool = False


class PodChoice(msgspec.Struct, frozen=True, gc=False):
    """What is done about a job.

    Attributes:
        pods: the pods to delete, the faulty ones first.
        reason: the kind of fault that counts for the job; None if no pod of it is faulty now.
        at_once: whether they are deleted without their grace period.
        stage: how far the deletion reaches.
        is_switch: whether pods go only because their backups take over: then nothing is missing.
    """

    pods: tuple[JobPod, ...] = ()
    reason: FaultKind | None = None
    at_once: bool = False
    stage: Depth = Depth.PODS
    is_switch: bool = False

    @property
    def why(self) -> str:
        """What has failed, a sentence."""
        if (fault := next((member.fault for member in self.pods if member.fault is not None), None)) is not None:
            return fault.sentence
        waits = "its job waits for chips since " if self.stage is not Depth.PODS else ""
        return f"{waits}other pods of its job were deleted after a fault"

    @property
    def damaged(self) -> set[int]:
        """The blocks in which pods are faulty, and have no backup yet."""
        faulty = [] if self.is_switch else [member for member in self.pods if member.fault is not None]
        return {member.block for member in faulty if member.block is not None}


def failing_nodes(choice: PodChoice) -> set[str]:
    """Return the nodes of faulty pods; the node of one that fails only because of another pod is not to blame."""
    return {
        member.pod.spec.node_name
        for member in choice.pods
        if member.fault is not None and member.fault.kind is not FaultKind.RELATED
    }


def is_master(pod: Pod) -> bool:
    """Return whether the other pods of a job can't go on without this one."""
    is_worker = pod.metadata.labels.get("training.kubeflow.org/replica-type") == "worker"
    return pod.requests_chips and pod.metadata.annotations.get(RANK) == "0" and not is_worker


def stage_after(waits_s: float, switches: FaultLabels, reached: Depth = Depth.PODS, *, has_blocks: bool) -> Depth:
    """Return how far the deletion reaches after a successor has waited for chips.

    Args:
        waits_s: how long it has, while all of its peers were there, since pods were deleted last; seconds.
        switches: what the job says.
        reached: how far the deletion has reached.
        has_blocks: whether the job has blocks.
    """
    if switches.reach is not Reach.WIDER:
        return Depth.PODS
    if reached is Depth.BLOCKS:
        waits_s += BLOCKS_AFTER_S
    if waits_s >= JOB_AFTER_S:
        return Depth.JOB
    return Depth.BLOCKS if has_blocks and waits_s >= BLOCKS_AFTER_S else Depth.PODS


def job_reason(faults: Collection[PodFault]) -> FaultKind | None:
    """Return the kind of fault that counts for a job; None without any."""
    kinds = {fault.kind for fault in faults}
    return next((kind for kind in FaultKind if kind in kinds), None)


def may_restart(reason: FaultKind | None, switches: FaultLabels, retries_used: int) -> bool:
    """Return whether pods of a job may be deleted: failed pods only as often as it says.

    Args:
        reason: the kind of fault that counts for the job.
        switches: what the job says.
        retries_used: how often pods were deleted because one had failed.
    """
    if reason is None or switches.mode is Mode.OFF or switches.mode.is_external:
        return False
    return reason is not FaultKind.POD or retries_used < switches.retries


def leaves_gracefully(choice: PodChoice, switches: FaultLabels) -> bool:
    """Return whether the processes of a job save their state and end, because its node is sub-healthy."""
    return (
        choice.reason is FaultKind.SUB_HEALTH
        and switches.strategy is Strategy.GRACE_EXIT
        and switches.reach is not Reach.PROCESSES
    )


def unfinished(members: Sequence[JobPod], chosen: Collection[str], *, goes_together: bool) -> frozenset[str]:
    """Return the uids of a decision's pods that have to follow the pods already gone.

    That is so when some could not be deleted, or the former leader ended between the deletions: a job does not go on
    with one half of its pods, even when the faulty ones are gone.

    Args:
        members: the bound pods of the job that are not being deleted.
        chosen: the uids of the pods of the last decision.
        goes_together: whether its pods go together.
    """
    left = frozenset(chosen) & {member.pod.uid for member in members}
    return left if goes_together and len(left) < len(chosen) else frozenset()


def choose(
    members: Sequence[JobPod],
    switches: FaultLabels,
    stage: Depth,
    damaged: Collection[int],
    left: Collection[str] = (),
) -> PodChoice:
    """Choose the pods of a job to delete.

    Args:
        members: its bound pods that are not being deleted.
        switches: what the job says.
        stage: how far the deletion reaches by now.
        damaged: the blocks in which pods were faulty since the job was whole.
        left: the uids of the pods that have to follow others; the successors of those stay meanwhile.
    """
    faulty = [member for member in members if member.fault is not None]
    blocks = {*damaged, *(member.block for member in faulty if member.block is not None)}
    widened = stage is not Depth.PODS
    if not faulty and not widened and not left:
        return PodChoice()
    reason = job_reason([member.fault for member in faulty if member.fault is not None])
    kinds = {member.fault.kind for member in faulty if member.fault is not None}
    is_switch = switches.strategy is Strategy.HOT_SWITCH and kinds == {FaultKind.SUB_HEALTH} and not (left or widened)
    if is_switch:
        chosen = faulty
    elif left:
        chosen = [member for member in members if member.fault is not None or member.pod.uid in left]
    else:
        chosen = [member for member in members if _goes(member, members, switches, stage, blocks)]
    chosen.sort(key=lambda member: member.fault is None)
    at_once = switches.mode is Mode.FORCE
    if reason is FaultKind.SUB_HEALTH:
        at_once = switches.strategy is not Strategy.GRACE_EXIT
    return PodChoice(tuple(chosen), reason, at_once, stage, is_switch)


def _goes(
    member: JobPod, members: Sequence[JobPod], switches: FaultLabels, stage: Depth, blocks: Collection[int]
) -> bool:
    if member.fault is not None:
        return True
    if switches.reach is Reach.POD:
        return False
    widened = stage is not Depth.PODS
    if any(peer.is_master and (peer.fault is not None or (widened and peer.block in blocks)) for peer in members):
        return True
    match switches.reach:
        case Reach.PROCESSES:
            return False
        case Reach.WIDER:
            return stage is Depth.JOB or (stage is Depth.BLOCKS and member.block in blocks)
        case _:
            return True


def switches_of(job: Job, pods: Sequence[Pod]) -> FaultLabels:
    """Read a job's rescheduling labels, as far as the kind of job allows.

    Args:
        job: the job.
        pods: its bound pods, at least one.

    Raises:
        InvalidValue: a switch has an unknown value, or the pods contradict each other.
    """
    switches = read_switches(job.facts, pods)
    if goes_together(job):
        return replace(switches, reach=Reach.JOB)
    if job.works_alone(pods[0]):
        return replace(switches, reach=Reach.POD)
    return switches


def member_of(pod: Pod, record: NodeRecord | None, faults: NodeFaults, switches: FaultLabels) -> JobPod:
    """Judge a bound pod of a job.

    Args:
        pod: the pod.
        record: what is known of its node; None if nothing is.
        faults: what has failed there.
        switches: what its job says.
    """
    held = record.holdings.get(pod.uid) if record is not None else None
    fault = fault_of(pod, held.occupied if held is not None else 0, faults, switches)
    return JobPod(pod, fault, read_block(pod.metadata.annotations), is_master(pod))


def why_it_stays(member: JobPod, watch: FaultWatch, extent: Extent) -> str | None:
    """Return why a faulty pod stays although its job may be rescheduled, a sentence; None if it goes.

    Args:
        member: the pod.
        watch: knows the nodes that are not Ready.
        extent: how far faults reach.
    """
    if member.fault is None:
        return None
    if member.fault.kind is FaultKind.SUB_HEALTH:
        stopped = extent.sub_health_stopped
        return f"it stays on its sub-healthy node: {stopped}" if stopped is not None else None
    dark = watch.why_dark(member.pod.spec.node_name, extent) if member.fault.kind is FaultKind.NODE else None
    return f"it stays on its node: {dark}" if dark is not None else None
