"""Notices a chip that the driver can't communicate with: its health is fatal, and no fault code says why.

The driver answers "fatal" for such a chip and leaves its fault codes as they were. All codes that its maker rates as
fatal bar a chip, so a chip with a fatal health and only milder codes has been lost. A code can be read later than the
health that it causes, so the chip is only in doubt at first (docs/spec/dcmi.md#behaviour-of-the-driver).
"""

from collections.abc import Iterable
from dataclasses import replace

from device_plugin.driver import ChipState
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import CARD_DROP, NETWORK_CODES
from device_plugin.health.moment import Moment

CONFIRM_S = 2.0
"""How long the health must be fatal without a code before the chip counts as lost."""


class LostContact:
    """The contact of the driver to one chip."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the last reading was fatal without a code."""
        return self._since_s is not None

    def confirm(self, state: ChipState, present: Iterable[int], rules: FaultRules, at: Moment) -> ChipState:
        """Return the reading, as that of a dropped chip once the loss is certain.

        Args:
            state: the reading.
            present: the codes known from events, for a driver that reports faults by events only.
            rules: the site's fault rules.
            at: when the reading started.
        """
        codes = present if state.codes is None else state.codes
        if not state.fatal or any(_explains(code, rules) for code in codes):
            self._since_s = None
            return state
        if self._since_s is None:
            self._since_s = at.mono_s
        return replace(state, dropped=True) if at.mono_s >= self._since_s + CONFIRM_S else state


def _explains(code: int, rules: FaultRules) -> bool:
    """Return whether a code is serious, by the site's rules or, if the site plays it down, by default."""
    if code == CARD_DROP or code in NETWORK_CODES:
        return False
    return rules.level(code).bars_new_use or default_rules().level(code).bars_new_use
