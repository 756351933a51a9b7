"""What the site says about faults: the level of each code, and the rules that make a fault more serious."""

from collections.abc import Mapping
from dataclasses import dataclass

from device_plugin.rules.levels import NETWORK_CODES, Level, level_of_unknown


@dataclass(frozen=True, slots=True)
class FrequencyRule:
    """A fault that comes too often is more serious than each time by itself (spec/node-agent.md §4.3).

    Attributes:
        code: the fault.
        window_s: how far back occurrences are counted.
        times: so many within the window are too many.
        level: the level it has from then on.
        release_s: for how long it must have been gone to be forgiven; None: only an operator forgives.
    """

    code: int
    window_s: int
    times: int
    level: Level
    release_s: int | None


@dataclass(frozen=True, slots=True)
class DurationRule:
    """A fault that stays too long is more serious than a short one (spec/node-agent.md §4.4).

    Attributes:
        code: the fault.
        fault_s: it must have been there for more than this.
        recover_s: it must have been gone for more than this to be over.
        level: the level it has in between.
    """

    code: int
    fault_s: int
    recover_s: int
    level: Level


@dataclass(frozen=True, slots=True)
class FaultRules:
    """The level of every code and the rules beyond.

    Attributes:
        chip: levels of the chips' own codes.
        network: levels of the codes of their network ports.
        frequency: by code, in the order written.
        duration: by code, in the order written.
        spellings: how codes with leading zeros are written.
    """

    chip: Mapping[int, Level]
    network: Mapping[int, Level]
    frequency: Mapping[int, tuple[FrequencyRule, ...]]
    duration: Mapping[int, tuple[DurationRule, ...]]
    spellings: Mapping[int, str]

    def level(self, code: int, severity: int | None = None) -> Level:
        """The level a code has by itself.

        Args:
            code: as the driver has it.
            severity: of the event that announced it; None where none did.
        """
        table = self.network if code in NETWORK_CODES else self.chip
        level = table.get(code)
        return level if level is not None else level_of_unknown(code, severity)

    def spell(self, code: int) -> str:
        """The code as reports have it: upper-case hex, leading zeros as configured (spec/node-agent.md §5.2)."""
        return self.spellings.get(code) or f"{code:X}"


NO_RULES = FaultRules({}, {}, {}, {}, {})
"""No code is known."""
