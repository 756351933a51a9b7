"""Finds device plugins of the same resource that the kubelet's plugin watcher has registered.

They call nothing: the kubelet finds their sockets below its folder ``plugins_registry`` and asks each what it is
(docs/spec/kubelet.md#plugin-watcher). Such a registration is not counted in the kubelet's metrics, so this program asks
the sockets as well. Most are those of CSI and DRA drivers; each is asked once, and again only if it did not answer.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import grpc
import structlog

from device_plugin.kubelet.channel import open_channel, raise_if_cancelled
from device_plugin.serving.other_plugin import accepts_connections
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2 as pb
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

TYPE = "DevicePlugin"
DEADLINE_S = 1.0
"""As long as the kubelet waits for the same answer."""
ASK_AGAIN_S = 30.0
"""The time after a socket did not answer; a kubelet tries again after that long at the earliest."""

_Socket: TypeAlias = tuple[str, int, int]
"""A socket's path, inode and change time."""


class WatchedPlugins:
    """The plugins below the kubelet's folder.

    Args:
        directory: the kubelet's folder ``plugins_registry``; it may be missing.
        resource: the resource of this plugin.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._resource = resource
        self._directory = directory
        self._asked: dict[_Socket, bool] = {}
        self._silent: dict[_Socket, float] = {}

    async def serving(self) -> list[str]:
        """Return the paths of the sockets that serve this plugin's resource at present.

        Raises:
            OSError: that can't be told.
            Unreachable: there are no descriptors to ask one that is new.
        """
        found = set(_sockets(self._directory))
        self._asked = {socket: is_ours for socket, is_ours in self._asked.items() if socket in found}
        self._silent = {socket: until_s for socket, until_s in self._silent.items() if socket in found}
        for socket in found - self._asked.keys():
            await self._ask(socket)
        paths = sorted(path for (path, *_), is_ours in self._asked.items() if is_ours)
        return [path for path in paths if await accepts_connections(Path(path))]

    async def _ask(self, socket: _Socket) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._silent.get(socket, now_s):
            return
        async with open_channel(Path(socket[0])) as channel:
            try:
                info = await pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                raise_if_cancelled()
                if socket not in self._silent:
                    log.info("can't ask a plugin what it is", socket=socket[0], error=error.details())
                self._silent[socket] = now_s + ASK_AGAIN_S
                return
        self._asked[socket] = info.type == TYPE and info.name == self._resource


def _sockets(folder: Path) -> Iterator[_Socket]:
    """Yield the sockets that the kubelet looks at: in all subfolders, except names that begin with a dot.

    Raises:
        OSError: a folder that is there can't be read.
    """

    def unless_gone(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for parent, folders, names in os.walk(folder, onerror=unless_gone):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            try:
                if path.is_socket():
                    status = path.stat()
                    yield str(path), status.st_ino, status.st_ctime_ns
            except FileNotFoundError:
                continue
