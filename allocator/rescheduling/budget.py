"""How many pods may be deleted: a wrong report must not empty a cluster."""

import math
from collections.abc import Iterable
from typing import Final, TypeAlias

from ascend.grammar import count

WINDOW_S: Final = 60.0
HOUR_S: Final = 3600.0
Spent: TypeAlias = tuple[float, int]
"""When pods were deleted, Unix seconds, and how many."""
UNKNOWN: Final = 1 << 40
"""So many pods were deleted, if the number can't be read."""
FEW: Final = 3
"""So many nodes may fail at one time, whatever the share; never more than half of them."""
_DARK_ABOVE: Final = 2
_DARK_SHARE: Final = 0.55
"""So many lost nodes of a zone, and more, are the zone."""
_ROUNDING: Final = 1e-9
"""0.29 of 100 nodes are 29, but 28.999999999999996 as a float."""


class Budget:
    """Limits deletions within a minute, and those of each job within an hour.

    Args:
        per_minute: how many pods may be deleted in a minute. One job may always be: it is restarted as a whole.
        per_hour: how often pods of one job may be deleted in an hour.
    """

    def __init__(self, per_minute: int, per_hour: int) -> None:
        self._per_minute = per_minute
        self._per_hour = per_hour

    def why_not(self, pods: int, recent: Iterable[Spent], earlier: Iterable[float], now_s: float) -> str | None:
        """Return why pods of a job may not be deleted now, a sentence; None if they may.

        Args:
            pods: how many.
            recent: what was deleted before.
            earlier: when pods of the job were deleted before, Unix seconds.
            now_s: the present, Unix seconds.
        """
        times = sum(time_s > now_s - HOUR_S for time_s in earlier)
        if times >= self._per_hour:
            return (
                f"its pods were deleted {count(times, 'time')} within the last hour, and the limit is {self._per_hour}"
            )
        used = sum(number for at_s, number in recent if at_s > now_s - WINDOW_S)
        if used >= UNKNOWN:
            return "how many pods were deleted within the last minute can't be read"
        if used and used + pods > self._per_minute:
            return f"{used} pods were deleted within the last minute, and the limit is {self._per_minute}"
        return None

    def spend(self, pods: int, recent: Iterable[Spent], now_s: float) -> list[Spent]:
        """Return what was deleted within the last minute after pods are deleted now."""
        return [*(entry for entry in recent if entry[0] > now_s - WINDOW_S), (now_s, pods)]


def too_many_faults(faulty: int, nodes: int, share: float, what: str = "have faults") -> str | None:
    """Return why nothing is deleted at all, a sentence; None if that is not so.

    It does not name the number of faulty nodes: it would be another Event with each of them.

    Args:
        faulty: the number of nodes with faults.
        nodes: the number of nodes with chips.
        share: the largest share of nodes that may be faulty at one time; never more than half of them, however few.
        what: what they are, for the sentence.
    """
    limit = max(FEW, math.floor(share * nodes + _ROUNDING))
    if faulty > limit:
        return f"more than {limit} of {nodes} nodes {what} at one time, which is taken for a wrong report"
    if 2 * faulty <= nodes:
        return None
    return (
        f"more than half of {count(nodes, 'node')} {what} at one time, which is taken for a wrong report or a"
        " network that is cut off"
    )


def why_dark(zone: str, lost: int, nodes: int) -> str | None:
    """Return why a zone counts as cut off, a sentence; None if it does not.

    As in Kubernetes' node lifecycle controller (``--unhealthy-zone-threshold``): all of its nodes are lost, or more
    than two and 55 % of them. One node alone may have failed by itself.

    Args:
        zone: its name.
        lost: the number of its nodes that are not Ready.
        nodes: the number of its nodes.
    """
    if not (lost == nodes > 1 or (lost > _DARK_ABOVE and lost >= _DARK_SHARE * nodes)):
        return None
    return f"most nodes of zone {zone} are not Ready, which is taken for a network that is cut off"
