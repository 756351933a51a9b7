"""The settings of a job that may be rescheduled, and its faulty pods."""

from collections.abc import Sequence

from msgspec.structs import replace

from allocator.rescheduling.decision import JobPod, is_master
from allocator.rescheduling.fault_watch import Extent, FaultWatch
from allocator.rescheduling.faults import FaultKind, NodeFaults, fault_of
from allocator.rescheduling.owners import goes_together
from allocator.rules.rescheduling_labels import FaultLabels, Reach, read_switches
from allocator.state.job import Job
from allocator.state.node import NodeRecord
from ascend.annotations import read_block
from ascend.kube.objects import Pod


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
