"""What required node affinity excludes for the pods of a gang is excluded as by a node selector."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod, requiring, selecting, term
from tests.allocator.gangs.builders import MESHES, bind, gang

POOLS: Final = "abc"


def by_selector(each: Pod, pool: str) -> Pod:
    return selecting(each, {"pool": pool}) if pool else each


def by_affinity(each: Pod, pool: str) -> Pod:
    return requiring(each, term("pool", "In", pool)) if pool else each


def by_exclusion(each: Pod, pool: str) -> Pod:
    others = (other for other in POOLS if other != pool)
    return requiring(each, {"matchExpressions": [
        {"key": "pool", "operator": "Exists"}, {"key": "pool", "operator": "NotIn", "values": list(others)},
    ]}) if pool else each  # fmt: skip


def pooled(pools: str) -> World:
    world = World()
    world.add(*(node(f"n{number}", labels={**MESHES, "pool": pool}) for number, pool in enumerate(pools)))
    return world


def outcome(world: World, pods: list[Pod]) -> list[object]:
    """Where each pod is placed, or for which reason it is not."""
    found: list[object] = []
    for each in pods:
        try:
            found.append(world.engine.place(each).node)
        except Refusal as refusal:
            found.append(refusal.reason)
    return found


@given(st.text(POOLS, min_size=1, max_size=6), st.lists(st.sampled_from(["", *POOLS]), min_size=2, max_size=4))
def test_pods_of_a_gang_get_the_nodes_that_they_would_get_by_node_selectors(pools: str, asked: list[str]) -> None:
    found = []
    for restrict in (by_selector, by_affinity, by_exclusion):
        world = pooled(pools)
        pods = [restrict(each, pool) for each, pool in zip(gang("train", len(asked)), asked, strict=True)]
        world.add(*pods)
        found.append(outcome(world, pods))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "terms",
    [
        [term("metadata.name", "In", name, field="matchFields") for name in ("n1", "n3")],
        [term("pool", "In", "b"), term("pool", "In", "d")],
        [term("pool", "Exists") | term("metadata.name", "NotIn", "n0", "n2", field="matchFields")],
        [{"matchExpressions": [
            {"key": "year", "operator": "Gt", "values": ["2021"]}, {"key": "pool", "operator": "Exists"},
        ]}],
        [term("old", "DoesNotExist")],
        [{}, term("pool", "Lt", "1"), term("year", "In", "2023", "2025")],
    ],
)  # fmt: skip
def test_alternatives_and_fields_of_an_affinity_hold_for_the_whole_gang(terms: list[dict[str, Any]]) -> None:
    world = World()
    for number, pool in enumerate("abcd"):
        old = {"old": "", "year": "2020"} if number in {0, 2} else {"year": str(2022 + number)}
        world.add(node(f"n{number}", labels={**MESHES, "pool": pool, **old}))
    pods = [requiring(each, *terms) for each in gang("train", 2)]
    world.add(*pods)
    assert outcome(world, pods) == ["n1", "n3"]


def test_the_candidates_of_one_pod_are_not_those_of_a_peer_with_another_affinity() -> None:
    world = pooled("aab")
    one, two = (by_affinity(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True))
    world.add(one, two)
    assert world.engine.filter(one, ["n0", "n1"]).fitting == ["n0"]
    assert outcome(world, [two]) == ["n2"]


def test_a_pod_of_another_affinity_does_not_take_a_vacated_seat_that_it_excludes() -> None:
    world = pooled("aab")
    pods = [by_affinity(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True)]
    world.add(*pods)
    assert outcome(world, pods) == ["n0", "n2"]
    bind(world, pods[0])
    world.cluster.pod_deleted(pods[1])
    successor = by_affinity(gang("train", 1, minimum=2, first=2)[0], "a")
    world.add(successor)
    assert outcome(world, [successor]) != ["n2"]


def test_pods_with_different_affinities_do_not_exchange_their_seats() -> None:
    world = pooled("ab")
    one, two = (by_affinity(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True))
    world.add(one, two)
    assert outcome(world, [one, two]) == ["n0", "n1"]
    with pytest.raises(Refusal):
        world.engine.place(one, ["n1"])


@pytest.mark.parametrize("restrict", [by_selector, by_affinity])
def test_chips_are_kept_for_a_waiting_job_only_where_it_may_be(restrict: Callable[[Pod, str], Pod]) -> None:
    for pods in (gang("train", 2), [pod("alone", 8)]):
        world = World(earmark_share=1.0)
        for number, pool in enumerate("aabb"):
            world.add(node(f"n{number}", labels={**MESHES, "pool": pool}))
            world.fill(f"n{number}", range(1 if pool == "a" else 8))  # those of the other pool would drain first
        asked = [restrict(each, "b") for each in pods]
        world.add(*asked)
        assert outcome(world, asked[:1])[0] in {Reason.GANG_DOES_NOT_FIT, Reason.NOT_ENOUGH_CHIPS}
        world.engine.earmarks.choose()
        kept = {name for name in ("n0", "n1", "n2", "n3") if world.ledger.promises.on(name)}
        assert kept <= {"n2", "n3"}
        assert kept


def test_a_change_of_labels_counts_at_once() -> None:
    world = pooled("ab")
    pods = [by_affinity(each, "b") for each in gang("train", 2)]
    world.add(*pods)
    assert outcome(world, pods) == [Reason.GANG_DOES_NOT_FIT] * 2
    world.add(node("n0", labels={**MESHES, "pool": "b"}))
    assert outcome(world, pods) == ["n0", "n1"]


LABELS = st.fixed_dictionaries({}, optional={"pool": st.sampled_from(POOLS), "year": st.sampled_from(["1", "2"])})
TERMS = st.sampled_from([
    term("pool", "In", "a", "b"), term("pool", "NotIn", "a"), term("pool", "Exists"), term("pool", "DoesNotExist"),
    term("year", "Gt", "1"), term("metadata.name", "In", "n1", field="matchFields"), {},
    term("pool", "Exists") | term("metadata.name", "NotIn", "n1", field="matchFields"),
])  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | LABELS, st.lists(TERMS, max_size=2)), max_size=12))
def test_the_nodes_of_an_affinity_are_those_of_the_present_labels(
    changes: list[tuple[int, Mapping[str, str] | None, list[dict[str, object]]]],
) -> None:
    world, present = World(), dict[str, Mapping[str, str]]()
    for number, labels, terms in changes:
        name = f"n{number}"
        if labels is None:
            world.cluster.node_deleted(node(name))
            present.pop(name, None)
        else:
            world.add(node(name, labels=labels))
            present[name] = labels
        spec = requiring(pod("a", 8), *terms).spec
        expected = {name for name, labels in present.items() if any(_admits(term, name, labels) for term in terms)}
        assert set(world.cluster.labels.admitting(spec)) == expected


def _admits(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """The definition, without what is shared with the code."""
    asked = [(labels, each) for each in term.get("matchExpressions", ())]
    asked += [({"metadata.name": name}, each) for each in term.get("matchFields", ())]
    return bool(asked) and all(_holds(values.get(each["key"]), each) for values, each in asked)


def _holds(value: str | None, asked: Mapping[str, Any]) -> bool:
    return {
        "In": value in asked["values"],
        "NotIn": value not in asked["values"],
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "Gt": value is not None and value.isdigit() and value > (asked["values"] or ["9"])[0],
    }[asked["operator"]]
