"""A health book that tests drive with times in seconds since a start."""

from ascend.chips import chip_set
from device_plugin.driver import Assertion, ChipFacts, ChipState, FaultEvent
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook, ReadmissionPolicy
from device_plugin.health.moment import Moment
from device_plugin.health.snapshot import Chip, Snapshot
from tests.device_plugin.builders import server

WALL_MS = 1_795_250_000_000
LOGIC = 100
"""Added to physical ids to make logic ids, so that mixing them up is noticed."""

SEPARATE = 0x80E18402
PRE_SEPARATE = 0x8118043C
SUB_HEALTH = 0x80818C06
NOT_HANDLE = 0x80CD8003
FREQUENT = 0x80E18005  # RestartNPU; 3 times in 24 h raise it
UNKNOWN = 0xDEAD


def moment(at_s: float) -> Moment:
    return Moment(at_s, WALL_MS + round(at_s * 1000))


class Watch:
    """Chips 0 to ``count - 1``, by default discovered at 0 s and read as healthy then."""

    def __init__(
        self,
        rules: FaultRules | None = None,
        *,
        count: int = 1,
        read: bool = True,
        discover: bool = True,
        hold_s: float = 1.0,
        stale_s: float = 1e9,
        readmission: ReadmissionPolicy = "automatic",
    ) -> None:
        self.book = HealthBook(rules or default_rules(), hold_s=hold_s, stale_s=stale_s, readmission=readmission)
        self.count = count
        if discover:
            self.discover(0)
        if read:
            for phy_id in range(count):
                self.read(0, phy_id=phy_id)

    def discover(self, at_s: float) -> None:
        chips = (ChipFacts(each, logic_id=LOGIC + each) for each in range(self.count))
        self.book.on_discovery(server(*chips), moment(at_s))

    def read(
        self,
        at_s: float,
        *codes: int,
        phy_id: int = 0,
        dropped: bool = False,
        link_up: bool | None = None,
        link_s: float | None = None,
        fatal: bool = False,
    ) -> None:
        self.book.on_reading(phy_id, ChipState(codes, dropped, link_up, link_s, fatal), moment(at_s))

    def answer(self, at_s: float, *, dropped: bool = False, link_up: bool | None = None, fatal: bool = False) -> None:
        """A reading of chip 0 by a driver that reports faults by events only."""
        self.book.on_reading(0, ChipState(None, dropped, link_up, fatal=fatal), moment(at_s))

    def event(
        self, at_s: float, code: int, assertion: Assertion = "occur", *, severity: int = 2, phy_id: int = 0
    ) -> None:
        self.book.on_event(FaultEvent(LOGIC + phy_id, code, assertion, severity), moment(at_s))

    def judge(self, at_s: float, *used: int) -> Snapshot:
        """Judge all chips, while pods run with ``used``."""
        return self.book.judge(moment(at_s), used=chip_set(used), running=chip_set(used))

    def next_s(self, at_s: float) -> float | None:
        self.judge(at_s)
        return self.book.next_s(moment(at_s))

    def chip(self, at_s: float, *used: int, phy_id: int = 0) -> Chip:
        return self.judge(at_s, *used).chips[phy_id]

    def why(self, at_s: float, *used: int) -> str:
        """Why chip 0 is unhealthy; empty if it is healthy."""
        return self.chip(at_s, *used).reason
