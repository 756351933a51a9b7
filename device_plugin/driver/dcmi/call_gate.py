"""Lets calls of the library run side by side, and its initialization alone.

``dcmi_init()`` empties the table of cards, fills it and sorts it, and no lock of the library protects it: another call
would find no card, or another one (docs/spec/dcmi.md#behaviour-of-the-driver). A call looks its card up first. One that
has not returned for ``LOOKUP_S`` hangs in the kernel and is past the table, so it is not waited for.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

LOOKUP_S = 2.0
"""Within this time a call has certainly looked its card up."""


class CallGate:
    """Belongs to one library; its methods may be called from any thread.

    Args:
        lookup_s: how long the initialization waits for a call that does not return.
    """

    def __init__(self, lookup_s: float = LOOKUP_S) -> None:
        self._lookup_s = lookup_s
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._began_s: dict[int, float] = {}  # of the calls that have not returned
        self._closed = False

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Make a call beside others, as soon as no initialization runs or waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            number = next(self._numbers)
            self._began_s[number] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._began_s[number]
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Initialize the library: hold new calls back, and wait until running calls no longer use the table."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            while (left_s := self._left_s()) > 0:
                self._changed.wait(left_s)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def _left_s(self) -> float:
        return max(self._began_s.values(), default=-self._lookup_s) + self._lookup_s - time.monotonic()
