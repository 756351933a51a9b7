"""Long-lived objects are excluded from garbage collection."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from ascend.daemon.garbage import PERIOD_S, freeze_live_objects, keep_collections_short


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_long_lived_objects_are_not_walked_again() -> None:
    kept = [[number] for number in range(1000)]
    freeze_live_objects()
    assert len(gc.get_objects()) < len(kept)
    assert gc.get_freeze_count() > len(kept)


@pytest.mark.looptime
async def test_new_objects_are_frozen_after_the_period() -> None:
    task = asyncio.create_task(keep_collections_short())
    await asyncio.sleep(1)
    before = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    await asyncio.sleep(PERIOD_S)
    assert gc.get_freeze_count() >= before + len(kept)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_frozen_objects_are_freed_when_released() -> None:
    kept = [[number] for number in range(1000)]
    freeze_live_objects()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 1000
