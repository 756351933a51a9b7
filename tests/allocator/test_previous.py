"""A pod that takes another one's place in its job comes back to that one's node, if that is wanted."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.engine import DecisionEngine
from allocator.rules.job import VOLCANO, JobKey
from allocator.state.cluster import Cluster
from allocator.state.previous_nodes import TTL_S, PreviousNodes
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod

CASES = json.loads((Path(__file__).parent / "cases" / "ranks.json").read_text())["prefer_previous_node"]
GROUP = "scheduling.k8s.io/group-name"


def prefer(rank: int, previous: Mapping[int, str], fitting: Iterable[str], *, faulty: bool = False) -> str | None:
    """The rule, said plainly: the node for a pod among those it fits on, best first; None where there are none.

    Args:
        rank: the pod's rank in its job.
        previous: where the pods of the job were, by rank.
        fitting: the nodes, best first.
        faulty: its own node had a fault: it is the last resort instead of the first choice.
    """
    nodes = list(fitting)
    own = previous.get(rank)
    if not faulty and own in nodes:
        return own
    unused = next((node for node in nodes if node not in previous.values()), None)
    if unused is not None:
        return unused
    return own if own in nodes else next(iter(nodes), None)


@pytest.mark.parametrize("case", CASES["cases"], ids=str)
def test_the_preferred_node_is_the_references(case: dict[str, Any]) -> None:
    previous = {int(rank): name for rank, name in CASES["prefs"].items()}
    fitting = sorted(case["scores"], key=lambda name: -case["scores"][name])
    assert prefer(case["rank"], previous, fitting, faulty=case["fault"]) == case["boosted"]


def test_where_nothing_fits_nothing_is_preferred() -> None:
    assert prefer(0, {0: "n1"}, []) is None


NODES = tuple(f"n{number}" for number in range(6))


@given(
    free=st.lists(st.frozensets(st.integers(0, 7)), min_size=len(NODES), max_size=len(NODES)),
    previous=st.dictionaries(st.integers(0, 7), st.sampled_from((*NODES, "gone")), max_size=8),
    candidates=st.none() | st.lists(st.sampled_from((*NODES, "gone", "new")), unique=True),
    rank=st.integers(0, 7),
    request=st.sampled_from((1, 2, 4)),
)
def test_the_chosen_node_is_the_plain_rules(
    free: list[frozenset[int]], previous: dict[int, str], candidates: list[str] | None, rank: int, request: int
) -> None:
    made = World()
    remembered = PreviousNodes()
    made.cluster = Cluster(made.ledger, now_s=lambda: made.now_s, previous=remembered)
    made.engine = DecisionEngine(made.cluster, made.ledger)
    for name, idle in zip(NODES, free, strict=True):
        made.occupy(name, idle)
    asking = pod("asking", request, annotations={GROUP: "train", "hccl/rankIndex": str(rank)})
    made.add(asking)
    for each, name in previous.items():
        remembered.remember(made.cluster.jobs.job_of(asking).key, each, name, now_s=made.now_s)
    fitting = [name for name, _ in made.engine.fits(asking) if candidates is None or name in candidates]
    expected = prefer(rank, previous, fitting)
    if expected is None:
        with pytest.raises(Refusal):
            made.engine.place(asking, candidates)
    else:
        place = made.engine.place(asking, candidates)
        assert (place.node, place.chips) == (expected, dict(made.engine.fits(asking))[expected].chips)


def world(*, remembers: bool = True) -> World:
    made = World()
    made.cluster = Cluster(made.ledger, now_s=lambda: made.now_s, previous=PreviousNodes() if remembers else None)
    made.engine = DecisionEngine(made.cluster, made.ledger)
    made.add(*(node(f"n{number}", labels={"pool": "a"}) for number in range(4)))
    return made


def of_job(name: str, rank: int, *, at: str = "", minimum: int = 1) -> Pod:
    marks = {GROUP: "train", MIN_AVAILABLE: str(minimum), "hccl/rankIndex": str(rank)}
    return pod(name, 8, node=at, chips=range(8) if at else None, annotations=marks)


@pytest.mark.parametrize(("remembers", "expected"), [(True, "n2"), (False, "n0")])
def test_a_successor_goes_to_its_predecessors_node_where_that_is_wanted(*, remembers: bool, expected: str) -> None:
    made = world(remembers=remembers)
    first = of_job("a", 0, at="n2")
    made.add(first)
    made.cluster.pod_deleted(first)
    assert made.engine.place(of_job("b", 0)).node == expected


def test_a_pod_leaves_the_previous_nodes_of_its_peers_to_them() -> None:
    made = world()
    for each in (of_job("a", 0, at="n0"), of_job("b", 1, at="n1")):
        made.add(each)
        made.cluster.pod_deleted(each)
    assert made.engine.place(of_job("c", 5)).node == "n2"
    assert made.engine.place(of_job("d", 1), ["n0", "n1", "n3"]).node == "n1"


@pytest.mark.parametrize("selected", [(), (0,), (0, 1, 2)], ids=str)
def test_a_gang_comes_back_to_its_nodes_rank_by_rank_as_far_as_they_are_free(selected: tuple[int, ...]) -> None:
    made = world()
    old = [of_job(f"old-{rank}", rank, at=f"n{3 - rank}", minimum=3) for rank in range(3)]
    made.add(*old)
    for each in old:
        made.cluster.pod_deleted(each)
    made.add(pod("other", 8, node="n2", chips=range(8)))
    new = [of_job(f"new-{rank}", rank, minimum=3) for rank in range(3)]
    for rank in selected:
        spec = msgspec.structs.replace(new[rank].spec, node_selector={"pool": "a"})
        new[rank] = msgspec.structs.replace(new[rank], spec=spec)
    made.add(*new)
    assert [made.engine.place(each).node for each in new] == ["n3", "n0", "n1"]


def test_the_nodes_of_jobs_that_ended_long_ago_are_forgotten() -> None:
    previous = PreviousNodes()
    for number in range(100):
        previous.remember(JobKey("default", f"job-{number}", VOLCANO), 0, "n1", now_s=number * TTL_S / 10)
    assert len(previous) == 11
    assert previous.of(JobKey("default", "job-99", VOLCANO)) == {0: "n1"}
    assert previous.of(JobKey("default", "job-1", VOLCANO)) == {}
