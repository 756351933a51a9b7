"""What is said of the chips' health, and when it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ascend.chips import ChipSet
from device_plugin.rules.levels import Level

UpgradeKind: TypeAlias = Literal["FaultFrequency", "FaultDuration", "FaultAutofill"]

NO_CODE = 0
"""The code of a reason that no fault gave: an operator separated the chip."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """When something was: rules count on the monotonic clock, people read the wall clock.

    Attributes:
        mono_s: monotonic seconds; only differences mean something.
        wall_ms: Unix milliseconds.
    """

    mono_s: float
    wall_ms: int

    def after(self, seconds: float) -> "Moment":
        """The moment so many seconds later."""
        return Moment(self.mono_s + seconds, self.wall_ms + round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault of a chip, present or remembered by a rule.

    Attributes:
        code: as the driver has it.
        name: as reports spell it.
        since_ms: Unix milliseconds; where a rule made it more serious, when that was.
        level: how serious it is.
    """

    code: int
    name: str
    since_ms: int
    level: Level


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a chip is fit for use.

    Attributes:
        healthy: what the kubelet is told.
        network_healthy: fit for distributed jobs, as far as its network port goes; the kubelet is not told.
        level: of its faults; a chip can be unhealthy without one, ``reason`` says why then.
        network_level: of its network's faults.
        faults: its own, the most serious first.
        network_faults: its network's, the most serious first.
        reason: a stable CamelCase word, why it is not healthy; empty where it is.
        sentence: the same for people, network included; equal for as long as nothing has changed.
    """

    healthy: bool
    network_healthy: bool
    level: Level
    network_level: Level
    faults: tuple[FaultRecord, ...]
    network_faults: tuple[FaultRecord, ...]
    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class UpgradeReason:
    """Why a fault is more serious than its code; survives a restart (spec/node-agent.md §5.6).

    Attributes:
        code: as the driver has it; ``NO_CODE`` where an operator separated the chip.
        level: the level it has.
        kind: the rule.
        time_ms: when, in Unix milliseconds.
    """

    code: int
    level: Level
    kind: UpgradeKind
    time_ms: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """The health of all chips at a moment.

    Attributes:
        chips: by ascending physical id.
        manually_separated: out of use until an operator says otherwise, discovered here or not.
        upgrade_reasons: by physical id, sorted; only chips that have some.
        awaiting_readmission: chips whose faults are gone and that an operator has to readmit.
        network_awaiting_readmission: the same for their network.
        next_s: the monotonic time at which this changes by itself; None: only when something is told.
    """

    chips: Mapping[int, Verdict]
    manually_separated: ChipSet
    upgrade_reasons: Mapping[int, tuple[UpgradeReason, ...]]
    awaiting_readmission: ChipSet
    network_awaiting_readmission: ChipSet
    next_s: float | None
