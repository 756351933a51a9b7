"""The ring rule of the 910A against its definition, the reference's own test cases and the invariants of the spec.

These cases of ``cases/ring_910a.json`` are not about the rule; their subject is tested elsewhere:
x8-check-02, -07 and x8-score-01 (a task that the reference's session doesn't know: here a pod is always given);
x8-check-03 and -08, x8-score-02 (a node without a list of chips: NotAnNpuNode, in state/test_node);
x8-check-04 (a malformed list: the node is refused, in state/test_node);
x8-score-03 and -04 (no Allocatable: ResourceNotOffered, in state/test_node).
x8-valid-d0 (a job without chips) is refused before the rule is applied, in test_request.
"""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from ascend.chips import chip_ids, chip_set
from ascend.errors import Refusal
from ascend.products import ASCEND_910A
from ascend.reasons import Reason
from ascend.rules import ring
from ascend.rules.ring import _PREFERRED_FREE, place
from tests.allocator.builders import World, pod
from tests.allocator.reference import reference_cases

CASES: dict[str, Any] = reference_cases("ring_910a")
GROUPS: dict[int, dict[int, int | None]] = {
    int(request): {int(free): group for free, group in row.items()} for request, row in CASES["group_table"].items()
}
LEFT, RIGHT = range(4), range(4, 8)
masks = st.integers(0, 255)
requests = st.sampled_from(ASCEND_910A.requests)


def ids(case: dict[str, Any]) -> str:
    """The name of a case."""
    return str(case.get("id") or f"{case['req']}-chips-{case['left']}+{case['right']}-free")


def sides(left: int, right: int) -> list[int]:
    """So many chips of each ring."""
    return [*list(LEFT)[:left], *list(RIGHT)[:right]]


def by_definition(free: set[int], request: int) -> tuple[int, tuple[int, ...]] | None:
    """Group and chips: the best ring by the specification's table, the left one of two, and its lowest chips."""
    if request == 8:
        return (0, tuple(range(8))) if len(free) == 8 else None
    choices = []
    for position, side in enumerate((LEFT, RIGHT)):
        there = sorted(free.intersection(side))
        group = GROUPS[request].get(len(there))
        choices += [(group, position, chips) for chips in combinations(there, request) if group is not None]
    return (min(choices)[0], min(choices)[2]) if choices else None


@pytest.mark.parametrize("request_", ASCEND_910A.requests)
def test_every_set_of_free_chips_is_placed_as_defined(request_: int) -> None:
    for mask in range(256):
        fit = place(ASCEND_910A, mask, request_)
        assert ((fit.misfit, fit.chips) if fit else None) == by_definition(set(chip_ids(mask)), request_)


CHECKED = [case for case in CASES["check_node"] if isinstance(case.get("free"), list) and case.get("task_known", True)]


@pytest.mark.parametrize("case", CHECKED, ids=ids)
@pytest.mark.shows("reference", "910A")
def test_filter_agrees_with_the_reference(case: dict[str, Any]) -> None:
    vacancy = Vacancy(ASCEND_910A, 8, chip_set(case["free"]), 8)
    assert isinstance(judge(vacancy, ChipRequest(case["req"])), Fit) == case["pass"]


@pytest.mark.parametrize("case", [case for case in CASES["score"] if any(case["scores"].values())], ids=ids)
def test_scores_agree_with_the_reference(case: dict[str, Any]) -> None:
    for name, state in case["nodes"].items():
        fit = place(ASCEND_910A, chip_set(state["free"]), case["req"])
        assert fit is not None
        assert ring.score(ASCEND_910A, fit, state["alloc"], 0) == case["scores"][name]


@pytest.mark.parametrize("case", CASES["select"], ids=ids)
@pytest.mark.shows("reference", "910A")
def test_selected_chips_agree_with_the_reference(case: dict[str, Any]) -> None:
    fit = place(ASCEND_910A, chip_set(case["free"]), case["req"])
    assert fit is not None
    assert list(fit.chips) == case["selected"]
    assert chip_ids(chip_set(case["free"]) & ~fit.taken) == tuple(case["left_over"])


@pytest.mark.parametrize(("size", "preference"), CASES["priority_arrays"])
def test_ring_preference_agrees_with_the_reference(size: int, preference: list[int] | None) -> None:
    # 0 and 5 are no valid requests here, 8 takes the whole server.
    expected = preference if size in (1, 2, 4) else None
    assert (list(_PREFERRED_FREE[size]) if size in _PREFERRED_FREE else None) == expected


@pytest.mark.parametrize("case", [case for case in CASES["valid_job"] if case["tasks"] != [0]], ids=ids)
def test_valid_requests_agree_with_the_reference(case: dict[str, Any]) -> None:
    vacancy = Vacancy(ASCEND_910A, 8, 0xFF, 8)
    verdicts = [judge(vacancy, ChipRequest(request)) for request in case["tasks"]]
    assert all(isinstance(verdict, Fit) for verdict in verdicts) == case["valid"]
    assert {verdict.reason for verdict in verdicts if isinstance(verdict, Refusal)} <= {Reason.INVALID_REQUEST}


def test_the_hundred_states_of_the_spec() -> None:
    assert len(CASES["executed_grid"]) == 100
    for case in CASES["executed_grid"]:
        fit = place(ASCEND_910A, chip_set(sides(case["left"], case["right"])), case["req"])
        if not case["fits"]:
            assert fit is None, ids(case)
            continue
        assert fit is not None, ids(case)
        assert (fit.misfit, ring.score(ASCEND_910A, fit, 8, 0)) == (case["group"], case["score"]), ids(case)
        assert {"L": set(LEFT), "R": set(RIGHT), "both": set(range(8))}[case["ring"]].issuperset(fit.chips), ids(case)


@pytest.mark.parametrize("request_", ASCEND_910A.requests)
def test_order_keys_rank_the_states_as_the_spec_does(request_: int) -> None:
    cells = [case for case in CASES["executed_grid"] if case["req"] == request_ and case["fits"]]
    fits = [place(ASCEND_910A, chip_set(sides(case["left"], case["right"])), request_) for case in cells]
    keys = [ring.RULE.key(fit, 8, 0) for fit in fits if fit is not None]
    assert [1 + sorted(set(keys)).index(key) for key in keys] == [case["rank"] for case in cells]


@pytest.mark.parametrize("case", CASES["batch_order_2020"], ids=ids)
def test_the_best_of_several_nodes_is_chosen(case: dict[str, Any]) -> None:
    world = World()
    for state in case["nodes"]:
        world.occupy(state["name"], sides(state["left"], state["right"]), healthy=state["capacity"])
    waiting = pod("waiting", case["req"])
    tiers = world.engine.rank(waiting)
    assert (tiers[0].nodes[0] if tiers else None) == case["winner"]
    assert {name: tier.score for tier in tiers for name in tier.nodes} == case["scores"]
    if tiers:
        assert world.engine.place(waiting).node == case["winner"]


@given(free=masks, request_=requests)
def test_selected_chips_are_free_and_within_one_ring(free: int, request_: int) -> None:
    fit = place(ASCEND_910A, free, request_)
    if fit is None:
        return
    assert fit.taken & ~free == 0
    assert len(fit.chips) == fit.taken.bit_count() == request_
    assert fit.chips == tuple(sorted(fit.chips))
    assert request_ == 8 or any(fit.taken & ~ring == 0 for ring in ASCEND_910A.rings)


@given(free=masks, request_=requests)
def test_mirrored_rings_fit_equally_well(free: int, request_: int) -> None:
    fit = place(ASCEND_910A, free, request_)
    mirrored = place(ASCEND_910A, (free >> 4) | (free & 0xF) << 4, request_)
    assert (fit and ring.RULE.key(fit, 8, 0)) == (mirrored and ring.RULE.key(mirrored, 8, 0))


@given(states=st.lists(st.tuples(masks, st.integers(0, 8)), max_size=8), request_=requests)
def test_order_keys_agree_with_reference_scores(states: list[tuple[int, int]], request_: int) -> None:
    fits = [(place(ASCEND_910A, free, request_), max(healthy, free.bit_count())) for free, healthy in states]
    known = [(fit, healthy) for fit, healthy in fits if fit is not None]
    by_key = sorted(known, key=lambda each: ring.RULE.key(each[0], each[1], 0))
    assert [ring.score(ASCEND_910A, fit, healthy, 0) for fit, healthy in by_key] == sorted(
        (ring.score(ASCEND_910A, fit, healthy, 0) for fit, healthy in known), reverse=True
    )


@given(free=masks, healthy=st.integers(0, 8), room=st.integers(0, 8), request_=st.integers(1, 20))
def test_a_refusal_has_the_first_reason_that_applies(free: int, healthy: int, room: int, request_: int) -> None:
    verdict = judge(Vacancy(ASCEND_910A, max(healthy, free.bit_count()), free, room), ChipRequest(request_))
    expected = Reason.INVALID_REQUEST if request_ not in (1, 2, 4, 8) else None
    expected = expected or (Reason.NOT_ENOUGH_CHIPS if free.bit_count() < request_ else None)
    expected = expected or (Reason.NO_ROOM_AT_KUBELET if room < request_ else None)
    expected = expected or (Reason.RING_TOO_SMALL if by_definition(set(chip_ids(free)), request_) is None else None)
    assert (verdict.reason if isinstance(verdict, Refusal) else None) == expected
