"""The index finds the same best node as a full scan."""

import gc
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.state import index as index_module
from allocator.state.index import NodeIndex
from allocator.state.node import Offer, unknown_node
from ascend.errors import Refusal
from ascend.products import ASCEND_910A, ASCEND_910B_8, ASCEND_A3_8, MESH_8
from ascend.reasons import Reason
from ascend.turn import at_once

NAMES = [f"n{number}" for number in range(6)]
vacancies = st.builds(
    lambda product, free, unhealthy, room, sub_healthy: Vacancy(
        product, 8 - min(unhealthy, 8 - free.bit_count()), free, room, sub_healthy=sub_healthy
    ),
    st.sampled_from([ASCEND_910A, ASCEND_910A, ASCEND_910B_8, ASCEND_A3_8, MESH_8]),
    st.integers(0, 255),
    st.integers(0, 2),
    st.integers(0, 8),
    st.booleans(),
)
REQUESTS = [
    *map(ChipRequest, (1, 2, 4, 8, 3)),
    ChipRequest(2, avoids_sub_healthy=True),
    ChipRequest(4, products=frozenset({"A3-8", "mesh-8"})),
]
# Few different ones, so that nodes share buckets.
common = st.sampled_from([Vacancy(ASCEND_910A, 8, free, 8) for free in (0xF, 0xF0, 0xFF)])
offers = st.one_of(
    common,
    common,
    vacancies,
    st.sampled_from([Refusal(Reason.NODE_NOT_READY, "x"), Refusal(Reason.NODE_CORDONED, "y")]),
)
changes = st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(offers, st.none())), max_size=40)


@pytest.fixture(autouse=True)
def short_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the journal is cleared and a ranking is dropped within a test.
    monkeypatch.setattr(index_module, "_SPARE_JOURNAL", 10)
    monkeypatch.setattr(index_module, "MAX_RANKINGS", 5)
    monkeypatch.setattr(index_module, "_STEP", 1)


def scan(offers: dict[str, Offer], request: ChipRequest) -> tuple[str, Fit] | None:
    """The best node, found by judging every node."""
    verdicts = {name: judge(offer, request) for name, offer in offers.items() if isinstance(offer, Vacancy)}
    fits = [(fit.key, name, fit.take.chips) for name, fit in verdicts.items() if isinstance(fit, Fit)]
    if not fits:
        return None
    name = min(fits)[1]
    fit = verdicts[name]
    assert isinstance(fit, Fit)
    return name, fit


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all examples
@given(changes=changes)
def test_the_best_node_is_the_one_a_full_scan_finds(changes: list[tuple[str, Offer | None]]) -> None:
    index, current = NodeIndex(), dict[str, Offer]()
    for name, offer in changes:
        if offer is None:
            index.drop(name)
            current.pop(name, None)
        else:
            index.put(name, offer)
            current[name] = offer
        # Some requests come every time, others seldom: their rankings have to catch up.
        for request in REQUESTS[: 1 + len(current)]:
            assert index.best(request) == scan(current, request)
    for request in REQUESTS:
        assert index.best(request) == scan(current, request)
    assert len(index.entries) == len(current)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all examples
@given(before=changes, after=changes, names=st.lists(st.sampled_from([*NAMES, "gone"]), unique=True))
def test_a_copy_has_its_nodes_as_they_were_when_the_copy_got_to_them(
    before: list[tuple[str, Offer | None]], after: list[tuple[str, Offer | None]], names: list[str]
) -> None:
    index, current = NodeIndex(), dict[str, Offer]()

    def change(name: str, offer: Offer | None) -> None:
        if offer is None:
            index.drop(name)
            current.pop(name, None)
        else:
            index.put(name, offer)
            current[name] = offer

    for name, offer in before:
        change(name, offer)
    copying, copied, later = index.copy(names), dict[str, Offer](), iter(after)
    for name in names:
        copied[name] = current.get(name, unknown_node(name))
        next(copying)
        if (changed := next(later, None)) is not None:
            change(*changed)
    with pytest.raises(StopIteration) as done:
        next(copying)
    copy: NodeIndex = done.value.value
    assert list(copy.entries) == names
    assert {name: str(offer) for name, offer in copied.items() if isinstance(offer, Refusal)} == {
        name: str(entry) for name, entry in copy.entries.items() if isinstance(entry, Refusal)
    }
    for request in REQUESTS:
        assert copy.best(request) == scan(copied, request)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all examples
@given(changes=changes)
def test_reasons_are_counted_over_all_nodes(changes: list[tuple[str, Offer | None]]) -> None:
    index, current = NodeIndex(), dict[str, Offer]()
    for name, offer in changes:
        if offer is not None:
            index.put(name, offer)
            current[name] = offer
    verdicts = [offer if isinstance(offer, Refusal) else judge(offer, ChipRequest(4)) for offer in current.values()]
    assert index.reasons(ChipRequest(4)) == Counter(each.reason for each in verdicts if isinstance(each, Refusal))
    named = [judge(offer, ChipRequest(4)) if isinstance(offer, Vacancy) else offer for offer in map(current.get, NAMES)]
    counted = Counter(
        Reason.UNKNOWN_NODE if each is None else each.reason for each in named if not isinstance(each, Fit)
    )
    assert index.reasons(ChipRequest(4), NAMES) == counted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same for all examples
@given(before=changes, during=changes, after=changes, names=st.frozensets(st.sampled_from([*NAMES, "gone"])))
def test_candidates_that_change_while_they_are_counted_are_counted_as_they_are(
    before: list[tuple[str, Offer | None]],
    during: list[tuple[str, Offer | None]],
    after: list[tuple[str, Offer | None]],
    names: frozenset[str],
) -> None:
    index = NodeIndex()

    def change(name: str, offer: Offer | None) -> None:
        if offer is None:
            index.drop(name)
        else:
            index.put(name, offer)

    for changed in before:
        change(*changed)
    changing, pauses = iter(during), 0
    for _ in index.count(names):
        pauses += 1
        if (changed_now := next(changing, None)) is not None:
            change(*changed_now)
    assert pauses == len(names)
    for request in REQUESTS:
        assert index.reasons(request, names) == index.reasons(request, [*names])
    for later in after:
        change(*later)
        assert Counter(dict(index.buckets_of(names))) == Counter(dict(index.buckets_of([*names])))
        assert index.reasons_when_full(ChipRequest(2), names) == index.reasons_when_full(ChipRequest(2), [*names])


def test_frequent_changes_leave_no_garbage_in_the_heaps() -> None:
    index = NodeIndex()
    one, other = Vacancy(ASCEND_910A, 8, 0xFF, 8), Vacancy(ASCEND_910A, 8, 0xF, 4)
    index.put("zz", one)
    index.put("yy", other)
    for _ in range(1000):
        index.put("n1", one)
        index.put("n1", other)
        assert index.best(ChipRequest(1))
    assert all(len(tier) < 16 for ranking in index._rankings.values() for tier in ranking._tiers.values())
    assert all(len(bucket._heap) < 16 for bucket in index._buckets.values())
    assert len(index._journal) < 8 + 4 * len(index._buckets)
    assert index.best(ChipRequest(8)) == ("zz", judge(one, ChipRequest(8)))
    assert index.best(ChipRequest(4)) == ("n1", judge(other, ChipRequest(4)))


def test_buckets_without_nodes_are_dropped() -> None:
    index = NodeIndex()
    for free in range(256):
        index.put("n1", Vacancy(ASCEND_910A, 8, free, 8))
        index.best(ChipRequest(1))
    assert [bucket.vacancy.free for bucket in index.buckets] == [255]
    assert len(index._buckets) < 100
    assert index.best(ChipRequest(8)) == ("n1", judge(Vacancy(ASCEND_910A, 8, 0xFF, 8), ChipRequest(8)))


def test_a_ranking_sees_the_new_first_node_of_a_bucket() -> None:
    index = NodeIndex()
    left, right = Vacancy(ASCEND_910A, 8, 0xF, 8), Vacancy(ASCEND_910A, 8, 0xF0, 8)
    best = []
    for name, vacancy in (("n3", left), ("n1", right), ("n0", left), ("n2", right)):
        index.put(name, vacancy)
        best.append(index.best(ChipRequest(1)))
    assert [found[0] for found in best if found] == ["n3", "n1", "n0", "n0"]
    index.drop("n0")
    assert index.best(ChipRequest(1)) == ("n1", judge(right, ChipRequest(1)))
    index.drop("n1")
    assert index.best(ChipRequest(1)) == ("n2", judge(right, ChipRequest(1)))


def test_copies_of_an_index_leave_nothing_to_the_garbage_collector() -> None:
    index = NodeIndex()
    for name in NAMES:
        index.put(name, Vacancy(ASCEND_910A, 8, 0xFF, 8))
    gc.collect()
    for _ in range(3):
        copy = at_once(index.copy(NAMES))
        assert copy.best(ChipRequest(2)) is not None
        copy.put("n0", Vacancy(ASCEND_910A, 8, 0xF, 8))
        assert copy.best(ChipRequest(2)) is not None
    del copy
    assert gc.collect() == 0
