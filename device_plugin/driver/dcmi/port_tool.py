"""Runs the driver's command-line tool for network ports, ``hccn_tool`` (docs/spec/dcmi.md#link-tool)."""

import os
import subprocess
from pathlib import Path

from device_plugin.driver.dcmi.file_permissions import resolve_protected

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
