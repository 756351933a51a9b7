"""The activity of a chip and its processes, and when it counts as a hang (docs/spec/faults.md#hang-detection)."""

from dataclasses import dataclass
from typing import Final

ROUND_S: Final = 60.0
"""The time between two readings; the limits are for this time."""

_UTILIZATION: Final = 5.0
_PACKETS: Final = 100
_CPU_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Activity:
    """One reading of a chip; a value that could not be read is None, and then the chip does not count as hanging.

    Attributes:
        processes: the ids of the processes that use the chip, on the node and in all containers.
        utilization: of its AI cores, in percent.
        memory: its used memory, in whole percent.
        packets: all packets its network port has sent and received since the start of the server.
        cpu_s: the CPU time of the processes, in seconds.
    """

    processes: frozenset[int]
    utilization: float | None
    memory: int | None
    packets: int | None
    cpu_s: float | None


class HangWatch:
    """Compares the readings of one chip.

    Args:
        rounds: how many readings in a row must be without activity.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._before: Activity | None = None
        self._idle_rounds = 0

    @property
    def hangs(self) -> bool:
        """Whether the processes of the chip hang."""
        return self._idle_rounds >= self._rounds

    def read(self, activity: Activity | None) -> None:
        """Take over a reading; None if the chip could not be read."""
        before, self._before = self._before, activity
        is_idle = before is not None and activity is not None and _is_idle(before, activity)
        self._idle_rounds = self._idle_rounds + 1 if is_idle else 0


def _is_idle(before: Activity, now: Activity) -> bool:
    if not now.processes or now.processes != before.processes or now.utilization is None:
        return False
    memory = _difference(before.memory, now.memory)
    packets = _difference(before.packets, now.packets)
    cpu_s = _difference(before.cpu_s, now.cpu_s)
    if memory is None or packets is None or cpu_s is None:
        return False
    # Counters that go back have been reset, so nothing is known about this round.
    return now.utilization < _UTILIZATION and memory <= 0 and 0 <= packets < _PACKETS and 0 <= cpu_s < _CPU_S


def _difference(before: float | None, now: float | None) -> float | None:
    return now - before if before is not None and now is not None else None
