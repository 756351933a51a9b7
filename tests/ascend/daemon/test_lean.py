"""Imports of a daemon without the unused parts of its libraries, and long-lived objects outside garbage collection."""

import asyncio
import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from ascend.daemon.lean import PERIOD_S, keep_collections_short, lean_imports


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("before", [None, "/some/authorities.pem"])
def test_everything_can_be_imported_after_the_block(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if before is not None:
        monkeypatch.setenv("SSL_CERT_FILE", before)
    program = (
        "import gc, os, sys\n"
        "from ascend.daemon.lean import lean_imports\n"
        "with lean_imports():\n"
        "    import structlog, aiohttp\n"
        "    assert not gc.isenabled()\n"
        f"assert os.environ.get('SSL_CERT_FILE') == {before!r}\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 10_000\n"
        "assert aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'] == 0\n"
        "assert 'rich' not in sys.modules\n"
        "import rich.console\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["allocator", "device_plugin"])
def test_a_program_imports_nothing_for_terminals_and_no_authorities(program: str) -> None:
    start = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(sys.modules['aiohttp'].connector._SSL_CONTEXT_VERIFIED.cert_store_stats()))\n"
        f"from {program}.cli import main; main()"
    )
    command = [sys.executable, "-X", "importtime", "-c", start, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("{'x509': 0, 'crl': 0, 'x509_ca': 0}\n")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert loaded >= {"aiohttp.connector", f"{program}.app", "grpc.aio", "structlog.dev"}
    # An import that is blocked is listed as well, but nothing below it.
    assert [name for name in loaded if name.startswith(("rich.", "pygments.", "typer.", "kubernetes."))] == []


def test_a_failed_import_restores_the_state() -> None:
    __import__("rich")
    with pytest.raises(ModuleNotFoundError), lean_imports():
        __import__("no_such_module")
    assert gc.isenabled()
    assert sys.modules["rich"] is not None


async def freeze() -> None:
    task = asyncio.create_task(keep_collections_short())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_long_lived_objects_are_not_walked_again() -> None:
    kept = [[number] for number in range(1000)]
    await freeze()
    assert len(gc.get_objects()) < len(kept)
    assert gc.get_freeze_count() > len(kept)


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.looptime
async def test_garbage_cycles_are_freed_whenever_they_were_made() -> None:
    task = asyncio.create_task(keep_collections_short())
    await asyncio.sleep(0)
    kept = [Cycle() for _ in range(100)]  # alive at several collections before they become garbage
    freed: list[int] = []
    for number, cycle in enumerate(kept):
        weakref.finalize(cycle, freed.append, number)
    before = gc.get_freeze_count()
    await asyncio.sleep(3.5 * PERIOD_S)
    assert not freed
    assert gc.get_freeze_count() <= before
    del cycle
    kept.clear()
    await asyncio.sleep(PERIOD_S)
    assert len(freed) == 100
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_objects_are_frozen_without_a_walk_until_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    is_filled = False
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
    task = asyncio.create_task(keep_collections_short(lambda: is_filled))
    kept: list[list[int]] = []
    for _ in range(3):
        before = gc.get_freeze_count()
        kept += [[number] for number in range(1000)]
        await asyncio.sleep(1)
        assert gc.get_freeze_count() >= before + 1000
    assert not collected
    is_filled = True
    await asyncio.sleep(1.5 * PERIOD_S)
    assert len(collected) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_frozen_objects_are_freed_when_released() -> None:
    kept = [[number] for number in range(1000)]
    await freeze()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 1000


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can give free memory back")
@pytest.mark.parametrize("work", ["keep_collections_short()", "trim_heap_after(asyncio.sleep(0))"])
def test_memory_that_the_start_has_needed_is_given_back(work: str) -> None:
    program = (
        "import asyncio, resource\n"
        "from ascend.daemon.lean import keep_collections_short, trim_heap_after\n"
        "def rss():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() >> 20\n"
        "async def main():\n"
        "    texts = [bytes(2_000) for _ in range(20_000)]\n"
        "    del texts[:-1]\n"  # the last one keeps the heap from shrinking by itself
        "    before = rss()\n"
        f"    task = asyncio.create_task({work})\n"
        "    await asyncio.wait((task,), timeout=1.0)\n"
        "    print(before - rss())\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) >= 20, done.stdout
