"""Reads link state and counters of network ports from the driver's ``hccn_tool`` (docs/spec/dcmi.md#link-tool).

If the tool is missing, fails or hangs, the state of a link is unknown, which is not the same as DOWN. A late answer is
picked up by the next call, so the tool never blocks the caller for long.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from ascend.errors import DriverError
from device_plugin.driver.dcmi.file_permissions import resolve_protected
from device_plugin.driver.telemetry import NotMeasured

HCCN_TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")


def start_tool(tool: Path, phy_id: int, what: str) -> "subprocess.Popen[bytes]":
    """Have the tool print something about a chip's port.

    Raises:
        DriverError: others than root and this user can change it.
        OSError: it can't be started.
    """
    command = [str(resolve_protected(tool)), "-i", str(phy_id), what, "-g"]
    return subprocess.Popen(  # noqa: S603 - a protected program and a number
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def output_of(process: "subprocess.Popen[bytes]") -> str:
    """Return what the tool has printed; it has ended."""
    if process.stdout is None:
        return ""
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)  # the output does not end if the tool left a child behind
        return (pipe.read() or b"").decode(errors="replace")


_LINK_UPS = re.compile(r"link up count\s*:\s*([0-9]{1,18})\b")
_PACKETS = re.compile(r"^roce_[rt]x_all_pkt_num:([0-9]{1,18})\s*$", re.MULTILINE)


class PortCounters:
    """Runs the tool when it is asked, once at a time for each chip; may be called from any thread.

    Args:
        tool: its path; it is run only if no user but root and this one can change it.
        deadline_s: after this time the tool is killed.
    """

    def __init__(self, tool: Path = HCCN_TOOL, *, deadline_s: float = 10.0) -> None:
        self._tool = tool
        self._deadline_s = deadline_s
        self._killed: dict[int, subprocess.Popen[bytes]] = {}

    def link_ups(self, phy_id: int) -> int:
        """Return how often the chip's port has got a link.

        Raises:
            NotMeasured: this server does not have the tool.
            DriverError: the tool can't be run, fails, hangs, or does not say.
        """
        (count,) = self._read(phy_id, "-link_stat", _LINK_UPS, 1)
        return count

    def packets(self, phy_id: int) -> int:
        """Return how many packets the chip's port has sent and received.

        Raises:
            NotMeasured: this server does not have the tool.
            DriverError: the tool can't be run, fails, hangs, or does not say.
        """
        return sum(self._read(phy_id, "-stat", _PACKETS, 2))

    def _read(self, phy_id: int, what: str, pattern: re.Pattern[str], expected: int) -> list[int]:
        if not self._tool.exists():
            raise NotMeasured(f"there is no {self._tool}")
        if (killed := self._killed.get(phy_id)) is not None and killed.poll() is None:
            raise DriverError(f"{self._tool} hangs, and can't be killed")
        try:
            process = start_tool(self._tool, phy_id, what)
        except OSError as error:
            raise DriverError(f"{self._tool} can't be run: {error.strerror}") from error
        try:
            status = process.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()  # not waited for: a process that hangs in the driver can't be killed
            output_of(process)
            self._killed[phy_id] = process
            raise DriverError(f"{self._tool} has not ended within {self._deadline_s:g} s") from None
        found = pattern.findall(output_of(process))
        if status or len(found) != expected:
            raise DriverError(f"{self._tool} {what} has exit status {status} and {len(found)} of {expected} counts")
        return [int(count) for count in found]


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PAUSE_S = 10.0
"""How long after an announcement the link must be UP before it is read seldom again."""


@dataclass(slots=True)
class _Port:
    up: bool | None = None
    read_s: float | None = None  # when the tool was started that answered
    started_s: float | None = None
    process: "subprocess.Popen[bytes] | None" = None
    suspected_s: float | None = None


class LinkTool:
    """Runs the tool for each chip once per period. Chips do not wait for each other.

    Args:
        tool: its path; it is run only if no user but root and this one can change it.
        period_s: time between two runs for a chip.
        down_period_s: the same while the last answer was DOWN, or the driver has announced that the link is down, so
            that a restored link is noticed soon.
        wait_s: how long a call waits for the answer.
        deadline_s: after this time the tool is killed.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        tool: Path = HCCN_TOOL,
        *,
        period_s: float = 300.0,
        down_period_s: float = 10.0,
        wait_s: float = 0.5,
        deadline_s: float = 10.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tool = tool
        self._period_s = period_s
        self._down_period_s = down_period_s
        self._wait_s = wait_s
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._ports: dict[int, _Port] = {}
        self._problem = ""

    def up(self, phy_id: int) -> bool | None:
        """Return whether the chip's port had a link when last read; None if unknown."""
        return self.answer(phy_id)[0]

    def suspect(self, phy_id: int) -> None:
        """Read the link state soon, and often until it is UP, because the driver announces that the link is down.

        May be called from any thread.
        """
        self._ports.setdefault(phy_id, _Port()).suspected_s = self._now_s()

    def answer(self, phy_id: int) -> tuple[bool | None, float | None]:
        """Return whether the chip's port had a link when last read, and when that was; None if unknown."""
        port = self._ports.setdefault(phy_id, _Port())
        now_s = self._now_s()
        if port.process is not None:
            self._collect(port, port.process, now_s, wait_s=0.0)
        elif port.started_s is None or now_s - port.started_s >= self._wait_between_s(port):
            port.started_s = now_s
            process = self._start(phy_id)
            if process is None:
                port.up, port.read_s = None, None
            else:
                port.process = process
                self._collect(port, process, now_s, wait_s=self._wait_s)
        return port.up, port.read_s

    def _wait_between_s(self, port: _Port) -> float:
        suspected_s = port.suspected_s
        if suspected_s is not None and port.up and port.read_s is not None and port.read_s >= suspected_s + _PAUSE_S:
            port.suspected_s = suspected_s = None
        return self._down_period_s if port.up is False or suspected_s is not None else self._period_s

    def _start(self, phy_id: int) -> "subprocess.Popen[bytes] | None":
        if not self._tool.exists():
            return None  # not all servers have it
        try:
            return start_tool(self._tool, phy_id, "-link")
        except (OSError, DriverError) as error:
            if self._problem != str(error):
                self._problem = str(error)
                log.warning("the link state can't be read", error=self._problem)
            return None

    def _collect(self, port: _Port, process: "subprocess.Popen[bytes]", now_s: float, *, wait_s: float) -> None:
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            if now_s - (port.started_s or 0.0) >= self._deadline_s:
                port.up, port.read_s = None, None
                process.kill()  # not waited for: a process that hangs in the driver can't be killed
            return
        port.process = None
        answer = output_of(process)
        port.up = _status(answer) if process.returncode == 0 else None
        port.read_s = port.started_s if port.up is not None else None


def _status(answer: str) -> bool | None:
    for line in answer.splitlines():
        match line.split():
            case ["link", "status:", "UP"]:
                return True
            case ["link", "status:", "DOWN"]:
                return False
    return None
