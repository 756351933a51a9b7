"""Checks for ``/livez``: tasks that must not end, and loops that must keep turning."""

import asyncio
from collections.abc import Callable

from ascend.observe.probes import Check

GRACE_S = 30.0
"""How long a loop may be late, beyond three of its periods, on a busy server."""


def task_is_running(task: "asyncio.Task[None]") -> Check:
    """Check that an endless task has not ended. A task that fails ends the program; one that returns goes unnoticed."""
    return lambda: "its task has ended" if task.done() else None


def loop_is_turning(turned_s: Callable[[], float], period_s: Callable[[], float]) -> Check:
    """Check that a loop has turned recently.

    Args:
        turned_s: when it last turned, on the event loop's clock.
        period_s: its period.
    """

    def check() -> str | None:
        late_s = asyncio.get_running_loop().time() - turned_s()
        return None if late_s <= 3 * period_s() + GRACE_S else f"it has not turned for {late_s:.0f} s"

    return check
