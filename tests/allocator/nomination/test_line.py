"""The line of pods has the order of kube-scheduler's queue."""

from hypothesis import given
from hypothesis import strategies as st

from allocator.nomination.line import Line
from tests.allocator.builders import pod


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=120),
    st.lists(st.integers(0, 119), max_size=150),
)
def test_the_line_is_in_the_order_of_priority_and_age(pods: list[tuple[int, int]], removed: list[int]) -> None:
    line = Line()
    made = [pod(f"p{i}", priority=rank, since=f"2026-01-01T00:00:0{age}Z") for i, (rank, age) in enumerate(pods)]
    for each in made:
        line.add(each)
        line.add(each)
    left = list(made)
    for number in removed:
        if number < len(made):
            assert line.remove(made[number].uid) == (made[number] in left)
            left = [each for each in left if each is not made[number]]
    assert len(line) == len(left)
    ordered = sorted(left, key=lambda each: (-each.priority, each.metadata.creation_timestamp or ""))
    assert list(iter(line.pop, None)) == [each.uid for each in ordered]
