"""Which pods on a node are the victims: those with which the least, and the least important, work ends."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.rules.victims import CHIP, Occupant, Work, cost, least_important_first, select_victims
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.products import ASCEND_910A
from ascend.reasons import Reason

IDLE: Final = Vacancy(ASCEND_910A, 8, 0xFF, 8)
REQUESTS: Final = st.sampled_from(ASCEND_910A.requests)


def occupant(name: str, chips: Iterable[int], priority: int = 0, **more: Any) -> Occupant:
    """A pod, alone unless a group and its work are given."""
    held = chip_set(chips)
    size = CHIP * held.bit_count()
    known = {"group": name, "work": Work(priority, size), "terminating": False, "since": "2026-01-01", **more}
    return Occupant(size=size, chips=held, counted=held.bit_count(), uid=name, pod=name, priority=priority, **known)


@st.composite
def occupants(draw: st.DrawFn, *, limit: int = 8) -> list[Occupant]:
    """Pods that hold disjoint sets of chips, alone or of two gangs, which have pods on other nodes as well."""
    owners = draw(st.lists(st.integers(-1, limit - 1), min_size=8, max_size=8))
    groups = {owner: draw(st.sampled_from(["", "", "a", "b"])) for owner in sorted(set(owners) - {-1})}
    works: dict[str, Work] = {}
    for gang in ("a", "b"):
        chips = sum(groups.get(owner) == gang for owner in owners)
        others, here = draw(st.integers(0, 3)), sum(each == gang for each in groups.values())
        spare = draw(st.integers(0, here + others))
        works[gang] = Work(draw(st.integers(0, 2)), CHIP * (chips + 2 * others), here + others, spare)
    found: list[Occupant] = []
    for owner, gang in groups.items():
        of_gang = {"group": gang, "work": works[gang]} if gang else {}
        found.append(
            occupant(
                f"u{owner}",
                (chip for chip in range(8) if owners[chip] == owner),
                draw(st.integers(0, 2)),
                since=f"2026-01-0{draw(st.integers(1, 3))}",
                terminating=draw(st.integers(0, 3)) == 0,
                **of_gang,
            )
        )
    return found


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
    best = min(cost(each) for each in sets if fits(each, pods, request))
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
    best = min(sets, key=lambda each: (cost(ranked[place] for place in each), len(each), each))
    assert [each for each in reversed(chosen) if not each.terminating] == [ranked[place] for place in best]


@given(pods=occupants(), request=REQUESTS)
def test_the_names_of_the_pods_do_not_matter(pods: list[Occupant], request: int) -> None:
    others = [
        replace(each, uid=f"other-{each.uid}", pod=f"other/{each.pod}", group=f"other-{each.group}") for each in pods
    ]
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
    many = [replace(occupant(f"u{n:02}", [n % 8], 5), counted=0) for n in range(16)]
    chosen = select_victims(IDLE, ChipRequest(request_), many)
    assert not isinstance(chosen, Refusal)
    assert len(chosen) == 2 * request_


def test_among_many_pods_no_gang_ends_if_others_of_no_more_work_do() -> None:
    gang = Work(5, 64 * CHIP, 8)
    many = [replace(occupant(f"u{n:02}", [n % 8], 5), counted=0) for n in range(12)]
    many = [replace(each, group="gang", work=gang) if n in {4, 5, 6, 7} else each for n, each in enumerate(many)]
    chosen = select_victims(IDLE, ChipRequest(4), many)
    assert not isinstance(chosen, Refusal)
    assert {each.uid for each in chosen} == {"u00", "u01", "u02", "u03", "u08", "u09", "u10", "u11"}


def victims(request: int, *pods: Occupant) -> list[str]:
    chosen = select_victims(IDLE, ChipRequest(request), pods)
    assert not isinstance(chosen, Refusal)
    return sorted(each.uid for each in chosen)


def test_eight_pods_of_one_chip_end_rather_than_one_of_a_gang_of_sixteen() -> None:
    half = [occupant(f"one-{chip}", [chip]) for chip in range(4)]
    assert victims(4, *half, occupant("of-gang", range(4, 8), group="g", work=Work(0, 128 * CHIP, 16))) == [
        f"one-{chip}" for chip in range(4)
    ]


def test_one_pod_ends_rather_than_several_with_as_many_chips() -> None:
    half = [occupant(f"one-{chip}", [chip]) for chip in range(4)]
    assert victims(4, *half, occupant("four", range(4, 8))) == ["four"]


def test_the_priority_of_its_job_counts_for_a_pod_of_a_gang() -> None:
    low = occupant("low", range(4), 0, group="g", work=Work(7, 8 * CHIP, 2))
    assert victims(4, low, occupant("high", range(4, 8), 6)) == ["high"]


def test_a_gang_loses_only_the_pod_if_its_minimum_stays() -> None:
    elastic = [
        occupant(f"elastic-{chip}", [chip, chip + 1], group="g", work=Work(0, 64 * CHIP, 8, 1)) for chip in (0, 2)
    ]
    alone = occupant("alone", range(4, 8))
    assert victims(2, *elastic, alone) == ["elastic-2"]
    assert victims(4, *elastic, alone) == ["alone"]


def test_pods_of_a_gang_that_can_not_go_on_end_before_others() -> None:
    gang = Work(0, 8 * CHIP, 2)
    here = [occupant(f"gang-{half}", range(half, half + 2), group="g", work=gang) for half in (0, 2)]
    assert victims(8, *here, occupant("alone", range(4, 8))) == ["alone", "gang-0", "gang-2"]
    assert victims(
        4, *here, *(occupant(f"big-{chip}", [chip], group=f"b{chip}", work=Work(0, 3 * CHIP)) for chip in range(4, 8))
    ) == ["gang-0", "gang-2"]


def test_if_no_victims_help_the_nodes_refusal_is_returned() -> None:
    refused = select_victims(Vacancy(ASCEND_910A, 8, 0b0111_0111, 6), ChipRequest(4), [])
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.RING_TOO_SMALL
