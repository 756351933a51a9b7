"""The values of a group's reset: phase, next command, view and time limits."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend.chips import ChipSet

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
