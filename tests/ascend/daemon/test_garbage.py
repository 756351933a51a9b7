"""Collections don't walk what a daemon keeps."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from ascend.daemon.garbage import PERIOD_S, keep_collections_short, spare_what_lives


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_lives_is_not_walked_again() -> None:
    kept = [[number] for number in range(1000)]
    spare_what_lives()
    assert len(gc.get_objects()) < len(kept)
    assert gc.get_freeze_count() > len(kept)


@pytest.mark.looptime
async def test_what_has_come_since_is_taken_out_after_a_while() -> None:
    task = asyncio.create_task(keep_collections_short())
    await asyncio.sleep(1)
    before = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    await asyncio.sleep(PERIOD_S)
    assert gc.get_freeze_count() >= before + len(kept)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_is_let_go_is_freed_all_the_same() -> None:
    kept = [[number] for number in range(1000)]
    spare_what_lives()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 1000
