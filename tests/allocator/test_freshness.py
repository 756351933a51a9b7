"""A report that nobody keeps true any more is not believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import Offer
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from tests.allocator.builders import node, report

MAX_AGE_S = 900.0


class Ageing:
    """A cluster of one node on a wall clock the test sets."""

    def __init__(self) -> None:
        self.now_s = 10_000.0
        ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
        self.cluster = Cluster(ledger, now_s=lambda: self.now_s, max_report_age_s=MAX_AGE_S)
        self.cluster.node_applied(node("n1"))

    def reported(self, at_s: int) -> None:
        told = DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=0, update_time_s=at_s)
        self.cluster.report_applied(report("n1", data=encode_report(told)))

    @property
    def offer(self) -> Offer | None:
        return self.cluster.nodes["n1"].offer

    @property
    def refusal(self) -> str:
        return self.offer.reason if isinstance(self.offer, Refusal) else ""


def test_a_report_that_is_not_renewed_is_believed_until_it_is_too_old() -> None:
    world = Ageing()
    world.reported(10_000)
    world.now_s += MAX_AGE_S
    assert world.cluster.age_reports() == []
    assert world.refusal == ""
    world.now_s += 1.0
    assert world.cluster.age_reports() == ["n1"]
    assert isinstance(world.offer, Refusal)
    assert world.offer.reason == "StaleReport"
    assert "1970-01-01T02:46:40Z" in world.offer.message
    assert world.cluster.age_reports() == []


def test_a_renewed_report_is_believed_again_and_ages_anew() -> None:
    world = Ageing()
    world.reported(10_000)
    world.now_s += MAX_AGE_S - 1.0
    world.reported(int(world.now_s))
    world.now_s += MAX_AGE_S
    assert world.cluster.age_reports() == []
    world.now_s += 1.0
    assert world.cluster.age_reports() == ["n1"]
    world.reported(int(world.now_s))
    assert world.refusal == ""
    world.now_s += MAX_AGE_S + 1.0
    assert world.cluster.age_reports() == ["n1"]


def test_a_plugin_that_says_it_ends_is_believed_at_once() -> None:
    world = Ageing()
    world.reported(10_000)
    world.reported(0)
    assert world.refusal == "StaleReport"
    assert isinstance(world.offer, Refusal)
    assert "has ended" in world.offer.message
    world.reported(10_001)
    assert world.refusal == ""


def test_a_report_already_too_old_when_first_seen_is_not_believed() -> None:
    world = Ageing()
    world.reported(9_000)
    assert world.refusal == "StaleReport"


def test_a_clock_that_is_put_right_does_not_let_reports_live_longer() -> None:
    world = Ageing()
    for at_s in (10_800, 10_000):
        world.reported(at_s)
    world.now_s += 901.0
    assert world.cluster.age_reports() == ["n1"]
    assert world.refusal == "StaleReport"


@pytest.mark.parametrize("at_s", [-1, -(10**13), 253_402_300_800, 10**18, 10**400])
def test_a_time_that_is_none_makes_the_report_unreadable_and_harms_nobody_else(at_s: int) -> None:
    world = Ageing()
    world.reported(at_s)
    assert world.refusal == "InvalidReport"
    assert isinstance(world.offer, Refusal)
    assert "UpdateTime" in world.offer.message
    world.reported(10_000)
    assert world.refusal == ""


def test_a_node_without_a_report_is_judged_by_its_annotation() -> None:
    world = Ageing()
    world.reported(0)
    world.cluster.report_deleted(report("n1"))
    assert world.refusal == ""


@given(st.lists(st.one_of(st.integers(-2000, 2000), st.floats(0.0, 2000.0)), max_size=30))
def test_a_report_is_refused_exactly_while_it_is_too_old(steps: list[int | float]) -> None:
    world = Ageing()
    made_s: int | None = None
    for step in steps:
        if isinstance(step, float):
            world.now_s += step
        else:
            made_s = int(world.now_s) + step
            world.reported(made_s)
        world.cluster.age_reports()
        too_old = made_s is not None and world.now_s - made_s > MAX_AGE_S
        assert (world.refusal == "StaleReport") is too_old
