"""Network addresses as text: a host and a port in one."""

import ipaddress

from ascend.errors import InvalidValue


def join_address(host: str, port: int | str) -> str:
    """``10.0.0.5:8080``, or ``[fd00::1]:8080``: without brackets an IPv6 address does not end before the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address like ``10.0.0.5:8080`` or ``[::1]:0``; port 0 selects a free one.

    Without a host, like ``:8080``, it is every IPv4 and IPv6 address of the machine.

    Raises:
        InvalidValue: it is not an address.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise InvalidValue(f"{address!r} is not an address like 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only; of names only ``localhost`` counts as one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
