"""Where nodes are, and how many of each SuperPod a request fits on."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.state.index import NodeIndex
from allocator.state.location import NOWHERE, Level, Location, read_location
from allocator.state.node import Offer
from allocator.state.report import NO_REPORT
from ascend.annotations import RACK_ID, SERVER_INDEX, SUPER_POD_ID, UNKNOWN
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.kube.objects import Node
from ascend.products import ASCEND_A3_8
from ascend.reasons import Reason
from ascend.rules.identity import RACK_LABEL, SERVER_LABEL, SUPER_POD_LABEL
from tests.allocator.builders import World, node, pod, report

NAMES = [f"n{number}" for number in range(6)]
WHOLE = ChipRequest(8, distributed=True)
offers = st.one_of(
    st.sampled_from([Vacancy(ASCEND_A3_8, 8, free, 8) for free in (0xFF, 0xFF, 0xF0, 0)]),
    st.just(Refusal(Reason.NODE_NOT_READY, "x")),
    st.none(),
)
locations = st.sampled_from([NOWHERE, Location(0, 1), Location(0, 2), Location(1, 0, rack=4), Location(rack=4)])


def annotated(name: str, **annotations: str) -> Node:
    """A node with these annotations beside its own."""
    made = node(name)
    return replace(made, metadata=replace(made.metadata, annotations=made.metadata.annotations | annotations))


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(offers, locations)), max_size=40))
def test_the_room_of_each_place_is_what_a_full_scan_counts(changes: list[tuple[str, Offer | Location | None]]) -> None:
    index = NodeIndex()
    where, offered = dict[str, Location](), dict[str, Offer]()
    for name, change in changes:
        if isinstance(change, Location):
            where[name] = change
            index.locate(name, change)
        elif change is None:
            offered.pop(name, None)
            index.drop(name)
        else:
            offered[name] = change
            index.put(name, change)

    for level in Level:
        expected = Counter(
            number
            for name, offer in offered.items()
            if isinstance(offer, Vacancy) and isinstance(judge(offer, WHOLE), Fit)
            for each, number in where.get(name, NOWHERE).places
            if each is level
        )
        ranking = index.ranking(WHOLE)
        places = index.topology.places(level)
        assert expected.keys() <= places.keys()
        for number, place in places.items():
            names = [name for _, names in place.fitting(ranking.verdict) for name in names]
            assert len(names) == expected[number]
            assert all((level, number) in where[name].places for name in names)


def test_a_copy_has_the_locations_of_then() -> None:
    index = NodeIndex()
    index.locate("n1", Location(3))
    copied = NodeIndex(index.topology.copy())
    index.locate("n1", Location(4))
    copied.put("n1", Vacancy(ASCEND_A3_8, 8, 0xFF, 8))
    assert list(copied.topology.places(Level.SUPER_POD)) == [3]


@pytest.mark.parametrize(
    ("annotations", "labels", "expected"),
    [
        ({}, {}, NOWHERE),
        ({SUPER_POD_ID: "0", SERVER_INDEX: "5"}, {}, Location(0, 5)),
        ({SUPER_POD_ID: "-1", SERVER_INDEX: "-2"}, {}, NOWHERE),
        ({SUPER_POD_ID: "none"}, {SUPER_POD_LABEL: "7"}, Location(7)),
        ({SUPER_POD_ID: "9" * 30}, {}, NOWHERE),
        ({SUPER_POD_ID: "2"}, {SUPER_POD_LABEL: "7", RACK_LABEL: "1"}, Location(2, rack=1)),
        ({}, {RACK_LABEL: "0"}, Location(rack=0)),
        ({RACK_ID: "3"}, {RACK_LABEL: "0"}, Location(rack=3)),
        ({}, {SUPER_POD_LABEL: "7", SERVER_LABEL: "4"}, Location(7, 4)),
        ({SERVER_INDEX: "5"}, {SUPER_POD_LABEL: "7", SERVER_LABEL: "4"}, Location(7, 5)),
        ({SERVER_INDEX: "-2"}, {SUPER_POD_LABEL: "7", SERVER_LABEL: "4"}, Location(7, 4)),
    ],
)
def test_a_node_says_where_it_is(annotations: dict[str, str], labels: dict[str, str], expected: Location) -> None:
    made = annotated("n1", **annotations)
    labelled = replace(made, metadata=replace(made.metadata, labels=labels))
    assert read_location(labelled, NO_REPORT) == expected


def test_the_report_counts_before_the_node_and_a_field_that_is_missing_says_nothing() -> None:
    world = World()
    data = encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1, super_pod_id=0, server_index=9, rack_id=5))
    world.add(annotated("n1", superPodID="4", serverIndex="1", rackID="2"), report("n1", data=data))
    assert world.cluster.index.topology.location("n1") == Location(0, 9, rack=5)

    world.add(report("n1", data=encode_report(DeviceReport(0xFF, 0, 0, update_time_s=2))))
    assert world.cluster.index.topology.location("n1") == Location(4, 1, rack=2)


def test_a_node_that_is_gone_is_nowhere() -> None:
    world = World()
    there = annotated("n1", superPodID="4")
    world.add(there)
    assert list(world.cluster.index.topology.places(Level.SUPER_POD)) == [4]
    world.cluster.node_deleted(there)
    assert not world.cluster.index.topology.places(Level.SUPER_POD)
    assert world.cluster.index.topology.location("n1") is NOWHERE


def test_a_node_that_is_full_stays_in_its_place_without_room() -> None:
    world = World()
    world.add(annotated("n1", superPodID="4"), pod("p", 8, node="n1", chips=range(8), phase="Running"))
    (place,) = world.cluster.index.topology.places(Level.SUPER_POD).values()
    assert not list(place.fitting(world.cluster.index.ranking(ChipRequest(1)).verdict))


def test_an_id_that_nobody_knows_is_no_place() -> None:
    assert not list(Location(UNKNOWN, 3, UNKNOWN).places)
