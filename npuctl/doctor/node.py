"""All checks, one after another."""

import os
from collections.abc import Callable, Mapping

from device_plugin.settings import Settings
from npuctl.doctor import chips, kubelet
from npuctl.doctor.api_server import ClusterSide
from npuctl.doctor.finding import Check, Finding, carry_out


async def examine(
    settings: Settings,
    *,
    begin: Callable[[Check], None] = lambda _check: None,
    environment: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Look at everything the plugin stands on.

    Args:
        settings: the plugin's, as it would read them here.
        begin: told of each check before it is made, to show progress.
        environment: of the process.
    """
    cluster = ClusterSide(settings)
    findings: list[Finding] = []
    try:
        for check in (*chips.checks(settings, environment), *kubelet.checks(settings), *cluster.checks()):
            begin(check)
            findings.extend(await carry_out(check))
    finally:
        await cluster.close()
    return findings
