"""What hot resets need of the plugin: who reads, judges and reports the chips, and what is known of chips and pods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.reset.steps import Announce


class Initializes(Protocol):
    """The scanner, as far as resets need it."""

    muted: ChipSet
    keeps_table: bool

    def read_since(self, since_s: float) -> ChipSet:
        """Return the chips of which a reading counts that began at this time or later."""

    async def initialize(self) -> None:
        """Initialize the driver again, or raise DriverError."""


class Withholds(Protocol):
    """The health monitor, as far as resets need it."""

    def withhold(self, chips: ChipSet, annotations: Mapping[str, str]) -> None:
        """Judge at once: these chips can't be allocated, and the Node has these annotations."""

    def was_reset(self, chips: ChipSet) -> None:
        """Forget what was announced about chips before they were reset."""


class ResetHost(Protocol):
    """What reads, judges and reports the chips, as far as resets need it."""

    @property
    def scanner(self) -> Initializes:
        """Reads the chips."""

    @property
    def health(self) -> Withholds:
        """Withholds them."""

    @property
    def announce(self) -> Announce:
        """Receives every step, for people."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the plugin knows about its chips and pods.

    Attributes:
        snapshots: the node's chips.
        advertised: the healthy chips in the last list that the kubelet was sent.
        ledgers: what pods hold: whole chips, vNPUs and AI cores, whichever are offered now.
        is_admitting: whether a call of the kubelet for any of them is being answered.
        written: the annotations that the Node has of this plugin.
    """

    snapshots: Observable[Snapshot | None]
    advertised: Observable[ChipSet]
    ledgers: Ledgers
    is_admitting: Callable[[], bool]
    written: Observable[Mapping[str, str]]
