"""Filters out bus errors that a double-bit error of the chip's memory caused (docs/spec/faults.md#duration-rule).

If the site has a duration rule for the memory error, a bus error is held back for ``HOLD_S`` and dropped if the memory
error occurred within that time of it, before or after.
"""

import math
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from device_plugin.health.active_faults import FaultTransition
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.levels import BUS_ERRORS, HBM_DOUBLE_BIT

HOLD_S = 5.0
"""How long a bus error is held back, and how close the memory error must be (docs/spec/faults.md#duration-rule)."""


class BusErrorFilter:
    """The bus errors of one chip: each occurrence is held, then passed on or dropped together with its end."""

    def __init__(self) -> None:
        self._memory_s: float | None = None  # when the memory error last occurred
        self._held: list[FaultTransition] = []
        self._dropped: set[int] = set()  # codes whose last occurrence was dropped
        self._passed: set[int] = set()  # codes whose last occurrence was passed on

    @property
    def hidden(self) -> AbstractSet[int]:
        """The codes that do not count as faults, or not yet."""
        return self._dropped | {transition.code for transition in self._held}

    def filter(self, transitions: Iterable[FaultTransition], rules: FaultRules) -> Iterator[FaultTransition]:
        """Return the transitions that count now."""
        # The order of what one reading finds is unknown, so the memory error goes first.
        for transition in sorted(transitions, key=lambda found: found.code != HBM_DOUBLE_BIT):
            if transition.code == HBM_DOUBLE_BIT and transition.present:
                self._memory_s = transition.at.mono_s
                self._drop()
            if transition.code not in BUS_ERRORS:
                yield transition
            elif transition.present:
                if self._passes(transition, rules):
                    yield transition
            elif transition.code in self._passed:
                yield transition
            elif transition.code not in self._dropped:
                self._held.append(transition)

    def _passes(self, occurred: FaultTransition, rules: FaultRules) -> bool:
        """Return whether an occurrence is passed on at once."""
        code = occurred.code
        if not _applies(rules) or (code in self._passed and not occurred.counts):
            self._dropped.discard(code)
            self._passed.add(code)
            return True
        if not occurred.counts:
            # It was announced as over, or as occurring once, and is still present: it never cleared.
            if code in self._dropped:
                return False
            if any(transition.code == code for transition in self._held):
                cleared = max(number for number, error in enumerate(self._held) if error.code == code)
                del self._held[cleared]
                return False
            if not self._is_near(occurred):
                # The first reading found it. A chip that was known to be faulty before a restart stays so.
                self._passed.add(code)
                return True
        self._passed.discard(code)
        self._dropped.discard(code)
        self._held.append(occurred)
        self._drop()
        return False

    def _drop(self) -> None:
        """Drop occurrences close to the memory error, together with their ends."""
        near: dict[int, bool] = {}
        held, self._held = self._held, []
        for transition in held:
            if transition.present:
                near[transition.code] = self._is_near(transition)
            if not near[transition.code]:
                self._held.append(transition)
        self._dropped |= {code for code, is_near in near.items() if is_near}

    def _is_near(self, occurred: FaultTransition) -> bool:
        return self._memory_s is not None and abs(occurred.at.mono_s - self._memory_s) <= HOLD_S

    def advance(self, now_s: float) -> list[FaultTransition]:
        """Let time pass; return what was held long enough, with its original times."""
        due: list[FaultTransition] = []
        held, self._held = self._held, []
        for transition in held:
            early = transition.present and now_s <= transition.at.mono_s + HOLD_S
            (self._held if early or transition.code in {other.code for other in self._held} else due).append(transition)
        self._passed |= {transition.code for transition in due} - self.hidden
        return due

    def next_s(self) -> float | None:
        """Return the earliest time at which something held is passed on."""
        # Occurrences of one code are passed on in order, so the first counts even if a later one arrived late.
        firsts = {
            transition.code: transition.at.mono_s + HOLD_S for transition in reversed(self._held) if transition.present
        }
        return math.nextafter(min(firsts.values()), math.inf) if firsts else None

    def configure(self, rules: FaultRules) -> list[FaultTransition]:
        """Apply other rules; if they no longer require the filter, release everything held or hidden."""
        if _applies(rules):
            return []
        self._dropped.clear()
        return self.advance(math.inf)


def _applies(rules: FaultRules) -> bool:
    return HBM_DOUBLE_BIT in rules.duration
