"""The faults a node reports of its chips: ``-Fault`` in its device-info ConfigMap (spec/node-agent.md §5.2).

Which chip it is and how ill decides where pods go, so that must be readable; the rest is for people, and a slip there
costs only itself (spec/scheduling.md §8.10).
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from ascend.chips import RESOURCE, ChipSet, chip_name, chip_set, parse_chip_name
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
    """The faults of one chip in one domain (chip or network), as an entry of ``-Fault`` (§5.2); order is the wire's."""

    fault_type: str
    npu_name: str
    large_model_fault_level: str
    fault_level: str
    fault_handling: str
    fault_code: str
    fault_time_and_level_map: dict[str, FaultTime]

    @property
    def of_network(self) -> bool:
        """It is the chip's network port that is faulty."""
        return self.fault_type == _OF_NETWORK


def chip_fault(*, chip_id: int, level: str, codes: Mapping[str, FaultTime], network: bool = False) -> Fault:
    """The entry for one chip: codes are upper-case hex without ``0x``, ``level`` is the most serious of theirs."""
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


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults in the JSON of ``-Fault``; what is told of codes and times is left out where it can't be read.

    Raises:
        InvalidValue: it is no list of faults, or the chip or level of one can't be read.
    """
    try:
        # Go writes a list that was never filled as null.
        return tuple(map(_fault, msgspec.json.decode(text or "[]", type=list[_FaultRead] | None) or ()))
    except UNREADABLE as error:
        raise InvalidValue(f"{FAULT_LIST}: {error}") from error


def read_separating(faults: Iterable[Fault]) -> ChipSet:
    """The chips that are left to the pods that hold them, and are to be given to no other.

    Their level is PreSeparateNPU, and the list of unhealthy chips has them only while no pod holds them (§4.1). A
    network of that level keeps no pod of its own off the chip.

    Raises:
        InvalidReport: such a fault names no chip.
    """
    severe = (each for each in faults if _PRE_SEPARATE in {each.fault_level, each.fault_handling})
    try:
        return chip_set(parse_chip_name(each.npu_name) for each in severe if not each.of_network)
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
