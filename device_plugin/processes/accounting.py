"""The foreign processes: they last on a chip that is not allocated to their pod."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from device_plugin.processes.owners import UNKNOWN, Owner

GRACE_S: Final = 60.0
"""How long a process must have been nobody's: it may end a little after its pod, or be a tool that people run."""
LOOKS: Final = 3
"""How often it must have been seen in that time."""


@dataclass(slots=True)
class _Sighting:
    since_s: float
    looks: int = 1


def is_nobodys(owner: Owner, holders: Collection[str]) -> bool:
    """Return whether a process on a chip has no right to it.

    On a chip that pods hold, one whose owner is unknown may be theirs, and one of the node itself may be a tool.

    Args:
        owner: whose the process is.
        holders: the uids of the pods that hold the chip, or parts of it.
    """
    if not holders:
        return True
    return owner.kind == "container" or (owner.kind == "pod" and owner.uid not in holders)


class Accounting:
    """The processes that are nobody's, chip by chip."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, _Sighting]] = {}

    def look(
        self, chip: int, processes: Iterable[int], owners: Mapping[int, Owner], holders: Collection[str], now_s: float
    ) -> tuple[int, ...]:
        """Take over the processes of a chip; return the processes that have been foreign for long, in order.

        Args:
            chip: its physical id.
            processes: their ids on the node.
            owners: whose they are; unknown by default.
            holders: the uids of the pods that hold the chip.
            now_s: a monotonic clock.
        """
        before = self._seen.get(chip, {})
        now: dict[int, _Sighting] = {}
        for process in processes:
            if is_nobodys(owners.get(process, UNKNOWN), holders):
                known = before.get(process)
                now[process] = _Sighting(known.since_s, known.looks + 1) if known else _Sighting(now_s)
        self._seen[chip] = now
        lasting = (
            key for key, sighting in now.items() if sighting.looks >= LOOKS and now_s - sighting.since_s >= GRACE_S
        )
        return tuple(sorted(lasting))

    def forget(self, chip: int) -> None:
        """Begin anew with a chip: it is being reset, or gone."""
        self._seen.pop(chip, None)
