"""Versions 1 and 2 of switch affinity, and one layer of switches, as pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.switches.rooms import NoFit, Room, Schema, ServerSet, SwitchState, Use
from allocator.switches.v1 import place_single_layer, place_v1, usable_room
from allocator.switches.v2 import place_v2
from ascend.leaf_switches import Spot
from tests.allocator.reference import reference_cases

CASES: list[dict[str, Any]] = reference_cases("switches")
STATES: dict[str, SwitchState] = {
    "free": SwitchState(),
    "exclusive healthy": SwitchState(Use.EXCLUSIVE),
    "shared healthy": SwitchState(Use.SHARED),
    "shared unhealthy": SwitchState(Use.SHARED, is_healthy=False),
}
FREE, EXCLUSIVE, SHARED, OVERUSED = STATES.values()
LARGE, NORMAL = Schema.LARGE, Schema.NORMAL


def rooms_of(slots: Mapping[str, Sequence[int]], states: Mapping[str, str] | None = None) -> list[Room]:
    """The rooms of switches by name; their numbers are in the order of the names."""
    return [
        Room(number, tuple(slots[name]), STATES[(states or {}).get(name, "free")])
        for number, name in enumerate(sorted(slots))
    ]


def rooms(*sizes: int, states: Sequence[SwitchState] = ()) -> list[Room]:
    """Switches with so many usable servers, in the slots from 0."""
    given_states = [*states, *[FREE] * (len(sizes) - len(states))]
    return [Room(number, tuple(range(size)), given_states[number]) for number, size in enumerate(sizes)]


def counts(placement: ServerSet | NoFit) -> list[tuple[int, int]]:
    """How many servers of which switch a placement has, in the order of the ranks."""
    assert isinstance(placement, ServerSet), placement
    return [(switch, len(list(spots))) for switch, spots in groupby(placement.spots, lambda spot: spot.switch)]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_jobs_are_placed_as_the_reference_places_them(case: dict[str, Any]) -> None:
    seen, pods = rooms_of(case["slots"], case.get("states")), case["pods"]
    numbers = {name: number for number, name in enumerate(sorted(case["slots"]))}
    if case["area"] == "tor.v1":
        found = place_v1(seen, case["width"], pods, Schema(case["schema"]))
    elif case["area"] == "tor.v2":
        found = place_v2(seen, case["width"], pods, Schema(case["schema"]), case["shared_tor_num"])
    else:
        found = place_single_layer(seen, case["width"], pods)
    expected = case["expect"]
    assert isinstance(found, ServerSet) is expected["placed"], found
    if not isinstance(found, ServerSet):
        return
    assert len(set(found.spots)) == len(found.spots) == pods
    if "servers" in expected:
        assert counts(found) == [(numbers[name], servers) for name, servers in expected["servers"]]
    if "spots" in expected:
        assert list(found.spots) == [Spot(numbers[name], slot) for name, slot in expected["spots"]]
    if "sizes" in expected:
        assert [servers for _, servers in counts(found)] == expected["sizes"]
    if "states" in expected:
        assert found.states == {numbers[name]: STATES[state] for name, state in expected["states"].items()}


@pytest.mark.parametrize(
    ("pods", "schema", "expected"),
    [
        (5, LARGE, None),  # no server has slot 3
        (5, NORMAL, [Spot(0, 0), Spot(0, 1), Spot(1, 0), Spot(1, 2), Spot(2, 1)]),
        (6, NORMAL, None),  # five servers
        (3, NORMAL, [Spot(0, 0), Spot(0, 1), Spot(1, 2)]),  # one of each slot
    ],
)
def test_version_1_where_no_switch_is_whole(pods: int, schema: Schema, expected: list[Spot] | None) -> None:
    found = place_v1(rooms_of({"T0": [0, 1], "T1": [0, 2], "T2": [1]}), 4, pods, schema)
    assert (list(found.spots) if isinstance(found, ServerSet) else None) == expected


def test_a_filler_of_version_1_takes_the_smallest_switch_that_fits() -> None:
    assert counts(place_v1(rooms(4, 4, 4, 2), 4, 2, LARGE)) == [(3, 2)]
    assert isinstance(place_v1(rooms(2, 2), 2, 3, LARGE), NoFit)  # also where it is larger than a switch


def test_the_smallest_logical_row_that_fits_is_used() -> None:
    # rows: {0, 1, 2, 3}, {0, 1, 2}, {0}; no single switch has three servers
    seen = rooms_of({"T0": [0, 1], "T1": [0, 2], "T2": [1, 3], "T3": [0, 2]})
    found = place_v1(seen, 5, 3, NORMAL)
    assert isinstance(found, ServerSet)
    assert [spot.slot for spot in found.spots] == [0, 1, 2]
    assert found.spots[0].switch != 0


@pytest.mark.parametrize(
    ("schema", "spanning", "pods", "usable"),
    [
        (LARGE, (), 9, True),
        (LARGE, (NORMAL,), 4, True),  # it stays below this switch
        (LARGE, (NORMAL,), 5, False),
        (NORMAL, (NORMAL,), 5, True),
        (NORMAL, (NORMAL, LARGE), 5, False),
        (None, (NORMAL,), 5, False),
    ],
)
def test_a_switch_that_another_job_spans_serves_jobs_below_it_alone(
    schema: Schema | None, spanning: tuple[Schema, ...], pods: int, *, usable: bool
) -> None:
    room = Room(0, (0, 1, 2, 3), spanning=frozenset(spanning))
    assert bool(usable_room(room, pods, schema).slots) is usable


@pytest.mark.parametrize(
    ("pods", "most_shared", "expected"),
    [(6, 2, [(2, 3), (3, 3)]), (7, 2, [(2, 3), (3, 4)]), (8, 2, None), (4, 1, [(3, 4)])],
)
def test_version_2_on_shared_switches_alone(
    pods: int, most_shared: int, expected: list[tuple[int, int]] | None
) -> None:
    found = place_v2(rooms(1, 2, 3, 4, states=[SHARED] * 4), 4, pods, LARGE, most_shared)
    assert (counts(found) if isinstance(found, ServerSet) else None) == expected


@pytest.mark.parametrize(
    ("pods", "schema", "expected"),
    [(3, NORMAL, [(0, 3)]), (5, LARGE, [(1, 4), (0, 1)])],
)
def test_version_2_on_switches_in_different_states(pods: int, schema: Schema, expected: list[tuple[int, int]]) -> None:
    assert counts(place_v2(rooms(4, 4, 4, 2, states=[SHARED, FREE, SHARED, OVERUSED]), 4, pods, schema, 2)) == expected


def test_below_one_switch_exclusive_ones_come_first_and_free_ones_last() -> None:
    order = [EXCLUSIVE, OVERUSED, SHARED, FREE]
    for number in range(4):
        seen = rooms(4, 4, 4, 4, states=order)[number:]
        found = place_v2(list(reversed(seen)), 8, 3, LARGE, 2)
        assert counts(found) == [(number, 3)]
        assert isinstance(found, ServerSet)
        assert not found.states  # nothing is said of the switch of a job that spans none


def test_where_no_shared_switch_has_room_a_free_one_becomes_shared() -> None:
    found = place_v2(rooms(8, 6, 5, 1, states=[FREE, FREE, FREE, SHARED]), 8, 12, LARGE, 1)
    assert counts(found) == [(0, 8), (2, 4)]  # the free one with the fewest servers that fits
    assert isinstance(found, ServerSet)
    assert found.states == {0: EXCLUSIVE, 2: SHARED}


def test_normal_jobs_keep_off_switches_that_large_jobs_span() -> None:
    seen = [Room(0, (0, 1, 2, 3), SHARED, frozenset({LARGE})), Room(1, (0, 1, 2, 3), EXCLUSIVE, frozenset({NORMAL}))]
    found = place_v2(seen, 4, 5, NORMAL, 1)
    assert isinstance(found, NoFit)
    assert "below switches that it may use; these have 4 for it" in found.sentence


SLOTS = st.sets(st.integers(0, 3)).map(lambda slots: tuple(sorted(slots)))
SPANNING = st.frozensets(st.sampled_from(Schema))
ROOMS = st.lists(st.tuples(SLOTS, st.sampled_from(list(STATES.values())), SPANNING), max_size=7).map(
    lambda parts: [Room(number, *part) for number, part in enumerate(parts)]
)


def check_spots(found: ServerSet, seen: Sequence[Room], pods: int) -> None:
    """Each pod has a server of its own that the job can use."""
    assert len(set(found.spots)) == len(found.spots) == pods
    assert set(found.spots) <= {spot for room in seen for spot in room.first(room.size)}


@given(ROOMS, st.integers(1, 30), st.sampled_from(Schema))
def test_version_1_uses_one_server_of_each_slot_for_each_row(seen: list[Room], pods: int, schema: Schema) -> None:
    found = place_v1(seen, 4, pods, schema)
    usable = [usable_room(room, pods, schema) for room in seen]
    total = sum(room.size for room in usable)
    if isinstance(found, NoFit):
        assert schema is LARGE or total < pods
        return
    check_spots(found, usable, pods)
    if schema is LARGE:
        rows = -(-pods // 4)
        assert len(counts(found)) == 1 or max(Counter(spot.slot for spot in found.spots).values()) <= rows
        assert pods >= 4 or len(counts(found)) == 1


@given(ROOMS, st.integers(1, 30), st.sampled_from(Schema), st.integers(1, 2))
def test_version_2_shares_few_switches(seen: list[Room], pods: int, schema: Schema, most_shared: int) -> None:
    found = place_v2(seen, 4, pods, schema, most_shared)
    if isinstance(found, NoFit):
        return
    check_spots(found, seen, pods)
    switches = {spot.switch for spot in found.spots}
    assert found.states.keys() in (switches, set())
    assert bool(found.states) is (len(switches) > 1)
    if schema is LARGE and found.states:
        assert sum(state.use is Use.SHARED for state in found.states.values()) <= most_shared
        assert all(state.is_healthy for state in found.states.values())
        assert all(seen[switch].state in (FREE, SHARED) for switch in switches)


@given(ROOMS, st.integers(1, 30), st.sampled_from(Schema), st.randoms())
def test_the_order_of_the_switches_changes_nothing(seen: list[Room], pods: int, schema: Schema, random: Any) -> None:
    shuffled = random.sample(seen, len(seen))
    assert place_v1(seen, 4, pods, schema) == place_v1(shuffled, 4, pods, schema)
    assert place_v2(seen, 4, pods, schema, 2) == place_v2(shuffled, 4, pods, schema, 2)
    assert place_single_layer(seen, 4, pods) == place_single_layer(shuffled, 4, pods)
