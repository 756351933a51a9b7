"""Objects as they would be after a change, for verbs that judge them again: nothing is written."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace as with_fields
from typing import Final

from msgspec.structs import replace

from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import MAX_CHIP_ID, RESOURCE, ChipSet, chip_ids, chip_name
from ascend.cores import read_kind
from ascend.deviceinfo import DEVICE_INFO, MANUALLY_SEPARATED, DeviceReport, encode_report
from ascend.errors import InvalidValue
from ascend.kube.containers import whole_number
from ascend.kube.objects import Condition, ConfigMap, Node
from ascend.templates import RESOURCE_CORES

ALL_CHIPS: Final = (1 << MAX_CHIP_ID + 1) - 1


def cordoned(node: Node, *, is_cordoned: bool) -> Node:
    """The node, cordoned or not."""
    return replace(node, spec=replace(node.spec, unschedulable=is_cordoned))


def ready(node: Node, *, is_ready: bool) -> Node:
    """The node, Ready or not."""
    others = (condition for condition in node.status.conditions if condition.type != "Ready")
    conditions = (*others, Condition("Ready", "True" if is_ready else "False"))
    return replace(node, status=replace(node.status, conditions=conditions))


def offering(node: Node, chips: ChipSet) -> Node:
    """The node with these chips added to the kubelet's, as chips, vNPUs or AI cores; never more than the capacity."""
    there = _devices(node, ALL_CHIPS)
    more = _devices(node, chips)
    offered = {resource: _offered(node, resource) for resource in more}
    now = {resource: min(offered[resource] + number, there[resource]) for resource, number in more.items()}
    return _allocatable(node, {resource: max(number, offered[resource]) for resource, number in now.items()})


def withdrawing(node: Node, chips: ChipSet) -> Node:
    """The node if its kubelet has these chips no more, nor their vNPUs or AI cores."""
    fewer = _devices(node, chips)
    return _allocatable(
        node, {resource: max(_offered(node, resource) - number, 0) for resource, number in fewer.items()}
    )


def rewritten(report: ConfigMap, content: DeviceReport) -> ConfigMap:
    """The ConfigMap of a report with other content; other keys stay."""
    written = {key: text for key, text in encode_report(content).items() if key in {DEVICE_INFO, MANUALLY_SEPARATED}}
    return replace(report, data=report.data | written)


def recovered(report: DeviceReport, chips: ChipSet) -> DeviceReport:
    """The report once these chips have recovered."""
    names = set(map(chip_name, chip_ids(chips)))
    return with_fields(
        report,
        unhealthy=report.unhealthy & ~chips,
        network_unhealthy=report.network_unhealthy & ~chips,
        recovering=report.recovering & ~chips,
        manually_separated=report.manually_separated & ~chips,
        faults=tuple(fault for fault in report.faults if fault.npu_name not in names),
    )


def _allocatable(node: Node, numbers: Mapping[str, int]) -> Node:
    allocatable = node.status.allocatable | {resource: str(number) for resource, number in numbers.items()}
    return replace(node, status=replace(node.status, allocatable=allocatable))


def _offered(node: Node, resource: str) -> int:
    return whole_number(node.status.allocatable.get(resource)) or 0


def _devices(node: Node, chips: ChipSet) -> Counter[str]:
    """By resource, how many devices of a node are on these chips."""
    try:
        infos = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, ""))
    except InvalidValue:  # it is not known which chips it has
        return Counter({RESOURCE: chips.bit_count()})
    number, kind = (infos.chips & chips).bit_count(), read_kind(node.metadata.labels)
    if kind is not None and node.allocatable_cores is not None and not node.allocatable_chips:
        return Counter({RESOURCE_CORES: number * kind.cores})
    return Counter({RESOURCE: number, **Counter(vnpu.resource for vnpu in infos.vnpus if chips >> vnpu.chip & 1)})
