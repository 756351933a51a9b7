"""Excludes long-lived objects from Python's garbage collection.

A full collection walks every object: with 10,000 nodes and 30,000 pods it stops the event loop for 0.1 s, and frees
nothing, because these objects are in no reference cycles and are freed by reference counting. So objects that have
lived for a while are frozen, and only young ones are walked.
"""

import asyncio
import gc
from typing import Final, NoReturn

PERIOD_S: Final = 60.0


async def keep_collections_short() -> NoReturn:
    """Freeze all live objects now and every minute, until cancelled."""
    while True:
        freeze_live_objects()
        await asyncio.sleep(PERIOD_S)


def freeze_live_objects() -> None:
    """Collect garbage once, and exclude the objects that remain from later collections."""
    gc.collect()
    gc.freeze()
