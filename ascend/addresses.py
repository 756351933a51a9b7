"""Network addresses as text: a host and a port in one."""


def join_address(host: str, port: int | str) -> str:
    """``10.0.0.5:8080``, or ``[fd00::1]:8080``: without brackets an IPv6 address does not end before the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
