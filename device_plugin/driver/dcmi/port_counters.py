"""Reads counters of a chip's network port from the driver's tool (docs/spec/dcmi.md#link-tool)."""

import re
import subprocess
from pathlib import Path

from ascend.errors import DriverError
from device_plugin.driver.dcmi.port_tool import HCCN_TOOL, output_of, start_tool
from device_plugin.driver.telemetry import NotMeasured

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
