"""Whether chips without a fault may be read seldom: while their faults are announced and nothing has happened lately.

A call of the driver costs the chip's firmware time. A chip that says nothing new for hours need not be asked every
second by two calls as long as the driver tells of faults by itself; but it is asked, because events do get lost.
"""

CALM_AFTER_S = 10.0
"""So long after anything happened, to any chip, all chips are read often: troubles come together."""

DISTRUST_S = 3600.0
"""So long after an event was missed nothing is made of there being none."""


class Calm:
    """The calm of one server's chips; times are monotonic seconds. There is none before events are announced."""

    __slots__ = ("_missed_s", "_stirred_s", "announced")

    def __init__(self) -> None:
        self.announced = False
        """The driver has agreed to announce faults."""
        self._stirred_s: float | None = None
        self._missed_s: float | None = None

    def stir(self, now_s: float) -> None:
        """Something happened to a chip."""
        self._stirred_s = now_s

    def miss(self, now_s: float) -> None:
        """A fault was read that had not been announced."""
        self._missed_s = now_s

    def holds(self, now_s: float) -> bool:
        """Chips without a fault may be read seldom."""
        return (
            self.announced
            and (self._stirred_s is None or now_s >= self._stirred_s + CALM_AFTER_S)
            and (self._missed_s is None or now_s >= self._missed_s + DISTRUST_S)
        )
