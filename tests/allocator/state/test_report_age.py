"""A report that is no longer renewed makes its node unusable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import Offer
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.reasons import Reason
from tests.allocator.builders import node, report

MAX_AGE_S = 900.0


class AgeingReport:
    """A cluster of one node with a report, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 500.0
        ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
        self.cluster = Cluster(ledger, clock=lambda: self.now_s, max_report_age_s=MAX_AGE_S)
        self.cluster.node_applied(node("n1"))

    def reported(self, at_s: int) -> None:
        """Show a report with this time."""
        content = DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=0, update_time_s=at_s)
        self.cluster.reports.apply(report("n1", data=encode_report(content)))

    @property
    def offer(self) -> Offer | None:
        return self.cluster.nodes["n1"].offer

    @property
    def reason(self) -> Reason | None:
        return self.offer.reason if isinstance(self.offer, Refusal) else None


def test_a_report_that_is_not_renewed_becomes_stale() -> None:
    world = AgeingReport()
    world.reported(10_000)
    world.now_s += MAX_AGE_S
    assert world.cluster.reports.age() == []
    assert world.reason is None
    world.now_s += 1.0
    assert world.cluster.reports.age() == ["n1"]
    assert isinstance(world.offer, Refusal)
    assert world.offer.reason is Reason.STALE_REPORT
    assert "1970-01-01T02:46:40Z" in world.offer.message
    assert world.cluster.reports.age() == []


def test_a_renewed_report_is_valid_again() -> None:
    world = AgeingReport()
    world.reported(10_000)
    world.now_s += MAX_AGE_S - 1.0
    world.reported(10_300)
    world.now_s += MAX_AGE_S
    assert world.cluster.reports.age() == []
    world.now_s += 1.0
    assert world.cluster.reports.age() == ["n1"]
    world.reported(10_600)
    assert world.reason is None
    world.now_s += MAX_AGE_S + 1.0
    assert world.cluster.reports.age() == ["n1"]


def test_the_report_of_an_ended_plugin_is_stale_at_once() -> None:
    world = AgeingReport()
    world.reported(10_000)
    world.reported(0)
    assert world.reason is Reason.STALE_REPORT
    assert isinstance(world.offer, Refusal)
    assert "ended" in world.offer.message
    world.reported(10_001)
    assert world.reason is None


@pytest.mark.parametrize("skew_s", [-86_400, -960, 0, 960, 86_400], ids=str)
def test_the_clock_of_a_node_may_be_wrong(skew_s: int) -> None:
    world = AgeingReport()
    for _ in range(5):
        world.reported(1_800_000_000 + skew_s + int(world.now_s))
        assert world.reason is None
        world.now_s += 300.0
        assert world.cluster.reports.age() == []
    world.now_s += MAX_AGE_S
    assert world.cluster.reports.age() == ["n1"]
    assert world.reason is Reason.STALE_REPORT


@pytest.mark.parametrize("back_s", [800, 10**6])
def test_a_clock_that_is_set_back_does_not_prolong_reports(back_s: int) -> None:
    world = AgeingReport()
    for at_s in (2_000_000, 2_000_000 - back_s):
        world.reported(at_s)
    world.now_s += 901.0
    assert world.cluster.reports.age() == ["n1"]
    assert world.reason is Reason.STALE_REPORT


def test_a_report_that_is_listed_again_or_edited_does_not_become_younger() -> None:
    world = AgeingReport()
    world.reported(10_000)
    world.now_s += MAX_AGE_S
    # As after a new list, or when somebody separates a chip by hand: its UpdateTime is the same.
    content = DeviceReport(free=0xFE, unhealthy=0, network_unhealthy=0, update_time_s=10_000, manually_separated=1)
    world.cluster.reports.apply(report("n1", data=encode_report(content)))
    world.now_s += 1.0
    assert world.cluster.reports.age() == ["n1"]
    world.reported(10_000)
    assert world.reason is Reason.STALE_REPORT


def test_after_a_restart_a_report_ages_from_when_it_is_first_seen() -> None:
    world = AgeingReport()
    world.reported(1)  # of a plugin that ended long ago, without saying so
    assert world.reason is None
    world.now_s += MAX_AGE_S + 1.0
    assert world.cluster.reports.age() == ["n1"]
    assert world.reason is Reason.STALE_REPORT


@pytest.mark.parametrize("at_s", [-1, -(10**13), 253_402_300_800, 10**18, 10**400])
def test_an_invalid_update_time_makes_the_report_invalid(at_s: int) -> None:
    world = AgeingReport()
    world.reported(at_s)
    assert world.reason is Reason.INVALID_REPORT
    assert isinstance(world.offer, Refusal)
    assert "UpdateTime" in world.offer.message
    world.reported(10_000)
    assert world.reason is None


def test_a_node_whose_report_was_deleted_is_usable() -> None:
    world = AgeingReport()
    world.reported(0)
    world.cluster.reports.delete(report("n1"))
    assert world.reason is None


# Multiples of 1/16 s: their sums and differences are exact.
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 32_000).map(lambda each: each / 16)), max_size=30))
def test_a_report_is_stale_exactly_while_it_has_not_changed_for_too_long(steps: list[int | float]) -> None:
    world = AgeingReport()
    last: tuple[int, float] | None = None
    for step in steps:
        if isinstance(step, float):
            world.now_s += step
        else:
            world.reported(1 + step)
            if last is None or last[0] != step:
                last = step, world.now_s
        world.cluster.reports.age()
        too_old = last is not None and world.now_s - last[1] > MAX_AGE_S
        assert (world.reason is Reason.STALE_REPORT) is too_old
