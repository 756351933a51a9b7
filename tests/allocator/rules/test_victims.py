"""Which pods on a node are the victims: as few and as unimportant as possible."""

from collections.abc import Iterable
from itertools import combinations
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.rules.victims import Cost, Occupant, cost, least_important_first, select_victims
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.products import ASCEND_910A
from ascend.reasons import Reason

IDLE: Final = Vacancy(ASCEND_910A, 8, 0xFF, 8)
REQUESTS: Final = st.sampled_from(ASCEND_910A.requests)


@st.composite
def occupants(draw: st.DrawFn, *, limit: int = 8) -> list[Occupant]:
    """Pods that hold disjoint sets of chips."""
    owners = draw(st.lists(st.integers(-1, limit - 1), min_size=8, max_size=8))
    return [
        Occupant(
            uid=f"u{owner}",
            pod=f"default/p{owner}",
            priority=draw(st.integers(0, 2)),
            since=f"2026-01-0{draw(st.integers(1, 3))}",
            terminating=draw(st.integers(0, 3)) == 0,
            chips=chip_set(chip for chip in range(8) if owners[chip] == owner),
            counted=owners.count(owner),
        )
        for owner in sorted(set(owners) - {-1})
    ]


def fits(gone: Iterable[Occupant], pods: list[Occupant], request: int) -> bool:
    """Whether the request fits without some pods: only the chips of the others are not free."""
    stay = [each for each in pods if each not in list(gone)]
    free = 0xFF & ~sum(each.chips for each in stay)
    return isinstance(
        judge(Vacancy(ASCEND_910A, 8, free, 8 - sum(each.counted for each in stay)), ChipRequest(request)), Fit
    )


@given(pods=occupants(), request=REQUESTS)
def test_the_chosen_victims_cost_least(pods: list[Occupant], request: int) -> None:
    chosen = select_victims(IDLE, ChipRequest(request), pods)
    assert not isinstance(chosen, Refusal)
    sets = [each for size in range(len(pods) + 1) for each in combinations(pods, size)]
    best: Cost = min(cost(each) for each in sets if fits(each, pods, request))
    assert fits(chosen, pods, request)
    assert cost(chosen) == best
    assert not any(fits([each for each in chosen if each is not spared], pods, request) for spared in chosen)


@given(pods=occupants(), request=REQUESTS)
def test_among_equal_costs_the_youngest_pods_are_chosen(pods: list[Occupant], request: int) -> None:
    chosen = select_victims(IDLE, ChipRequest(request), pods)
    assert not isinstance(chosen, Refusal)
    terminating = [each for each in pods if each.terminating]
    ranked = least_important_first(each for each in pods if not each.terminating)
    sets = [each for size in range(len(ranked) + 1) for each in combinations(range(len(ranked)), size)]
    sets = [each for each in sets if fits([*terminating, *(ranked[place] for place in each)], pods, request)]
    best = min(sets, key=lambda each: (cost(ranked[place] for place in each), each))
    assert [each for each in reversed(chosen) if not each.terminating] == [ranked[place] for place in best]


@given(pods=occupants(), request=REQUESTS)
def test_the_names_of_the_pods_do_not_matter(pods: list[Occupant], request: int) -> None:
    others = [replace(each, uid=f"other-{each.uid}", pod=f"other/{each.pod}") for each in pods]
    twin = dict(zip(pods, others, strict=True))
    chosen, renamed = (select_victims(IDLE, ChipRequest(request), each) for each in (pods, others))
    assert not isinstance(chosen, Refusal)
    assert renamed == tuple(twin[each] for each in chosen)


@given(pods=occupants(), request=REQUESTS, data=st.data())
def test_the_order_of_the_pods_does_not_matter(pods: list[Occupant], request: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(pods))
    assert select_victims(IDLE, ChipRequest(request), pods) == select_victims(IDLE, ChipRequest(request), shuffled)


@pytest.mark.parametrize("request_", [1, 2, 4, 8])
def test_among_many_pods_only_necessary_victims_are_chosen(request_: int) -> None:
    # More pods than chips, all of one priority, where several pods share a chip.
    many = [Occupant(f"u{n:02}", f"default/p{n}", 5, "2026", False, 1 << n % 8, 0) for n in range(16)]  # noqa: FBT003
    chosen = select_victims(IDLE, ChipRequest(request_), many)
    assert not isinstance(chosen, Refusal)
    assert len(chosen) == 2 * request_


def test_if_no_victims_help_the_nodes_refusal_is_returned() -> None:
    refused = select_victims(Vacancy(ASCEND_910A, 8, 0b0111_0111, 6), ChipRequest(4), [])
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.RING_TOO_SMALL
