"""The names of the sockets in the kubelet's device-plugin folder."""

KUBELET_SOCKET = "kubelet.sock"
PREFIX = "ascend910-"
"""Begins the names of this plugin's sockets."""


def is_own(socket: str) -> bool:
    """Return whether a socket of this name is one of this plugin, or the kubelet's."""
    return socket == KUBELET_SOCKET or socket.startswith(PREFIX)
