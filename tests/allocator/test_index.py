"""Finding the best node without walking them gives what walking them would."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.request import Ask
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.state.index import NodeIndex
from allocator.state.node import Offer
from ascend.errors import Refusal
from ascend.products import ASCEND_910A

NAMES = [f"n{number}" for number in range(6)]

vacancies = st.builds(
    lambda free, sick, room: Vacancy(ASCEND_910A, 8 - min(sick, 8 - free.bit_count()), free, room),
    st.integers(0, 255),
    st.integers(0, 2),
    st.integers(0, 8),
)
offers = st.one_of(vacancies, st.sampled_from([Refusal("NodeNotReady", "x"), Refusal("NodeCordoned", "y")]))
changes = st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(offers, st.none())), max_size=40)


def walk(standing: dict[str, Offer], ask: Ask) -> tuple[str, Fit] | None:
    verdicts = {name: judge(offer, ask) for name, offer in standing.items() if isinstance(offer, Vacancy)}
    fits = [(fit.key, name, fit.chips) for name, fit in verdicts.items() if isinstance(fit, Fit)]
    if not fits:
        return None
    name = min(fits)[1]
    fit = verdicts[name]
    assert isinstance(fit, Fit)
    return name, fit


@given(changes=changes)
def test_the_best_by_buckets_is_the_best_by_walking(changes: list[tuple[str, Offer | None]]) -> None:
    index, standing = NodeIndex(), dict[str, Offer]()
    for name, offer in changes:
        if offer is None:
            index.drop(name)
            standing.pop(name, None)
        else:
            index.put(name, offer)
            standing[name] = offer
        for request in (1, 2, 4, 8, 3):
            assert index.best(Ask(request)) == walk(standing, Ask(request))
    assert len(index) == len(standing)


@given(changes=changes)
def test_reasons_are_counted_over_all_nodes(changes: list[tuple[str, Offer | None]]) -> None:
    index, standing = NodeIndex(), dict[str, Offer]()
    for name, offer in changes:
        if offer is not None:
            index.put(name, offer)
            standing[name] = offer
    verdicts = [offer if isinstance(offer, Refusal) else judge(offer, Ask(4)) for offer in standing.values()]
    assert index.reasons(Ask(4)) == Counter(each.reason for each in verdicts if isinstance(each, Refusal))


def test_a_node_that_comes_and_goes_leaves_no_heap_behind() -> None:
    index = NodeIndex()
    one, other = Vacancy(ASCEND_910A, 8, 0xFF, 8), Vacancy(ASCEND_910A, 8, 0xF, 4)
    index.put("zz", one)
    index.put("yy", other)
    for _ in range(1000):
        index.put("n1", one)
        index.put("n1", other)
    assert all(len(bucket._heap) < 16 for bucket in index._buckets.values())
    assert index.best(Ask(8)) == ("zz", judge(one, Ask(8)))
    assert index.best(Ask(4)) == ("n1", judge(other, Ask(4)))
