"""Bounds how long one turn of the event loop takes, whatever tasks have to do."""

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

_R = TypeVar("_R")
Steps: TypeAlias = Generator[None, None, _R]
"""Work that pauses after each step; the state may be another one when it goes on."""

LIMIT_S: Final = 0.003
"""After this time other tasks run; calls of schedulers take well under a millisecond each."""


class Turn:
    """The time for which a task has kept the event loop; make one where a loop of unknown length begins."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._line = _LINES.setdefault(loop, _Line(loop))
        self._time = loop.time
        self._started_s = self._time()

    async def share(self) -> None:
        """Let other tasks run if this one has run for ``LIMIT_S``; call it after each step of the work.

        Of all tasks that share, one runs in each turn of the loop: several would add up.
        """
        if self._time() - self._started_s > LIMIT_S:
            await self._line.wait()
            self._started_s = self._time()

    async def share_between(self, steps: Steps[_R]) -> _R:
        """Do work step by step, and let other tasks run in between."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: _R = done.value
                return result
            await self.share()


def at_once(steps: Steps[_R]) -> _R:
    """Do all steps of some work without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _R = done.value
            return result


class _Line:
    """The tasks that wait to go on, first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_moving = False

    async def wait(self) -> None:
        """Wait until it is the task's turn."""
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._is_moving:
            self._is_moving = True
            self._loop.call_soon(self._move)
        await future

    def _move(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # a cancelled task does not wait
                future.set_result(None)
                self._loop.call_soon(self._move)  # in the turn in which the task goes on, for the one after it
                return
        self._is_moving = False


_LINES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]] = WeakKeyDictionary()
