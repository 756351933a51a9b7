"""A value that tasks can wait on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Observable(Generic[V]):
    """A value with a version; every ``set`` wakes the tasks that wait for a newer version. Belongs to one event loop.

    Args:
        value: the initial value, version 0.
    """

    def __init__(self, value: V) -> None:
        self._value = value
        self._version = 0
        self.waiters: set[asyncio.Event] = set()
        """Events to set on the next change."""

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
        for changed in self.waiters:
            changed.set()

    async def newer_than(self, version: int) -> int:
        """Wait until the version is greater than the given one; return the present version."""
        await wait_for_change((self,), (version,))
        return self.version


async def wait_for_change(
    sources: Sequence[Observable[Any]], versions: Sequence[int], within_s: float | None = None
) -> bool:
    """Wait until one of several observables is newer than its given version; return False if ``within_s`` passes."""
    changed = asyncio.Event()
    for source in sources:
        source.waiters.add(changed)
    try:
        if all(source.version <= version for source, version in zip(sources, versions, strict=True)):
            async with asyncio.timeout(within_s):
                await changed.wait()
    except TimeoutError:
        return False
    finally:
        for source in sources:
            source.waiters.discard(changed)
    return True


async def wait_until(
    condition: Callable[[], bool], sources: Sequence[Observable[Any]], within_s: float | None = None
) -> bool:
    """Wait until a condition on observables holds; return False if ``within_s`` passes."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await wait_for_change(sources, [source.version for source in sources])
    except TimeoutError:
        return False
    return True
