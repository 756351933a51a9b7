"""Resets of simulated chips: they stop, start again, and the faults that the file gives them are over.

A chip has ``processes``, the ids of those that use it. The file can say how resets go::

    "reset": {"delay_s": 0.0, "error": "", "down_s": 1.0, "start_s": 1.0, "ends_faults": true}

``delay_s`` is how long the driver takes to return, ``error`` makes it refuse. Afterwards the chips answer nothing for
``down_s``, and start for ``start_s``. A fault is over until the chip's health or fault codes in the file change, or the
program restarts.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec

from device_plugin.driver import Inventory

_Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class SimulatedReset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How resets go."""

    delay_s: _Delay = 0.0
    error: str = ""
    down_s: _Delay = 1.0
    start_s: _Delay = 1.0
    ends_faults: bool = True


class FaultyChip(msgspec.Struct, kw_only=True):
    """The faults of a chip in the file."""

    health: Literal["Healthy", "Unhealthy"] = "Healthy"
    fault_codes: list[str] = []


C = TypeVar("C", bound=FaultyChip)


@dataclass(frozen=True, slots=True)
class _Past:
    """The last reset of a chip: the end of the downtime, the start of the chip, and the faults that the reset ended."""

    up_s: float
    started_s: float
    faults: tuple[str, ...] | None


def partners(complete: Inventory, server: Inventory) -> dict[int, int | None]:
    """Return the card that is reset with each listed card of an A3 server: 0 and 4, 1 and 5, and so on.

    Args:
        complete: the server with all its cards, listed or not.
        server: as the driver lists it.
    """
    if server.chip_type != "Ascend910A3":
        return {}
    cards = {chip.card_id for chip in complete.chips}
    listed = {chip.card_id for chip in server.chips if chip.is_listed}
    return {card: partner if (partner := (card + 4) % 8) in cards else None for card in listed}


class SimulatedResets:
    """The chips that were reset.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._past: dict[int, _Past] = {}

    def begin(self, chips: Mapping[int, FaultyChip], reset: Iterable[int], how: SimulatedReset) -> None:
        """Reset chips."""
        up_s = self._now_s() + how.down_s
        for phy_id in reset:
            faults = _faults(chips[phy_id]) if how.ends_faults else None
            self._past[phy_id] = _Past(up_s, up_s + how.start_s, faults)

    def has_started(self, phy_id: int) -> bool:
        """Return whether a chip has started since its last reset."""
        past = self._past.get(phy_id)
        return past is None or self._now_s() >= past.started_s

    def apply(self, chips: Mapping[int, C]) -> Mapping[int, C]:
        """Return the chips as they are after their resets."""
        if not self._past:
            return chips
        return {phy_id: self._after(phy_id, chip) for phy_id, chip in chips.items()}

    def _after(self, phy_id: int, chip: C) -> C:
        past = self._past.get(phy_id)
        if past is None:
            return chip
        changes: dict[str, object] = {}
        if past.faults == _faults(chip):
            changes |= {"health": "Healthy", "fault_codes": []}
        if self._now_s() < past.up_s:
            changes |= {"ready": False}
        return msgspec.structs.replace(chip, **changes) if changes else chip


def _faults(chip: FaultyChip) -> tuple[str, ...]:
    return (chip.health, *chip.fault_codes)
