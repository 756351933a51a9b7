"""Whether a chip's network port has a link, by asking the driver's command-line tool (spec/node-agent.md §4.5).

The tool may be missing, fail or hang; then nobody can tell, which is not the same as DOWN. An answer that takes longer
than a moment is picked up at a later question, so the tool never holds up who asks.
"""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from ascend.errors import DriverError
from device_plugin.driver.dcmi.file_permissions import resolve_protected

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HCCN_TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")


@dataclass(slots=True)
class _Port:
    up: bool | None = None
    asked_s: float | None = None
    question: "subprocess.Popen[bytes] | None" = None


class LinkTool:
    """Asks the tool, for each chip at most once in a while. Chips don't wait for each other.

    Args:
        tool: where it is; it is run only if nobody but root and we can change it.
        period_s: time between two questions about a chip.
        down_period_s: the same while the last answer was DOWN, so that a link that is back does not count as lost for
            as long as an answer is believed.
        patience_s: how long an answer is waited for.
        deadline_s: how long the tool may take before it is killed.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        tool: Path = HCCN_TOOL,
        *,
        period_s: float = 300.0,
        down_period_s: float = 10.0,
        patience_s: float = 0.5,
        deadline_s: float = 10.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tool = tool
        self._period_s = period_s
        self._down_period_s = down_period_s
        self._patience_s = patience_s
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._ports: dict[int, _Port] = {}
        self._complaint = ""

    def up(self, phy_id: int) -> bool | None:
        """Whether the chip's port had a link when last asked; None where nobody can tell."""
        port = self._ports.setdefault(phy_id, _Port())
        now_s = self._now_s()
        if port.question is not None:
            self._listen(port, port.question, now_s, patience_s=0.0)
        elif port.asked_s is None or now_s - port.asked_s >= self._period_of(port):
            port.asked_s = now_s
            question = self._ask(phy_id)
            if question is None:
                port.up = None
            else:
                port.question = question
                self._listen(port, question, now_s, patience_s=self._patience_s)
        return port.up

    def _period_of(self, port: _Port) -> float:
        return self._down_period_s if port.up is False else self._period_s

    def _ask(self, phy_id: int) -> "subprocess.Popen[bytes] | None":
        if not self._tool.exists():
            return None  # not every server has it
        try:
            command = [str(resolve_protected(self._tool)), "-i", str(phy_id), "-link", "-g"]
            return subprocess.Popen(  # noqa: S603 - a checked program, a number
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, DriverError) as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning("links can't be asked for", error=self._complaint)
            return None

    def _listen(self, port: _Port, question: "subprocess.Popen[bytes]", now_s: float, *, patience_s: float) -> None:
        try:
            question.wait(patience_s)
        except subprocess.TimeoutExpired:
            if now_s - (port.asked_s or 0.0) >= self._deadline_s:
                port.up = None
                question.kill()  # and not waited for: what hangs in the driver can't be killed
            return
        port.question = None
        answer = _what_was_said(question)
        port.up = _status(answer) if question.returncode == 0 else None


def _what_was_said(question: "subprocess.Popen[bytes]") -> str:
    if question.stdout is None:
        return ""
    with question.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)  # it never ends if the tool left a child behind
        return (pipe.read() or b"").decode(errors="replace")


def _status(answer: str) -> bool | None:
    for line in answer.splitlines():
        match line.split():
            case ["link", "status:", "UP"]:
                return True
            case ["link", "status:", "DOWN"]:
                return False
    return None
