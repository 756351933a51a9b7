"""Chips for people: numbers as in ``0-3,5``, and broken chips with the cause and the pods on them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from allocator.state.node import NodeRecord
from allocator.state.report import NodeReport
from ascend.chips import MAX_CHIP_ID, NAME_PREFIX, ChipSet, chip_ids, chip_name
from ascend.cordons import Cordon
from ascend.deviceinfo import DeviceReport
from ascend.errors import InvalidValue
from ascend.fault_codes import action, explained
from ascend.printable import shown

_RANGE: Final = re.compile(rf"(?:{NAME_PREFIX})?([0-9]{{1,3}})(?:-([0-9]{{1,3}}))?")


def numbers(chips: Sequence[str]) -> str:
    """Return the numbers of chips, as in ``0-3,5``; for a vNPU its size, vdev id and chip: ``2c-100-1``."""
    parts: list[str] = []
    first = last = -1
    for name in chips:
        number = name.removeprefix(NAME_PREFIX)
        if number.isdecimal() and int(number) == last + 1 and parts:
            last += 1
            parts[-1] = f"{first}-{last}"
            continue
        parts.append(number)
        first = last = int(number) if number.isdecimal() else -len(NAME_PREFIX)
    return ",".join(parts)


def read_numbers(text: str) -> ChipSet:
    """Read what ``numbers`` prints of chips; a chip may also be named, as in ``Ascend910-2``.

    Raises:
        InvalidValue: it is nothing of that kind; the message begins with the part that is wrong.
    """
    chips = 0
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 0)
        if not first <= last <= MAX_CHIP_ID:
            raise InvalidValue(f"{shown(part)} is no chip; write chips as in 0-3,5 or {NAME_PREFIX}2")
        chips |= (1 << last + 1) - (1 << first)
    return chips


class ChipFault(NamedTuple):
    """A chip that must not be used.

    Attributes:
        node: its node.
        chip: its physical id.
        codes: its fault codes; none if the device plugin can't read it, holds it back or was told to.
        level: the level of these codes, as on the wire; empty without codes.
        pods: the pods (``namespace/name``) that have it or a part of it.
        cause: why it has no code: ``reset``, ``separated`` or ``silent``; ``port`` if its network port is what must
            not be used; empty if it has a code.
        may_go_on: its pods may go on with it.
        cordon: who has taken it out of use, when and why; None if nobody has said so.
    """

    node: str
    chip: int
    codes: tuple[str, ...]
    level: str
    pods: tuple[str, ...]
    cause: str = ""
    may_go_on: bool = False
    cordon: Cordon | None = None

    @property
    def name(self) -> str:
        """Node and chip."""
        return f"{self.node}/{chip_name(self.chip)}"

    @property
    def what(self) -> str:
        """Its codes with their meaning, and why it was taken out of use."""
        cordon = str(self.cordon) if self.cordon is not None else ""
        codes = ", ".join(map(explained, self.codes)) or ("" if cordon else _CAUSES[self.cause])
        return "; ".join(filter(None, (codes, cordon)))

    @property
    def advice(self) -> str:
        """What to do about it."""
        of_level = action(self.level, in_use=bool(self.pods)) if self.cause != "port" else ""
        return of_level or _ADVICE.get(self.cause, "")


_CAUSES = {
    "reset": "the chip is being reset",
    "separated": "an operator has taken the chip out of use, or the rule of frequent faults",
    "port": "its network port can't be used",
    "silent": "unhealthy without a fault code: the driver does not answer for it, or it is held back after a fault",
}
_ADVICE = {
    "reset": "wait",
    "separated": (
        "npuctl chip uncordon puts it back once it is repaired (docs/device-plugin.md#taking-a-chip-out-of-use)"
    ),
    "port": "repair the link; until then only jobs on one server can use the chip",
    "silent": "npuctl doctor on the node says what its driver answers; if it stays so, restart the server",
}


def chip_faults(record: NodeRecord, report: DeviceReport | None, cordons: Mapping[int, Cordon]) -> Iterator[ChipFault]:
    """The chips of a node that must not be used, by number; none without a valid report.

    ``cordons`` has those that operators have taken out of use.
    """
    if not isinstance(record.report, NodeReport) or report is None:
        return
    barred = record.report.unhealthy | record.report.pre_separate
    for chip in chip_ids(barred):
        level, codes, pods = _facts(record, report, chip, of_network=False)
        may_go_on = not record.report.unhealthy >> chip & 1
        cause = ""
        if not codes:
            is_reset, is_separated = report.recovering >> chip & 1, report.manually_separated >> chip & 1
            cause = "reset" if is_reset else "separated" if is_separated else "silent"
        yield ChipFault(record.name, chip, codes, level, pods, cause, may_go_on, cordons.get(chip))


def port_faults(record: NodeRecord, report: DeviceReport | None) -> Iterator[ChipFault]:
    """The chips of a node whose network ports must not be used, by number; none without a valid report."""
    if isinstance(record.report, NodeReport) and report is not None:
        for chip in chip_ids(record.report.network_unhealthy):
            level, codes, pods = _facts(record, report, chip, of_network=True)
            yield ChipFault(record.name, chip, codes, level, pods, "port")


def _facts(
    record: NodeRecord, report: DeviceReport, chip: int, *, of_network: bool
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The level and the codes of a chip, or of its port, and its pods."""
    own = [fault for fault in report.faults if fault.npu_name == chip_name(chip) and fault.of_network == of_network]
    codes = tuple(code for fault in own for code in fault.fault_code.split(",") if code)
    pods = tuple(sorted(holding.pod for holding in record.holdings.values() if holding.occupied >> chip & 1))
    return own[0].fault_level if own else "", codes, pods
