"""The sockets in the kubelet's device-plugin folder: their names, the service on them, and its registration."""

import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import grpc
import structlog

from ascend.daemon.grpc_start import require_descriptors, start_server
from ascend.errors import Unreachable
from device_plugin.kubelet.channel import open_channel
from device_plugin.pods.admission_matcher import CAP_S
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

API_VERSION = "v1beta1"
STOP_GRACE_S = CAP_S
"""A call in progress is answered: one that is cut off fails the admission of its pod."""


@asynccontextmanager
async def served(servicer: pb_grpc.DevicePluginServicer, path: Path) -> AsyncIterator[None]:
    """Serve on a socket within the block.

    Raises:
        Unreachable: there can be no such socket.
        OSError: there are too few file descriptors.
    """
    require_descriptors()
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(servicer, server)
    # The umask sets the mode of the socket; a later chmod would leave a gap
    # (docs/spec/kube-api.md#grpc-over-unix-sockets).
    umask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix://{path}")
    except RuntimeError as error:
        raise Unreachable(f"can't listen on {path}: {_why_not(path) or error}") from error
    finally:
        os.umask(umask)
    try:
        await start_server(server)
        yield
    finally:
        await server.stop(STOP_GRACE_S)
        with contextlib.suppress(OSError):  # a socket on which nobody listens harms nobody
            path.unlink(missing_ok=True)


async def register(path: Path, resource: str, deadline_s: float) -> None:
    """Register a resource with the kubelet.

    Args:
        path: the socket on which it is served, in the kubelet's folder.
        resource: the resource.
        deadline_s: how long the kubelet may take.

    Raises:
        AioRpcError: the kubelet refuses, or does not answer in time.
        Unreachable: there are too few file descriptors.
    """
    async with open_channel(path.with_name(KUBELET_SOCKET)) as channel:
        request = pb.RegisterRequest(
            version=API_VERSION,
            endpoint=path.name,
            resource_name=resource,
            options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        await pb_grpc.RegistrationStub(channel).Register(request, timeout=deadline_s)


def _why_not(path: Path) -> str:
    """Return why a socket can't be made, which gRPC does not say; empty if it can."""
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
        path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


KUBELET_SOCKET = "kubelet.sock"
PREFIX = "ascend910-"
"""Begins the names of this plugin's sockets."""


def is_own(socket: str) -> bool:
    """Return whether a socket of this name is one of this plugin, or the kubelet's."""
    return socket == KUBELET_SOCKET or socket.startswith(PREFIX)


def new_instance() -> str:
    """Return a name for the sockets of this process."""
    # Not the process id: that of every container is 1, and two instances may serve at the same time.
    return secrets.token_hex(4)


def socket_name(instance: str, suffix: str, generation: int) -> str:
    """The name of a socket: each instance of the plugin has one for each type of devices, with a new name each time.

    Args:
        instance: distinguishes the instances.
        suffix: the size of the vNPUs that are served; empty for chips and AI cores.
        generation: the number of the registration.
    """
    return PREFIX + "-".join(filter(None, (instance, suffix, f"{generation}.sock")))


def read_socket_name(name: str) -> tuple[str, str]:
    """The instance and the suffix in the name of one of this plugin's sockets."""
    instance, *suffix, _ = name.removeprefix(PREFIX).split("-")
    return instance, "-".join(suffix)


def list_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder; none if there is no such folder.

    Raises:
        OSError: it can't be read, so nothing is known of its files.
    """
    try:
        return [path.name for path in folder.iterdir()]  # glob hides errors from Python 3.13 on
    except (FileNotFoundError, NotADirectoryError):
        return []


Identity: TypeAlias = tuple[int, int, int]
"""Device, inode and change time of a file: a kubelet that restarts makes a new socket, and forgets its plugins."""


def _is_served(path: Path) -> bool:
    """Return whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as trial:
        trial.setblocking(False)  # noqa: FBT003 - the name of the method says what it sets
        try:
            trial.connect(str(path))
        except BlockingIOError:
            return True  # too many connections wait
        except OSError:
            return False
    return True


def remove_stale_sockets(folder: Path, instance: str) -> None:
    """Remove the sockets of earlier instances, which have ended: the holder of the lock calls."""
    try:
        for name in list_names(folder):
            is_earlier = name.startswith(PREFIX) and not name.startswith(f"{PREFIX}{instance}-")
            if is_earlier and name.endswith(".sock") and not _is_served(folder / name):
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        log.warning("sockets of earlier instances can't be removed", error=str(error))


def identity(path: Path) -> Identity | None:
    """Return the identity of a file; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_ctime_ns)
