"""Notices that MindCluster's device plugin serves whole chips, or vNPUs of any size, on this node.

The kubelet uses whichever plugin has registered last, and says nothing to the other one: its stream stays open, and up
to 1.36 the end of either stream makes all devices unhealthy (docs/spec/kubelet.md#registration-race). Two plugins that
take the resource from each other would fail pods all the time, and two that serve different types would give a chip
both whole and in parts. So this one gives way with all its resources, says so, and registers once the other one has
ended.
"""

import asyncio
import contextlib
import errno
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

from ascend.vnpus import suffix_of
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.serving.plugin_socket import list_names

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CONNECT_S = 1.0
POLL_S = 1.0
EVENT = "NPUOtherPlugin"

_NOBODY = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOENT, errno.ENOTDIR, errno.ENOTSOCK, errno.ELOOP}
)
"""The errors of a connection if nobody listens; others, as of a full table of descriptors, say nothing about that."""


def socket_of(device_type: DeviceType) -> str:
    """The name of the socket on which MindCluster's plugin always serves a type of devices.

    See docs/spec/hand-over.md#registration.
    """
    return f"{device_type.name}.sock"


SOCKET = socket_of(WHOLE_CHIPS)


def served_on(socket: str) -> DeviceType | None:
    """The type of devices that MindCluster's plugin serves on a socket of this name; None for a foreign name."""
    if socket == SOCKET:
        return WHOLE_CHIPS
    suffix = suffix_of(WHOLE_CHIPS.resource + socket.removeprefix(WHOLE_CHIPS.name).removesuffix(".sock"))
    device_type = DeviceType(suffix) if suffix is not None else WHOLE_CHIPS
    return device_type if socket == socket_of(device_type) else None


class OtherPlugin:
    """The other plugin of the node.

    Args:
        directory: the kubelet's device-plugin folder.
        announce: receives a reason (CamelCase), a sentence, and that it is a warning, when another plugin serves.
        device_type: the type of devices that this plugin would serve; the other one counts whichever it serves.
    """

    def __init__(
        self,
        directory: Path,
        announce: Callable[[str, str, bool], None],
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> None:
        self._directory = directory
        self._device_type = device_type
        self._announce = announce
        self._looked_s = float("-inf")
        self._has_looked = False
        self.unknown: str | None = None
        """Why it is not known at present whether there is another plugin, a sentence; None if it is."""
        self.problem: str | None = None
        """The sentence about the other plugin; None if there is none."""
        self.takes_over = False
        """Whether it serves the very resource, so that the kubelet keeps having devices of it."""

    async def serves(self) -> bool:
        """Return whether it serves; looks at most once in ``POLL_S``.

        While that can't be told, it is as it was; before the first look it may serve, and this plugin waits.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._looked_s + POLL_S:
            return self.problem is not None or not self._has_looked
        self._looked_s = now_s
        try:
            served = await self._served_type()
        except OSError as error:
            if self.unknown is None:
                log.warning("can't look for other plugins, trying again", error=str(error))
            self.unknown = f"can't look for other plugins: {error}"
            return self.problem is not None or not self._has_looked
        self._has_looked, self.unknown = True, None
        self.takes_over = served == self._device_type
        if served is not None:
            if self.problem is None:
                path = self._directory / socket_of(served)
                self.problem = (
                    f"MindCluster's device plugin serves {served.resource} on this node ({path}); this plugin "
                    "does not register while it runs: remove one of the two"
                )
                log.warning("another plugin serves Ascend chips", socket=str(path))
                self._announce(EVENT, self.problem, True)  # noqa: FBT003 - a warning
        elif self.problem is not None:
            log.info("the other plugin has ended")
            self.problem = None
        return self.problem is not None

    async def _served_type(self) -> DeviceType | None:
        """Return a type of devices that the other plugin serves, preferably this plugin's; None without a type.

        Raises:
            OSError: that can't be told.
        """
        found = {served_on(name) for name in list_names(self._directory)}
        for device_type in sorted(filter(None, found), key=lambda kind: (kind != self._device_type, kind)):
            if await accepts_connections(self._directory / socket_of(device_type)):
                return device_type
        return None


async def accepts_connections(socket: Path) -> bool:
    """Return whether a program listens on a socket; a file alone can be left over.

    Raises:
        OSError: that can't be told.
    """
    try:
        if not stat.S_ISSOCK(socket.stat().st_mode):
            return False
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_unix_connection(socket)
    except TimeoutError:
        return False
    except OSError as error:
        if error.errno in _NOBODY:
            return False
        raise
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
