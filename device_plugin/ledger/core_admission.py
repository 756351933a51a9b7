"""Whether a pod may have the vNPU or the whole chips that the allocator wrote for the pod's AI cores.

See docs/spec/vnpu.md#dynamic-vnpus-in-allocate. The words NPUSegmentFailed and NoNPUResource are those of Volcano.
"""

from ascend.chips import ChipSet, chip_ids, chip_name, chip_set, join_names
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES, TEMPLATES, Divisible, VnpuTemplate
from device_plugin.device_types import WHOLE_CHIPS
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.admission import check_usable, grant_of
from device_plugin.ledger.cores import ChipUse, CoreLedger, taken
from device_plugin.ledger.node_pods import NodePod


def check_cores(
    pod: NodePod, snapshot: Snapshot, kind: Divisible, ledger: CoreLedger, whole: ChipSet
) -> tuple[int, ...]:
    """Return the chips of a pod's annotation, if the pod may have them.

    Args:
        pod: the pod under admission.
        snapshot: the node's chips.
        kind: of its chips.
        ledger: of AI cores.
        whole: chips that pods hold which do not request AI cores.

    Raises:
        Refusal: it may not; the kubelet shows the sentence in the pod's status.
    """
    chips = grant_of(pod).chips
    template = TEMPLATES[pod.template] if pod.template else None
    _check_number(pod, chips, template, kind)
    wanted = chip_set(chips)
    if unknown := wanted & ~snapshot.all_chips:  # Volcano knows this reason
        raise Refusal(Reason.NO_RESOURCE, f"this node has no {join_names(chip_ids(unknown))}")
    known = ledger.allocations.get(pod.uid)
    check_usable(WHOLE_CHIPS, wanted, snapshot, own=known.chip_set if known is not None else 0)
    if held := wanted & whole:
        raise Refusal(Reason.CHIP_HELD, f"{join_names(chip_ids(held))}: a pod holds it as a whole")
    others = taken(ledger, pod)
    for chip in chips:
        _check_room(chip, others.get(chip, []), template, kind)
    return chips


def _check_number(pod: NodePod, chips: tuple[int, ...], template: VnpuTemplate | None, kind: Divisible) -> None:
    if template is not None and template not in kind.templates:
        names = ", ".join(division.name for division in kind.templates)
        raise Refusal(Reason.INVALID_REQUEST, f"chips of this node can't be cut by {template.name}, only by {names}")
    cores = template.cores if template is not None else len(chips) * kind.cores
    if cores != pod.count:
        raise Refusal(
            Reason.WRONG_COUNT,
            f"annotation {RESOURCE_CORES} stands for {count(cores, 'AI core')}, the pod requests {pod.count}",
        )


def _check_room(chip: int, others: list[ChipUse], template: VnpuTemplate | None, kind: Divisible) -> None:
    if holder := next((other for other in others if not other.template or template is None), None):
        part = f"a vNPU of {holder.template}" if holder.template else "it as a whole"
        raise Refusal(Reason.CHIP_HELD, f"{chip_name(chip)}: pod {holder.pod} has {part}")
    if template is None:
        return
    parts = [TEMPLATES[other.template] for other in others if other.template in TEMPLATES]
    cores, cpus = kind.cores - sum(part.cores for part in parts), kind.cpus - sum(part.cpus for part in parts)
    if template.cores > cores or template.cpus > cpus:
        raise Refusal(
            Reason.NO_RESOURCE,
            f"{chip_name(chip)} has {cores} AI cores and {cpus} AI CPUs left, {template.name} takes {template.cores} "
            f"and {template.cpus}",
        )
