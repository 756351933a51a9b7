"""Decisions on single pods: filter, rank and place agree, also with ten pods in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.filtered import Tier
from allocator.decision.unplaced import filter_all
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.turn import at_once
from tests.allocator.builders import GROUP, World, node, pod


def test_equally_good_nodes_share_a_rank_and_the_first_by_name_wins() -> None:
    world = World()
    world.add(node("n2"), node("n1"))
    world.occupy("n3", range(4))
    tiers = world.engine.rank(pod("a", 4), ["n2", "n1", "n3"])
    assert tiers == [Tier(1, 260, ["n3"]), Tier(2, 256, ["n1", "n2"])]
    assert world.engine.place(pod("b", 8)).node == "n1"


def test_filter_and_rank_reserve_nothing() -> None:
    world = World()
    world.add(node("n1"))
    world.engine.filter(pod("a"))
    world.engine.rank(pod("a"))
    assert len(world.ledger) == 0


def test_a_pods_own_reservation_counts_as_free_for_it() -> None:
    world = World()
    world.add(node("n1"))
    placed = pod("a", 8)
    world.engine.place(placed)
    assert world.engine.filter(placed).fitting == ["n1"]
    assert world.engine.rank(placed) == [Tier(1, 256, ["n1"])]
    assert world.engine.filter(pod("b", 1)).fitting == []
    assert world.ledger.get("uid-a") is not None


def test_a_repeated_call_has_the_same_answer() -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    first = world.engine.place(pod("a", 2))
    world.occupy("n0", [0, 1])
    again = world.engine.place(pod("a", 2))
    assert (again.node, again.take.chips) == (first.node, first.take.chips) == ("n1", (0, 1))


def test_a_pod_placed_elsewhere_releases_its_first_chips() -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    world.engine.place(pod("a", 8))
    moved = world.engine.place(pod("a", 8), ["n2"])
    assert moved.node == "n2"
    assert world.engine.filter(pod("b", 8)).fitting == ["n1"]


def test_reserved_chips_that_fail_are_replaced() -> None:
    world = World()
    world.occupy("n1", [0, 1, 2, 3])
    assert world.engine.place(pod("a", 2)).take.chips == (0, 1)
    world.occupy("n1", [1, 2, 3])
    assert world.engine.place(pod("a", 2)).take.chips == (1, 2)


def test_a_pod_that_no_longer_fits_has_no_reservation() -> None:
    world = World()
    world.add(node("n1"))
    world.engine.place(pod("a", 8))
    world.add(node("n1", ready=False))
    refusal = world.refusal(pod("a", 8))
    assert refusal.reason is Reason.NODE_NOT_READY
    assert len(world.ledger) == 0


@pytest.mark.parametrize("stage", [Stage.BINDING, Stage.ASSUMED])
def test_a_pod_with_a_binding_in_flight_fits_only_on_that_node(stage: Stage) -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    world.engine.place(pod("a", 2), ["n2"])
    world.ledger.advance("uid-a", stage)
    filtered = world.engine.filter(pod("a", 2))
    assert filtered.fitting == ["n2"]
    assert filtered.refused["n1"].reason is Reason.ALREADY_PLACED
    assert world.engine.rank(pod("a", 2)) == [Tier(1, 0, ["n2"])]
    assert world.engine.rank(pod("a", 2), ["n1"]) == []
    assert world.engine.place(pod("a", 2)).node == "n2"
    refusal = world.refusal(pod("a", 2), ["n1"])
    assert refusal.reason is Reason.ALREADY_PLACED
    assert not world.engine.release("uid-a")


def test_a_bound_pod_fits_only_on_its_node() -> None:
    world = World()
    world.add(node("n1"), node("n2"), pod("a", 2, node="n2", chips=[0, 1]))
    assert world.engine.filter(pod("a", 2)).fitting == ["n2"]
    refusal = world.refusal(pod("a", 2))
    assert refusal.reason is Reason.ALREADY_PLACED


def test_the_refusal_of_a_single_candidate_is_the_nodes_own() -> None:
    world = World()
    world.occupy("n1", [0, 1, 2, 4, 5, 6])
    refusal = world.refusal(pod("a", 4), ["n1"])
    assert refusal.reason is Reason.RING_TOO_SMALL
    assert "3 + 3" in refusal.message


@pytest.mark.parametrize("candidates", [None, ["n1", "n2", "n3"]])
def test_the_refusals_of_many_nodes_are_counted_by_reason(candidates: list[str] | None) -> None:
    world = World()
    world.occupy("n1", [0])
    world.occupy("n2", [1])
    world.add(node("n3", ready=False))
    refusal = world.refusal(pod("a", 4), candidates)
    assert refusal.reason is Reason.NO_NODE_FITS
    assert "3 nodes: 2 NotEnoughChips, 1 NodeNotReady" in refusal.message


def test_unknown_and_repeated_candidates_are_harmless() -> None:
    world = World()
    world.add(node("n1"))
    filtered = world.engine.filter(pod("a"), ["n1", "n1", "nowhere"])
    assert filtered.fitting == ["n1"]
    assert filtered.refused["nowhere"].reason is Reason.UNKNOWN_NODE
    assert [tier.nodes for tier in world.engine.rank(pod("a"), ["n1", "n1"])] == [["n1"]]
    assert world.engine.place(pod("a"), ["nowhere", "n1", "n1"]).node == "n1"


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=10),
    choices=st.lists(st.integers(0, 2), min_size=10, max_size=10),
)
def test_ten_pods_in_flight_never_share_a_chip(sizes: list[int], choices: list[int]) -> None:
    """As in kube-scheduler, each pod is filtered and ranked before those before it are bound."""
    world = World()
    world.add(*(node(f"n{number}") for number in range(3)))
    pods = [pod(f"p{number}", size) for number, size in enumerate(sizes)]
    winners = {}
    for each in pods:
        tiers = world.engine.rank(each)
        assert sorted(name for tier in tiers for name in tier.nodes) == sorted(world.engine.filter(each).fitting)
        if tiers:
            winners[each.uid] = world.engine.place(each, [tiers[0].nodes[0]])
    taken: set[tuple[str, int]] = set()
    for each, choice in zip(pods, choices, strict=False):
        if each.uid not in winners:
            continue
        # Other plugins may prefer another node: the pod is bound there, if it fits.
        chosen = winners[each.uid].node if choice else f"n{choice}"
        try:
            bound = world.engine.place(each, [chosen])
        except Refusal:
            assert chosen != winners[each.uid].node
            continue
        if chosen == winners[each.uid].node:
            assert bound.take.chips == winners[each.uid].take.chips
        chips = {(bound.node, chip) for chip in bound.take.chips}
        assert not taken & chips
        taken |= chips
        world.ledger.advance(each.uid, Stage.ASSUMED)


@given(
    frees=st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=6),
    named=st.sets(st.integers(0, 7)),
    size=st.sampled_from([1, 2, 4, 8]),
)
def test_the_chosen_candidate_is_the_first_of_the_ranking(frees: list[set[int]], named: set[int], size: int) -> None:
    world = World()
    for number, free in enumerate(frees):
        world.occupy(f"n{number}", free)
    # Some of the names may be of no node.
    candidates = {f"n{number}" for number in named}
    tiers = world.engine.rank(pod("a", size), candidates)
    if not tiers:
        with pytest.raises(Refusal):
            world.engine.place(pod("a", size), candidates)
        return
    assert world.engine.place(pod("a", size), candidates).node == tiers[0].nodes[0]


def test_why_a_pod_fits_on_none_of_many_nodes_is_read_with_pauses() -> None:
    world = World()
    world.occupy("n1", range(4))
    names, steps = ["n1", *(f"gone-{number}" for number in range(9_000))], 0
    found = world.engine.place_or_explain(pod("a", 8), names)
    while True:
        try:
            next(found)
        except StopIteration as done:
            explained = done.value
            break
        steps += 1
    assert steps > len(names) // 4096
    assert list(explained.refused) == names
    assert explained.reasons == {Reason.NOT_ENOUGH_CHIPS: 1, Reason.UNKNOWN_NODE: 9_000}


def test_a_node_that_becomes_free_in_such_a_pause_is_reserved() -> None:
    world = World()
    found = world.engine.place_or_explain(pod("a", 8), [*(f"gone-{number}" for number in range(9_000)), "n1"])
    next(found)
    world.add(node("n1"))
    placed = at_once(found)
    assert isinstance(placed, Reservation)
    assert placed.node == "n1"


@pytest.mark.parametrize("is_of_gang", [True, False])
def test_where_a_pod_fits_of_many_nodes_is_found_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
    is_of_gang: bool,  # noqa: FBT001 - a parameter
) -> None:
    monkeypatch.setattr("allocator.decision.engine._STEP", 2)
    monkeypatch.setattr("allocator.decision.unplaced._STEP", 2)
    world = World()
    for number in range(8):
        world.occupy(f"n{number}", range(number))
    world.add(*(node(f"other-{number}", labels={"pool": "b"}) for number in range(4)), node("n7", labels={"pool": "a"}))
    marks = {GROUP: "g", MIN_AVAILABLE: "2"} if is_of_gang else {}
    asking, peer = (pod(name, 4, annotations=marks, selector={"pool": "a"}) for name in ("a", "b"))
    world.add(asking, peer, node("n6", labels={"pool": "a"}))
    expected = at_once(filter_all(world.cluster, world.engine, asking))
    assert set(expected.fitting) <= {"n6", "n7"}
    assert Reason.NODE_SELECTOR_MISMATCH in {each.reason for each in expected.refused.values()}

    found, steps = filter_all(world.cluster, world.engine, asking), 0
    gone = world.cluster.nodes["other-3"].node
    assert gone is not None
    while True:
        try:
            next(found)
        except StopIteration as done:
            filtered = done.value
            break
        steps += 1
        if steps == 8:
            world.cluster.node_deleted(gone)
    assert steps > 8
    assert filtered.fitting == expected.fitting
    said = {name: (each.reason, each.message) for name, each in expected.refused.items() if name != "other-3"}
    assert {name: (each.reason, each.message) for name, each in filtered.refused.items() if name != "other-3"} == said
