"""The fault events of simulated chips, which come before or after the codes in their list, as with the real driver."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec

from device_plugin.driver import Assertion, FaultEvent

POLL_S = 0.02
SEVERITY = 2

Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Codes: TypeAlias = Mapping[int, tuple[int, ...]]
"""The fault codes of each chip, by physical id, which is its logic id too."""


class SimulatedEvents(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How the driver announces faults: events ``delay_s`` after a change, and the list of codes ``code_delay_s``."""

    delay_s: Delay = 0.0
    code_delay_s: Delay = 0.0


class CodeHistory:
    """The codes of all chips, now and a while ago. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: deque[tuple[float, Codes]] = deque(maxlen=256)
        self._noted = 0

    def note(self, codes: Codes) -> None:
        """Note the present codes, if they have changed."""
        with self._lock:
            if not self._versions or self._versions[-1][1] != codes:
                self._versions.append((time.monotonic(), codes))
                self._noted += 1

    def since(self, noted: int) -> tuple[list[Codes], int]:
        """Return the versions after this number of them, oldest first, and how many there are now."""
        with self._lock:
            new = min(self._noted - noted, len(self._versions))
            return [codes for _, codes in [*self._versions][len(self._versions) - new :]], self._noted

    def shown(self, delay_s: float) -> Codes:
        """Return the codes of a while ago; if that was before the first version, those of the first."""
        shown_s = time.monotonic() - delay_s
        with self._lock:
            earlier = [codes for since_s, codes in self._versions if since_s <= shown_s]
            return earlier[-1] if earlier else self._versions[0][1]


Read: TypeAlias = Callable[[int], tuple[list[Codes], int, float]]
"""Returns the versions of the codes after this number of them, how many there are now, and the delay of events."""


def announce(read: Read, on_event: Callable[[FaultEvent], None]) -> None:
    """Announce changes of the codes from now on, in a thread, for as long as the object of ``read`` exists.

    Args:
        read: a method; there is at least one version.
        on_event: receives the events.
    """
    reading = weakref.WeakMethod(read)
    versions, noted, _ = read(0)
    arguments = (reading, versions[-1], noted, on_event)
    threading.Thread(target=_announce, args=arguments, name="events", daemon=True).start()


def _announce(
    reading: "weakref.WeakMethod[Read]",
    before: Codes,
    noted: int,
    on_event: Callable[[FaultEvent], None],
) -> None:
    waiting: deque[tuple[float, FaultEvent]] = deque()
    while (read := reading()) is not None:
        versions, noted, delay_s = read(noted)
        del read
        due_s = time.monotonic() + delay_s
        for now in versions:  # each, so that no fault is missed that is soon over
            changes = [*_changes(before, now, "recover"), *_changes(now, before, "occur")]
            waiting.extend((due_s, event) for event in changes)
            before = now
        while waiting and waiting[0][0] <= time.monotonic():
            on_event(waiting.popleft()[1])
        time.sleep(POLL_S)


def _changes(these: Codes, others: Codes, assertion: Assertion) -> list[FaultEvent]:
    return [
        FaultEvent(phy_id, code, assertion, SEVERITY)
        for phy_id, codes in these.items()
        for code in codes
        if code not in others.get(phy_id, ())
    ]
