"""A process that treats a port badly for a while: ``python -m tests.e2e.attacks URL SECONDS ATTACK …``.

Each attack begins again as soon as it is cut off, from several addresses.
"""

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Final

_MANY: Final = 250
"""Addresses, as of a botnet or of the pods of a cluster."""
_PAUSE_S: Final = 0.1
_TOGETHER: Final = 50

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _post(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


async def _until_cut_off(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def silent(streams: Streams) -> None:
    """Send nothing."""
    await _until_cut_off(streams[0])


async def slow_headers(streams: Streams) -> None:
    """Send a header without end, a byte at a time."""
    reader, writer = streams
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    while not reader.at_eof():
        writer.write(b"a")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await _until_cut_off(reader)


async def garbage_headers(streams: Streams) -> None:
    """Send headers of any number and size."""
    reader, writer = streams
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
    for number in range(2000):
        writer.write(b"X-%d: " % number + b"a" * 8000 + b"\r\n")
        await writer.drain()
    await _until_cut_off(reader)


def half_bodies(path: str, size: int) -> Callable[[Streams], Awaitable[None]]:
    """Send all of a body but its end."""

    async def attack(streams: Streams) -> None:
        streams[1].write(_post(path, size) + bytes(size - 1))
        await _until_cut_off(streams[0])

    return attack


def too_large(path: str, size: int) -> Callable[[Streams], Awaitable[None]]:
    """Send the beginning of a body that is larger than any may be, until that is answered."""

    async def attack(streams: Streams) -> None:
        reader, writer = streams
        writer.write(_post(path, 1 << 30) + bytes(size))
        await reader.readuntil(b"\r\n\r\n")

    return attack


def trickled_bodies(path: str, size: int) -> Callable[[Streams], Awaitable[None]]:
    """Send a body in pieces, and never its end."""

    async def attack(streams: Streams) -> None:
        reader, writer = streams
        writer.write(_post(path, size))
        for _ in range(15):
            writer.write(bytes(size >> 4))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await _until_cut_off(reader)
                    return
        await _until_cut_off(reader)

    return attack


async def after_upgrade(streams: Streams) -> None:
    """Ask for another protocol, and speak none."""
    reader, writer = streams
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while not reader.at_eof():
        writer.write(b"z" * (1 << 18))
        await writer.drain()


def large_bodies(path: str, body: bytes) -> Callable[[Streams], Awaitable[None]]:
    """Send large bodies that are slow to decode, one after the other."""

    async def attack(streams: Streams) -> None:
        reader, writer = streams
        while not reader.at_eof():
            writer.write(_post(path, len(body)) + body)
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")

    return attack


async def scrapes(streams: Streams) -> None:
    """Scrape all the time, and read slowly."""
    reader, writer = streams
    while not reader.at_eof():
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")


async def unread_answers(streams: Streams) -> None:
    """Ask again and again, and read nothing."""
    _, writer = streams
    while True:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        await writer.drain()


_POD: Final = {
    "metadata": {"name": "p", "namespace": "t", "uid": "u", "annotations": {str(n): "" for n in range(150000)}}
}
_SPEC: Final = {"metadata": _POD["metadata"] | {"annotations": {}}, "spec": {"containers": [{}] * 500_000}}
_FILTER: Final = json.dumps({"Pod": _POD, "NodeNames": ["n1"]}).encode()
_SMALL_REVIEW: Final = json.dumps(
    {"request": {"uid": "r", "object": {"spec": {"containers": [{}] * 49_000}}}}, separators=(",", ":")
).encode()
"""As slow to decode as a pod may be, with few bytes."""
_REVIEW: Final = json.dumps({"request": {"uid": "r", "object": _SPEC}}, separators=(",", ":")).encode()
_FEW: Final = 4

ATTACKS: Final[dict[str, tuple[int, int, Callable[[Streams], Awaitable[None]]]]] = {
    "silent": (1200, _FEW, silent),
    "slow-headers": (200, _FEW, slow_headers),
    "garbage-headers": (20, _FEW, garbage_headers),
    "half-bodies": (50, _FEW, half_bodies("/webhook/bindings", (1 << 20))),
    "half-pods": (50, _FEW, half_bodies("/webhook/pods", 3 << 20)),
    "half-filters": (50, _FEW, half_bodies("/scheduler/filter", 2 << 20)),
    "too-large": (20, _FEW, half_bodies("/scheduler/filter", 16 << 20)),
    "large-filters": (4, _FEW, large_bodies("/scheduler/filter", _FILTER)),
    "large-pods": (8, _FEW, large_bodies("/webhook/pods", _REVIEW)),
    "scrapes": (64, _FEW, scrapes),
    "unread": (16, _FEW, unread_answers),
    "after-upgrades": (300, _MANY, after_upgrade),
    "refused-sizes": (300, _MANY, too_large("/webhook/pods", 1 << 20)),
    "trickled-pods": (300, _MANY, trickled_bodies("/webhook/pods", 3 << 20)),
    "refused-values": (300, _MANY, large_bodies("/webhook/pods", _REVIEW)),
    "many-pods": (500, _FEW, large_bodies("/webhook/pods", _SMALL_REVIEW)),
}
"""By name: how many at a time, from how many addresses, and what each does."""


def _trusting_anyone() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


async def _repeat(
    host: str, port: int, source: str, tls: ssl.SSLContext | None, attack: Callable[[Streams], Awaitable[None]]
) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0), ssl=tls)
            try:
                await attack((reader, writer))
            finally:
                writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)


async def main(url: str, seconds: str, *names: str) -> None:
    """Attack an address for a time."""
    scheme, host, port = url.replace("/", "").split(":")
    tls = _trusting_anyone() if scheme == "https" else None
    async with asyncio.TaskGroup() as tasks:
        running = []
        for name in names:
            number, addresses, attack = ATTACKS[name]
            for one in range(number):
                source = f"127.0.0.{2 + one % addresses}"
                running.append(tasks.create_task(_repeat(host, int(port), source, tls, attack)))
                if one % _TOGETHER == 0:
                    await asyncio.sleep(0)
        await asyncio.sleep(float(seconds))
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
