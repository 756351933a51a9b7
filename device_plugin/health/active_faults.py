"""Which faults a chip has: events tell at once, readings are the truth underneath.

A reading tells how the chip was when it was started. It finds what an event did not announce, coming or going, but
can't undo an event received after that (spec/node-agent.md §4.5, spec/field.md §2a).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from device_plugin.driver import ChipState, FaultEvent
from device_plugin.health.levels import CARD_DROP, LINK_DOWN, NETWORK_CODES, RESET_FINISHED
from device_plugin.health.snapshot import Moment


@dataclass(frozen=True, slots=True)
class FaultTransition:
    """A fault came or went.

    Attributes:
        code: the fault.
        present: it came.
        at: when, as far as known.
        counts: it came now; not merely found by the first reading, or again by the one that follows a single event or
            the announced end of a fault that is still there.
    """

    code: int
    present: bool
    at: Moment
    counts: bool = True


class ActiveFaults:
    """The faults of one chip."""

    __slots__ = (
        "_by_events",
        "_fleeting",
        "_heard",
        "_link_found",
        "_present",
        "_severities",
        "_unconfirmed",
        "read_s",
    )

    def __init__(self) -> None:
        self.read_s: float | None = None
        """When the last reading was started; None before the first."""
        self._present: dict[int, Moment] = {}
        self._fleeting: set[int] = set()  # present only to be seen: they happened once and are over
        self._heard: dict[int, tuple[float, bool]] = {}  # by code, when the last event was and whether it came
        self._severities: dict[int, int] = {}
        self._by_events = False  # this driver tells of faults by events only
        self._link_found = False  # LINK_DOWN was found by asking the link, not announced
        self._unconfirmed: dict[int, Moment] = {}  # announced to be over, not read to be; since when they were there

    @property
    def codes(self) -> Mapping[int, Moment]:
        """The faults to be seen and when each came."""
        return self._present

    def severity(self, code: int) -> int | None:
        """What an event, or an earlier plugin, said of a fault that has not been read to be gone since."""
        return self._severities.get(code)

    def recall(self, harmless: Iterable[int]) -> None:
        """Codes that were known to be harmless before a restart: as with any, that is so until they are gone."""
        self._severities |= dict.fromkeys(harmless, 0)

    def is_there(self, code: int) -> bool:
        """The fault is there, not one that is over already."""
        return code in self._present and code not in self._fleeting

    def announce(self, event: FaultEvent, at: Moment) -> Iterator[FaultTransition]:
        """An event: what came and went by it."""
        code, came = event.code, event.assertion != "recover"
        if code == RESET_FINISHED and self._by_events:
            yield from self._begin_anew(at)
        if came and (code in self._present or self.read_s is None or at.mono_s >= self.read_s):
            self._severities[code] = max(event.severity, self._severities.get(code, event.severity))
        if self.read_s is not None and at.mono_s < self.read_s:
            # The reading, begun later, has the last word; that it came and went is still counted.
            if came and code not in self._present:
                yield FaultTransition(code, present=True, at=at)
                yield FaultTransition(code, present=False, at=at)
            return
        if not came:
            yield from self._recover(code, at)
            return
        self._heard[code] = at.mono_s, True
        self._unconfirmed.pop(code, None)
        self._link_found &= code != LINK_DOWN
        if self.is_there(code):
            return
        self._present.setdefault(code, at)
        counts = self.read_s is not None
        yield FaultTransition(code, present=True, at=at, counts=counts)
        if event.assertion == "once":
            self._fleeting.add(code)
            yield FaultTransition(code, present=False, at=at)
        else:
            self._fleeting.discard(code)

    def _begin_anew(self, at: Moment) -> Iterator[FaultTransition]:
        """The chip was reset: nobody announces the end of what it had before, and no reading tells."""
        for code in [code for code in self._present if code != CARD_DROP]:
            yield from self._recover(code, at)

    def _recover(self, code: int, at: Moment) -> Iterator[FaultTransition]:
        if at.mono_s == self.read_s:
            return
        self._heard[code] = at.mono_s, False
        there = self.is_there(code)
        self._fleeting.discard(code)
        since = self._present.pop(code, None)
        if since is not None and there:
            self._unconfirmed[code] = since
            yield FaultTransition(code, present=False, at=at)

    def read(self, state: ChipState, at: Moment) -> Iterator[FaultTransition]:
        """A reading started at this moment: what came and went by it; one older than the last says nothing new."""
        if self.read_s is not None and at.mono_s < self.read_s:
            return
        codes, self._by_events = self._codes(state), state.codes is None
        self._heard = {code: heard for code, heard in self._heard.items() if heard[0] >= at.mono_s}
        # At the very same time whoever says that it is there is believed.
        codes |= {code for code, (_, came) in self._heard.items() if came and code in self._present}
        codes -= {code for code, (heard_s, came) in self._heard.items() if not came and heard_s > at.mono_s}
        for code in [code for code in self._present if code not in codes]:
            there = self.is_there(code)
            del self._present[code]
            self._fleeting.discard(code)
            if there:
                yield FaultTransition(code, present=False, at=at)
        for code in sorted(codes):
            if not self.is_there(code) and not self._heard.get(code, (0.0, False))[1]:
                self._link_found |= code == LINK_DOWN
                # One of several of its kind is over, the driver still reports another: it is no new fault (§4.5).
                still = self._unconfirmed.pop(code, None)
                counts = self.read_s is not None and code not in self._fleeting and still is None
                self._present.setdefault(code, still or at)
                self._fleeting.discard(code)
                yield FaultTransition(code, present=True, at=at, counts=counts)
        self._severities = {code: severity for code, severity in self._severities.items() if code in codes}
        self._unconfirmed = {code: since for code, since in self._unconfirmed.items() if code in self._heard}
        self.read_s = at.mono_s

    def _codes(self, state: ChipState) -> set[int]:
        """The codes a reading stands for."""
        codes = set(state.codes or ())
        known = {code for code in self._present if self.is_there(code)}
        if state.dropped:
            # A chip that does not answer can't tell its other faults; they are no news when it answers again.
            return codes | known | {CARD_DROP}
        if state.codes is None:
            # Events alone begin and end them; that it answers, and has a link again that was found lost, it tells.
            codes = known - {CARD_DROP} - ({LINK_DOWN} if self._link_found and state.link_up else set())
        if state.link_up is False and not codes & NETWORK_CODES:
            codes.add(LINK_DOWN)
        return codes
