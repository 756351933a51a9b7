"""Notices that MindCluster's device plugin serves the same resource on this node.

The kubelet uses whichever plugin has registered last, and says nothing to the other one: its stream stays open, and up
to 1.36 the end of either stream makes all devices unhealthy (docs/spec/kubelet.md#registration-race). Two plugins that
take the resource from each other would fail pods all the time. So this one gives way, says so, and registers once the
other one has ended.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog

from device_plugin.device_types import WHOLE_CHIPS, DeviceType

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CONNECT_S = 1.0
POLL_S = 1.0
EVENT = "NPUOtherPlugin"


def socket_of(device_type: DeviceType) -> str:
    """The name of the socket on which MindCluster's plugin always serves a type of devices.

    See docs/spec/hand-over.md#registration.
    """
    return f"{device_type.name}.sock"


SOCKET = socket_of(WHOLE_CHIPS)


class OtherPlugin:
    """The other plugin of the node.

    Args:
        directory: the kubelet's device-plugin folder.
        announce: receives a reason (CamelCase), a sentence, and that it is a warning, when another plugin serves.
        device_type: the type of devices that both would serve.
    """

    def __init__(
        self,
        directory: Path,
        announce: Callable[[str, str, bool], None],
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> None:
        self._path = directory / socket_of(device_type)
        self._resource = device_type.resource
        self._announce = announce
        self._looked_s = 0.0
        self.problem: str | None = None
        """The sentence about the other plugin; None if there is none."""

    async def serves(self) -> bool:
        """Return whether it serves; looks at most once in ``POLL_S``."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._looked_s + POLL_S:
            return self.problem is not None
        self._looked_s = now_s
        if await accepts_connections(self._path):
            if self.problem is None:
                self.problem = (
                    f"MindCluster's device plugin serves {self._resource} on this node ({self._path}); this plugin "
                    "does not register while it runs: remove one of the two"
                )
                log.warning("another plugin serves the same resource", socket=str(self._path))
                self._announce(EVENT, self.problem, True)  # noqa: FBT003 - a warning
        elif self.problem is not None:
            log.info("the other plugin has ended", socket=str(self._path))
            self.problem = None
        return self.problem is not None


async def accepts_connections(socket: Path) -> bool:
    """Return whether a program listens on a socket; a file alone can be left over."""
    if not socket.is_socket():
        return False
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_unix_connection(socket)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
