"""The checks of a node: everything that the device plugin depends on. Run them on the node or in the plugin's pod."""

import os
from collections.abc import Callable, Mapping

from pydantic import Field

from device_plugin.settings import Settings
from npuctl.doctor import chips, kubelet
from npuctl.doctor.api_server import ApiServerChecks
from npuctl.doctor.finding import Check, Finding, run_check


class NodeSettings(Settings):
    """Check this node. The settings are those of ascend-device-plugin."""

    node_name: str = Field(
        default_factory=os.uname().nodename.lower,
        description="this node's name; the host's name if not given",
    )


async def check_node(
    settings: Settings,
    *,
    begin: Callable[[Check], None] = lambda _check: None,
    environment: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Run all checks of this node, one after another.

    Args:
        settings: the device plugin's.
        begin: called before each check, to show progress.
        environment: the environment variables of the process.
    """
    api_server = ApiServerChecks(settings)
    findings: list[Finding] = []
    try:
        for check in (*chips.checks(settings, environment), *kubelet.checks(settings), *api_server.checks()):
            begin(check)
            findings.extend(await run_check(check))
    finally:
        await api_server.close()
    return findings
