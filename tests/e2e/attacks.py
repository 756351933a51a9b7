"""A process that treats a port badly for a while: ``python -m tests.e2e.attacks HOST:PORT SECONDS ATTACK …``.

Each attack begins again as soon as it is cut off, from several addresses.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Final

SOURCES: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
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
_REVIEW: Final = json.dumps({"request": {"uid": "r", "object": _SPEC}}, separators=(",", ":")).encode()

ATTACKS: Final[dict[str, tuple[int, Callable[[Streams], Awaitable[None]]]]] = {
    "silent": (1200, silent),
    "slow-headers": (200, slow_headers),
    "garbage-headers": (20, garbage_headers),
    "half-bodies": (50, half_bodies("/webhook/bindings", (1 << 20))),
    "half-pods": (50, half_bodies("/webhook/pods", 3 << 20)),
    "half-filters": (50, half_bodies("/scheduler/filter", 2 << 20)),
    "too-large": (20, half_bodies("/scheduler/filter", 16 << 20)),
    "large-filters": (4, large_bodies("/scheduler/filter", _FILTER)),
    "large-pods": (8, large_bodies("/webhook/pods", _REVIEW)),
    "scrapes": (64, scrapes),
    "unread": (16, unread_answers),
}
"""By name: how many at a time, and what each does."""


async def _repeat(host: str, port: int, source: str, attack: Callable[[Streams], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
            try:
                await attack((reader, writer))
            finally:
                writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)


async def main(address: str, seconds: str, *names: str) -> None:
    """Attack an address for a time."""
    host, _, port = address.rpartition(":")
    async with asyncio.TaskGroup() as tasks:
        running = []
        for name in names:
            number, attack = ATTACKS[name]
            for one in range(number):
                running.append(tasks.create_task(_repeat(host, int(port), SOURCES[one % len(SOURCES)], attack)))
                if one % _TOGETHER == 0:
                    await asyncio.sleep(0)
        await asyncio.sleep(float(seconds))
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
