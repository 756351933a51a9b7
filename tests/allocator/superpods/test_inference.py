"""Which SuperPods the blocks of inference jobs get."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.asked import SuperPodLimits
from allocator.superpods.inference import place_mind_ie, place_service
from tests.allocator.superpods.cases import of_area

rooms = st.dictionaries(st.integers(0, 6), st.integers(0, 20), max_size=6)


def numbers(nodes: dict[str, int]) -> dict[int, int]:
    return {int(name): count for name, count in nodes.items()}


@of_area("mindie.place")
def test_a_mind_ie_job_is_placed_as_in_the_cases(case: dict[str, Any]) -> None:
    given, expected = case["given"], case["expect"]
    near = given.get("occupied_nodes_with_matching_job")
    shares = place_mind_ie(
        numbers(given["free_nodes"]),
        given["block_nodes"],
        given["logical_super_pods"],
        SuperPodLimits(48, given["reserve_nodes"]),
        idlest=given.get("sp_fit") == "idlest",
        near=numbers(near) if near is not None else None,
    )
    if "error" in expected:
        assert len(shares) < given["logical_super_pods"]
    else:
        assert [str(share.super_pod) for share in shares] == expected["super_pods_in_order"]


def test_the_reserve_comes_before_nearness_and_that_before_room() -> None:
    limits = SuperPodLimits(48, 2)

    def first(free: dict[int, int], near: dict[int, int] | None = None, *, idlest: bool = False) -> int:
        return place_mind_ie(free, 2, 1, limits, idlest=idlest, near=near)[0].super_pod

    assert first({0: 8, 1: 3}, {1: 3}) == 0
    assert first({0: 4, 1: 4}, {0: 1, 1: 2}, idlest=True) == 1
    assert first({0: 4, 1: 5}, idlest=True) == 1
    assert first({0: 3, 1: 2}) == 1
    assert first({0: 3, 1: 2}, idlest=True) == 0


def test_a_job_that_wants_to_be_near_stays_where_its_first_block_is() -> None:
    shares = place_mind_ie({0: 8, 1: 9}, 2, 3, SuperPodLimits(48, 2), idlest=True, near={})
    assert [share.super_pod for share in shares] == [1, 1, 1]


# Case infer-5, a block of no nodes, is refused before (test_demand.py).
@of_area("inferservice.place", without=("infer-5",))
def test_a_service_is_placed_as_in_the_cases(case: dict[str, Any]) -> None:
    given, expected = case["given"], case["expect"]
    hosting = [int(name) for name in given["super_pods_already_hosting_service"]]
    shares = place_service(numbers(given["free_nodes"]), given["block_nodes"], given["blocks"], hosting)
    if "error" in expected:
        assert len(shares) < given["blocks"]
        return
    assert len(shares) == given["blocks"]
    used = [str(share.super_pod) for share in shares]
    if "super_pods_in_order" in expected:
        assert used == expected["super_pods_in_order"]
    else:
        assert sorted(set(used)) == expected["super_pods_used"]


@given(rooms, st.integers(1, 5), st.integers(1, 10), st.integers(0, 4), st.booleans())
def test_all_blocks_are_placed_if_there_is_room(
    free: dict[int, int],
    size: int,
    need: int,
    reserve: int,
    idlest: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    room = min(need, sum(nodes // size for nodes in free.values()))
    for shares in (
        place_mind_ie(free, size, need, SuperPodLimits(48, reserve), idlest=idlest),
        place_mind_ie(free, size, need, SuperPodLimits(48, reserve), idlest=idlest, near={1: 2}),
        place_service(free, size, need, (1, 9)),
    ):
        assert len(shares) == room
        assert all(
            sum(share.nodes for share in shares if share.super_pod == number) <= nodes for number, nodes in free.items()
        )
