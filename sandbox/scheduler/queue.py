"""The pods that wait for a node: in order of arrival, and after a failure when there is a point in trying again.

As in kube-scheduler: a pod that fits nowhere waits for a change in the cluster, a pod whose cycle failed does not; both
wait for their back-off. A change that happens while a pod is being looked at counts for it too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

FLUSH_S: Final = 300.0
"""After so long a pod is tried again without a reason."""


@dataclass(slots=True)
class _Entry:
    attempts: int = 0
    moved: bool = False
    backing_off: bool = False
    timer: asyncio.Task[None] | None = None


class SchedulingQueue:
    """Pods by uid.

    Args:
        first_s: the first back-off.
        limit_s: the longest.
        wait: waits for some seconds.
    """

    def __init__(self, *, first_s: float, limit_s: float, wait: Callable[[float], Awaitable[object]]) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._wait = wait
        self._entries: dict[str, _Entry] = {}
        self._active: dict[str, None] = {}
        self._something = asyncio.Event()

    def add(self, uid: str) -> None:
        """A pod has arrived; one that is known is left where it is."""
        if uid not in self._entries:
            self._entries[uid] = _Entry()
            self._activate(uid)

    def remove(self, uid: str) -> None:
        """A pod is bound or gone."""
        entry = self._entries.pop(uid, None)
        self._active.pop(uid, None)
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()

    async def pop(self) -> str:
        """The next pod to look at; it stays known until it is removed."""
        while not self._active:
            self._something.clear()
            await self._something.wait()
        uid = next(iter(self._active))
        del self._active[uid]
        entry = self._entries[uid]
        entry.attempts += 1
        entry.moved = False
        return uid

    def fail(self, uid: str, *, needs_change: bool) -> None:
        """A pod got no node.

        Args:
            uid: the pod.
            needs_change: it fits nowhere, so only a change in the cluster can help.
        """
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.moved = entry.moved or not needs_change
        entry.backing_off = True
        back_off_s = min(self._first_s * 2 ** (entry.attempts - 1), self._limit_s)
        entry.timer = asyncio.create_task(self._back_off(uid, entry, back_off_s), name=f"back-off of {uid}")

    def move_all(self) -> None:
        """Something has changed in the cluster: every pod may fit now."""
        for uid in self._entries:
            self.move(uid)

    def move(self, uid: str) -> None:
        """Something has changed that may let this pod fit, the pod itself perhaps."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.moved = True
        if entry.timer is not None and not entry.backing_off:
            self._resume(uid, entry)

    async def close(self) -> None:
        """Stop all back-offs."""
        timers = [each.timer for each in self._entries.values() if each.timer is not None]
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)

    async def _back_off(self, uid: str, entry: _Entry, back_off_s: float) -> None:
        await self._wait(back_off_s)
        entry.backing_off = False
        if not entry.moved:
            await self._wait(FLUSH_S)
        entry.timer = None
        self._activate(uid)

    def _resume(self, uid: str, entry: _Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        self._activate(uid)

    def _activate(self, uid: str) -> None:
        self._active[uid] = None
        self._something.set()
