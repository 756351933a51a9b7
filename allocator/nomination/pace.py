"""Keeps nominations ahead of the scheduler: answers to ``filter`` wait for them, no longer than is saved."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LONGEST_S: Final = 0.1
"""A longer interval is not the duration of one filtering: 10,000 nodes take half of it."""
_WEIGHT: Final = 1 / 4


class Pace:
    """The scheduler's speed, measured by its calls of ``filter``, and how long they wait.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._answered_s: float | None = None
        self.all_nodes_s = 0.0
        """How long filtering a pod on all nodes takes, averaged over the last ones; 0 if unknown."""
        self._progress = asyncio.Event()

    def on_filter(self, *, all_nodes: bool) -> None:
        """The scheduler has called ``filter`` for a pod.

        Args:
            all_nodes: whether it has filtered all nodes, not only one.
        """
        since_s, self._answered_s = self._answered_s, None
        if since_s is not None and all_nodes:
            took_s = min(self._monotonic() - since_s, LONGEST_S)
            self.all_nodes_s += (took_s - self.all_nodes_s) * _WEIGHT

    def on_progress(self) -> None:
        """A nomination was seen by the informer, or given up."""
        self._progress.set()

    async def wait(self, is_behind: Callable[[], bool]) -> float:
        """Wait while nominations are behind, at most as long as it takes the scheduler to filter a pod on all nodes.

        Args:
            is_behind: called after each progress.

        Returns:
            How long it has waited, in seconds.
        """
        if not is_behind():
            return 0.0
        started_s = self._monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.all_nodes_s):
                while is_behind():
                    self._progress.clear()
                    await self._progress.wait()
        return self._monotonic() - started_s

    def on_filter_answered(self, *, has_next: bool) -> None:
        """The call was answered.

        Args:
            has_next: whether a pod waits that the scheduler filters next. Without one it is idle until a pod is
                created, and the time until its next call says nothing about its speed.
        """
        self._answered_s = self._monotonic() if has_next else None
