"""Tracks which faults a chip has: events take effect at once, readings correct them.

A reading shows the chip as it was when the reading started. It finds faults whose start or end no event announced, but
it does not undo an event that was received after it started (docs/spec/faults.md#fault-events,
docs/spec/faults.md#readings-and-events).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from device_plugin.driver import ChipState, FaultEvent
from device_plugin.health.levels import CARD_DROP, LINK_DOWN, NETWORK_CODES, RESET_FINISHED
from device_plugin.health.snapshot import Moment


@dataclass(frozen=True, slots=True)
class FaultTransition:
    """A fault occurred or cleared.

    Attributes:
        code: the fault.
        present: True if it occurred.
        at: when, as far as known.
        counts: whether it is a new occurrence. False if the first reading found it, or if a reading found it again
            after a single event or after an announced end.
    """

    code: int
    present: bool
    at: Moment
    counts: bool = True


class ActiveFaults:
    """The faults of one chip."""

    def __init__(self) -> None:
        self.read_s: float | None = None
        """Start time of the last reading; None before the first."""
        self._present: dict[int, Moment] = {}
        self._transient: set[int] = set()  # in _present only to be shown: they occurred once and are over
        self._events: dict[int, tuple[float, bool]] = {}  # by code: time of the last event, and whether it occurred
        self._severities: dict[int, int] = {}
        self._by_events = False  # this driver reports faults by events only
        self._link_found = False  # LINK_DOWN was found by reading the link state, not announced
        self._unconfirmed: dict[int, Moment] = {}  # announced as over, not read yet; since when they were present

    @property
    def codes(self) -> Mapping[int, Moment]:
        """The faults to be shown, and when each occurred."""
        return self._present

    def severity(self, code: int) -> int | None:
        """Return the severity from an event or an earlier plugin; None once a reading finds the fault cleared."""
        return self._severities.get(code)

    def recall(self, harmless: Iterable[int]) -> None:
        """Take over the codes that an earlier plugin reported as harmless; they are so until they clear."""
        self._severities |= dict.fromkeys(harmless, 0)

    def is_present(self, code: int) -> bool:
        """Return whether the fault is present; a fault that occurred once and is over is not."""
        return code in self._present and code not in self._transient

    def announce(self, event: FaultEvent, at: Moment) -> Iterator[FaultTransition]:
        """Apply an event; return the transitions it causes."""
        code, occurred = event.code, event.assertion != "recover"
        if code == RESET_FINISHED and self._by_events:
            yield from self._reset(at)
        if occurred and (code in self._present or self.read_s is None or at.mono_s >= self.read_s):
            self._severities[code] = max(event.severity, self._severities.get(code, event.severity))
        if self.read_s is not None and at.mono_s < self.read_s:
            # A reading that started later is right; the occurrence still counts.
            if occurred and code not in self._present:
                yield FaultTransition(code, present=True, at=at)
                yield FaultTransition(code, present=False, at=at)
            return
        if not occurred:
            yield from self._recover(code, at)
            return
        self._events[code] = at.mono_s, True
        self._unconfirmed.pop(code, None)
        self._link_found &= code != LINK_DOWN
        if self.is_present(code):
            return
        self._present.setdefault(code, at)
        counts = self.read_s is not None
        yield FaultTransition(code, present=True, at=at, counts=counts)
        if event.assertion == "once":
            self._transient.add(code)
            yield FaultTransition(code, present=False, at=at)
        else:
            self._transient.discard(code)

    def _reset(self, at: Moment) -> Iterator[FaultTransition]:
        """Clear the faults from before a reset, whose end neither an event nor a reading reports."""
        for code in [code for code in self._present if code != CARD_DROP]:
            yield from self._recover(code, at)

    def _recover(self, code: int, at: Moment) -> Iterator[FaultTransition]:
        if at.mono_s == self.read_s:
            return
        self._events[code] = at.mono_s, False
        present = self.is_present(code)
        self._transient.discard(code)
        since = self._present.pop(code, None)
        if since is not None and present:
            self._unconfirmed[code] = since
            yield FaultTransition(code, present=False, at=at)

    def read(self, state: ChipState, at: Moment) -> Iterator[FaultTransition]:
        """Apply a reading that started at ``at``; return the transitions it causes. An outdated reading causes none."""
        if self.read_s is not None and at.mono_s < self.read_s:
            return
        codes, self._by_events = self._codes(state), state.codes is None
        self._events = {code: event for code, event in self._events.items() if event[0] >= at.mono_s}
        # If an event and a reading have the same time, the one that reports the fault is believed.
        codes |= {code for code, (_, occurred) in self._events.items() if occurred and code in self._present}
        codes -= {code for code, (event_s, occurred) in self._events.items() if not occurred and event_s > at.mono_s}
        for code in [code for code in self._present if code not in codes]:
            present = self.is_present(code)
            del self._present[code]
            self._transient.discard(code)
            if present:
                yield FaultTransition(code, present=False, at=at)
        for code in sorted(codes):
            if not self.is_present(code) and not self._events.get(code, (0.0, False))[1]:
                self._link_found |= code == LINK_DOWN
                # One of several faults with this code is over, another is still reported: not a new fault
                # (docs/spec/faults.md#network-link).
                still = self._unconfirmed.pop(code, None)
                counts = self.read_s is not None and code not in self._transient and still is None
                self._present.setdefault(code, still or at)
                self._transient.discard(code)
                yield FaultTransition(code, present=True, at=at, counts=counts)
        self._severities = {code: severity for code, severity in self._severities.items() if code in codes}
        self._unconfirmed = {code: since for code, since in self._unconfirmed.items() if code in self._events}
        self.read_s = at.mono_s

    def _codes(self, state: ChipState) -> set[int]:
        """Return the fault codes of a reading."""
        codes = set(state.codes or ())
        known = {code for code in self._present if self.is_present(code)}
        if state.dropped:
            # A chip that does not answer can't report its other faults; they are not new when it answers again.
            return codes | known | {CARD_DROP}
        if state.codes is None:
            # Only events start and end them. The reading still shows that the chip answers, and that a link is back.
            codes = known - {CARD_DROP} - ({LINK_DOWN} if self._link_found and state.link_up else set())
        if state.link_up is False and not codes & NETWORK_CODES:
            codes.add(LINK_DOWN)
        return codes
