"""Nodes are found by their labels, and their products by selectors."""

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from ascend.kube.objects import Pod, PodSpec
from ascend.rules.identity import ACCELERATOR_TYPE
from tests.allocator.builders import World, node, pod, requiring, selecting, term

TYPES = ("module", "half", "module-910b-8")
SELECTORS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"pool": "a"},
    {"zone": "east"},
    {ACCELERATOR_TYPE: "module"},
    {"pool": "a", "zone": "east"},
)


def test_nodes_are_found_by_their_current_labels() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number % 2], "zone": "east"}) for number in range(4)))
    pools = world.cluster.labels
    assert pools.admitting(PodSpec()) == {"n0", "n1", "n2", "n3"}
    assert pools.admitting(PodSpec(node_selector={"pool": "a", "zone": "east"})) == {"n0", "n2"}
    assert pools.admitting(PodSpec(node_selector={"pool": "a", "zone": "west"})) == set()
    world.add(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.admitting(PodSpec(node_selector={"pool": "a", "zone": "west"})) == {"n1"}
    world.cluster.node_deleted(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.admitting(PodSpec(node_selector={"pool": "a"})) == {"n0", "n2"}


labels = st.fixed_dictionaries(
    {},
    optional={
        "pool": st.sampled_from("ab"),
        "zone": st.sampled_from(["east", "west"]),
        ACCELERATOR_TYPE: st.sampled_from(TYPES),
    },
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n0", "n1", "n2"]),
            st.one_of(st.none(), labels),
            st.sampled_from([None, *SELECTORS]),
        ),
        max_size=20,
    )
)
def test_whatever_was_asked_before_the_answer_is_that_of_the_present_nodes(
    changes: list[tuple[str, dict[str, str] | None, dict[str, str] | None]],
) -> None:
    world = World()
    found = world.cluster.labels
    for name, given_labels, selector in changes:
        if given_labels is None:
            world.cluster.node_deleted(node(name))
        else:
            world.add(node(name, labels=given_labels, chips=range(4 if "half" in given_labels.values() else 8)))
        if selector is not None:
            found.admitting(PodSpec(node_selector=selector))
            found.products(PodSpec(node_selector=selector))
    fresh = {name: record for name, record in world.cluster.nodes.items() if record.node is not None}
    for asked in SELECTORS:
        names = {
            name
            for name, record in fresh.items()
            if record.node is not None and asked.items() <= record.node.metadata.labels.items()
        }
        products = {product.name for name in names if (product := fresh[name].product) is not None}
        assert found.admitting(PodSpec(node_selector=asked)) == names
        assert found.products(PodSpec(node_selector=asked)) == products


NAMES = ("n0", "n1", "n2")
sizes = st.fixed_dictionaries({}, optional={"pool": st.sampled_from("ab"), "size": st.sampled_from("37")})
asked_labels = st.one_of(
    st.builds(term, st.sampled_from(["pool", "absent"]), st.sampled_from(["In", "NotIn"]), st.sampled_from("ab")),
    st.builds(term, st.sampled_from(["pool", "size"]), st.sampled_from(["Exists", "DoesNotExist", "Like"])),
    st.builds(term, st.just("size"), st.sampled_from(["Gt", "Lt"]), st.sampled_from("537")),
)
asked_names = st.builds(
    lambda key, operator, name: term(key, operator, name, field="matchFields"),
    st.sampled_from(["metadata.name", "metadata.uid"]),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(NAMES),
)


def both(parts: list[dict[str, Any]]) -> dict[str, object]:
    """The requirements of several terms in one, which hold together."""
    fields = ("matchExpressions", "matchFields")
    return {field: [asked for part in parts for asked in part.get(field, ())] for field in fields}


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod with a node selector, a required node affinity, both or none."""
    terms = draw(st.none() | st.lists(st.lists(asked_labels | asked_names, max_size=2).map(both), max_size=2))
    selector = draw(st.sampled_from([{}, {}, {"pool": "a"}, {"pool": "b", "size": "7"}]))
    made = selecting(pod("asking"), selector)
    return made if terms is None else requiring(made, *terms)


@given(
    st.lists(pods(), min_size=6, max_size=12),
    st.lists(st.tuples(st.sampled_from(NAMES), sizes | st.none()), min_size=2, max_size=6),
)
def test_the_nodes_that_admit_a_pod_are_those_of_which_each_admits_it(
    asking: list[Pod], changes: list[tuple[str, dict[str, str] | None]]
) -> None:
    world = World()
    found = world.cluster.labels
    for name, given_labels in changes:
        if given_labels is None:
            world.cluster.node_deleted(node(name))
        else:
            world.add(node(name, labels=given_labels))
        for spec in (asked.spec for asked in asking):
            assert found.admitting(spec) == {name for name in NAMES if found.admits(name, spec)}
