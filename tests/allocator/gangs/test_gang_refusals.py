"""Refusals of gangs: what they say, that cached ones are valid, and that they are cheap."""

import re
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.engine import DecisionEngine
from allocator.gangs.gangs import Gangs
from allocator.gangs.packing import Packing, pack
from allocator.gangs.policy import GangRequest
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.ranking import Ranking
from allocator.state.reservation import Seat
from ascend.annotations import RANK
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod, PodStatus
from ascend.reasons import Reason
from ascend.turn import Steps
from tests.allocator.builders import GROUP, World, node, pod, pod_group
from tests.allocator.gangs.builders import MESHES, TTL_S, TWO, bind, gang, of_pool, reason, world_of


def test_a_peers_refusal_does_not_apply_to_a_pod_not_seen_yet() -> None:
    world = world_of(2)
    one, two, late = (
        pod(name, 8, annotations={**TWO, RANK: rank}) for name, rank in (("one", "1"), ("two", "2"), ("late", "0"))
    )
    world.add(one, of_pool(two, "nowhere"))
    assert reason(world, one) is Reason.GANG_DOES_NOT_FIT
    assert world.engine.place(late).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_cached_refusal_names_no_other_pod() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(more := gang("train", 2, minimum=2, first=2)))
    sentences = {world.refusal(each).message for each in more}
    assert len(sentences) == 1
    (sentence,) = sentences
    assert "default/train:" in sentence
    assert "train-2" not in sentence
    assert "8 chips" in sentence


def test_a_pod_that_joins_a_running_gang_is_placed_without_its_peers() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(late := gang("train", 1, minimum=2, first=2)))
    with mock.patch.object(Job, "by_rank", side_effect=AssertionError):
        assert world.engine.filter(late[0]).fitting == ["n2"]
        assert world.engine.place(late[0]).node == "n2"


def test_a_refusal_counts_what_larger_peers_take() -> None:
    world = world_of(2, **MESHES)
    world.add(*(pod(f"other-{chip}", 1, node="n1", chips=[chip], phase="Running") for chip in range(4)))
    pods = [*gang("train", 1, minimum=5), *gang("train", 4, chips=4, minimum=5, first=1)]
    world.add(*pods)
    assert re.search("5 pods .* 2 fit .*4 chips.* 2 NotEnoughChips", world.refusal(pods[0]).message)


@pytest.mark.parametrize(
    ("elsewhere", "sentence"),
    [
        (1, "one of them fits on no node; for this one (8 chips) no node matches its node selector and affinity"),
        (2, "of 2 equal ones none fits; for the first one (8 chips) no node matches its node selector and affinity"),
    ],
)
def test_a_refusal_is_not_said_of_the_pods_that_fit(elsewhere: int, sentence: str) -> None:
    world = world_of(4)
    pods = gang("train", 4)
    world.add(*pods[elsewhere:], *(of_pool(each, "nowhere") for each in pods[:elsewhere]))
    assert world.refusal(pods[3]).message == f"job default/train: 4 pods must be placed together and {sentence}"


def test_a_refusal_counts_the_nodes_of_the_pods_that_lack_room() -> None:
    world = world_of(5, pool="a")
    world.add(node("b0", labels={"pool": "b"}), *(pods := gang("train", 2, minimum=4)))
    world.add(*(of_pool(each, "b") for each in gang("train", 2, minimum=4, first=2)))
    assert re.search(
        r"4 pods .* of 2 equal ones only 1 fits at once; .*: 1 NotEnoughChips$", world.refusal(pods[0]).message
    )


def test_a_refusal_is_found_without_examining_every_node() -> None:
    def verdicts(nodes: int) -> int:
        world = world_of(nodes)
        world.add(*(pod(f"other-{at}", 8, node=f"n{at}", chips=range(8), phase="Running") for at in range(1, nodes)))
        world.add(*(pods := gang("train", 3)))
        with (
            mock.patch.object(Ranking, "verdict", autospec=True, side_effect=Ranking.verdict) as judged,
            pytest.raises(Refusal, match=f"3 pods .* 1 fits .*: {nodes} NotEnoughChips"),
        ):
            world.engine.place(pods[0])
        return judged.call_count

    assert verdicts(20) == verdicts(200)


@pytest.mark.parametrize("names", [None, ["n0", "n1", "n2"]])
def test_a_gang_that_does_not_fit_is_planned_once(
    names: list[str] | None,
) -> None:
    world, planned = world_of(3), 0

    class Counting(Packing, frozen=True):
        def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
            nonlocal planned
            planned += 1
            return pack(gang, index)

    world.engine.gangs = Gangs(
        world.cluster, world.ledger, ttl_s=TTL_S, request_of=world.engine.request_of, policy_of=lambda _pod: Counting()
    )
    world.add(*(pods := gang("train", 4)))
    for each in pods:
        assert reason(world, each, names) is Reason.GANG_DOES_NOT_FIT
        assert world.engine.filter(each, names).fitting == []
    assert planned == 1
    world.add(*(others := gang("other", 4)))
    for pair in zip(pods, others, strict=True):
        assert [reason(world, each, names) for each in pair] == [Reason.GANG_DOES_NOT_FIT] * 2
    assert planned == 2
    world.add(node("n3"))
    assert reason(world, pods[0], ["n0", "n1", "n2"]) is Reason.GANG_DOES_NOT_FIT
    assert world.engine.place(pods[0]).node == "n0"


changes = st.one_of(
    st.tuples(st.sampled_from(["come", "come", "bind", "fail", "go"]), st.integers(0, 3), st.sampled_from([1, 4, 8])),
    st.tuples(st.sampled_from(["other comes", "other goes", "node", "minimum"]), st.integers(1, 4), st.just(0)),
)


def apply_change(world: World, present: dict[int, Pod], what: str, number: int, chips: int) -> None:
    """Apply one change to the world; ``present`` are the pods of the gang, by number."""
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
            group = pod_group(number)
            world.cluster.jobs.group_applied(VOLCANO, group)


def test_a_recreated_job_does_not_get_the_former_ones_refusal() -> None:
    world = world_of(1, **MESHES)
    for chips in (8, 4):
        pods = [pod(f"train-{at}", each, annotations=TWO) for at, each in enumerate((4, chips))]
        world.add(*pods)
        if chips == 8:
            assert reason(world, pods[0]) is Reason.GANG_DOES_NOT_FIT
            for each in pods:
                world.cluster.pod_deleted(each)
    assert world.engine.place(pods[0]).node == "n0"


@given(history=st.lists(changes, max_size=12), names=st.none() | st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_cached_answers_equal_computed_ones(history: list[tuple[str, int, int]], names: set[str] | None) -> None:
    world = world_of(2, **MESHES)
    world.cluster.jobs.on_watched(VOLCANO)
    present: dict[int, Pod] = {}
    # Three pods of which two fit, and then one change after the other.
    beginning = [("minimum", 3, 0), *(("come", number, 8) for number in range(3))]
    for change in (*beginning, *history):
        apply_change(world, present, *change)
        fresh = DecisionEngine(world.cluster, world.ledger)
        for each in present.values():
            cached, computed = world.engine.filter(each, names), fresh.filter(each, names)
            assert cached.fitting == computed.fitting
            assert {name: str(why) for name, why in cached.refused.items()} == {
                name: str(why) for name, why in computed.refused.items()
            }


def test_a_gang_that_breaks_a_rule_waits_with_the_rules_sentence() -> None:
    world = World()
    world.add(*(node(f"n{number}") for number in range(2)), *gang("train", 2, chips=4))
    message = world.refusal(gang("train", 2, chips=4)[0]).message
    assert "2 InvalidRequest (a pod of a job of several pods may request 8 chips of a 910A server, not 4)" in message
