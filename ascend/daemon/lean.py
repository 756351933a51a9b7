"""Keeps a daemon's memory and pauses small: lean imports, and short garbage collections."""

import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

PERIOD_S: Final = 3.0
_FILLING_S: Final = 0.05


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import within the block without the parts of libraries that a daemon never uses; after it, imports work as usual.

    On a node with a device plugin these take a quarter of the time from its start to its registration, and 4 MiB:

    * structlog imports rich if it is installed, for tracebacks on a terminal; a daemon logs JSON;
    * aiohttp loads all certificate authorities of the machine; a daemon's connections each name the cluster's own;
    * the garbage collector walks the imported objects again and again, although all of them stay.

    Only call it while there are no other threads: it changes an environment variable for the time of the block.
    """
    gc.disable()
    try:
        # None makes Python's import fail. OpenSSL takes the path of its file of authorities from the variable.
        with _entry(sys.modules, "rich", None), _entry(os.environ, "SSL_CERT_FILE", os.devnull):
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _entry(mapping: MutableMapping[str, Any], key: str, value: object) -> Iterator[None]:
    """Set an entry for the time of the block."""
    before = mapping.get(key)
    mapping[key] = value
    try:
        yield
    finally:
        if before is None:
            del mapping[key]
        else:
            mapping[key] = before


async def keep_collections_short(filled: Callable[[], bool] = lambda: True) -> NoReturn:
    """Exclude what was made during the start from garbage collection, and collect the rest periodically.

    A collection stops the event loop while it walks every object that the collector tracks. It need not walk those of
    the start, imported modules for example: all of them stay. Later ones are walked, so garbage in reference cycles is
    freed, whenever it was made. That takes little time only if few objects are tracked: long-lived ones of which there
    are many are of types that the collector does not track (``gc=False``), as they can't be in cycles.

    Args:
        filled: whether the objects that stay are there; until then new ones are frozen without being walked at all.
    """
    import asyncio  # not before lean_imports

    from ascend.turn import Turn

    while not filled():
        gc.freeze()
        await asyncio.sleep(_FILLING_S)
    gc.freeze()
    _trim_heap()
    while True:
        await asyncio.sleep(PERIOD_S)
        await Turn().wait()  # long work does not go on in the same turn
        gc.collect()


async def trim_heap_after(start: Awaitable[object]) -> None:
    """Give memory that only the start has needed back to the system, once the start is over."""
    await start
    _trim_heap()


def _trim_heap() -> None:
    """Give free memory back to the system; glibc would keep 10 to 20 MiB of an allocator's."""
    import ctypes  # not every daemon needs it, and none before this

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
