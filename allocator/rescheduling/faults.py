"""Which pods are faulty, and why: docs/spec/rescheduling.md#faulty-pods."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from allocator.rules.rescheduling_labels import FaultLabels, Strategy
from allocator.state.node import NodeRecord, Server
from allocator.state.report import NodeHealth
from ascend.annotations import REAL
from ascend.chips import ChipSet, chip_ids, chip_name, chip_set
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.pod_devices import read_held

FAULT_TYPE: Final = "fault-type"
"""A label of a pod, by MindCluster's recovery: ``Separate`` if the pod fails with a fault of another pod."""
_HOT_SWITCH: Final = ("needVolcanoOpe", "delete")
_BACKUP: Final = "backupNewPodName"


class FaultKind(StrEnum):
    """Why a pod is faulty; the values are those in MindCluster's records, the first one counts for a job."""

    NODE = "NodeUnhealthy"
    CHIP = "CardUnhealthy"
    SUB_HEALTH = "SubHealthFault"
    RELATED = "RelationFaultSeparate"
    POD = "pod-failed"


class PodFault(msgspec.Struct, frozen=True, gc=False):
    """Why a pod is faulty.

    Attributes:
        kind: the kind of fault.
        sentence: what has failed, for people.
    """

    kind: FaultKind
    sentence: str


class NodeFaults(msgspec.Struct, frozen=True, gc=False):
    """What has failed on a node.

    Attributes:
        whole: why all pods on it are faulty, a sentence; empty if they are not.
        chips: the chips that have failed, with their fault codes.
        sub_healthy: whether it is sub-healthy: pods of jobs that say so leave it.
    """

    whole: str = ""
    chips: Mapping[int, str] = {}
    sub_healthy: bool = False


NO_FAULTS: Final = NodeFaults()


def read_node(record: NodeRecord | None, name: str, not_ready: str = "") -> NodeFaults:
    """Read what has failed on a node.

    A report that is too old or can't be read says nothing: what is unknown makes no pod faulty.

    Args:
        record: what is known of the node; None if nothing is.
        name: its name.
        not_ready: why its kubelet counts as lost, a sentence; empty if it does not.
    """
    if not_ready or record is None:
        return NodeFaults(not_ready or f"node {name} does not exist")
    said = [("so NodeD reports", record.health)]
    if isinstance(record.server, Server):
        said.insert(0, ("so says its annotation NodeHealthyStatus", record.server.health))
    report = record.report if record.stale is None and not isinstance(record.report, Refusal) else None
    if report is not None:
        said += [("so NodeD reports", report.agent), ("so its switches report", report.health)]
    healths = [(who, health) for who, health in said if isinstance(health, NodeHealth)]
    whole = next((f"node {name} is unhealthy: {who}" for who, health in healths if health is NodeHealth.UNHEALTHY), "")
    sub_healthy = any(health is NodeHealth.SUB_HEALTHY for _, health in healths)
    chips = report.faults if report is not None else {}
    return NodeFaults(whole, chips, sub_healthy) if whole or chips or sub_healthy else NO_FAULTS


def fault_of(pod: Pod, held: ChipSet, node: NodeFaults, switches: FaultLabels) -> PodFault | None:
    """Return why a bound pod is faulty; None if it is not.

    Chips whose network is unhealthy make no pod faulty. Whether a failed pod may be replaced once more is decided
    elsewhere.

    Args:
        pod: the pod.
        held: the chips that its annotations name, or parts of which they name.
        node: what has failed on its node.
        switches: what its job says.
    """
    if node.whole and not is_counted(pod):
        return PodFault(FaultKind.NODE, node.whole)
    if pod.is_live and (failed := chip_set(node.chips) & _given(pod, held)):
        codes = "; ".join(f"{chip_name(chip)} {node.chips[chip]}".rstrip() for chip in chip_ids(failed))
        return PodFault(FaultKind.CHIP, f"node {pod.spec.node_name} reports a fault of its chips: {codes}")
    if pod.status.phase == "Failed":
        why = ": ".join(filter(None, ("has failed", pod.status.reason, pod.status.message)))
        return (
            PodFault(FaultKind.POD, f"pod {pod.key} has failed{f': {why}' if why else ''}")
            if switches.retries
            else None
        )
    if pod.metadata.labels.get(FAULT_TYPE) == "Separate":
        return PodFault(FaultKind.RELATED, f"pod {pod.key} has the label {FAULT_TYPE}=Separate")
    if node.sub_healthy and _leaves(pod, switches.strategy):
        sentence = f"node {pod.spec.node_name} is sub-healthy, and subHealthyStrategy is {switches.strategy}"
        if switches.strategy is Strategy.HOT_SWITCH and (backup := pod.metadata.annotations.get(_BACKUP)):
            sentence += f": pod {backup} takes over"
        return PodFault(FaultKind.SUB_HEALTH, sentence)
    return None


def is_counted(pod: Pod) -> bool:
    """Return whether a pod is a failed pod of a Job: replaced by the Job, and kept only as a record."""
    owner = pod.metadata.controller
    return pod.status.phase == "Failed" and owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")


def _given(pod: Pod, held: ChipSet) -> ChipSet:
    """The chips of which the pod has parts or all; MindCluster's plugin may have swapped those of two pods."""
    text = pod.metadata.annotations.get(REAL)
    try:
        return read_held({REAL: text}).occupied if text else held
    except InvalidValue:
        return held


def _leaves(pod: Pod, strategy: Strategy) -> bool:
    if strategy is Strategy.HOT_SWITCH:
        key, value = _HOT_SWITCH
        return pod.metadata.annotations.get(key) == value
    return strategy is not Strategy.IGNORE
