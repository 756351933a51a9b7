"""Which SuperPods the blocks of a job get, against the reference's cases and the properties of the rule."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.asked import SuperPodLimits
from allocator.settings import Settings
from allocator.superpods.stages import Share, place_blocks, place_parts
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue
from tests.allocator.superpods.cases import of_area, of_id

_LETTERS = "ABCDE"

rooms = st.dictionaries(st.integers(0, 6), st.integers(0, 20), max_size=6)
sizes = st.integers(1, 6)
reserves = st.integers(0, 6)
needs = st.integers(1, 12)


def number(name: str) -> int:
    return _LETTERS.index(name) if name in _LETTERS else int(name)


def numbered(nodes: dict[str, int]) -> dict[int, int]:
    return {number(name): count for name, count in nodes.items()}


def total(shares: list[Share]) -> dict[int, int]:
    """How many nodes of each SuperPod they have."""
    nodes: Counter[int] = Counter()
    for share in shares:
        nodes[share.super_pod] += share.nodes
    return dict(nodes)


class Table:
    """The stages for hard affinity as the specification states them.

    Attributes:
        order: the SuperPods of the blocks, in the order in which they are visited.
    """

    def __init__(self, free: dict[int, int], size: int, need: int, reserve: int) -> None:
        self.order: list[int] = []
        self._size, self._need, self._reserve = size, need, reserve
        self._left = {super_pod: nodes for super_pod, nodes in sorted(free.items()) if nodes >= size}
        self._cells = {
            super_pod: divmod(nodes - reserve, size)[::-1] if nodes >= reserve else (nodes % size, 0)
            for super_pod, nodes in self._left.items()
        }
        self._columns = range(1 + max((column for _, column in self._cells.values()), default=0))
        self._without_reserves()
        while len(self.order) < need and any(nodes >= size for nodes in self._left.values()):
            self._with_reserves()

    def _without_reserves(self) -> None:
        larger: list[tuple[int, int]] = []
        for row, column in itertools.product(range(self._size), self._columns[1:]):
            if column <= self._need - len(self.order):
                self._empty(row, column)
            else:
                larger.append((column, row))
        for column, row in sorted(larger):
            self._empty(row, column)

    def _with_reserves(self) -> None:
        for row, column in itertools.product(reversed(range(self._size)), self._columns):
            inside = [each for each in self._left if self._cells[each] == (row, column)]
            for super_pod in sorted(inside, key=lambda each: -self._left[each]):
                self._take(super_pod, beside=0)

    def _empty(self, row: int, column: int) -> None:
        for super_pod in (each for each in self._cells if self._cells[each] == (row, column)):
            while self._take(super_pod, beside=self._reserve):
                pass

    def _take(self, super_pod: int, *, beside: int) -> bool:
        is_taken = len(self.order) < self._need and self._left[super_pod] - beside >= self._size
        if is_taken:
            self._left[super_pod] -= self._size
            self.order.append(super_pod)
        return is_taken


@of_area(
    "superpod.place",
    without=("place-bug-hard-split", "place-bug-incomplete", "place-bug-panic", "place-soft-1", "place-soft-4"),
)
def test_blocks_are_placed_as_in_the_cases(case: dict[str, Any]) -> None:
    given, expected = case["given"], case["expect"]
    limits = SuperPodLimits.of(given["super_pod_size"], given["reserve_nodes"])
    need = given["logical_super_pods"]
    free = numbered(given["free_nodes"])
    shares = place_blocks(free, given["block_nodes"], need, limits)
    if "error" in expected:
        assert len(shares) < need
        return
    assert len(shares) == need
    outcomes = expected["allowed_outcomes"]
    assert total(shares) in [numbered(each["nodes_per_super_pod"]) for each in outcomes]
    # The reference visits those that have as many free nodes in any order.
    assert [free[share.super_pod] for share in shares] in [
        [free[number(name)] for block in sorted(blocks, key=int) for name in blocks[block]]
        for blocks in (each["example_blocks"] for each in outcomes)
    ]


@given(rooms, sizes, reserves, needs)
def test_blocks_are_numbered_in_the_order_of_the_stages(
    free: dict[int, int], size: int, reserve: int, need: int
) -> None:
    shares = place_blocks(free, size, need, SuperPodLimits(48, reserve))
    assert [share.super_pod for share in shares] == Table(free, size, need, reserve).order


@of_area("superpod.place.soft")
def test_parts_are_placed_as_in_the_cases(case: dict[str, Any]) -> None:
    given, expected = case["given"], case["expect"]
    free = dict(enumerate(map(len, given["super_pods"])))
    shares = place_parts(free, given["block_nodes"], need := given["needed_nodes"], SuperPodLimits.of(48, 0))
    assert need - sum(share.nodes for share in shares) == expected["needed_after"]


def test_a_block_is_never_split_and_a_plan_never_incomplete() -> None:
    limits = SuperPodLimits(10, 3)
    assert total(place_blocks({0: 3, 1: 4}, 2, 3, limits)) == {1: 4, 0: 2}
    assert total(place_blocks({0: 3}, 1, 3, limits)) == {0: 3}


def test_parts_are_as_few_and_as_small_as_possible() -> None:
    assert place_parts({0: 1, 1: 1, 2: 2}, 2, 4, SuperPodLimits(10, 2)) == [Share(2, 2), Share(0, 1), Share(1, 1)]
    for reserve in (0, 2):
        assert place_parts({0: 1, 1: 3, 2: 2}, 4, 4, SuperPodLimits(10, reserve)) == [Share(1, 3), Share(0, 1)]
    assert place_parts({0: 3, 1: 3, 2: 3}, 4, 8, SuperPodLimits(10, 2)) == [Share(0, 3), Share(1, 3), Share(2, 2)]


@given(rooms, sizes, reserves, needs)
def test_all_blocks_are_placed_if_there_is_room_for_them(
    free: dict[int, int], size: int, reserve: int, need: int
) -> None:
    shares = place_blocks(free, size, need, SuperPodLimits(48, reserve))
    assert len(shares) == min(need, sum(nodes // size for nodes in free.values()))
    assert all(share.nodes == size for share in shares)
    assert all(nodes <= free[super_pod] for super_pod, nodes in total(shares).items())


@given(rooms, sizes, reserves, needs)
def test_reserves_are_used_for_no_more_blocks_than_needed(
    free: dict[int, int], size: int, reserve: int, need: int
) -> None:
    shares = place_blocks(free, size, need, SuperPodLimits(48, reserve))
    beside = {super_pod: max(0, nodes - reserve) // size for super_pod, nodes in free.items()}
    using = sum(max(0, nodes // size - beside[super_pod]) for super_pod, nodes in total(shares).items())
    assert using == max(0, len(shares) - sum(beside.values()))


@given(rooms, sizes, reserves, needs, st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_nothing(
    free: dict[int, int], size: int, reserve: int, need: int, random: Any
) -> None:
    items = list(free.items())
    random.shuffle(items)
    limits = SuperPodLimits(48, reserve)
    assert place_blocks(dict(items), size, need, limits) == place_blocks(free, size, need, limits)
    assert place_parts(dict(items), size, need, limits) == place_parts(free, size, need, limits)


@given(rooms, sizes, reserves, needs, st.integers(0, 20))
def test_another_super_pod_never_takes_room_away(
    free: dict[int, int], size: int, reserve: int, need: int, more: int
) -> None:
    limits = SuperPodLimits(48, reserve)
    before = place_blocks(free, size, need, limits)
    assert len(place_blocks({**free, 99: more}, size, need, limits)) >= len(before)


@given(rooms, sizes, reserves, st.integers(1, 30))
def test_parts_have_exactly_the_nodes_that_are_needed(
    free: dict[int, int], size: int, reserve: int, nodes: int
) -> None:
    shares = place_parts(free, size, nodes, SuperPodLimits(48, reserve))
    assert sum(share.nodes for share in shares) == min(nodes, sum(free.values()))
    assert all(0 < share.nodes <= size for share in shares)
    assert all(taken <= free[super_pod] for super_pod, taken in total(shares).items())
    whole = sum(share.nodes == size for share in shares)
    assert whole >= min(nodes // size, sum(each // size for each in free.values()))


@of_area("config", without=("grace-conf-3", "grace-conf-5", "grace-conf-6", "grace-conf-7", "config-3", "config-4"))
def test_the_limits_that_settings_mean(case: dict[str, Any]) -> None:
    given, expected = case["given"]["init-params"], case["expect"]
    settings = {key.replace("-", "_"): int(value) for key, value in given.items()}
    limits = fixed_settings(Settings, None, settings).job_defaults.super_pods
    assert (limits.size, limits.reserve) == (expected["super_pod_size"], expected["reserve_nodes"])


@of_id("grace-conf-3", "grace-conf-5", "grace-conf-6", "grace-conf-7")
def test_the_time_for_a_graceful_end_is_as_in_the_cases(case: dict[str, Any]) -> None:
    """A time out of range is refused; the reference takes its default instead (cases grace-conf-3 and grace-conf-6)."""
    given, seconds = case["given"]["grace-over-time"], case["expect"]["seconds"]
    settings = {"reschedule_grace_s": float(given)} if given is not None else {}
    if case["id"] in {"grace-conf-3", "grace-conf-6"}:
        with pytest.raises(InvalidValue, match="reschedule_grace_s"):
            fixed_settings(Settings, None, settings)
    else:
        assert fixed_settings(Settings, None, settings).reschedule_grace_s == seconds


def test_the_shortest_time_for_a_graceful_end_is_two_seconds() -> None:
    assert fixed_settings(Settings, None, {"reschedule_grace_s": 2.0}).reschedule_grace_s == 2.0
    with pytest.raises(InvalidValue, match="reschedule_grace_s"):
        fixed_settings(Settings, None, {"reschedule_grace_s": 1.9})


@pytest.mark.parametrize("name", ["super_pod_size", "reserve_nodes"])
def test_a_setting_that_is_no_number_of_nodes_is_refused(name: str) -> None:
    """The reference takes its default instead (cases config-3 and config-4)."""
    with pytest.raises(InvalidValue, match=name):
        fixed_settings(Settings, None, {name: -1})


def test_there_may_be_no_reserve() -> None:
    assert fixed_settings(Settings, None, {"reserve_nodes": 0}).job_defaults.super_pods == SuperPodLimits(48, 0)
