"""What a request for AI cores stands for on each kind of chip, and what is left of a node."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.cores import (
    ChipLeft,
    CoresLeft,
    cores_left,
    fewest_chips,
    fits_beside,
    part_or_chips,
    requested_cores,
)
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.products import PRODUCTS
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES, TEMPLATES, Divisible, Media, VnpuTemplate
from tests.allocator.builders import World, pod
from tests.allocator.cores import A3_20, A3_24, B1, B2, B3, B4, CHIPS, Chip, core_pod

VALID = {B1: (6, 12), B2: (6, 12), B3: (5, 10), B4: (5, 10), A3_24: (6, 12), A3_20: (5, 10)}
"""docs/spec/vnpu.md#valid-requests-for-cores"""


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: f"{chip.chip_type}-{chip.cores}-{chip.memory_gb}G")
def test_the_valid_numbers_are_those_of_the_chip(chip: Chip) -> None:
    for cores in range(chip.cores * 16 + 1):
        found = part_or_chips(chip.kind, ChipRequest(0, cores=cores))
        if cores in VALID[chip]:
            assert isinstance(found, VnpuTemplate)
            assert (found.cores, found.media) == (cores, Media.SHARED)
        elif cores and not cores % chip.cores:
            assert found == cores // chip.cores
        else:
            assert isinstance(found, Refusal)
            one, two = VALID[chip]
            assert f"may request {one} or {two}, or a multiple of {chip.cores}" in found.message


@pytest.mark.parametrize(
    ("labels", "template"),
    [
        ({}, "vir10_3c_16g"),
        ({"vnpu-dvpp": "null"}, "vir10_3c_16g"),
        ({"vnpu-dvpp": "no"}, "vir10_3c_16g_nm"),
        ({"vnpu-dvpp": "yes"}, "vir10_4c_16g_m"),
        ({"vnpu-level": "high"}, "vir10_3c_16g"),
    ],
)
def test_labels_choose_among_the_templates_of_ten_cores_of_a_910b4(labels: Mapping[str, str], template: str) -> None:
    request = requested_cores(core_pod("p", 10, labels=labels))
    assert request is not None
    assert part_or_chips(B4.kind, request) == TEMPLATES[template]
    for chip in set(CHIPS) - {B4}:
        assert isinstance(part_or_chips(chip.kind, request), Refusal) == (chip.cores != 20 or request.with_labels)


@pytest.mark.parametrize(
    ("cores", "labels", "words"),
    [
        (7, {}, "requests 7 AI cores; a pod may request 5, 6, 10 or 12, or a multiple of 20, 24 or 25"),
        (1, {}, "requests 1 AI core; "),
        (3, {}, "requests 3 AI cores; "),
        (
            5,
            {"vnpu-dvpp": "yes"},
            "requests 5 AI cores; label vnpu-dvpp=yes needs 10 AI cores of a chip with 32 GB (910B4)",
        ),
        (20, {"vnpu-dvpp": "no"}, "requests 20 AI cores; label vnpu-dvpp=no needs 10 AI cores"),
        (12, {"vnpu-level": "high"}, "requests 12 AI cores; label vnpu-level=high needs 10 AI cores"),
        (10, {"vnpu-dvpp": "all"}, "label vnpu-dvpp=all is none of yes, null, no"),
        (10, {"vnpu-level": "medium"}, "label vnpu-level=medium is none of low, high"),
    ],
)
def test_what_no_chip_allows_is_refused_at_once(cores: int, labels: Mapping[str, str], words: str) -> None:
    with pytest.raises(Refusal) as refused:
        requested_cores(core_pod("p", cores, labels=labels))
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert words in refused.value.message


def test_cores_are_requested_in_one_container_and_zero_is_no_request() -> None:
    one = Container("a", Resources(limits={RESOURCE_CORES: "5"}))
    two = Container("b", Resources(requests={RESOURCE_CORES: "5"}))
    with pytest.raises(Refusal, match="5 in container b, 5 in container a; AI cores may be requested in one"):
        requested_cores(pod("p", containers=[one], init_containers=[two]))
    for most in (0, 1):  # also where the two would be too many for their job
        refusal = World(vnpus_per_job=most).refusal(pod("p", containers=[one, two]))
        assert "5 in container a, 5 in container b; AI cores may be requested in one" in refusal.message
    assert requested_cores(core_pod("none", 0)) is None
    assert not core_pod("none", 0).requests_chips
    assert fewest_chips(48)
    assert not fewest_chips(10)
    assert [fewest_chips(cores) for cores in (20, 24, 48, 75, 100, 10, 0)] == [1, 1, 2, 3, 4, 0, 0]


def test_media_units_are_for_one_or_shared_or_not_needed() -> None:
    small, none, all_of = TEMPLATES["vir10_3c_16g"], TEMPLATES["vir10_3c_16g_nm"], TEMPLATES["vir10_4c_16g_m"]
    chip = ChipLeft.whole(B4.kind, 0)
    assert chip.fits(all_of)
    assert not chip.without(small).fits(all_of)
    assert not chip.without(TEMPLATES["vir05_1c_8g"]).fits(all_of)
    # 4 and 3 AI CPUs are more than a chip has, so half a chip with all media units leaves room for one of 5 cores only.
    assert not chip.without(all_of).fits(none)
    assert not chip.without(all_of).fits(TEMPLATES["vir05_1c_8g"])
    assert chip.without(none).fits(small)
    assert not chip.without(none).fits(all_of)  # 3 and 4 AI CPUs
    assert fits_beside(Cut(1, none.name), [Cut(1, none.name), Cut(0, small.name), Cut(0, small.name)])
    assert not fits_beside(Cut(0, none.name), [Cut(0, small.name), Cut(0, small.name)])


def test_the_chip_with_the_least_left_comes_first_and_whole_chips_last() -> None:
    five, ten = TEMPLATES["vir05_1c_16g"], TEMPLATES["vir10_3c_32g"]
    cuts = [Cut(0, five.name), Cut(2, ten.name), Cut(2, five.name), Cut(3, ten.name)]
    left = cores_left(B3.kind, cuts, excluded=0, counted=30, allocatable=160)
    assert [(each.chip, each.cores, each.cpus) for each in left.cut] == [(0, 15, 5), (2, 5, 2), (3, 10, 3)]
    free = 0b11110010
    order = []
    for template in (five, ten, ten, ten):
        chosen = left.choose(template, free)
        assert chosen is not None
        order.append(chosen.cut.name)
        left, free = left.without(chosen.cut, free), free & ~(1 << chosen.cut.chip)
    assert order == ["2-vir05_1c_16g", "3-vir10_3c_32g", "0-vir10_3c_32g", "1-vir10_3c_32g"]
    assert left.room == 160 - 30 - 35
    assert left.cores(free) == 4 * 20 + 0 + 0 + 5 + 10


KINDS = st.sampled_from([chip.kind for chip in CHIPS])
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99)), max_size=60)


def vacancy_of(kind: Divisible, takes: list[Take]) -> Vacancy:
    """What is left beside these, computed anew as after a restart."""
    product = PRODUCTS["910B-8"]
    occupied = 0
    for take in takes:
        occupied |= take.occupied
    whole = sum(take.chip_set for take in takes)
    cuts = [take.cut for take in takes if take.cut is not None]
    counted = sum(take.cores for take in takes)
    left = cores_left(kind, cuts, excluded=whole, counted=counted, allocatable=8 * kind.cores)
    return Vacancy(product, 8, 0xFF & ~occupied, 8, cores=left)


def used(takes: list[Take]) -> dict[int, list[VnpuTemplate]]:
    found: dict[int, list[VnpuTemplate]] = defaultdict(list)
    for take in takes:
        if take.cut is not None:
            found[take.cut.chip].append(take.cut.size)
    return found


@given(KINDS, STEPS)
def test_no_chip_gives_more_than_it_has(kind: Divisible, steps: list[tuple[int, int]]) -> None:
    sizes = [(each.cores, each.media) for each in kind.templates]
    sizes += [(kind.cores * number, Media.SHARED) for number in (1, 2)]
    takes: list[Take] = []
    vacancy = vacancy_of(kind, takes)
    for action, choice in steps:
        if action == 0 and takes:  # one ends
            takes.pop(choice % len(takes))
            vacancy = vacancy_of(kind, takes)
            continue
        if action == 1:  # a restart
            again = vacancy_of(kind, takes)
            assert (again.free, again.cores) == (vacancy.free, vacancy.cores)
            vacancy = again
            continue
        cores, media = sizes[choice % len(sizes)]
        request = ChipRequest(0, cores=cores, media=media, with_labels=media is not Media.SHARED)
        verdict = judge(vacancy, request)
        if not isinstance(verdict, Fit):
            assert verdict.reason in {Reason.NO_FREE_VNPU, Reason.NOT_ENOUGH_CHIPS}
            if verdict.reason is Reason.NO_FREE_VNPU:  # really on no chip
                template = kind.template(cores, media)
                assert template is not None
                assert not vacancy.free
                assert vacancy.cores is not None
                assert not any(each.fits(template) for each in vacancy.cores.cut)
            continue
        assert vacancy.has(verdict.take, request)
        assert request.is_for(verdict.take)
        assert ChipRequest.of(verdict.take) == request
        # Whole chips are uncut, and a part is never of a chip that somebody has as a whole.
        assert not verdict.take.chip_set & ~vacancy.free
        takes.append(verdict.take)
        vacancy = vacancy.without(verdict.take)
        whole = Counter(chip for take in takes for chip in take.chips)
        assert all(number == 1 for number in whole.values())
        for chip, templates in used(takes).items():
            assert chip not in whole
            assert sum(each.cores for each in templates) <= kind.cores
            assert sum(each.cpus for each in templates) <= kind.cpus
            media_used = Counter(each.media for each in templates)
            assert media_used[Media.ALL] <= 1
            assert not (media_used[Media.ALL] and media_used[Media.SHARED])


@given(KINDS, st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(TEMPLATES))), max_size=12))
def test_whatever_pods_are_said_to_have_nothing_is_less_than_none(kind: Divisible, held: list[tuple[int, str]]) -> None:
    left = cores_left(kind, [Cut(*each) for each in held], excluded=0b1, counted=999, allocatable=100)
    assert left.room == 0
    assert all(each.cores >= 0 and each.cpus >= 0 and each.chip for each in left.cut)


def test_a_request_says_what_it_is_for() -> None:
    part = Take.part(Cut(0, "vir10_3c_16g_nm"))
    assert ChipRequest.of(part) == ChipRequest(0, cores=10, media=Media.NONE, with_labels=True)
    whole = Take.whole((0, 1), cores=40)
    assert ChipRequest.of(whole) == ChipRequest(0, cores=40)
    assert not ChipRequest(2).is_for(whole)
    assert not ChipRequest(0, cores=40).is_for(Take.whole((0, 1)))
    assert ChipRequest(0, cores=40).what == "40 AI cores"
    assert ChipRequest(0, cores=10).size < 1 < ChipRequest(0, cores=40).size
    assert CoresLeft(B3.kind, unknown="x").cores(0xFF) == 0
