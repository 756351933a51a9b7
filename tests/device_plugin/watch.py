"""A node's chips under watch: a health book told of things at seconds since some start."""

from ascend.chips import chip_set
from device_plugin.driver import Assertion, ChipFacts, ChipState, FaultEvent
from device_plugin.health.fault_rules import FaultRules, default_rules
from device_plugin.health.health_book import Assessment, HealthBook, Moment, Readmission, Verdict

WALL_MS = 1_795_250_000_000
LOGIC = 100
"""Added to physical ids to make logic ids, so that nobody confuses them."""

SEPARATE = 0x80E18402
PRE_SEPARATE = 0x8118043C
SUB_HEALTH = 0x80818C06
NOT_HANDLE = 0x80CD8003
FREQUENT = 0x80E18005  # RestartNPU; 3 times in 24 h are too many
UNKNOWN = 0xDEAD


def moment(at_s: float) -> Moment:
    return Moment(at_s, WALL_MS + round(at_s * 1000))


class Watch:
    """Chips 0 to ``count - 1``, discovered at 0 s and, unless told otherwise, read as healthy then."""

    def __init__(
        self,
        rules: FaultRules | None = None,
        *,
        count: int = 1,
        read: bool = True,
        discover: bool = True,
        hold_s: float = 1.0,
        stale_s: float = 1e9,
        readmission: Readmission = "automatic",
    ) -> None:
        self.book = HealthBook(rules or default_rules(), hold_s=hold_s, stale_s=stale_s, readmission=readmission)
        self.count = count
        if discover:
            self.discover(0)
        if read:
            for phy_id in range(count):
                self.read(0, phy_id=phy_id)

    def discover(self, at_s: float) -> None:
        self.book.discovered([ChipFacts(each, logic_id=LOGIC + each) for each in range(self.count)], moment(at_s))

    def read(
        self, at_s: float, *codes: int, phy_id: int = 0, dropped: bool = False, link_up: bool | None = None
    ) -> None:
        self.book.polled(phy_id, ChipState(codes, dropped, link_up), moment(at_s))

    def answer(self, at_s: float, *, dropped: bool = False, link_up: bool | None = None) -> None:
        """A reading of chip 0 by a driver that tells of faults by events only."""
        self.book.polled(0, ChipState(None, dropped, link_up), moment(at_s))

    def event(
        self, at_s: float, code: int, assertion: Assertion = "occur", *, severity: int = 2, phy_id: int = 0
    ) -> bool:
        return self.book.announced(FaultEvent(LOGIC + phy_id, code, assertion, severity), moment(at_s))

    def assess(self, at_s: float, *used: int) -> Assessment:
        return self.book.assess(chip_set(used), moment(at_s))

    def chip(self, at_s: float, *used: int, phy_id: int = 0) -> Verdict:
        return self.assess(at_s, *used).chips[phy_id]

    def why(self, at_s: float, *used: int) -> str:
        """Why chip 0 is not healthy."""
        verdict = self.chip(at_s, *used)
        assert verdict.healthy is (not verdict.reason)
        return verdict.reason
