"""Where pods that are created anew go: away from the nodes on which pods of their job have failed, others back."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from allocator.state.previous_nodes import PreviousNodes
from ascend.kube.objects import Pod
from tests.allocator.builders import owned_by
from tests.allocator.rescheduling.scene import Scene, anew, job, scene
from tests.allocator.superpods import world as blocks


def failed(each: Pod) -> Pod:
    return replace(each, status=replace(each.status, phase="Failed"))


def pending(each: Pod) -> Pod:
    """The pod as its controller creates it anew."""
    new = anew(each)
    annotations = {key: text for key, text in new.metadata.annotations.items() if "Ascend910" not in key}
    metadata = replace(new.metadata, annotations=annotations)
    status = replace(new.status, phase="Pending")
    return replace(new, metadata=metadata, spec=replace(new.spec, node_name=""), status=status)


def place(stage: Scene, pods: Sequence[Pod]) -> list[str]:
    stage.world.add(*pods)
    return [stage.world.engine.place(each).node for each in pods]


@pytest.mark.parametrize("is_gang", [True, False])
@pytest.mark.parametrize("prefers_previous", [True, False])
async def test_pods_that_failed_go_to_other_nodes_if_there_are_any(*, is_gang: bool, prefers_previous: bool) -> None:
    pods = job(2, is_gang=is_gang, fault_retry_times="5")
    stage = scene([], nodes=3)
    stage.world.cluster.previous = PreviousNodes() if prefers_previous else None
    stage.world.add(*pods, failed(pods[0]))
    assert await stage.look() == ["train-0", "train-1"]
    nodes = place(stage, new := [pending(each) for each in pods])
    assert "n1" not in nodes
    assert nodes[1] == "n2" or not prefers_previous
    stage.world.add(*(replace(each, spec=replace(each.spec, node_name=at), status=replace(each.status, phase="Running"),
                              metadata=replace(each.metadata, annotations=pods[0].metadata.annotations))
                      for each, at in zip(new, nodes, strict=True)))  # fmt: skip
    await stage.look(1.0)
    assert [each.faulty_nodes for each in stage.rescheduler.memory.jobs.values()] == [[]]


@pytest.mark.parametrize("is_gang", [True, False])
async def test_pods_that_failed_return_where_nothing_else_is_free(*, is_gang: bool) -> None:
    pods = job(2, is_gang=is_gang, fault_retry_times="5")
    stage = scene([], nodes=2)
    stage.world.cluster.previous = PreviousNodes()
    stage.world.add(*pods, failed(pods[0]))
    assert await stage.look() == ["train-0", "train-1"]
    assert sorted(place(stage, [pending(each) for each in pods])) == ["n1", "n2"]


async def test_the_next_leader_knows_on_which_nodes_pods_have_failed() -> None:
    pods = job(1, fault_retry_times="5")
    stage = scene([*pods, failed(pods[0])], nodes=2)
    assert await stage.look() == ["train-0"]
    stage.world.cluster.faulty_nodes.note(stage.world.cluster.jobs.job_of(pods[0]).key, ())
    await stage.succeed()
    assert place(stage, [pending(pods[0])]) == ["n2"]


async def test_pods_that_fail_with_another_one_are_not_kept_from_their_nodes() -> None:
    pods = job(2)
    stage = scene(pods, nodes=2)
    stage.world.add(replace(pods[1], metadata=replace(pods[1].metadata, labels={
        **pods[1].metadata.labels, "fault-type": "Separate"})))  # fmt: skip
    assert await stage.look() == ["train-0", "train-1"]
    assert [each.faulty_nodes for each in stage.rescheduler.memory.jobs.values()] == [[]]


@pytest.mark.parametrize("reach", ["job", "pod"])
@pytest.mark.parametrize("has_other", [True, False])
async def test_a_block_in_which_a_pod_failed_gets_another_node_of_its_super_pod(*, reach: str, has_other: bool) -> None:
    said = {"fault-scheduling": "force", "fault-retry-times": "5"} | (
        {"pod-rescheduling": "on"} if reach == "pod" else {}
    )
    stage = Scene(reschedule_faulty_share=1.0)
    stage.world.add(*(blocks.server(number, index) for number in range(2) for index in range(2 + has_other)))
    created = [owned_by(each, "StatefulSet", "apps/v1") for each in blocks.job(4, labels=said)]
    stage.world.add(*created)
    running = [blocks.bind(stage.world, each) for each in created]
    before = [each.spec.node_name for each in running]
    stage.world.add(failed(running[1]))
    assert await stage.look() == (["train-1"] if reach == "pod" else [f"train-{rank}" for rank in range(4)])
    gone = [1] if reach == "pod" else range(4)
    after = dict(zip(gone, place(stage, [anew(created[rank]) for rank in gone]), strict=True))
    assert {rank: after[rank] for rank in gone if rank != 1} == {rank: before[rank] for rank in gone if rank != 1}
    assert after[1].partition("-")[0] == before[1].partition("-")[0]
    assert (after[1] != before[1]) is has_other
