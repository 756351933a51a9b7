"""The line of pods has the order of kube-scheduler's queue."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.nomination.line import Line, Lines
from ascend.kube.objects import Pod
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
    for each in ordered:
        assert line.first == each.uid
        line.remove(each.uid)
    assert line.first is None


def of(namespace: str, name: str, priority: int = 0) -> Pod:
    made = pod(name, priority=priority)
    return replace(made, metadata=replace(made.metadata, namespace=namespace, uid=f"{namespace}-{name}"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30), st.data())
def test_the_lines_of_namespaces_are_one_line_of_those_that_are_admitted(
    added: list[tuple[str, int]], data: st.DataObject
) -> None:
    pods = [of(namespace, f"p{number}", priority) for number, (namespace, priority) in enumerate(added)]
    one, lines = Line(), Lines()
    for each in pods:
        one.add(each)
        lines.add(each)
    while lines:
        admitted = data.draw(st.sets(st.sampled_from("abc")))
        uid = lines.pop(lambda namespace, admitted=admitted: namespace in admitted)  # type: ignore[misc]  # bound
        left = [each for each in pods if each.uid in one and each.metadata.namespace in admitted]
        first = min(left, key=lambda each: (-each.priority, pods.index(each)), default=None)
        assert uid == (first.uid if first is not None else None)
        if uid is not None:
            one.remove(uid)
        removed = data.draw(st.sampled_from(pods))
        lines.remove(removed.uid)
        one.remove(removed.uid)
        assert len(lines) == len(one)
