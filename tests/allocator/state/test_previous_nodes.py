"""A pod that replaces another pod of its job is placed on that pod's node, if the setting says so."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.engine import DecisionEngine
from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from allocator.state.previous_nodes import TTL_S, PreviousNodes
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from tests.allocator.builders import GROUP, World, node, pod, selecting
from tests.allocator.reference import reference_cases
from tests.allocator.superpods.cases import of_area

CASES = reference_cases("ranks")["prefer_previous_node"]


def prefer(rank: int, previous: Mapping[int, str], fitting: Iterable[str], *, faulty: bool = False) -> str | None:
    """The rule as the specification states it: the node for a pod among those it fits on; None if there are none.

    Args:
        rank: the pod's rank in its job.
        previous: the former node of each rank of the job.
        fitting: the nodes, best first.
        faulty: its own node had a fault, and is the last choice instead of the first.
    """
    nodes = list(fitting)
    own = previous.get(rank)
    if not faulty and own in nodes:
        return own
    unused = next((node for node in nodes if node not in previous.values()), None)
    if unused is not None:
        return unused
    return own if own in nodes else next(iter(nodes), None)


def remembering(previous: Mapping[int, str], rank: int, request: int, free: Mapping[str, Iterable[int]]) -> World:
    """Nodes with these free chips, and a waiting pod of a job that had these nodes."""
    world, remembered = World(), PreviousNodes()
    world.cluster = Cluster(world.ledger, clock=lambda: world.now_s, previous=remembered)
    world.engine = DecisionEngine(world.cluster, world.ledger)
    for name, idle in free.items():
        world.occupy(name, idle)
    world.add(pod("waiting", request, annotations={GROUP: "train", "hccl/rankIndex": str(rank)}))
    for each, name in previous.items():
        remembered.remember(world.cluster.jobs.job_of(waiting_in(world)).key, each, name, now_s=world.now_s)
    return world


def waiting_in(world: World) -> Pod:
    return next(each for each in world.cluster.pods.values() if each.name == "waiting")


FREE = ([0], [0, 1, 2], [0, 1], [0, 1, 2, 3])
"""The free chips of nodes for a pod with one chip, best node first."""


def chosen(previous: Mapping[int, str], rank: int, scores: Mapping[str, float], *, faulty: bool) -> str:
    """The node that the engine chooses among nodes that come in the order of these scores."""
    levels = sorted(set(scores.values()), reverse=True)
    world = remembering(previous, rank, 1, {name: FREE[levels.index(score)] for name, score in scores.items()})
    waiting = waiting_in(world)
    assert [name for name, _ in world.engine.fits(waiting)] == sorted(scores, key=lambda name: (-scores[name], name))
    if faulty:
        world.cluster.faulty_nodes.note(world.cluster.jobs.job_of(waiting).key, {previous[rank]})
    return world.engine.place(waiting).node


@pytest.mark.parametrize("case", CASES["cases"], ids=str)
def test_the_preferred_node_agrees_with_the_reference(case: dict[str, Any]) -> None:
    previous = {int(rank): name for rank, name in CASES["prefs"].items()}
    assert chosen(previous, case["rank"], case["scores"], faulty=case["fault"]) == case["boosted"]


@of_area("prefer-previous")
def test_the_preferred_node_agrees_with_the_cases(case: dict[str, Any]) -> None:
    said = case["given"]
    previous = {int(rank): name for rank, name in said["previous_nodes"].items()}
    assert chosen(previous, said["rank"], said["scores"], faulty=said["pod_faulty"]) == case["expect"]["boosted"]


NODES = tuple(f"n{number}" for number in range(6))


@given(
    free=st.lists(st.frozensets(st.integers(0, 7)), min_size=len(NODES), max_size=len(NODES)),
    previous=st.dictionaries(st.integers(0, 7), st.sampled_from((*NODES, "gone")), max_size=8),
    candidates=st.none() | st.lists(st.sampled_from((*NODES, "gone", "new")), unique=True),
    rank=st.integers(0, 7),
    request=st.sampled_from((1, 2, 4)),
    faulty=st.booleans(),
)
def test_the_chosen_node_follows_the_stated_rule(
    free: list[frozenset[int]],
    previous: dict[int, str],
    candidates: list[str] | None,
    rank: int,
    request: int,
    *,
    faulty: bool,
) -> None:
    world = remembering(previous, rank, request, dict(zip(NODES, free, strict=True)))
    waiting = waiting_in(world)
    fitting = [name for name, _ in world.engine.fits(waiting) if candidates is None or name in candidates]
    if faulty and rank in previous:
        world.cluster.faulty_nodes.note(world.cluster.jobs.job_of(waiting).key, {previous[rank]})
    expected = prefer(rank, previous, fitting, faulty=faulty)
    if expected is None:
        with pytest.raises(Refusal):
            world.engine.place(waiting, candidates)
    else:
        place = world.engine.place(waiting, candidates)
        assert (place.node, place.take.chips) == (expected, dict(world.engine.fits(waiting))[expected].take.chips)


def world_with(*, remembers: bool = True) -> World:
    world = World()
    world.cluster = Cluster(world.ledger, clock=lambda: world.now_s, previous=PreviousNodes() if remembers else None)
    world.engine = DecisionEngine(world.cluster, world.ledger)
    world.add(*(node(f"n{number}", labels={"pool": "a"}) for number in range(4)))
    return world


def of_job(name: str, rank: int, *, at: str = "", minimum: int = 1) -> Pod:
    annotations = {GROUP: "train", MIN_AVAILABLE: str(minimum), "hccl/rankIndex": str(rank)}
    return pod(name, 8, node=at, chips=range(8) if at else None, annotations=annotations)


@pytest.mark.parametrize(("remembers", "expected"), [(True, "n2"), (False, "n0")])
def test_a_successor_gets_its_predecessors_node_if_configured(*, remembers: bool, expected: str) -> None:
    world = world_with(remembers=remembers)
    first = of_job("a", 0, at="n2")
    world.add(first)
    world.cluster.pod_deleted(first)
    assert world.engine.place(of_job("b", 0)).node == expected


def test_a_pod_leaves_the_previous_nodes_of_its_peers_free() -> None:
    world = world_with()
    for each in (of_job("a", 0, at="n0"), of_job("b", 1, at="n1")):
        world.add(each)
        world.cluster.pod_deleted(each)
    assert world.engine.place(of_job("c", 5)).node == "n2"
    assert world.engine.place(of_job("d", 1), ["n0", "n1", "n3"]).node == "n1"


@pytest.mark.parametrize("selected", [(), (0,), (0, 1, 2)], ids=str)
def test_a_gang_returns_to_its_free_previous_nodes_by_rank(selected: tuple[int, ...]) -> None:
    world = world_with()
    old = [of_job(f"old-{rank}", rank, at=f"n{3 - rank}", minimum=3) for rank in range(3)]
    world.add(*old)
    for each in old:
        world.cluster.pod_deleted(each)
    world.add(pod("other", 8, node="n2", chips=range(8)))
    new = [of_job(f"new-{rank}", rank, minimum=3) for rank in range(3)]
    for rank in selected:
        new[rank] = selecting(new[rank], {"pool": "a"})
    world.add(*new)
    assert [world.engine.place(each).node for each in new] == ["n3", "n0", "n1"]


def test_previous_nodes_of_old_jobs_are_dropped() -> None:
    previous = PreviousNodes()
    for number in range(100):
        previous.remember(JobKey("default", f"job-{number}", VOLCANO), 0, "n1", now_s=number * TTL_S / 10)
    assert len(previous._jobs) == 11
    assert previous.of(JobKey("default", "job-99", VOLCANO)) == {0: "n1"}
    assert previous.of(JobKey("default", "job-1", VOLCANO)) == {}
