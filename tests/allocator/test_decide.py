"""Decisions: filter, rank and place of one pod agree, also with ten pods in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.engine import Tier
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod


def test_equally_good_nodes_share_a_rank_and_the_first_by_name_wins() -> None:
    world = World()
    world.add(node("n2"), node("n1"))
    world.occupy("n3", range(4))
    tiers = world.engine.rank(pod("a", 4), ["n2", "n1", "n3"])
    assert tiers == [Tier(1, 260, ["n3"]), Tier(2, 256, ["n1", "n2"])]
    assert world.engine.place(pod("b", 8)).node == "n1"


def test_asking_where_a_pod_fits_reserves_nothing() -> None:
    world = World()
    world.add(node("n1"))
    world.engine.filter(pod("a"))
    world.engine.rank(pod("a"))
    assert len(world.ledger) == 0


def test_a_pod_is_not_in_its_own_way() -> None:
    world = World()
    world.add(node("n1"))
    asking = pod("a", 8)
    world.engine.place(asking)
    assert world.engine.filter(asking).fitting == ["n1"]
    assert world.engine.rank(asking) == [Tier(1, 256, ["n1"])]
    assert world.engine.filter(pod("b", 1)).fitting == []
    assert world.ledger.get("uid-a") is not None


def test_asked_again_the_answer_is_the_same() -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    first = world.engine.place(pod("a", 2))
    world.occupy("n0", [0, 1])
    again = world.engine.place(pod("a", 2))
    assert (again.node, again.chips) == (first.node, first.chips) == ("n1", (0, 1))


def test_placed_elsewhere_the_first_chips_are_given_up_in_the_same_step() -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    world.engine.place(pod("a", 8))
    moved = world.engine.place(pod("a", 8), ["n2"])
    assert moved.node == "n2"
    assert world.engine.filter(pod("b", 8)).fitting == ["n1"]


def test_chips_that_failed_meanwhile_are_chosen_anew() -> None:
    world = World()
    world.occupy("n1", [0, 1, 2, 3])
    assert world.engine.place(pod("a", 2)).chips == (0, 1)
    world.occupy("n1", [1, 2, 3])
    assert world.engine.place(pod("a", 2)).chips == (1, 2)


def test_where_it_fits_no_longer_nothing_is_kept() -> None:
    world = World()
    world.add(node("n1"))
    world.engine.place(pod("a", 8))
    world.add(node("n1", ready=False))
    with pytest.raises(Refusal) as refused:
        world.engine.place(pod("a", 8))
    assert refused.value.reason == "NodeNotReady"
    assert len(world.ledger) == 0


@pytest.mark.parametrize("stage", [Stage.BINDING, Stage.ASSUMED])
def test_a_pod_on_its_way_to_a_node_fits_only_there(stage: Stage) -> None:
    world = World()
    world.add(node("n1"), node("n2"))
    world.engine.place(pod("a", 2), ["n2"])
    world.ledger.advance("uid-a", stage)
    filtered = world.engine.filter(pod("a", 2))
    assert filtered.fitting == ["n2"]
    assert filtered.refused["n1"].reason == Reason.ALREADY_PLACED
    assert world.engine.rank(pod("a", 2)) == [Tier(1, 0, ["n2"])]
    assert world.engine.rank(pod("a", 2), ["n1"]) == []
    assert world.engine.place(pod("a", 2)).node == "n2"
    with pytest.raises(Refusal) as refused:
        world.engine.place(pod("a", 2), ["n1"])
    assert refused.value.reason == Reason.ALREADY_PLACED
    assert not world.engine.release("uid-a")


def test_a_pod_seen_bound_fits_only_where_it_is() -> None:
    world = World()
    world.add(node("n1"), node("n2"), pod("a", 2, node="n2", chips=[0, 1]))
    assert world.engine.filter(pod("a", 2)).fitting == ["n2"]
    with pytest.raises(Refusal) as refused:
        world.engine.place(pod("a", 2))
    assert refused.value.reason == Reason.ALREADY_PLACED


def test_the_refusal_of_a_single_node_is_the_node_s_own() -> None:
    world = World()
    world.occupy("n1", [0, 1, 2, 4, 5, 6])
    with pytest.raises(Refusal) as refused:
        world.engine.place(pod("a", 4), ["n1"])
    assert refused.value.reason == "RingTooSmall"
    assert "3 + 3" in refused.value.message


@pytest.mark.parametrize("candidates", [None, ["n1", "n2", "n3"]])
def test_the_refusal_of_many_nodes_counts_their_reasons(candidates: list[str] | None) -> None:
    world = World()
    world.occupy("n1", [0])
    world.occupy("n2", [1])
    world.add(node("n3", ready=False))
    with pytest.raises(Refusal) as refused:
        world.engine.place(pod("a", 4), candidates)
    assert refused.value.reason == "NoNodeFits"
    assert "none of 3 nodes: 2 NotEnoughChips, 1 NodeNotReady" in refused.value.message


def test_unknown_and_repeated_candidates_do_no_harm() -> None:
    world = World()
    world.add(node("n1"))
    filtered = world.engine.filter(pod("a"), ["n1", "n1", "nowhere"])
    assert filtered.fitting == ["n1"]
    assert filtered.refused["nowhere"].reason == "UnknownNode"
    assert [tier.nodes for tier in world.engine.rank(pod("a"), ["n1", "n1"])] == [["n1"]]
    assert world.engine.place(pod("a"), ["nowhere", "n1", "n1"]).node == "n1"


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=10),
    choices=st.lists(st.integers(0, 2), min_size=10, max_size=10),
)
def test_ten_pods_in_flight_never_get_a_chip_twice(sizes: list[int], choices: list[int]) -> None:
    """As kube-scheduler works: each pod is filtered and ranked before any of those before it is bound."""
    world = World()
    world.add(*(node(f"n{number}") for number in range(3)))
    pods = [pod(f"p{number}", size) for number, size in enumerate(sizes)]
    winners = {}
    for asking in pods:
        tiers = world.engine.rank(asking)
        assert sorted(name for tier in tiers for name in tier.nodes) == sorted(world.engine.filter(asking).fitting)
        if tiers:
            winners[asking.uid] = world.engine.place(asking, [tiers[0].nodes[0]])
    taken: set[tuple[str, int]] = set()
    for asking, choice in zip(pods, choices, strict=False):
        if asking.uid not in winners:
            continue
        # Other plugins may have outvoted us; then it is bound elsewhere, if it fits there.
        chosen = winners[asking.uid].node if choice else f"n{choice}"
        try:
            bound = world.engine.place(asking, [chosen])
        except Refusal:
            assert chosen != winners[asking.uid].node
            continue
        if chosen == winners[asking.uid].node:
            assert bound.chips == winners[asking.uid].chips
        chips = {(bound.node, chip) for chip in bound.chips}
        assert not taken & chips
        taken |= chips
        world.ledger.advance(asking.uid, Stage.ASSUMED)


@given(
    frees=st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=6),
    named=st.sets(st.integers(0, 7)),
    size=st.sampled_from([1, 2, 4, 8]),
)
def test_the_best_of_some_nodes_is_the_first_of_their_ranking(
    frees: list[set[int]], named: set[int], size: int
) -> None:
    world = World()
    for number, free in enumerate(frees):
        world.occupy(f"n{number}", free)
    # Some of the names may be nobody's.
    candidates = {f"n{number}" for number in named}
    tiers = world.engine.rank(pod("a", size), candidates)
    if not tiers:
        with pytest.raises(Refusal):
            world.engine.place(pod("a", size), candidates)
        return
    assert world.engine.place(pod("a", size), candidates).node == tiers[0].nodes[0]
