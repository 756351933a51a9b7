"""Bounds how long one turn of the event loop takes, whatever tasks have to do."""

import asyncio
from collections import deque
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

_R = TypeVar("_R")
Steps: TypeAlias = Generator[None, None, _R]
"""Work that pauses after each step; the state may be another one when it goes on."""

LIMIT_S: Final = 0.0025
"""After this time other tasks run; calls of schedulers take well under a millisecond each.

uvloop's clock counts whole milliseconds, so it is 3 ms there.
"""


class Turn:
    """The present turn of the event loop; make one where a loop of unknown length begins.

    All tasks of an event loop have one clock, which starts with the first of them that goes on in a turn: several that
    each kept the loop for a while would add up.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._line = _LINES.setdefault(loop, _Line(loop))
        self._line.spent_s()

    async def share(self) -> None:
        """Let other tasks run if the turn has taken ``LIMIT_S``; call it after each step of the work.

        Of all tasks that wait here, one goes on in each turn of the loop.
        """
        if self._line.spent_s() > LIMIT_S:
            await self.wait()

    async def wait(self) -> None:
        """Wait for a turn in which no further task of this queue or of ``share`` goes on."""
        await self._line.wait()
        self._line.spent_s()

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
    """The tasks that wait to go on, first come, first served, and how long the tasks of this turn have run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_moving = False
        self._started_s: float | None = None

    def spent_s(self) -> float:
        """The time since it was first called in this turn of the loop, in seconds."""
        now_s = self._loop.time()
        if self._started_s is None:
            self._started_s = now_s
            self._loop.call_soon(self._end)  # at the beginning of the next turn
        return now_s - self._started_s

    def _end(self) -> None:
        self._started_s = None

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


def drained(items: list[_R]) -> Iterator[_R]:
    """The items from the last to the first; a long list would take milliseconds to release in one piece."""
    while items:
        yield items.pop()
