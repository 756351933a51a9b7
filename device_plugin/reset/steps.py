"""The values and rules of a group's reset: phase, next command, limits, and what speaks for and against it. No I/O."""

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend.chips import ChipSet, chip_ids, chip_set, join_names
from ascend.rate_limiters import doubled_s
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, Snapshot

SETTLE_S = 5.0
"""How long the kubelet must have had the list without the chips: longer than an Allocate can take."""
LIST_LIMIT_S = 60.0
"""How long chips are withheld while the kubelet can't be sent the list, or the Node can't be written."""
RECHECK_S = 10.0
"""The wait after a check that found a holder, or no answer."""
CALL_LIMIT_S = 300.0
"""After this long, a reset that has not returned is said to hang."""
BOOT_LIMIT_S = 180.0
"""How long chips may take to start (docs/spec/faults.md#hot-reset)."""
POLL_S = 1.0
SLOW_POLL_S = 10.0
"""The wait between two looks at chips that start, and at chips that have not started in time."""
LAG_S = 5.0
"""How long the driver's list of codes may still have a fault after the reset that ended it."""
VERIFY_LIMIT_S = 30.0
"""How long chips that have started may take to be read."""
DRY_RUN = "nobody uses the chips, and in a dry run they are not reset"
UNKNOWN_USERS = "the kubelet or the driver can't be asked who uses the chips"
SAY_AGAIN_S = 300.0
"""How often another reason for waiting is announced, at most."""


@dataclass(frozen=True, slots=True)
class ResetOptions:
    """How chips are reset.

    Attributes:
        dry_run: whether resets are only announced.
        idle_s: how long nobody must have used the chips.
        per_hour: how often a group may be reset within an hour.
        pod_resources_socket: where the kubelet says who holds chips.
    """

    dry_run: bool
    idle_s: float
    per_hour: int
    pod_resources_socket: Path


class ResetPhase(enum.StrEnum):
    """How far a group is."""

    IDLE = "idle"
    CHECKING = "checking"
    WITHHELD = "withheld"
    CONFIRMING = "confirming"
    RESETTING = "resetting"
    STARTING = "starting"
    INITIALIZING = "initializing"
    VERIFYING = "verifying"


class Command(enum.StrEnum):
    """The next command to the caller, who reports its outcome by the method of the same name."""

    CHECK = "check"
    RESET = "reset"
    POLL = "poll"
    INITIALIZE = "initialize"


@dataclass(frozen=True, slots=True)
class View:
    """What is known at one moment without asking anybody.

    Attributes:
        wanting: the chips of the group that a reset is for, with their faults.
        obstacles: who holds chips of the group, and what else prevents a reset, as sentences.
        closed: no chip of the group can be given to a pod any more.
        listed: the kubelet was sent a list in which no chip of the group is healthy.
        admitting: a pod is being admitted.
        recorded: the Node has the resets that were counted, so that a restart of the plugin does not forget them.
        busy: another group is being reset.
        healthy: the chips of the group that are healthy, withheld or not.
        held_back: a chip has only just recovered, so its health is still held back.
        read: the chips that were read, and judged, since ``since_s`` of the group.
    """

    wanting: Mapping[int, str]
    obstacles: Sequence[str] = ()
    closed: bool = False
    listed: bool = False
    admitting: bool = False
    recorded: bool = False
    busy: bool = False
    healthy: ChipSet = 0
    read: ChipSet = 0
    held_back: bool = False


Announce = Callable[[str, str, bool], None]
"""Receives a reason (CamelCase), a sentence, and whether it is a warning."""


RESTARTING = frozenset(
    {FaultLevel.RESTART_REQUEST, FaultLevel.RESTART_BUSINESS, FaultLevel.FREE_RESTART, FaultLevel.RESTART}
)
"""Levels of faults that a reset is expected to end (docs/spec/faults.md#hot-reset)."""

SEPARATING = frozenset({FaultLevel.SEPARATE, FaultLevel.MANUALLY_SEPARATE})
"""Levels of faults for which people have to reset or replace the chip."""


def wanting(snapshot: Snapshot, group: ChipSet) -> dict[int, str]:
    """Return the chips of a group that a reset is for, with their faults for people."""
    return {chip.chip_id: _faults(chip) for chip in members(snapshot, group) if chip.level in RESTARTING}


def lasting(snapshot: Snapshot) -> ChipSet:
    """Return the chips with faults that no reset by this program ends."""
    return chip_set(chip.chip_id for chip in snapshot.chips if chip.level in SEPARATING)


def members(snapshot: Snapshot, group: ChipSet) -> Iterator[Chip]:
    """Return the chips of a group."""
    return (chip for chip in snapshot.chips if group >> chip.chip_id & 1)


def obstacles(snapshot: Snapshot, group: ChipSet, held: Mapping[str, ChipSet]) -> list[str]:
    """Return why a group can't be reset now, as sentences: as far as this program knows by itself.

    A pod that is bound with a chip of the group holds it, although its containers do not run yet. Once it was given its
    chips, what is written on it does not count.

    Args:
        snapshot: the node's chips.
        group: the chips that are reset together.
        held: the chips of each pod, by any of the ledgers, and by ``namespace/name``.
    """
    sentences = [f"pod {key} holds {join_names(chip_ids(of & group))}" for key, of in held.items() if of & group]
    if (
        cut := (snapshot.cut | snapshot.divided | chip_set(chip.phy_id for chip in snapshot.server.chips if chip.vnpus))
        & group
    ):
        sentences.append(f"{join_names(chip_ids(cut))} is cut into virtual chips")
    if gone := group & ~chip_set(chip.phy_id for chip in snapshot.server.chips if chip.is_listed):
        sentences.append(f"the driver does not list {join_names(chip_ids(gone))}")
    return sentences


def _faults(chip: Chip) -> str:
    return ", ".join(str(fault) for fault in chip.faults if fault.level in RESTARTING)


HOUR_S = 3600.0
FIRST_S = 60.0
"""The wait after the first failure."""


class ResetBudget:
    """The resets of one group.

    Args:
        per_hour: how many resets there may be within an hour.
        earlier: when it was reset before, as seconds of the clock that the methods are called with.
    """

    def __init__(self, per_hour: int, earlier: Iterable[float] = ()) -> None:
        self._per_hour = per_hour
        self._resets = sorted(earlier)
        self._failures = 0
        self._failed_s = -math.inf

    @property
    def resets(self) -> tuple[float, ...]:
        """When it was reset within the last hour, as far as that matters."""
        return tuple(self._resets)

    def spend(self, now_s: float) -> None:
        """Count a reset."""
        self._resets = [reset for reset in self._resets if reset > now_s - HOUR_S]
        self._resets.append(now_s)

    def give_back(self) -> None:
        """Forget the last reset that was counted: the driver was not called for it."""
        self._resets.pop()

    def on_failure(self, now_s: float) -> None:
        """Count a failure: the last reset did not end the fault."""
        self._failures, self._failed_s = self._failures + 1, now_s

    def on_success(self) -> None:
        """Forget the failures."""
        self._failures = 0

    def is_spent(self, now_s: float) -> bool:
        """Return whether the limit is reached."""
        return sum(reset > now_s - HOUR_S for reset in self._resets) >= self._per_hour

    def due_s(self, now_s: float) -> float:
        """Return when the next reset may be, at the earliest now."""
        due_s = max(now_s, self._failed_s + doubled_s(FIRST_S, self._failures, HOUR_S))
        if self.is_spent(now_s):
            recent = [reset for reset in self._resets if reset > now_s - HOUR_S]
            due_s = max(due_s, recent[-self._per_hour] + HOUR_S)
        return due_s
