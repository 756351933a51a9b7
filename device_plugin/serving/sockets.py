"""The names of the sockets in the kubelet's device-plugin folder."""

import secrets
from pathlib import Path

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
