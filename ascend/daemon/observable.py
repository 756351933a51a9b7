"""A value that tasks can wait on for a newer version of."""

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Observable(Generic[V]):
    """A value with a version; every ``set`` wakes all who wait. Belongs to one event loop.

    Args:
        value: the first value, version 0.
    """

    def __init__(self, value: V) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    @property
    def value(self) -> V:
        """The present value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value was set."""
        return self._version

    def set(self, value: V) -> None:
        """Replace the value."""
        self._value = value
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int) -> int:
        """Wait until the version is greater than this one; the present version."""
        while self._version <= version:
            await self._changed.wait()
        return self._version


async def first_change(
    sources: Sequence[Observable[Any]], versions: Sequence[int], within_s: float | None = None
) -> bool:
    """Wait until one of several is newer than its version; False if none is in time."""
    waits = [
        asyncio.ensure_future(source.newer_than(version)) for source, version in zip(sources, versions, strict=True)
    ]
    try:
        done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return bool(done)
