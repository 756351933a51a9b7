"""Fault levels, what each means for the health of a chip, and the fault codes with a meaning of their own."""

import enum

from ascend.errors import InvalidValue
from device_plugin.driver import LINK_DOWN

CARD_DROP = 0x40F84E00
"""The chip does not answer any more (docs/spec/faults.md#codes)."""

RESET_FINISHED = 0x8C2FA009
"""The chip was reset, which may have cleared any of its faults (docs/spec/faults.md#levels)."""

NETWORK_CODES = frozenset({LINK_DOWN, 0x81078607, 0x110000002, 0x110001024})
"""Faults of a chip's network port; all others are the chip's own (docs/spec/faults.md#codes)."""

HBM_DOUBLE_BIT = 0x80E01801
"""An uncorrectable (double-bit) error of the chip's memory (docs/spec/faults.md#bus-errors-after-memory-errors)."""

HANG = 0x200001002
"""The processes of the chip run without doing anything; found by this plugin (docs/spec/faults.md#hang-detection)."""

BUS_ERRORS = frozenset({0x80C98009, 0x80CB8009})
"""Bus errors of the AI cores, cube and vector; ``HBM_DOUBLE_BIT`` can cause them.

See docs/spec/faults.md#bus-errors-after-memory-errors.
"""

MAJOR = 2
"""The lowest severity that the driver ranks above "suggestion" and "minor"."""


class FaultLevel(enum.IntEnum):
    """How a fault has to be handled, in ascending order of seriousness (docs/spec/faults.md#levels)."""

    NORMAL = 0
    NOT_HANDLE = 1
    SUB_HEALTH = 2
    RESTART_REQUEST = 3
    RESTART_BUSINESS = 4
    FREE_RESTART = 5
    RESTART = 6
    PRE_SEPARATE = 7
    SEPARATE = 8
    MANUALLY_SEPARATE = 9

    @property
    def wire(self) -> str:
        """The name in ConfigMaps."""
        return _WIRE[self]

    @classmethod
    def of_wire(cls, text: str) -> "FaultLevel":
        """Return the level with this name.

        Raises:
            InvalidValue: there is no such level.
        """
        level = _LEVELS.get(text)
        if level is None:
            raise InvalidValue(f"{text!r} is not a level of faults (known: {', '.join(_LEVELS)})")
        return level

    @property
    def bars_use(self) -> bool:
        """Whether a chip with this level is unhealthy even while a pod uses it (docs/spec/faults.md#chip-health)."""
        return self > FaultLevel.SUB_HEALTH and self is not FaultLevel.PRE_SEPARATE

    @property
    def bars_new_use(self) -> bool:
        """Whether a chip with this level is unhealthy as soon as no pod uses it (docs/spec/faults.md#chip-health)."""
        return self > FaultLevel.SUB_HEALTH

    @property
    def bars_network(self) -> bool:
        """Whether a network port with this level is unhealthy; sub-health is enough (docs/spec/faults.md#levels)."""
        return self > FaultLevel.NOT_HANDLE


_WIRE = {
    FaultLevel.NORMAL: "NormalNPU",
    FaultLevel.NOT_HANDLE: "NotHandleFault",
    FaultLevel.SUB_HEALTH: "SubHealthFault",
    FaultLevel.RESTART_REQUEST: "RestartRequest",
    FaultLevel.RESTART_BUSINESS: "RestartBusiness",
    FaultLevel.FREE_RESTART: "FreeRestartNPU",
    FaultLevel.RESTART: "RestartNPU",
    FaultLevel.PRE_SEPARATE: "PreSeparateNPU",
    FaultLevel.SEPARATE: "SeparateNPU",
    FaultLevel.MANUALLY_SEPARATE: "ManuallySeparateNPU",
}
_LEVELS = {name: level for level, name in _WIRE.items()}


def level_of_unknown(code: int, severity: int | None) -> FaultLevel:
    """Return the level of a code that no table lists.

    An unknown code counts as harmless only if the driver's event said so; a code found by polling has no severity
    (docs/spec/faults.md#unknown-codes for how the reference handles it).

    Args:
        code: as the driver reports it.
        severity: of the event that announced it; None if no event did.
    """
    if code in NETWORK_CODES:
        return FaultLevel.PRE_SEPARATE
    return FaultLevel.SEPARATE if severity is None or severity >= MAJOR else FaultLevel.NOT_HANDLE
