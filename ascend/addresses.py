"""Network addresses as text: a host and a port in one."""

import ipaddress

from ascend.errors import InvalidValue


def join_address(host: str, port: int | str) -> str:
    """``10.0.0.5:8080``, or ``[fd00::1]:8080``: without brackets an IPv6 address does not end before the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address as in ``10.0.0.5:8080`` or ``[::1]:0``; port 0 takes a free one.

    Without a host, as in ``:8080``, it is every address there is, of both kinds.

    Raises:
        InvalidValue: it is not such an address.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise InvalidValue(f"{address!r} is not an address like 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name counts as reachable, but for ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
