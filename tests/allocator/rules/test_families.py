"""The rules of the other products against the reference's own test cases, and the invariants of all rules.

These cases of ``cases/families.json`` are not about the rules; their subject is tested elsewhere, or absent here:
base check_node 2 to 4 and a3 check_node 4 to 6 (a task that the session doesn't know; lists that are missing, malformed
or too long: the node is refused, in state/test_node); base check_node 6 and valid_job with 0 chips (refused before the
rule is applied, in test_request); base score 4 (a list longer than the server: InvalidReport, in state/test_node);
network_unhealthy_lookup (the keys are decoded with the report, in tests/ascend/test_deviceinfo);
a3 valid_job 1 and 5 (jobs without chips are not judged) and 4 (its total is not the sum of its pods).
The cases of the ring rule are in test_ring. Tested with their subjects: rank_fill, set_rank_index and
prefer_previous_node (jobs), free_per_card_after_preemption (preemption), job_resource (PodGroup minResources: here a
pod's own request counts), deallocate (chips are free once the watch shows a pod finished or gone, in state/test_node).
"""

import re
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.validity import JobShape, invalidity
from allocator.rules.verdicts import Fit, judge
from ascend.chips import chip_ids, chip_set
from ascend.errors import Refusal
from ascend.products import ASCEND_910B_16, ASCEND_A3_16, MESH_8, MESH_16, PLAIN_8, PLAIN_16, PRODUCTS, Family, Product
from ascend.reasons import Reason
from ascend.rules import dies, meshes, pool
from ascend.rules.families import RULES
from tests.allocator.reference import reference_cases

CASES: dict[str, Any] = reference_cases("families")
BASE, A3, CHIP4 = CASES["base_handler"], CASES["module910a3x16"], CASES["chip4nodex"]
every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


def numbered(cases: list[Any], *, without: Collection[int] = ()) -> pytest.MarkDecorator:
    chosen = [(number, case) for number, case in enumerate(cases, 1) if number not in without]
    return pytest.mark.parametrize("case", [case for _, case in chosen], ids=[str(number) for number, _ in chosen])


def whole(product: Product, free: list[int], *, faulty: int = 0, cut_off: int = 0) -> Vacancy:
    chips = chip_set(free)
    return Vacancy(product, product.chips - faulty, chips, product.chips, faulty, chips & cut_off)


@numbered(BASE["check_node"], without={2, 3, 4, 6})
@pytest.mark.shows("reference", "plain-16")
def test_pool_filter_agrees_with_the_reference(case: dict[str, Any]) -> None:
    verdict = judge(whole(PLAIN_16, case["free"]), ChipRequest(case["req"]))
    assert isinstance(verdict, Fit) == case["pass"]


@numbered(BASE["score"], without={4})
@pytest.mark.shows("reference", "plain-8")
def test_pool_scores_agree_with_the_reference(case: dict[str, Any]) -> None:
    verdict = judge(whole(PLAIN_8, case["free"], faulty=len(case["unhealthy"])), ChipRequest(1))
    assert isinstance(verdict, Fit)
    assert verdict.score == case["score"]


@numbered(BASE["valid_job"])
def test_valid_pool_jobs_agree_with_the_reference(case: dict[str, Any]) -> None:
    shape = JobShape("job", frozenset(case["tasks"]), products=frozenset({"plain-16"}))
    assert (invalidity(shape) is None) == case["valid"]


@numbered(A3["check_node"], without={4, 5, 6})
@pytest.mark.shows("reference", "A3-16")
def test_a3_filter_agrees_with_the_reference(case: dict[str, Any]) -> None:
    vacancy = whole(ASCEND_A3_16, case["free"], cut_off=chip_set(case["network_unhealthy"]))
    assert (
        isinstance(
            judge(vacancy, ChipRequest(case["req"], distributed=case["tasks"] > 1, needs_network=case["tasks"] > 1)),
            Fit,
        )
        == case["pass"]
    )


@numbered(A3["score"])
def test_a3_scores_agree_with_the_reference(case: dict[str, Any]) -> None:
    scored = []
    for _, free in case["nodes_in_order"]:
        placement = dies.place(ASCEND_A3_16, chip_set(free), case["req"])
        scored.append(0 if placement is None else dies.score(ASCEND_A3_16, placement, 16, 0))
    # The reference's scan stops at the first perfect node, and the nodes behind it have the score 0; ours continues.
    perfect = 512
    scanned = scored.index(perfect) + 1 if perfect in scored else len(scored)
    assert scored[:scanned] == case["scores"][:scanned]
    assert not any(case["scores"][scanned:])


@numbered(A3["select"])
@pytest.mark.shows("reference", "A3-16")
def test_selected_a3_chips_agree_with_the_reference(case: dict[str, Any]) -> None:
    vacancy = whole(ASCEND_A3_16, case["free"], cut_off=chip_set(case.get("network_unhealthy", ())))
    verdict = judge(vacancy, ChipRequest(case["req"], distributed=case["tasks"] > 1, needs_network=case["tasks"] > 1))
    if case.get("error"):
        assert isinstance(verdict, Refusal)
    else:
        assert isinstance(verdict, Fit)
        assert chip_ids(verdict.take.chip_set) == tuple(case["selected_set"])


@numbered(A3["valid_job"], without={1, 4, 5})
def test_valid_a3_jobs_agree_with_the_reference(case: dict[str, Any]) -> None:
    sizes = frozenset(task["req"] for task in case["tasks"] if task["req"])
    shape = JobShape("job", sizes, case["npu_tasks"], frozenset({"A3-16"}))
    assert (invalidity(shape) is None) == case["valid"]


@numbered(CHIP4["mesh_info"])
def test_a_mesh_is_four_consecutive_chips(case: list[Any]) -> None:
    free, per_mesh, full = case
    counted = [(mesh & chip_set(free)).bit_count() for mesh in MESH_16.rings]
    assert (counted, counted.count(4)) == (per_mesh, full)


@numbered(CHIP4["need_and_available"])
def test_usable_meshes_agree_with_the_reference(case: list[Any]) -> None:
    request, free, needed, usable = case
    placement = meshes.place(MESH_16, chip_set(free), request)
    if usable < needed:
        assert placement is None
    else:
        assert placement is not None
        assert placement.misfit == 16 * (usable - needed) + len(free) - request


@pytest.mark.shows("reference", "mesh-16")
@numbered(CHIP4["filter"])
def test_mesh_filter_agrees_with_the_reference(case: list[Any]) -> None:
    request, free, passes = case
    assert isinstance(judge(whole(MESH_16, free), ChipRequest(request)), Fit) == passes


@pytest.mark.shows("reference", "mesh-8", "mesh-16")
@numbered(CHIP4["score"])
def test_mesh_scores_agree_with_the_reference(case: list[Any]) -> None:
    chips, request, free, best, score = case
    product = {8: MESH_8, 16: MESH_16}[chips]
    placement = meshes.place(product, chip_set(free), request)
    assert placement is not None
    assert (placement.misfit, meshes.score(product, placement, chips, 0)) == (best, score)


@numbered(CHIP4["select"])
def test_selected_mesh_chips_agree_with_the_reference(case: list[Any]) -> None:
    request, free, selected = case
    placement = meshes.place(MESH_16, chip_set(free), request)
    assert placement is not None
    assert chip_ids(placement.taken) == tuple(selected)


def linked(product: Product, taken: int, request: int) -> bool:
    """Whether chips are linked with each other as a request of this size requires.

    See docs/spec/affinity-rules.md and docs/spec/products.md.
    """
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
@given(data=st.data())
@pytest.mark.shows("rules", "all")
def test_filter_score_and_selection_agree(product: Product, data: st.DataObject) -> None:
    """Pass ⇔ scored ⇔ selectable; selected ⊆ free; |selected| = request; linked as the request needs it.

    See docs/spec/products.md#invariants.
    """
    free = data.draw(st.integers(0, product.all_chips))
    distributed = data.draw(st.booleans())
    request = data.draw(st.sampled_from(product.allowed(distributed=distributed)))
    cut_off = data.draw(st.integers(0, product.all_chips)) & free
    vacancy = Vacancy(product, product.chips, free, product.chips, cut_off=cut_off)
    verdict = judge(vacancy, ChipRequest(request, distributed=distributed, needs_network=distributed))
    if isinstance(verdict, Refusal):
        assert verdict.reason in {
            Reason.NOT_ENOUGH_CHIPS,
            Reason.RING_TOO_SMALL,
            Reason.PAIRS_BROKEN,
            Reason.CARDS_BROKEN,
            Reason.MESH_TOO_SMALL,
        }
        return
    assert verdict.take.chip_set & ~free == 0
    assert chip_set(verdict.take.chips) == verdict.take.chip_set
    assert len(verdict.take.chips) == len(set(verdict.take.chips)) == request
    assert linked(product, verdict.take.chip_set, request)
    assert verdict.score > 0
    if distributed and product.has_network:
        assert not verdict.take.chip_set & cut_off


@every_product
@given(data=st.data())
def test_chips_are_kept_if_the_request_would_fit_with_them(product: Product, data: st.DataObject) -> None:
    """A pod is refused with ``ChipsKept`` if and only if nothing but what is kept for others is in its way."""
    masks = st.integers(0, product.all_chips)
    free, kept, cut_off, healthy = (data.draw(masks) for _ in range(4))
    free, kept, room = free & healthy, kept & healthy & ~free, data.draw(st.integers(0, product.chips))
    distributed = data.draw(st.booleans())
    request = ChipRequest(
        data.draw(st.sampled_from(product.allowed(distributed=distributed))),
        distributed=distributed,
        needs_network=distributed,
    )
    before = Vacancy(product, healthy.bit_count(), free | kept, room, cut_off=cut_off & (free | kept))
    vacancy = before.keeping(kept, "pod ns/other", ())
    verdict = judge(vacancy, request)
    if isinstance(verdict, Refusal):
        assert (verdict.reason is Reason.CHIPS_KEPT) is isinstance(judge(before, request), Fit)
        assert verdict.reason is not Reason.CHIPS_KEPT or "kept for pod ns/other" in verdict.message


@every_product
@given(data=st.data())
@pytest.mark.shows("rules", "all")
def test_an_idle_server_takes_every_request(product: Product, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from(product.requests))
    assert isinstance(judge(whole(product, list(range(product.chips))), ChipRequest(request)), Fit)


@every_product
@given(data=st.data())
def test_scores_are_in_the_order_of_the_keys(product: Product, data: st.DataObject) -> None:
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
@given(data=st.data())
def test_mirrored_servers_fit_equally_well(product: Product, data: st.DataObject) -> None:
    """With the ids reversed, chip 0 is the last one and every ring stays a ring."""
    free = data.draw(st.integers(0, product.all_chips))
    request = data.draw(st.sampled_from(product.requests))
    mirrored = int(f"{free:0{product.chips}b}"[::-1], 2)
    one, other = (
        judge(whole(product, list(chip_ids(free))), ChipRequest(request)),
        judge(whole(product, list(chip_ids(mirrored))), ChipRequest(request)),
    )
    assert (one.key if isinstance(one, Fit) else one.reason) == (other.key if isinstance(other, Fit) else other.reason)


@every_product
@given(data=st.data())
def test_cached_placements_equal_computed_ones(product: Product, data: st.DataObject) -> None:
    free = data.draw(st.integers(0, product.all_chips))
    request = data.draw(st.sampled_from(product.requests))
    rule = RULES[product.family]
    fresh = getattr(rule.place, "__wrapped__", rule.place)
    assert fresh(product, free, request) == rule.place(product, free, request)


def test_the_fullest_ring_that_fits_is_used() -> None:
    # By docs/spec/products.md#invariants: after selection the ring used had the smallest group value; here on the
    # 16-chip server.
    placement = RULES[ASCEND_910B_16.family].place(ASCEND_910B_16, 0b0000_0111_0000_1111, 3)
    assert placement is not None
    assert placement.chips == (8, 9, 10)


def test_a_healthy_server_precedes_a_better_fit_on_a_faulty_one() -> None:
    # The reference has the same score for both: health and fit weigh 16 each
    # (docs/spec/products.md#910b-with-16-chips).
    damaged = Vacancy(ASCEND_910B_16, 15, 0b1111, 16, faulty=1)
    healthy = Vacancy(ASCEND_910B_16, 16, 0b11111, 16)
    fits = [judge(vacancy, ChipRequest(4)) for vacancy in (damaged, healthy)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert fits[1].key < fits[0].key
    assert fits[1].score > fits[0].score


def test_among_equal_fits_the_healthier_server_is_first() -> None:
    for product in (ASCEND_A3_16, MESH_16):
        damaged, healthy = Vacancy(product, 15, 0b1111, 16, faulty=1), Vacancy(product, 16, 0b1111, 16)
        fits = [judge(vacancy, ChipRequest(4)) for vacancy in (damaged, healthy)]
        assert isinstance(fits[0], Fit)
        assert isinstance(fits[1], Fit)
        assert fits[1].key < fits[0].key


@given(data=st.data())
def test_products_are_ranked_in_their_listed_order(
    data: st.DataObject,
) -> None:
    request = ChipRequest(data.draw(st.sampled_from((1, 2, 4, 8))))

    def fit(product: Product) -> tuple[int, ...] | None:
        faulty, taken = data.draw(st.integers(0, product.all_chips)), data.draw(st.integers(0, product.all_chips))
        healthy = product.all_chips & ~faulty
        verdict = judge(
            Vacancy(product, healthy.bit_count(), healthy & ~taken, product.chips, faulty=faulty.bit_count()), request
        )
        return verdict.key if isinstance(verdict, Fit) else None

    keys = [key for product in PRODUCTS.values() if (key := fit(product)) is not None]
    assert keys == sorted(keys)


def test_910a_servers_are_listed_first() -> None:
    assert [name for name in PRODUCTS if not name.startswith("910A")] == list(PRODUCTS)[2:]


def test_a_server_with_fewer_cards_is_not_ranked_lower() -> None:
    cards = PRODUCTS["910-card"]
    two, eight = Vacancy(cards, 2, 0b11, 2), Vacancy(cards, 8, 0xFF, 8)
    fits = [judge(vacancy, ChipRequest(2)) for vacancy in (two, eight)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert fits[0].key < fits[1].key
    assert pool.place(cards, 0b11, 3) is None


def test_network_health_is_ignored_on_cards_without_a_network() -> None:
    cut_off = Vacancy(PRODUCTS["910-card"], 2, 0b11, 2, cut_off=0b11)
    assert isinstance(judge(cut_off, ChipRequest(2, distributed=True, needs_network=True)), Fit)
    refused = judge(
        Vacancy(PRODUCTS["910B-8"], 8, 0b11, 8, cut_off=0b10), ChipRequest(2, distributed=True, needs_network=True)
    )
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NOT_ENOUGH_CHIPS
    assert re.search(r"\b1\b.* network", refused.message)
    assert isinstance(judge(Vacancy(PRODUCTS["910B-8"], 8, 0b11, 8, cut_off=0b10), ChipRequest(2)), Fit)


@pytest.mark.parametrize(
    ("product", "free", "request_", "reason", "words"),
    [
        ("910A", 0b0111_0111, 4, Reason.RING_TOO_SMALL, r"3 \+ 3 free"),
        ("910B-16", 0x3F3F, 7, Reason.RING_TOO_SMALL, r"6 \+ 6 free"),
        ("910B-16", 0xF0FF, 10, Reason.PAIRS_BROKEN, "5 pairs .* 4 pairs"),
        ("A3-16", 0b0101_0111, 4, Reason.CARDS_BROKEN, "2 whole cards.* 1 "),
        ("mesh-16", 0x3333, 3, Reason.MESH_TOO_SMALL, r"mesh of 4.* 2 \+ 2 \+ 2 \+ 2 free"),
        ("mesh-8", 0b0111_0111, 4, Reason.MESH_TOO_SMALL, "1 whole mesh"),
        ("910B-8", 0b1, 2, Reason.NOT_ENOUGH_CHIPS, "1 free of 8"),
        ("910B-16", 0xFFFF, 9, Reason.INVALID_REQUEST, "not 9"),
        ("A3-16", 0xFFFF, 3, Reason.INVALID_REQUEST, "not 3"),
    ],
)
def test_a_refusal_names_what_is_missing(product: str, free: int, request_: int, reason: str, words: str) -> None:
    verdict = judge(whole(PRODUCTS[product], list(chip_ids(free))), ChipRequest(request_))
    assert isinstance(verdict, Refusal)
    assert verdict.reason == reason
    assert re.search(words, verdict.message)


def test_a_sub_healthy_node_ranks_lower_and_refuses_jobs_that_avoid_it() -> None:
    healthy, sub_healthy = Vacancy(ASCEND_A3_16, 16, 0xFF, 16), Vacancy(ASCEND_A3_16, 16, 0xFF, 16, sub_healthy=True)
    fits = [judge(vacancy, ChipRequest(8)) for vacancy in (healthy, sub_healthy)]
    assert isinstance(fits[0], Fit)
    assert isinstance(fits[1], Fit)
    assert (fits[0].key < fits[1].key, fits[0].score - fits[1].score) == (True, 1)
    refused = judge(sub_healthy, ChipRequest(8, avoids_sub_healthy=True))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NODE_SUB_HEALTHY
    assert isinstance(judge(healthy, ChipRequest(8, avoids_sub_healthy=True)), Fit)


def test_a_server_of_another_product_refuses_the_job() -> None:
    vacancy = whole(ASCEND_A3_16, list(range(16)))
    refused = judge(vacancy, ChipRequest(8, products=frozenset({"910A", "910B-8"})))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.WRONG_PRODUCT
    assert re.search("910A or 910B-8 servers.* an A3-16 server", refused.message)
    assert isinstance(judge(vacancy, ChipRequest(8, products=frozenset({"A3-8", "A3-16"}))), Fit)
