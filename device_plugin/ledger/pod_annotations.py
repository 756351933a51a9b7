"""The devices of one type that a pod was promised or has, by the pod's annotations."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ascend.annotations import REAL, Grant, read_predicate_time
from ascend.chips import NAME_PREFIX, ChipSet, chip_set, parse_chip_name
from ascend.cores import parse_cores, split_group
from ascend.errors import InvalidValue
from ascend.pod_devices import MAX_LIST_ENTRIES
from ascend.templates import RESOURCE_CORES, divisible_kinds
from ascend.vnpus import Vnpu, parse_vnpu
from device_plugin.device_types import CORES, DeviceType, type_of


class Given(NamedTuple):
    """What the device plugin wrote on a pod.

    Attributes:
        chips: physical ids.
        vnpu: the vNPU; None for whole chips.
        group: the driver's id of its group of vNPUs.
    """

    chips: tuple[int, ...]
    vnpu: Vnpu | None = None
    group: int = 0


def read_given(text: str) -> Given:
    """Read ``Ascend910-5c.1cpu.16g-100-0_1``, or the names of whole chips.

    Raises:
        InvalidValue: the text is neither.
    """
    if "-" not in text.removeprefix(NAME_PREFIX) or "," in text:
        if text.count(",") >= MAX_LIST_ENTRIES:
            raise InvalidValue(f"more than {MAX_LIST_ENTRIES} chips")
        return Given(tuple(map(parse_chip_name, text.split(","))))
    name, group = split_group(text)
    vnpu = parse_vnpu(name)
    return Given((vnpu.chip,), vnpu, group)


_CORES_OF_CHIP: Final = min(kind.cores for kind in divisible_kinds())
"""The fewest AI cores of a chip."""


def read_grant(annotations: Mapping[str, str], device_type: DeviceType) -> Grant | None:
    """Return what the allocator wrote on a pod; None if it wrote nothing.

    Raises:
        InvalidValue: it is malformed.
    """
    key = device_type.resource
    text = annotations.get(key)
    if text is None:
        return None
    return Grant(device_type.parse_list(text, f"annotation {key}"), read_predicate_time(annotations))


def read_core_grant(annotations: Mapping[str, str]) -> tuple[Grant | None, str]:
    """Return the chips that the allocator wrote on a pod for AI cores, and the template; None if it wrote nothing.

    Raises:
        InvalidValue: it is malformed.
    """
    text = annotations.get(RESOURCE_CORES)
    if text is None:
        return None, ""
    chips, cut = parse_cores(text)
    time = read_predicate_time(annotations)
    return (Grant(chips, time), "") if cut is None else (Grant((cut.chip,), time), cut.template)


def grant_text(chips: tuple[int, ...], template: str, device_type: DeviceType) -> str:
    """Return the annotation that ``read_grant`` reads, or ``read_core_grant``."""
    if device_type != CORES:
        return device_type.join(chips)
    return f"{chips[0]}-{template}" if template else ",".join(map(str, chips))


def read_real_cores(annotations: Mapping[str, str]) -> Given | None:
    """Return what AscendReal says of a pod that requests AI cores; None if nothing readable."""
    try:
        return read_given(annotations.get(REAL, ""))
    except InvalidValue:
        return None


def read_real(annotations: Mapping[str, str], device_type: DeviceType) -> ChipSet:
    """Return the devices of AscendReal; for AI cores the chips. What is not readable is nothing."""
    if device_type == CORES:
        return chip_set(given.chips) if (given := read_real_cores(annotations)) is not None else 0
    try:
        return chip_set(device_type.parse_list(annotations.get(REAL, ""), f"annotation {REAL}"))
    except InvalidValue:
        return 0


def most_devices(count: int, device_type: DeviceType) -> int:
    """Return how many devices, for AI cores how many chips, a pod can have that requests ``count``."""
    return max(count // _CORES_OF_CHIP, 1) if device_type == CORES else count


def foreign_keys(annotations: Mapping[str, str], device_type: DeviceType) -> frozenset[str]:
    """Return the annotations that name devices of other types, as a grant would."""
    return frozenset(
        key for key in annotations if (found := type_of(key)) is not None and found.resource != device_type.resource
    )
