"""Reports chips whose processes hang as a fault of the chip, between the scanner and its listener.

The driver has no such fault; MindCluster's plugin has given it a code, and the fault rules give it a level
(docs/spec/faults.md#hang-detection).
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.errors import DriverError
from device_plugin.chips.call_thread import CallThread
from device_plugin.chips.chip_reader import Listener
from device_plugin.driver import ChipFacts, ChipState, FaultEvent, Inventory
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.driver.telemetry import MeasuringDriver, Quantity, Reading, Values
from device_plugin.health.levels import HANG
from device_plugin.health.moment import Moment

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


PROC = Path("/proc")

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Places of the two times in ``/proc/<pid>/stat``, counted after the name, which may contain blanks."""


def cpu_time_s(processes: Iterable[int], proc: Path = PROC) -> float | None:
    """Return the CPU time of processes in seconds; None if one of them can't be seen, as without the node's processes.

    Args:
        processes: their ids on the node.
        proc: where procfs is mounted.
    """
    ticks = 0
    for process in processes:
        try:
            times = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(times[_USER]) + int(times[_SYSTEM])
        except (OSError, ValueError, IndexError):
            return None
    return ticks / _TICKS


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class HangDriver(MeasuringDriver, ResettingDriver, Protocol):
    """A driver that measures chips and lists the processes that use them."""


class HangDetector:
    """Looks at each chip once a minute, in a thread of its own.

    Args:
        driver: lists the processes of a chip, and measures it.
        listener: receives what the scanner reports, with the fault of a chip that hangs.
        rounds: how many minutes in a row must be without activity.
        off_limits: returns the chips that must not be used now, because they are being reset.
        round_s: seconds between two readings.
        packets: returns how many packets the port of a chip, by physical id, has sent and received;
            it raises DriverError.
        cpu_time: returns the CPU time in seconds of processes; None if unknown.
    """

    def __init__(
        self,
        driver: HangDriver,
        listener: Listener,
        *,
        rounds: int,
        packets: Callable[[int], int],
        off_limits: Callable[[], ChipSet] = lambda: 0,
        round_s: float = ROUND_S,
        cpu_time: Callable[[frozenset[int]], float | None] = cpu_time_s,
    ) -> None:
        self._driver = driver
        self._listener = listener
        self._rounds = rounds
        self._packets = packets
        self._off_limits = off_limits
        self._round_s = round_s
        self._cpu_time = cpu_time
        self._chips: tuple[ChipFacts, ...] = ()
        self._watches: dict[int, HangWatch] = {}
        self._threads: dict[int, CallThread] = {}
        self._calls: dict[int, asyncio.Future[Activity | None]] = {}
        self._said_unseen = False

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Pass on the list of chips. Those that are cut are not watched: the activity of vNPUs can't be told apart."""
        self._chips = tuple(chip for chip in server.chips if chip.is_listed and not chip.vnpus)
        for chip in server.chips:
            if chip.vnpus:
                self._watches.pop(chip.phy_id, None)
        self._listener.on_discovery(server, at)

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Pass on a reading, with an additional fault code if the chip hangs."""
        watch = self._watches.get(phy_id)
        if watch is not None and watch.hangs and state.codes is not None:
            state = replace(state, codes=(*state.codes, HANG))
        self._listener.on_reading(phy_id, state, at)

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Pass on an event."""
        self._listener.on_event(event, at)

    def events_lost(self) -> None:
        """Pass on that events were lost."""
        self._listener.events_lost()

    async def run(self) -> None:
        """Look at the chips until cancelled."""
        try:
            while True:
                off_limits = self._off_limits()
                for chip in self._chips:
                    if off_limits >> chip.phy_id & 1:
                        self._take(chip, None)
                    elif chip.phy_id in self._calls:
                        self._take(chip, None)  # the driver has not answered for a whole round
                    else:
                        self._look(chip)
                await asyncio.sleep(self._round_s)
        finally:
            for thread in self._threads.values():
                thread.close()

    def _look(self, chip: ChipFacts) -> None:
        thread = self._threads.setdefault(chip.phy_id, CallThread(f"hang {chip.phy_id}"))
        call = self._calls[chip.phy_id] = thread.call(lambda: self._read(chip))
        call.add_done_callback(partial(self._settle, chip))

    def _read(self, chip: ChipFacts) -> Activity | None:
        """Read the activity of a chip, in the chip's thread. A chip without processes costs a single call."""
        processes = frozenset(self._driver.users(chip))
        if not processes:
            return None
        cpu_s = self._cpu_time(processes)
        if cpu_s is None and not self._said_unseen:
            self._said_unseen = True
            log.warning("no chip counts as hanging: the processes of the node can't be seen, the pod needs hostPID")
        values = {**self._measure(chip, Reading.UTILIZATION), **self._measure(chip, Reading.HBM)}
        used, total = values.get(Quantity.HBM_USED_MEMORY), values.get(Quantity.HBM_TOTAL_MEMORY)
        memory = int(used * 100 / total) if used is not None and total else None
        return Activity(processes, values.get(Quantity.UTILIZATION), memory, self._count_packets(chip), cpu_s)

    def _count_packets(self, chip: ChipFacts) -> int | None:
        try:
            return self._packets(chip.phy_id)
        except DriverError:
            return None

    def _measure(self, chip: ChipFacts, reading: Reading) -> Values:
        try:
            return self._driver.measure(chip, reading)
        except DriverError:
            return {}

    def _settle(self, chip: ChipFacts, call: "asyncio.Future[Activity | None]") -> None:
        del self._calls[chip.phy_id]
        if not call.cancelled():
            self._take(chip, call.result() if call.exception() is None else None)

    def _take(self, chip: ChipFacts, activity: Activity | None) -> None:
        watch = self._watches.setdefault(chip.phy_id, HangWatch(self._rounds))
        before = watch.hangs
        watch.read(activity)
        if watch.hangs != before:
            log.warning(
                "the processes of a chip hang" if watch.hangs else "the processes of a chip work again, or have ended",
                chip=chip_name(chip.phy_id),
                processes=sorted(activity.processes) if activity is not None else [],
            )
