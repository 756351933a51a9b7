"""When a change is first seen on a watch."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic

from ascend.kube.client import KubeClient
from ascend.kube.objects import Resource, T
from ascend.kube.reflector import Reflector

PATIENCE_S = 30.0


class Sightings(Generic[T]):
    """A reflector's handler that waits for expected objects."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[T, bool], bool], asyncio.Future[float]]] = []

    def on_apply(self, obj: T) -> None:
        self._look(obj, gone=False)

    def on_delete(self, obj: T) -> None:
        self._look(obj, gone=True)

    def when(self, expected: Callable[[T, bool], bool]) -> asyncio.Future[float]:
        """Return the time (perf_counter) of the next change after which an object is as expected.

        Args:
            expected: called with an object and whether it is gone.
        """
        seen: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((expected, seen))
        return seen

    def _look(self, obj: T, *, gone: bool) -> None:
        now_s = time.perf_counter()
        found = [pair for pair in self._waiting if pair[1].cancelled() or pair[0](obj, gone)]
        for pair in found:
            self._waiting.remove(pair)
            if not pair[1].done():
                pair[1].set_result(now_s)


@asynccontextmanager
async def watching(client: KubeClient, resource: Resource[T], namespace: str = "") -> AsyncIterator[Sightings[T]]:
    """Watch all objects of a kind within the block."""
    sightings: Sightings[T] = Sightings()
    reflector = Reflector(client, resource, sightings, namespace=namespace)
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield sightings
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def seen(sighting: asyncio.Future[float], what: str) -> float:
    """Wait for a sighting; return its time.

    Raises:
        AssertionError: it did not come in time.
    """
    try:
        return await asyncio.wait_for(sighting, PATIENCE_S)
    except TimeoutError:
        raise AssertionError(f"it was not seen within {PATIENCE_S:.0f} s that {what}") from None
