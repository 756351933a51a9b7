"""The faults of a node's chips: ``-Fault`` in the device-info ConfigMap.

See docs/spec/node-report.md#fault-entries.

Chip and level of a fault decide on placement, so they must be valid; the other fields are for people, and invalid ones
are left out (docs/spec/scheduling.md#malformed-input).
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from ascend.chips import RESOURCE, ChipSet, chip_name, chip_set, parse_chip_or_vnpu
from ascend.errors import UNREADABLE, InvalidReport, InvalidValue

FAULT_LIST: Final = f"{RESOURCE}-Fault"

_OF_NETWORK: Final = "CardNetworkUnhealthy"
_OF_CHIP: Final = "CardUnhealthy"
_PRE_SEPARATE: Final = "PreSeparateNPU"

_T = TypeVar("_T")


class FaultTime(msgspec.Struct, frozen=True):
    """When a fault code was first seen (Unix milliseconds, 0 if unknown) and how serious it is."""

    fault_time: int
    fault_level: str


class Fault(msgspec.Struct, frozen=True):
    """The faults of one chip in one domain (chip or network), as an entry of ``-Fault``; order is the wire's.

    See docs/spec/node-report.md#fault-entries.
    """

    fault_type: str
    npu_name: str
    large_model_fault_level: str
    fault_level: str
    fault_handling: str
    fault_code: str
    fault_time_and_level_map: dict[str, FaultTime]

    @property
    def of_network(self) -> bool:
        """Whether the fault is in the chip's network port."""
        return self.fault_type == _OF_NETWORK


class Upgrade(msgspec.Struct, frozen=True):
    """Why the level of a chip is worse than that of its fault codes, as an entry of ``UpgradeFaultReason``.

    See docs/spec/node-report.md#upgradefaultreason.

    The order of the fields is that of the wire.

    Attributes:
        upgrade_time: Unix milliseconds.
        fault_code: lower-case hex, or a word if there is no code.
        fault_level: the resulting level.
        upgrade_type: ``FaultFrequency``, ``FaultDuration`` or ``FaultAutofill``.
    """

    upgrade_time: int
    fault_code: str
    fault_level: str
    upgrade_type: str


def chip_fault(*, chip_id: int, level: str, codes: Mapping[str, FaultTime], network: bool = False) -> Fault:
    """The entry for one chip: codes are upper-case hex without ``0x``, ``level`` is their most serious one."""
    return Fault(
        fault_type=_OF_NETWORK if network else _OF_CHIP,
        npu_name=chip_name(chip_id),
        large_model_fault_level=level,
        fault_level=level,
        fault_handling=level,
        fault_code=",".join(codes),
        fault_time_and_level_map=dict(sorted(codes.items())),
    )


class _FaultRead(msgspec.Struct, frozen=True):
    fault_type: str = ""
    npu_name: str = ""
    large_model_fault_level: msgspec.Raw = msgspec.Raw()
    fault_level: str = ""
    fault_handling: str = ""
    fault_code: msgspec.Raw = msgspec.Raw()
    fault_time_and_level_map: msgspec.Raw = msgspec.Raw()


_NO_FAULTS: Final = frozenset({"", "[]", "null"})
"""What most reports say. Go encodes a nil slice as null."""


def read_faults(text: str) -> tuple[Fault, ...]:
    """Decode the JSON of ``-Fault``; codes and times that are invalid are left out.

    Raises:
        InvalidValue: it is not a list of faults, or chip or level of a fault are invalid.
    """
    if text in _NO_FAULTS:
        return ()
    try:
        return tuple(map(_fault, msgspec.json.decode(text, type=list[_FaultRead] | None) or ()))
    except UNREADABLE as error:
        raise InvalidValue(f"{FAULT_LIST}: {error}") from error


def read_pre_separate(faults: Iterable[Fault]) -> ChipSet:
    """The chips with a fault of level PreSeparateNPU: kept by the pods that hold them, given to no new pod.

    The list of unhealthy chips contains them only while no pod holds them (docs/spec/faults.md#chip-health). A network
    fault of that level does not count.

    Raises:
        InvalidReport: a fault of that level names no chip.
    """
    relevant = (fault for fault in faults if _PRE_SEPARATE in {fault.fault_level, fault.fault_handling})
    try:
        return chip_set(parse_chip_or_vnpu(fault.npu_name) for fault in relevant if not fault.of_network)
    except InvalidValue as error:
        raise InvalidReport(f"{FAULT_LIST}: {error}") from error


def _fault(read: _FaultRead) -> Fault:
    return Fault(
        fault_type=read.fault_type,
        npu_name=read.npu_name,
        large_model_fault_level=_decoded(read.large_model_fault_level, str, ""),
        fault_level=read.fault_level,
        fault_handling=read.fault_handling,
        fault_code=_decoded(read.fault_code, str, ""),
        fault_time_and_level_map=_decoded(read.fault_time_and_level_map, dict[str, FaultTime], {}),
    )


def _decoded(raw: msgspec.Raw, kind: type[_T], otherwise: _T) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE:
        return otherwise
