"""Tracks which faults a chip has, from the driver's events and from readings of its list of codes.

Nothing orders the two: an event can come before the list has its code, or after a reading has found it, each by up to
``SETTLE_S`` (docs/spec/faults.md#readings-and-events). So

* an event takes effect at once, and a reading can undo it only if it started ``SETTLE_S`` later;
* of an event and a reading that report the same occurrence, the first one counts it;
* a code that is still read after its announced end is not a new fault.

Events among themselves have the driver's order.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from device_plugin.driver import LINK_DOWN, ChipState, FaultEvent
from device_plugin.health.levels import CARD_DROP, NETWORK_CODES, RESET_FINISHED
from device_plugin.health.moment import Moment

SETTLE_S = 3.0
"""How far an event and the list of codes can be apart."""


@dataclass(frozen=True, slots=True)
class FaultTransition:
    """A fault occurred or cleared.

    Attributes:
        code: the fault.
        present: True if it occurred.
        at: when, as far as known.
        counts: whether it is a new occurrence. False if the first reading found it, if the same occurrence was counted
            before, or if a reading found it again after a single event or after an announced end.
    """

    code: int
    present: bool
    at: Moment
    counts: bool = True


@dataclass(slots=True)
class _Evidence:
    """What is known about one code.

    Attributes:
        announced: whether the last event was an occurrence; None if there was none, or a reading has contradicted it.
        event_s: when the last event came.
        found_s: when readings counted occurrences that no event has announced yet, oldest first.
        since: after an announced end that no reading has confirmed yet: since when the fault was present.
        is_found_again: whether it is present because a reading still had it after its announced end.
        is_listed: whether a reading had the code since the fault is present.
    """

    announced: bool | None = None
    event_s: float = -math.inf
    found_s: list[float] = field(default_factory=list)
    since: Moment | None = None
    is_found_again: bool = False
    is_listed: bool = False

    def is_settling(self, at_s: float) -> bool:
        """Return whether a reading that started at this time may not know the last event yet."""
        return at_s < self.event_s + SETTLE_S

    def take_found(self, at_s: float) -> bool:
        """Return whether a reading has counted the occurrence that an event announces."""
        if not self.was_found(at_s):
            return False
        del self.found_s[0]
        return True

    def was_found(self, at_s: float) -> bool:
        """Return whether a reading has counted an occurrence whose event may still come."""
        self.found_s = [found_s for found_s in self.found_s if found_s >= at_s - SETTLE_S]
        return bool(self.found_s)


class ActiveFaults:
    """The faults of one chip."""

    def __init__(self) -> None:
        self.read_s: float | None = None
        """Start time of the last reading; None before the first."""
        self._present: dict[int, Moment] = {}
        self._transient: set[int] = set()  # in _present only to be shown: they occurred once and are over
        self._evidence: dict[int, _Evidence] = {}
        self._severities: dict[int, int] = {}
        self._by_events = False  # this driver reports faults by events only

    @property
    def codes(self) -> Mapping[int, Moment]:
        """The faults to be shown, and when each occurred."""
        return self._present

    def severity(self, code: int) -> int | None:
        """Return the severity from an event or an earlier plugin; None once a reading finds the fault cleared."""
        return self._severities.get(code)

    def recall(self, harmless: Iterable[int]) -> None:
        """Take over the codes that an earlier plugin reported as harmless, until they clear."""
        self._severities |= dict.fromkeys(harmless, 0)

    def is_present(self, code: int) -> bool:
        """Return whether the fault is present; a fault that occurred once and is over is not."""
        return code in self._present and code not in self._transient

    def lose_events(self) -> None:
        """Believe readings alone until the next event, because events were lost."""
        for known in self._evidence.values():
            known.announced, known.event_s, known.is_listed = None, -math.inf, True

    def was_reset(self, at: Moment) -> Iterator[FaultTransition]:
        """Forget the events before a reset of the chip: the next reading is the truth about its faults."""
        self.lose_events()
        if self._by_events:
            yield from self._reset(at)

    # Events.

    def announce(self, event: FaultEvent, at: Moment) -> Iterator[FaultTransition]:
        """Apply an event; return the transitions it causes."""
        code = event.code
        if code == RESET_FINISHED and self._by_events:
            yield from self._reset(at)
        if event.assertion == "recover":
            yield from self._recover(code, at)
            return
        self._severities[code] = max(event.severity, self._severities.get(code, event.severity))
        known = self._evidence.setdefault(code, _Evidence())
        counts = self._take_occurrence(known, at)
        # A single event is over at once; another one is a new occurrence.
        known.announced, known.event_s = event.assertion == "occur", at.mono_s
        if self.is_present(code):
            if counts and known.is_found_again:
                # The fault that a reading still had is over, and this is the next one.
                yield FaultTransition(code, present=False, at=at)
                yield FaultTransition(code, present=True, at=at)
                self._present[code] = at
            known.is_found_again = False
            return
        self._present.setdefault(code, at)
        known.is_found_again = known.is_listed = False
        yield FaultTransition(code, present=True, at=at, counts=counts)
        if event.assertion == "once":
            self._transient.add(code)
            yield FaultTransition(code, present=False, at=at)
        else:
            self._transient.discard(code)

    def _take_occurrence(self, known: _Evidence, at: Moment) -> bool:
        """Return whether an occurrence that an event announces is new."""
        was_found = known.take_found(at.mono_s)
        return self.read_s is not None and not known.announced and not was_found

    def _reset(self, at: Moment) -> Iterator[FaultTransition]:
        """Clear the faults from before a reset, whose end neither an event nor a reading reports."""
        for code in [code for code in self._present if code != CARD_DROP]:
            yield from self._recover(code, at)

    def _recover(self, code: int, at: Moment) -> Iterator[FaultTransition]:
        known = self._evidence.setdefault(code, _Evidence())
        known.announced, known.event_s = False, at.mono_s
        if self.read_s is not None and at.mono_s <= self.read_s:
            return  # the last reading, which started later, is right
        present = self.is_present(code)
        self._transient.discard(code)
        since = self._present.pop(code, None)
        known.is_found_again = False
        if since is not None and present:
            known.since = since
            yield FaultTransition(code, present=False, at=at)

    # Readings.

    def read(self, state: ChipState, at: Moment) -> Iterator[FaultTransition]:
        """Apply a reading that started at ``at``; return the transitions it causes. An outdated reading causes none."""
        if self.read_s is not None and at.mono_s < self.read_s:
            return
        self._by_events = state.codes is None
        codes = self._codes(state, at)
        for code in [code for code in self._present if code not in codes]:
            if not self._outlasts(code, codes, state, at):
                yield from self._clear(code, at)
        for code in sorted(codes):
            yield from self._find(code, at)
        for code, known in self._evidence.items():
            known.is_listed |= code in (state.codes or ()) and code in self._present
            if code not in codes and not known.is_settling(at.mono_s):
                known.since = None
        self._severities = {code: severity for code, severity in self._severities.items() if code in self._present}
        self._evidence = {
            code: known
            for code, known in self._evidence.items()
            if code in self._present or known.is_settling(at.mono_s) or known.was_found(at.mono_s)
        }
        self.read_s = at.mono_s

    def _codes(self, state: ChipState, at: Moment) -> set[int]:
        """Return the fault codes of a reading."""
        codes = set(state.codes or ())
        known = {code for code in self._present if self.is_present(code)}
        if state.dropped:
            # A chip that does not answer can't report its other faults; they are not new when it answers again.
            return codes | known | {CARD_DROP}
        if state.codes is None:
            # Only events start and end them. The reading still shows that the chip answers, and that a link is back.
            codes = known - {CARD_DROP, LINK_DOWN}
        if state.link_up is False and not codes & NETWORK_CODES and self._is_newer(state, at):
            codes.add(LINK_DOWN)
        return codes

    def _is_newer(self, state: ChipState, at: Moment) -> bool:
        """Return whether the link state began to be read after the last event about the link."""
        link = self._evidence.get(LINK_DOWN)
        return link is None or (at.mono_s if state.link_s is None else state.link_s) > link.event_s

    def _outlasts(self, code: int, codes: AbstractSet[int], state: ChipState, at: Moment) -> bool:
        """Return whether a fault stays although a reading does not have its code."""
        known = self._evidence.get(code)
        if known is None or code in self._transient:
            return False
        if known.announced and known.is_settling(at.mono_s):
            return True
        if code not in NETWORK_CODES or known.is_listed:
            return False
        # The list of codes may never have faults of the network. A port without link has no other fault of its own.
        if code != LINK_DOWN or codes & NETWORK_CODES:
            return bool(known.announced)
        return not state.link_up or known.is_settling(at.mono_s if state.link_s is None else state.link_s)

    def _clear(self, code: int, at: Moment) -> Iterator[FaultTransition]:
        present = self.is_present(code)
        del self._present[code]
        self._transient.discard(code)
        if (known := self._evidence.get(code)) is not None:
            known.announced, known.since, known.is_found_again = None, None, False
        if present:
            yield FaultTransition(code, present=False, at=at)

    def _find(self, code: int, at: Moment) -> Iterator[FaultTransition]:
        known = self._evidence.setdefault(code, _Evidence())
        if self.is_present(code) or (known.announced is False and known.event_s > at.mono_s):
            return
        # One of several faults with this code is over, another is still reported; or the list lags behind
        # (docs/spec/faults.md#fault-events). Either way it is not a new fault.
        again = known.since is not None or (known.announced is False and known.is_settling(at.mono_s))
        counts = self.read_s is not None and not again and code not in self._transient
        if not again:
            known.found_s.append(at.mono_s)
        known.is_found_again, known.is_listed = again, False
        self._present.setdefault(code, known.since or at)
        known.since = None
        self._transient.discard(code)
        yield FaultTransition(code, present=True, at=at, counts=counts)
