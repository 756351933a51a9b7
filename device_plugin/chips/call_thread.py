"""Blocking calls in a thread of their own, so that a driver that hangs delays neither the event loop nor the exit."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ascend.errors import AscendError, DriverError

R = TypeVar("R")


class CallThread:
    """Runs calls in a thread, in order. Belongs to one event loop.

    Not a ThreadPoolExecutor: that joins its threads when the process ends, so a hanging driver would block the exit.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call; return its result as a future. An error that is not an AscendError becomes a DriverError.

        After ``close`` every call is one.
        """
        outcome: Future[R] = Future()
        if self._is_closed:
            outcome.set_exception(DriverError("the plugin is ending"))
            return asyncio.wrap_future(outcome)

        def work() -> None:
            if not outcome.set_running_or_notify_cancel():
                return  # cancelled before it began
            try:
                outcome.set_result(function())
            except AscendError as error:
                outcome.set_exception(error)
            except Exception as error:  # noqa: BLE001 - whatever a driver binding raises, the plugin goes on without it
                outcome.set_exception(DriverError(f"{type(error).__name__}: {error}"))

        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the node, or the container, may have no more threads
                outcome.set_exception(DriverError(str(error)))
                return asyncio.wrap_future(outcome)
            self._thread = thread
        self._calls.put(work)
        return asyncio.wrap_future(outcome)

    def close(self) -> None:
        """End the thread once its present call returns, without waiting for that."""
        self._is_closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
