"""Reads how often a chip's network port has got a link, from the driver's tool (docs/spec/dcmi.md#link-tool)."""

import re
import subprocess
from pathlib import Path

from ascend.errors import DriverError
from device_plugin.driver.dcmi.link import HCCN_TOOL, output_of, start_tool
from device_plugin.driver.telemetry import NotMeasured

_COUNT = re.compile(r"link up count\s*:\s*([0-9]{1,18})\b")


class LinkUps:
    """Runs the tool when it is asked, once at a time for each chip; may be called from any thread.

    Args:
        tool: its path; it is run only if no user but root and this one can change it.
        deadline_s: after this time the tool is killed.
    """

    def __init__(self, tool: Path = HCCN_TOOL, *, deadline_s: float = 10.0) -> None:
        self._tool = tool
        self._deadline_s = deadline_s
        self._killed: dict[int, subprocess.Popen[bytes]] = {}

    def count(self, phy_id: int) -> int:
        """Return how often the chip's port has got a link.

        Raises:
            NotMeasured: this server does not have the tool.
            DriverError: the tool can't be run, fails, hangs, or does not say.
        """
        if not self._tool.exists():
            raise NotMeasured(f"there is no {self._tool}")
        if (killed := self._killed.get(phy_id)) is not None and killed.poll() is None:
            raise DriverError(f"{self._tool} hangs, and can't be killed")
        try:
            process = start_tool(self._tool, phy_id, "-link_stat")
        except OSError as error:
            raise DriverError(f"{self._tool} can't be run: {error.strerror}") from error
        try:
            status = process.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()  # not waited for: a process that hangs in the driver can't be killed
            output_of(process)
            self._killed[phy_id] = process
            raise DriverError(f"{self._tool} has not ended within {self._deadline_s:g} s") from None
        found = _COUNT.search(output_of(process))
        if status or found is None:
            raise DriverError(f"{self._tool} -link_stat has exit status {status} and says no count")
        return int(found[1])
