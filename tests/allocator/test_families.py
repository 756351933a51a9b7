"""The rules of the products beside the 910A against the reference's own test cases, and the invariants of all of them.

Of ``cases/families.json`` these are not about the rules, and their subject is tested elsewhere or does not exist here:
base check_node 2 to 4 and a3 check_node 4 to 6 (a task the session doesn't know; lists that are missing, malformed or
too long: such a node is refused, in test_offer); base check_node 6 and valid_job with 0 chips (refused before the rule
is asked, in test_request); base score 4 (a list longer than the server: InvalidReport, in test_offer);
network_unhealthy_lookup (the keys are decoded with the report, in tests/ascend/test_deviceinfo);
a3 valid_job 1 and 5 (jobs without chips are not our business) and 4 (its total is not the sum of its pods).
The ring rule's cases are in test_ring_rule. Left to others: rank_fill, set_rank_index and prefer_previous_node (jobs),
free_per_card_after_preemption (preemption), job_resource (PodGroup minResources: here a pod's own request counts),
deallocate (chips come back when the watch shows a pod finished or gone, in test_offer).
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.rules import dies, meshes, pool
from allocator.rules.families import RULES
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.rules.validity import JobShape, invalidity
from ascend.chips import chip_ids, chip_set
from ascend.errors import Refusal
from ascend.products import (
    ASCEND_910B_16,
    ASCEND_A3_16,
    MESH_8,
    MESH_16,
    PLAIN_8,
    PLAIN_16,
    PRODUCTS,
    Family,
    Product,
)

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "cases" / "families.json").read_text())
BASE, A3, CHIP4 = CASES["base_handler"], CASES["module910a3x16"], CASES["chip4nodex"]

every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


def numbered(cases: list[Any], *, without: Collection[int] = ()) -> pytest.MarkDecorator:
    chosen = [(number, case) for number, case in enumerate(cases, 1) if number not in without]
    return pytest.mark.parametrize("case", [case for _, case in chosen], ids=[str(number) for number, _ in chosen])


def whole(product: Product, free: list[int], *, faulty: int = 0, cut_off: int = 0) -> Vacancy:
    chips = chip_set(free)
    return Vacancy(product, product.chips - faulty, chips, product.chips, faulty, chips & cut_off)


@numbered(BASE["check_node"], without={2, 3, 4, 6})
def test_where_any_chips_will_do_the_reference_filters_alike(case: dict[str, Any]) -> None:
    verdict = judge(whole(PLAIN_16, case["free"]), ChipRequest(case["req"]))
    assert isinstance(verdict, Fit) == case["pass"]


@numbered(BASE["score"], without={4})
def test_where_any_chips_will_do_the_reference_scores_alike(case: dict[str, Any]) -> None:
    verdict = judge(whole(PLAIN_8, case["free"], faulty=len(case["unhealthy"])), ChipRequest(1))
    assert isinstance(verdict, Fit)
    assert verdict.score == case["score"]


@numbered(BASE["valid_job"])
def test_where_any_chips_will_do_the_same_jobs_are_valid(case: dict[str, Any]) -> None:
    shape = JobShape("job", frozenset(case["tasks"]), products=frozenset({"plain-16"}))
    assert (invalidity(shape) is None) == case["valid"]


@numbered(A3["check_node"], without={4, 5, 6})
def test_on_a3_the_reference_filters_alike(case: dict[str, Any]) -> None:
    vacancy = whole(ASCEND_A3_16, case["free"], cut_off=chip_set(case["network_unhealthy"]))
    assert isinstance(judge(vacancy, ChipRequest(case["req"], distributed=case["tasks"] > 1)), Fit) == case["pass"]


@numbered(A3["score"])
def test_on_a3_the_reference_scores_alike_where_its_scan_went_on(case: dict[str, Any]) -> None:
    scored = []
    for _, free in case["nodes_in_order"]:
        placement = dies.place(ASCEND_A3_16, chip_set(free), case["req"])
        scored.append(0 if placement is None else dies.score(ASCEND_A3_16, placement, 16, 0))
    # The reference's scan stops at the first perfect node and leaves the nodes behind it at 0; ours goes on.
    perfect = 512
    scanned = scored.index(perfect) + 1 if perfect in scored else len(scored)
    assert scored[:scanned] == case["scores"][:scanned]
    assert not any(case["scores"][scanned:])


@numbered(A3["select"])
def test_on_a3_the_reference_selects_the_same_chips(case: dict[str, Any]) -> None:
    vacancy = whole(ASCEND_A3_16, case["free"], cut_off=chip_set(case.get("network_unhealthy", ())))
    verdict = judge(vacancy, ChipRequest(case["req"], distributed=case["tasks"] > 1))
    if case.get("error"):
        assert isinstance(verdict, Refusal)
    else:
        assert isinstance(verdict, Fit)
        assert chip_ids(verdict.taken) == tuple(case["selected_set"])


@numbered(A3["valid_job"], without={1, 4, 5})
def test_on_a3_the_same_jobs_are_valid(case: dict[str, Any]) -> None:
    sizes = frozenset(task["req"] for task in case["tasks"] if task["req"])
    shape = JobShape("job", sizes, case["npu_tasks"], frozenset({"A3-16"}))
    assert (invalidity(shape) is None) == case["valid"]


@numbered(CHIP4["mesh_info"])
def test_meshes_are_chips_of_four_in_a_row(case: list[Any]) -> None:
    free, per_mesh, full = case
    counted = [(mesh & chip_set(free)).bit_count() for mesh in MESH_16.rings]
    assert (counted, counted.count(4)) == (per_mesh, full)


@numbered(CHIP4["need_and_available"])
def test_as_many_meshes_will_do_as_the_reference_counts(case: list[Any]) -> None:
    request, free, needed, usable = case
    placement = meshes.place(MESH_16, chip_set(free), request)
    if usable < needed:
        assert placement is None
    else:
        assert placement is not None
        assert placement.misfit == 16 * (usable - needed) + len(free) - request


@numbered(CHIP4["filter"])
def test_on_meshes_the_reference_filters_alike(case: list[Any]) -> None:
    request, free, passes = case
    assert isinstance(judge(whole(MESH_16, free), ChipRequest(request)), Fit) == passes


@numbered(CHIP4["score"])
def test_on_meshes_the_reference_scores_alike(case: list[Any]) -> None:
    chips, request, free, best, score = case
    product = {8: MESH_8, 16: MESH_16}[chips]
    placement = meshes.place(product, chip_set(free), request)
    assert placement is not None
    assert (placement.misfit, meshes.score(product, placement, chips, 0)) == (best, score)


@numbered(CHIP4["select"])
def test_on_meshes_the_reference_selects_the_same_chips(case: list[Any]) -> None:
    request, free, selected = case
    placement = meshes.place(MESH_16, chip_set(free), request)
    assert placement is not None
    assert chip_ids(placement.taken) == tuple(selected)


def linked(product: Product, taken: int, request: int) -> bool:
    """Whether chips are linked with each other as a pod of so many needs it: seed 000 and spec/scheduling.md §4."""
    touched = [ring for ring in product.rings if ring & taken]
    filled = all(taken & ring == ring for ring in touched)
    match product.family:
        case Family.POOL:
            return True
        case Family.RINGS:
            return len(touched) == 1 or taken == product.all_chips
        case Family.PAIRED_RINGS:
            return len(touched) == 1 or taken >> 8 == taken & 0xFF
        case Family.DIES:
            return request == 1 or filled
        case Family.MESHES:
            return len(touched) == 1 or filled or (request > 4 and request % 4 != 0)


@every_product
@settings(max_examples=40)
@given(data=st.data())
def test_passing_scoring_and_selecting_are_one(product: Product, data: st.DataObject) -> None:
    """§9: pass ⇔ scored ⇔ selectable; selected ⊆ free; |selected| = request; linked as the request needs it."""
    free = data.draw(st.integers(0, product.all_chips))
    distributed = data.draw(st.booleans())
    request = data.draw(st.sampled_from(product.allowed(distributed=distributed)))
    cut_off = data.draw(st.integers(0, product.all_chips)) & free
    vacancy = Vacancy(product, product.chips, free, product.chips, cut_off=cut_off)
    verdict = judge(vacancy, ChipRequest(request, distributed=distributed))
    if isinstance(verdict, Refusal):
        assert verdict.reason in {"NotEnoughChips", "RingTooSmall", "PairsBroken", "CardsBroken", "MeshTooSmall"}
        return
    assert verdict.taken & ~free == 0
    assert chip_set(verdict.chips) == verdict.taken
    assert len(verdict.chips) == len(set(verdict.chips)) == request
    assert linked(product, verdict.taken, request)
    assert verdict.score > 0
    if distributed and product.has_network:
        assert not verdict.taken & cut_off


@every_product
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_free_as_a_whole_takes_every_request(product: Product, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from(product.requests))
    assert isinstance(judge(whole(product, list(range(product.chips))), ChipRequest(request)), Fit)


@every_product
@settings(max_examples=40)
@given(data=st.data())
def test_a_larger_score_never_belongs_to_a_worse_node(product: Product, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from(product.requests))
    fits = []
    for _ in range(6):
        free = data.draw(st.integers(0, product.all_chips))
        healthy = data.draw(st.integers(free.bit_count(), product.chips))
        sub_healthy = data.draw(st.booleans())
        vacancy = Vacancy(
            product, healthy, free, product.chips, faulty=product.chips - healthy, sub_healthy=sub_healthy
        )
        verdict = judge(vacancy, ChipRequest(request))
        if isinstance(verdict, Fit):
            fits.append(verdict)
    scores = [fit.score for fit in sorted(fits, key=lambda fit: fit.key)]
    assert scores == sorted(scores, reverse=True)


@every_product
@settings(max_examples=40)
@given(data=st.data())
def test_mirrored_servers_fit_equally_well(product: Product, data: st.DataObject) -> None:
    """The ids are turned round: chip 0 is the last one, and every ring stays a ring."""
    free = data.draw(st.integers(0, product.all_chips))
    request = data.draw(st.sampled_from(product.requests))
    mirrored = int(f"{free:0{product.chips}b}"[::-1], 2)
    one, other = (
        judge(whole(product, list(chip_ids(free))), ChipRequest(request)),
        judge(whole(product, list(chip_ids(mirrored))), ChipRequest(request)),
    )
    assert (one.key if isinstance(one, Fit) else one.reason) == (other.key if isinstance(other, Fit) else other.reason)


@every_product
@settings(max_examples=40)
@given(data=st.data())
def test_the_same_question_has_the_same_answer(product: Product, data: st.DataObject) -> None:
    free = data.draw(st.integers(0, product.all_chips))
    request = data.draw(st.sampled_from(product.requests))
    rule = RULES[product.family]
    fresh = getattr(rule.place, "__wrapped__", rule.place)
    assert fresh(product, free, request) == rule.place(product, free, request)


def test_after_a_request_the_ring_that_served_it_was_the_fullest_that_could() -> None:
    # §9: after selection the ring used had the smallest group value; here on the 16-chip server.
    placement = RULES[ASCEND_910B_16.family].place(ASCEND_910B_16, 0b0000_0111_0000_1111, 3)
    assert placement is not None
    assert placement.chips == (8, 9, 10)


def test_a_healthy_server_comes_before_a_better_fit_on_a_damaged_one() -> None:
    # The reference's number for the two is the same: health and fit weigh 16 each (spec/scheduling.md §4.3).
    damaged = Vacancy(ASCEND_910B_16, 15, 0b1111, 16, faulty=1)
    healthy = Vacancy(ASCEND_910B_16, 16, 0b11111, 16)
    fits = [judge(vacancy, ChipRequest(4)) for vacancy in (damaged, healthy)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert fits[1].key < fits[0].key
    assert fits[1].score > fits[0].score


def test_of_equal_fits_on_a3_and_meshes_the_healthier_server_wins() -> None:
    for product in (ASCEND_A3_16, MESH_16):
        damaged, healthy = Vacancy(product, 15, 0b1111, 16, faulty=1), Vacancy(product, 16, 0b1111, 16)
        fits = [judge(vacancy, ChipRequest(4)) for vacancy in (damaged, healthy)]
        assert isinstance(fits[0], Fit)
        assert isinstance(fits[1], Fit)
        assert fits[1].key < fits[0].key


@given(data=st.data())
def test_of_servers_of_different_products_the_first_of_the_list_wins_whatever_is_left_of_them(
    data: st.DataObject,
) -> None:
    ask = ChipRequest(data.draw(st.sampled_from((1, 2, 4, 8))))

    def fit(product: Product) -> tuple[int, ...] | None:
        faulty, taken = data.draw(st.integers(0, product.all_chips)), data.draw(st.integers(0, product.all_chips))
        healthy = product.all_chips & ~faulty
        verdict = judge(
            Vacancy(product, healthy.bit_count(), healthy & ~taken, product.chips, faulty=faulty.bit_count()), ask
        )
        return verdict.key if isinstance(verdict, Fit) else None

    keys = [key for product in PRODUCTS.values() if (key := fit(product)) is not None]
    assert keys == sorted(keys)


def test_a_job_that_names_nothing_goes_to_910a_servers_first() -> None:
    assert [name for name in PRODUCTS if not name.startswith("910A")] == list(PRODUCTS)[2:]


def test_a_server_with_fewer_cards_is_not_a_worse_one() -> None:
    cards = PRODUCTS["910-card"]
    two, eight = Vacancy(cards, 2, 0b11, 2), Vacancy(cards, 8, 0xFF, 8)
    fits = [judge(vacancy, ChipRequest(2)) for vacancy in (two, eight)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert fits[0].key < fits[1].key
    assert pool.place(cards, 0b11, 3) is None


def test_cards_without_a_network_of_their_own_serve_distributed_jobs_whatever_their_network() -> None:
    cut_off = Vacancy(PRODUCTS["910-card"], 2, 0b11, 2, cut_off=0b11)
    assert isinstance(judge(cut_off, ChipRequest(2, distributed=True)), Fit)
    refused = judge(Vacancy(PRODUCTS["910B-8"], 8, 0b11, 8, cut_off=0b10), ChipRequest(2, distributed=True))
    assert isinstance(refused, Refusal)
    assert refused.reason == "NotEnoughChips"
    assert "1 of them with an unhealthy network" in refused.message
    assert isinstance(judge(Vacancy(PRODUCTS["910B-8"], 8, 0b11, 8, cut_off=0b10), ChipRequest(2)), Fit)


@pytest.mark.parametrize(
    ("product", "free", "request_", "reason", "words"),
    [
        ("910A", 0b0111_0111, 4, "RingTooSmall", "3 + 3 free"),
        ("910B-16", 0x3F3F, 7, "RingTooSmall", "6 + 6 free"),
        ("910B-16", 0xF0FF, 10, "PairsBroken", "5 pairs of chips i and i+8; 4 pairs"),
        ("A3-16", 0b0101_0111, 4, "CardsBroken", "2 whole cards; 1 are free"),
        ("mesh-16", 0x3333, 3, "MeshTooSmall", "within one mesh of 4; the meshes have 2 + 2 + 2 + 2 free"),
        ("mesh-8", 0b0111_0111, 4, "MeshTooSmall", "1 whole meshes"),
        ("910B-8", 0b1, 2, "NotEnoughChips", "1 free of 8"),
        ("910B-16", 0xFFFF, 9, "InvalidRequest", "not 9"),
        ("A3-16", 0xFFFF, 3, "InvalidRequest", "not 3"),
    ],
)
def test_a_refusal_says_what_is_missing(product: str, free: int, request_: int, reason: str, words: str) -> None:
    verdict = judge(whole(PRODUCTS[product], list(chip_ids(free))), ChipRequest(request_))
    assert isinstance(verdict, Refusal)
    assert verdict.reason == reason
    assert words in verdict.message


def test_a_sub_healthy_node_yields_to_an_equal_one_and_is_refused_to_jobs_that_shun_it() -> None:
    well, ill = Vacancy(ASCEND_A3_16, 16, 0xFF, 16), Vacancy(ASCEND_A3_16, 16, 0xFF, 16, sub_healthy=True)
    fits = [judge(vacancy, ChipRequest(8)) for vacancy in (well, ill)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert (fits[0].key < fits[1].key, fits[0].score - fits[1].score) == (True, 1)
    refused = judge(ill, ChipRequest(8, avoids_sub_healthy=True))
    assert isinstance(refused, Refusal)
    assert refused.reason == "NodeSubHealthy"
    assert isinstance(judge(well, ChipRequest(8, avoids_sub_healthy=True)), Fit)


def test_a_job_for_other_products_is_told_so_and_one_for_several_is_not() -> None:
    vacancy = whole(ASCEND_A3_16, list(range(16)))
    refused = judge(vacancy, ChipRequest(8, products=frozenset({"910A", "910B-8"})))
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.message) == (
        "WrongProduct",
        "the job is for 910A or 910B-8 servers, this is an A3-16 server",
    )
    assert isinstance(judge(vacancy, ChipRequest(8, products=frozenset({"A3-8", "A3-16"}))), Fit)
