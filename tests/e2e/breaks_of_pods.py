"""Breaks of docs/failures.md that pods suffer from: gangs."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from tests.e2e.lab import Break, Lab
from tests.e2e.test_gang_barrier import of_gang


@asynccontextmanager
async def a_pod_of_a_gang_can_not_start(lab: Lab) -> AsyncIterator[None]:
    for rank, cpu in enumerate((0, 1000)):
        await lab.world.create(f"gang-{rank}", 8, annotations=of_gang("gang", 2), cpu=cpu)
    yield


BREAKS: Final[Mapping[str, Break]] = {
    "a pod that a gang needs can't start": a_pod_of_a_gang_can_not_start,
}
