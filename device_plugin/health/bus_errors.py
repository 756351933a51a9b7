"""Bus errors that merely follow from a double-bit error of the chip's memory: they are no faults of their own (§4.4).

Where the site has a duration rule for the memory's error, a bus error is held back for a while, and dropped if the
memory's error is found to have come within that time of it, before or after.
"""

import math
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from device_plugin.health.active_faults import FaultTransition
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.levels import BUS_ERRORS, HBM_DOUBLE_BIT

HOLD_S = 5.0
"""How long a bus error is held back, and how near the memory's error must be (spec/node-agent.md §4.4)."""


class BusErrorFilter:
    """The bus errors of one chip: each coming is held, then told or dropped, and its going with it."""

    __slots__ = ("_dropped", "_held", "_memory_s", "_told")

    def __init__(self) -> None:
        self._memory_s: float | None = None  # when the memory's error came last
        self._held: list[FaultTransition] = []
        self._dropped: set[int] = set()  # codes of which the last coming was dropped
        self._told: set[int] = set()  # codes of which it was told

    @property
    def hidden(self) -> AbstractSet[int]:
        """The codes that are no faults, or not yet."""
        return self._dropped | {turn.code for turn in self._held}

    def take(self, turns: Iterable[FaultTransition], rules: FaultRules) -> Iterator[FaultTransition]:
        """Of what came and went, what counts now."""
        # What one reading finds came in no order that is known.
        for turn in sorted(turns, key=lambda each: each.code != HBM_DOUBLE_BIT):
            if turn.code == HBM_DOUBLE_BIT and turn.present:
                self._memory_s = turn.at.mono_s
                self._drop()
            if turn.code not in BUS_ERRORS:
                yield turn
            elif turn.present:
                if self._came(turn, rules):
                    yield turn
            elif turn.code in self._told:
                yield turn
            elif turn.code not in self._dropped:
                self._held.append(turn)

    def _came(self, turn: FaultTransition, rules: FaultRules) -> bool:
        """Whether to tell of a coming at once."""
        if not _applies(rules) or (turn.code in self._told and not turn.counts):
            self._dropped.discard(turn.code)
            self._told.add(turn.code)
            return True
        if not turn.counts:
            # It was announced to be over, or to have happened once, and is still there: it never went.
            if turn.code in self._dropped:
                return False
            if any(each.code == turn.code for each in self._held):
                gone = max(number for number, each in enumerate(self._held) if each.code == turn.code)
                del self._held[gone]
                return False
            if not self._is_near(turn):
                # The first reading found it. A chip that was known to be bad before a restart is so after it.
                self._told.add(turn.code)
                return True
        self._told.discard(turn.code)
        self._dropped.discard(turn.code)
        self._held.append(turn)
        self._drop()
        return False

    def _drop(self) -> None:
        """Drop what came near the memory's error, and its going with it."""
        near: dict[int, bool] = {}
        held, self._held = self._held, []
        for turn in held:
            if turn.present:
                near[turn.code] = self._is_near(turn)
            if not near[turn.code]:
                self._held.append(turn)
        self._dropped |= {code for code, is_near in near.items() if is_near}

    def _is_near(self, turn: FaultTransition) -> bool:
        return self._memory_s is not None and abs(turn.at.mono_s - self._memory_s) <= HOLD_S

    def advance(self, now_s: float) -> list[FaultTransition]:
        """Let time pass: what has been held for long enough is told, as of when it was."""
        due: list[FaultTransition] = []
        held, self._held = self._held, []
        for turn in held:
            early = turn.present and now_s <= turn.at.mono_s + HOLD_S
            (self._held if early or turn.code in {each.code for each in self._held} else due).append(turn)
        self._told |= {turn.code for turn in due} - self.hidden
        return due

    def next_s(self) -> float | None:
        """The earliest time at which something held is told."""
        # Comings of one code are told in their order, so the first counts, even if a later one was told late.
        firsts = {turn.code: turn.at.mono_s + HOLD_S for turn in reversed(self._held) if turn.present}
        return math.nextafter(min(firsts.values()), math.inf) if firsts else None

    def configure(self, rules: FaultRules) -> list[FaultTransition]:
        """Other rules hold from now on; where none asks for it any more, nothing is held back or hidden."""
        if _applies(rules):
            return []
        self._dropped.clear()
        return self.advance(math.inf)


def _applies(rules: FaultRules) -> bool:
    return HBM_DOUBLE_BIT in rules.duration
