"""Carries out ``npuctl doctor`` on a node; the checks need the libraries of the device plugin."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ascend.daemon.setting import setting
from ascend.daemon.settings import SettingsSource
from ascend.observe.logs import configure_logs
from device_plugin.settings import Settings
from npuctl.doctor import chips, kubelet
from npuctl.doctor.api_server import ApiServerChecks
from npuctl.doctor.command import report
from npuctl.doctor.finding import Check, Finding, run_check
from npuctl.doctor.processes import check_processes
from npuctl.output import Output, SafeConsole

PROGRAM: Final = "npuctl doctor"

PROCESSES_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(Settings):
    """Check this node. The settings are those of ascend-device-plugin."""

    node_name: str = setting(
        default=os.uname().nodename.lower(),
        description="this node's name; the host's name if not given",
    )


async def diagnose_node(arguments: Sequence[str], output: Output) -> int:
    """Check this node with these flags of ascend-device-plugin, and print the findings.

    Returns:
        The exit status: 0, 1 if there are problems.

    Raises:
        InvalidValue: a flag is wrong.
    """
    settings = SettingsSource(DoctorSettings, PROGRAM, arguments).read()
    configure_logs(PROGRAM, level="ERROR", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with SafeConsole(stderr=True).status("checking", spinner="line") as status:  # a spinner that ASCII has
        findings = await check_node(settings, begin=lambda check: status.update(f"checking: {check.name}"))
    return report(settings.node_name, findings, output)


async def check_node(
    settings: Settings,
    *,
    begin: Callable[[Check], None] = lambda _check: None,
    environment: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Run all checks of this node, one after another; ``begin`` is called before each, to show progress."""
    api_server = ApiServerChecks(settings)
    findings: list[Finding] = []
    try:
        for check in node_checks(settings, api_server, environment):
            begin(check)
            findings.extend(await run_check(check))
    finally:
        await api_server.close()
    return findings


def node_checks(settings: Settings, api_server: ApiServerChecks, environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the checks of a node, in the order in which one explains the findings of the next."""
    processes = Check(
        "processes",
        "processes use a chip that no pod holds, or another pod: their container took it by its environment or by hand",
        lambda: check_processes(settings, lambda: api_server.pods),
        deadline_s=PROCESSES_S,
    )
    return (*chips.checks(settings, environment), *kubelet.checks(settings), *api_server.checks(), processes)
