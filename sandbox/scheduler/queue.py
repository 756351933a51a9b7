"""The scheduling queue: pods in order of arrival, and the backoff of failed pods.

As in kube-scheduler, a pod that fits on no node waits for a change in the cluster, and a pod whose scheduling cycle
failed with an error does not; both wait for their backoff. A change during a pod's cycle counts for that pod too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ascend.rate_limiters import doubled_s

FLUSH_S: Final = 300.0
"""After this time an unschedulable pod is tried again without a change in the cluster."""


@dataclass(slots=True)
class _QueuedPod:
    attempts: int = 0
    moved: bool = False
    backing_off: bool = False
    timer: asyncio.Task[None] | None = None


class SchedulingQueue:
    """Pods by uid.

    Args:
        first_s: the first backoff.
        limit_s: the maximum backoff.
        wait: waits for a number of seconds.
    """

    def __init__(self, *, first_s: float, limit_s: float, wait: Callable[[float], Awaitable[object]]) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._wait = wait
        self._pods: dict[str, _QueuedPod] = {}
        self._active: dict[str, None] = {}
        self._not_empty = asyncio.Event()

    def add(self, uid: str) -> None:
        """Add a pod; no effect if it is queued."""
        if uid not in self._pods:
            self._pods[uid] = _QueuedPod()
            self._activate(uid)

    def remove(self, uid: str) -> None:
        """Remove a bound or deleted pod."""
        queued = self._pods.pop(uid, None)
        self._active.pop(uid, None)
        if queued is not None and queued.timer is not None:
            queued.timer.cancel()

    async def pop(self) -> str:
        """Wait for the next pod to schedule; it stays known until it is removed."""
        while not self._active:
            self._not_empty.clear()
            await self._not_empty.wait()
        uid = next(iter(self._active))
        del self._active[uid]
        queued = self._pods[uid]
        queued.attempts += 1
        queued.moved = False
        return uid

    def fail(self, uid: str, *, needs_change: bool) -> None:
        """Let a pod wait that was not scheduled.

        Args:
            uid: the pod.
            needs_change: it fits on no node, so it waits for a change in the cluster.
        """
        queued = self._pods.get(uid)
        if queued is None:
            return
        queued.moved = queued.moved or not needs_change
        queued.backing_off = True
        backoff_s = doubled_s(self._first_s, queued.attempts, self._limit_s)
        queued.timer = asyncio.create_task(self._back_off(uid, queued, backoff_s), name=f"backoff of {uid}")

    def move_all(self) -> None:
        """Try every pod again after a change in the cluster."""
        for uid in self._pods:
            self.move(uid)

    def move(self, uid: str) -> None:
        """Try a pod again after a change that may let it fit, such as an edit of the pod."""
        queued = self._pods.get(uid)
        if queued is None:
            return
        queued.moved = True
        if queued.timer is not None and not queued.backing_off:
            queued.timer.cancel()
            queued.timer = None
            self._activate(uid)

    async def close(self) -> None:
        """Cancel all backoffs."""
        timers = [pod.timer for pod in self._pods.values() if pod.timer is not None]
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)

    async def _back_off(self, uid: str, queued: _QueuedPod, backoff_s: float) -> None:
        await self._wait(backoff_s)
        queued.backing_off = False
        if not queued.moved:
            await self._wait(FLUSH_S)
        queued.timer = None
        self._activate(uid)

    def _activate(self, uid: str) -> None:
        self._active[uid] = None
        self._not_empty.set()
