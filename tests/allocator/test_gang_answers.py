"""What is said of gangs, and remembered: never what is not so, and never at the cost of a walk."""

from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.decision.engine import DecisionEngine
from allocator.gangs.gangs import Gangs
from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest
from allocator.rules.job import VOLCANO
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.ranking import Ranking
from allocator.state.reservation import Seat
from ascend.annotations import RANK
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, Pod, PodGroup, PodGroupSpec, PodStatus
from tests.allocator.builders import World, node, pod
from tests.allocator.gangs import GROUP, MESHES, TTL_S, TWO, bind, gang, of_pool, reason, world_of


def test_what_was_said_of_its_peers_does_not_count_for_a_pod_that_only_its_scheduler_knows() -> None:
    world = world_of(2)
    one, two, late = (
        pod(name, 8, annotations={**TWO, RANK: rank}) for name, rank in (("one", "1"), ("two", "2"), ("late", "0"))
    )
    world.add(one, of_pool(two, "nowhere"))
    assert reason(world, one) == "GangDoesNotFit"
    assert world.engine.place(late).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_refusal_that_is_remembered_names_no_other_pod() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(more := gang("train", 2, minimum=2, first=2)))
    said = []
    for each in more:
        with pytest.raises(Refusal) as refused:
            world.engine.place(each)
        said.append(refused.value.message)
    assert said[0] == said[1]
    assert "job default/train: a pod of it has to join its peers and does not fit; for one of 8 chips" in said[0]


def test_a_late_pod_of_a_gang_that_stands_is_placed_without_looking_at_its_peers() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(late := gang("train", 1, minimum=2, first=2)))
    with mock.patch.object(Job, "ranked", side_effect=AssertionError):
        assert world.engine.filter(late[0]).fitting == ["n2"]
        assert world.engine.place(late[0]).node == "n2"


def test_what_is_said_of_small_pods_that_do_not_fit_counts_what_the_large_ones_take() -> None:
    world = world_of(2, **MESHES)
    world.add(*(pod(f"other-{chip}", 1, node="n1", chips=[chip], phase="Running") for chip in range(4)))
    pods = [*gang("train", 1, minimum=5), *gang("train", 4, chips=4, minimum=5, first=1)]
    world.add(*pods)
    with pytest.raises(Refusal, match="only 2 fit at once; for another one of 4 chips the nodes refuse: 2 NotEnough"):
        world.engine.place(pods[0])


def test_that_a_gang_does_not_fit_is_said_without_looking_at_every_node() -> None:
    def verdicts(nodes: int) -> int:
        world = world_of(nodes)
        world.add(*(pod(f"other-{at}", 8, node=f"n{at}", chips=range(8), phase="Running") for at in range(1, nodes)))
        world.add(*(pods := gang("train", 3)))
        with (
            mock.patch.object(Ranking, "verdict", autospec=True, side_effect=Ranking.verdict) as asked,
            pytest.raises(Refusal, match=f"only 1 fit at once; .*: {nodes} NotEnoughChips"),
        ):
            world.engine.place(pods[0])
        return asked.call_count

    assert verdicts(20) == verdicts(200)


@pytest.mark.parametrize("names", [None, ["n0", "n1", "n2"]])
def test_a_gang_that_does_not_fit_is_planned_once_however_many_of_its_pods_are_asked_about(
    names: list[str] | None,
) -> None:
    world, planned = world_of(3), 0

    def counting(request: GangRequest, index: NodeIndex) -> list[Seat] | Refusal:
        nonlocal planned
        planned += 1
        return pack(request, index)

    world.engine.gangs = Gangs(
        world.cluster, world.ledger, ttl_s=TTL_S, request_of=world.engine.request_of, policy=counting
    )
    world.add(*(pods := gang("train", 4)))
    for each in pods:
        assert reason(world, each, names) == "GangDoesNotFit"
        assert world.engine.filter(each, names).fitting == []
    assert planned == 1
    world.add(*(others := gang("other", 4)))
    for pair in zip(pods, others, strict=True):
        assert [reason(world, each, names) for each in pair] == ["GangDoesNotFit"] * 2
    assert planned == 2
    world.add(node("n3"))
    assert reason(world, pods[0], ["n0", "n1", "n2"]) == "GangDoesNotFit"
    assert world.engine.place(pods[0]).node == "n0"


changes = st.one_of(
    st.tuples(st.sampled_from(["come", "come", "bind", "fail", "go"]), st.integers(0, 3), st.sampled_from([1, 4, 8])),
    st.tuples(st.sampled_from(["other comes", "other goes", "node", "minimum"]), st.integers(1, 4), st.just(0)),
)


def happen(world: World, present: dict[int, Pod], what: str, number: int, chips: int) -> None:
    """One thing changes; present are the pods of the gang."""
    other = pod(f"other-{number}", 2, node="n0", chips=[2 * number - 2, 2 * number - 1], phase="Running")
    mine = pod(f"train-{number}", chips or 8, annotations={GROUP: "train"})
    match what:
        case "come" | "bind":
            if number in present:
                world.cluster.pod_deleted(present[number])
            if what == "bind":
                mine = pod(mine.name, chips, node="n1", chips=range(chips), annotations={GROUP: "train"})
            world.add(mine)
            present[number] = mine
        case "fail" | "go" if number in present:
            gone = present.pop(number)
            failed = msgspec.structs.replace(gone, status=PodStatus(phase="Failed"))
            world.cluster.pod_applied(failed) if what == "fail" else world.cluster.pod_deleted(gone)
        case "other comes":
            world.add(other)
        case "other goes":
            world.cluster.pod_deleted(other)
        case "node":
            world.add(node(f"n{number}", labels=MESHES))
        case "minimum":
            group = PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(number))
            world.cluster.jobs.group_applied(VOLCANO, group)


def test_a_small_pod_that_joins_a_running_gang_is_not_refused_for_a_large_one() -> None:
    world = world_of(1, **MESHES)
    world.add(*(pod(f"train-{at}", 2, node="n0", chips=[2 * at, 2 * at + 1], annotations=TWO) for at in range(2)))
    large, small = pod("train-2", 8, annotations=TWO), pod("train-3", 1, annotations=TWO)
    world.add(large, small)
    assert reason(world, large) == "GangDoesNotFit"
    assert world.engine.place(small).node == "n0"


def test_a_job_that_is_made_anew_is_not_taken_for_the_one_before() -> None:
    world = world_of(1, **MESHES)
    for chips in (8, 4):
        pods = [pod(f"train-{at}", each, annotations=TWO) for at, each in enumerate((4, chips))]
        world.add(*pods)
        if chips == 8:
            assert reason(world, pods[0]) == "GangDoesNotFit"
            for each in pods:
                world.cluster.pod_deleted(each)
    assert world.engine.place(pods[0]).node == "n0"


@settings(max_examples=200, deadline=None)
@given(history=st.lists(changes, max_size=12), names=st.none() | st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_what_was_answered_before_is_never_the_answer_to_another_question(
    history: list[tuple[str, int, int]], names: set[str] | None
) -> None:
    world = world_of(2, **MESHES)
    world.cluster.jobs.watched(VOLCANO)
    present: dict[int, Pod] = {}
    # Three of which two fit, and then one thing after the other changes.
    begun = [("minimum", 3, 0), *(("come", number, 8) for number in range(3))]
    for change in (*begun, *history):
        happen(world, present, *change)
        fresh = DecisionEngine(world.cluster, world.ledger)
        for each in present.values():
            kept, anew = world.engine.filter(each, names), fresh.filter(each, names)
            assert kept.fitting == anew.fitting
            assert {name: str(why) for name, why in kept.refused.items()} == {
                name: str(why) for name, why in anew.refused.items()
            }
