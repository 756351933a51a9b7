"""The fault rules of a site: the level of each fault code, and the rules that raise a fault to a higher level.

See docs/spec/faults.md#fault-rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from device_plugin.health.levels import NETWORK_CODES, FaultLevel, level_of_unknown
from device_plugin.health.switch_faults import SwitchLevel


@dataclass(frozen=True, slots=True)
class FrequencyRule:
    """Raises a fault that occurs too often (docs/spec/faults.md#frequency-rule).

    Attributes:
        code: the fault.
        window_s: the period in which occurrences are counted.
        times: the number of occurrences within the window that raises the fault.
        level: the level it is raised to.
        release_s: how long the fault must be clear before the raise ends; None if only an operator ends it.
    """

    code: int
    window_s: int
    times: int
    level: FaultLevel
    release_s: int | None


@dataclass(frozen=True, slots=True)
class DurationRule:
    """Raises a fault that lasts too long (docs/spec/faults.md#duration-rule).

    Attributes:
        code: the fault.
        fault_s: the fault is raised once it has been present for more than this.
        recover_s: the raise ends once the fault has been clear for more than this.
        level: the level it is raised to.
    """

    code: int
    fault_s: int
    recover_s: int
    level: FaultLevel


@dataclass(frozen=True, slots=True)
class FaultRules:
    """The level of every code, and the rules that raise levels.

    Attributes:
        chip: levels of the chips' own codes.
        network: levels of the network ports' codes.
        frequency: frequency rules by code, in the order written.
        duration: duration rules by code, in the order written.
        spellings: spelling of the codes with leading zeros.
        switches: levels of the faults of switches.
    """

    chip: Mapping[int, FaultLevel]
    network: Mapping[int, FaultLevel]
    frequency: Mapping[int, tuple[FrequencyRule, ...]]
    duration: Mapping[int, tuple[DurationRule, ...]]
    spellings: Mapping[int, str]
    switches: Mapping[str, SwitchLevel]

    def level(self, code: int, severity: int | None = None) -> FaultLevel:
        """Return the level of a code before any rule raises it.

        Args:
            code: as the driver reports it.
            severity: of the event that announced it; None if no event did.
        """
        table = self.network if code in NETWORK_CODES else self.chip
        level = table.get(code)
        return level if level is not None else level_of_unknown(code, severity)

    def spell(self, code: int) -> str:
        """Spell a code as reports do: upper-case hex, leading zeros as configured.

        See docs/spec/node-report.md#device-list.
        """
        return self.spellings.get(code) or f"{code:X}"


NO_RULES = FaultRules({}, {}, {}, {}, {}, {})
"""Rules that list no code."""
