"""What liveness consists of: tasks that must not end, and a loop that must keep turning."""

import asyncio
from collections.abc import Callable

from ascend.observe.probes import Check

PATIENCE_S = 30.0
"""How long a loop may stand still, beyond three of its periods, on a server that is busy with other things."""


def alive(task: "asyncio.Task[None]") -> Check:
    """That an endless task has not ended. One that fails ends the program; one that merely ends would go unnoticed."""
    return lambda: "its task has ended" if task.done() else None


def beats(turned_s: Callable[[], float], period_s: Callable[[], float]) -> Check:
    """That a loop has come round lately.

    Args:
        turned_s: when it did last, by the event loop's clock.
        period_s: how often it is to.
    """

    def check() -> str | None:
        still_s = asyncio.get_running_loop().time() - turned_s()
        return None if still_s <= 3 * period_s() + PATIENCE_S else f"it has stood still for {still_s:.0f} s"

    return check
