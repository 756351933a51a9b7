"""The Node's annotations about resets: which chips people have to reset, and when groups were reset.

``ResetInfo`` is that of MindCluster's plugin (docs/spec/faults.md#resetinfo).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from ascend.annotations import RESET_INFO, RESETS
from ascend.chips import MAX_CHIP_ID, ChipSet, chip_set
from device_plugin.driver import ChipFacts

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ResetDevice(msgspec.Struct, frozen=True, rename={"card_id": "CardId", "device_id": "DeviceId"}):
    """A chip that has to be reset; the names are those of the wire."""

    card_id: int = 0
    device_id: int = 0
    AssociatedCardId: int = 0
    PhyID: int = 0
    LogicID: int = 0


class _ResetInfo(msgspec.Struct, frozen=True):
    ThirdPartyResetDevs: list[ResetDevice] | None = None
    ManualResetDevs: list[ResetDevice] | None = None


@dataclass(frozen=True, slots=True)
class EarlierResets:
    """What an earlier plugin wrote.

    Attributes:
        third_party: chips that another program has to reset.
        manual: chips that people have to reset.
        times_s: Unix seconds of the last resets, by the lowest physical id of the group.
        written: whether the annotation ``ResetInfo`` exists.
    """

    third_party: tuple[ResetDevice, ...] = ()
    manual: ChipSet = 0
    times_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    written: bool = False


def read_resets(annotations: Mapping[str, str]) -> EarlierResets:
    """Read the Node's annotations; what is unreadable is left out."""
    info, times = _ResetInfo(), dict[int, tuple[float, ...]]()
    try:
        if RESET_INFO in annotations:
            info = msgspec.json.decode(annotations[RESET_INFO], type=_ResetInfo)
        if RESETS in annotations:
            times = msgspec.json.decode(annotations[RESETS], type=dict[int, tuple[float, ...]])
    except ValueError as error:
        log.warning("what an earlier plugin wrote about resets is lost", error=str(error))
    manual = (device.PhyID for device in info.ManualResetDevs or () if 0 <= device.PhyID <= MAX_CHIP_ID)
    return EarlierResets(tuple(info.ThirdPartyResetDevs or ()), chip_set(manual), times, RESET_INFO in annotations)


def write_resets(
    manual: Iterable[ChipFacts], third_party: Iterable[ResetDevice], times_s: Mapping[int, Iterable[float]]
) -> dict[str, str]:
    """Return the annotations."""
    people = [
        ResetDevice(max(chip.card_id, 0), max(chip.device_id, 0), 0, chip.phy_id, chip.logic_id) for chip in manual
    ]
    info = _ResetInfo(list(third_party) or None, people or None)
    times = {str(chip): [round(time_s) for time_s in group] for chip, group in sorted(times_s.items())}
    return {RESET_INFO: msgspec.json.encode(info).decode(), RESETS: msgspec.json.encode(times).decode()}
