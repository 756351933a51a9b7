"""Blocking calls in a thread of their own, so that a driver that hangs delays neither the event loop nor the exit."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from ascend.errors import AscendError, DriverError

R = TypeVar("R")


class CallThread:
    """Runs calls one after another in one thread. Belongs to one event loop.

    Not a ThreadPoolExecutor: that joins its threads when the process ends, so a hanging driver would block the exit.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call; return its result as a future. An error that is not an AscendError becomes a DriverError."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[R] = loop.create_future()

        def succeed(result: R) -> None:
            if not outcome.done():
                outcome.set_result(result)

        def fail(error: Exception) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        def work() -> None:
            try:
                result = function()
            except AscendError as error:
                _deliver(loop, fail, error)
            except Exception as error:  # noqa: BLE001 - whatever a driver binding raises, the plugin goes on without it
                _deliver(loop, fail, DriverError(f"{type(error).__name__}: {error}"))
            else:
                _deliver(loop, succeed, result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(work)
        return outcome

    def close(self) -> None:
        """End the thread once its present call returns, without waiting for that."""
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


def _deliver(loop: asyncio.AbstractEventLoop, function: Callable[[R], None], value: R) -> None:
    try:
        loop.call_soon_threadsafe(function, value)
    except RuntimeError:
        return  # the loop is closed
