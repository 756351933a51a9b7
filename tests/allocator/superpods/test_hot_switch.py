"""The backup pod of a hot switch: it stands by beside the pod that it replaces, in the SuperPod of that."""

from typing import Any

import pytest
from msgspec.structs import replace

from allocator.binding.annotations import Stamper
from allocator.state.reservation import Stage
from ascend.annotations import BACKUP_SOURCE, BLOCK, RANK
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import owned_by
from tests.allocator.rescheduling.cases import of_area as of_record
from tests.allocator.superpods.cases import of_area
from tests.allocator.superpods.test_jobs import again
from tests.allocator.superpods.test_ranks import annotated
from tests.allocator.superpods.world import bind, job, server, super_pods

SOFT = {"super-pod-affinity": "soft"}


def backup(each: Pod) -> Pod:
    """The backup pod of a pod, as MindCluster's operator makes it."""
    return annotated(again(each, f"{each.name}-hot-1234"), {BACKUP_SOURCE: each.name, BLOCK: None})


@of_area("superpod.hotswitch", without=("hotswitch-2",))
def test_a_backup_goes_where_the_cases_say(case: dict[str, Any]) -> None:
    """Case hotswitch-2 is a pod without the annotation, which is no backup."""
    size = len(case["given"]["blocks"]["0"])
    world = super_pods(*([size] * 4))
    world.add(*(pods := job(size, size)))
    running = [bind(world, each) for each in pods]
    assert {each.spec.node_name[0] for each in running} == {"0"}
    offered = case["given"]["node_super_pod"]
    world.add(server(0, size), new := backup(running[case["given"]["backup_pod_rank"]]))
    if case["expect"]["eligible"]:
        assert world.engine.place(new).node == f"{offered}-{size}"
    else:
        assert "must join the others of the block in SuperPod 0" in world.refusal(new, [f"{offered}-0"]).message
        assert (
            "must join the others of the block in SuperPod 0"
            in world.refusal(new, [f"{offered}-0", f"{offered}-1"]).message
        )


@pytest.mark.parametrize(("size", "labels"), [(2, {}), (1, {}), (2, SOFT), (2, {"app": "ie", "jobID": "1"})])
@pytest.mark.parametrize("restart", [False, True])
def test_a_backup_has_the_rank_and_the_block_of_the_pod_that_it_replaces(
    *, size: int, labels: dict[str, str], restart: bool
) -> None:
    world = super_pods(4, 4, 4)
    world.add(*(pods := job(4, size, labels=labels)))
    running = [bind(world, each) for each in pods]
    world.add(new := backup(running[2]))
    if restart:
        old, world = world, super_pods(4, 4, 4)
        world.add(*reversed(list(old.cluster.pods.values())))
    held = world.engine.place(new)
    assert held.node.partition("-")[0] == running[2].spec.node_name.partition("-")[0]
    assert held.node not in {each.spec.node_name for each in running}
    stamper = Stamper(world.cluster, world.ledger, lambda: 1)
    written = stamper.annotations(new, stamper.stamp(held, Stage.BINDING))
    assert (written[RANK], written[BLOCK]) == ("2", running[2].metadata.annotations[BLOCK])


@of_record("resched.hotswitch")
def test_a_backup_that_waits_changes_no_record(case: dict[str, Any]) -> None:
    said = case["given"]
    assert not said["backup_pod_node"]
    world = super_pods(2)
    world.add(*(pods := [owned_by(each, "StatefulSet", "apps/v1") for each in job(2)]))
    running = [bind(world, each) for each in pods]
    key = world.cluster.jobs.job_of(running[0]).key
    nodes = [world.cluster.blocks.of(key)[rank].node for rank in (0, 1)]
    assert nodes == [name.replace("node", "0-") for name in said["block0"]]
    world.add(backup(running[said["block0"].index(said["source_pod_node"])]))
    nodes = [world.cluster.blocks.of(key)[rank].node for rank in (0, 1)]
    assert nodes == [name.replace("node", "0-") for name in case["expect"]["block0_after"]]


def test_a_backup_that_takes_over_is_recorded_where_it_is() -> None:
    world = super_pods(3)
    world.add(*(pods := [owned_by(each, "StatefulSet", "apps/v1") for each in job(2)]))
    running = [bind(world, each) for each in pods]
    world.add(new := owned_by(backup(running[0]), "StatefulSet", "apps/v1"))
    new = bind(world, new)
    world.cluster.pod_deleted(running[0])
    record = world.cluster.blocks.of(world.cluster.jobs.job_of(new).key)
    assert {rank: (spot.node, spot.block) for rank, spot in record.items()} == {0: ("0-2", 0), 1: ("0-1", 0)}


def test_a_backup_waits_while_the_super_pod_has_no_room() -> None:
    world = super_pods(2, 4)
    world.add(server(1, 0, cordoned=True), server(1, 1, cordoned=True), server(1, 2, cordoned=True), *(pods := job(2)))
    running = [bind(world, each) for each in pods]
    world.add(*(server(1, index) for index in range(4)), new := backup(running[0]))
    refusal = world.refusal(new)
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "1 pod of block 0 must join the others of the block in SuperPod 0, which has room for 0" in refusal.message


def test_a_backup_takes_over_once_the_pod_that_it_replaces_is_gone() -> None:
    world = super_pods(5)
    world.add(*(pods := job(2)))
    running = [bind(world, each) for each in pods]
    world.add(new := backup(running[1]))
    new = bind(world, new)
    world.cluster.pod_deleted(running[1])
    world.add(new := annotated(new, {BACKUP_SOURCE: None}))
    gang = world.cluster.jobs.job_of(new)
    assert [(rank, pod.name) for rank, pod in gang.by_rank()] == [(0, pods[0].name), (1, new.name)]
    # A further fault: its successor returns to the block where it is now.
    world.cluster.pod_deleted(running[0])
    world.add(next_one := again(running[0]))
    held = world.engine.place(next_one)
    assert held.part is not None
    assert (held.part.block, held.part.rank) == (0, 0)


@pytest.mark.parametrize("source", ["nobody", "train-0", "", "train-3"])
def test_pods_that_name_no_running_pod_with_their_rank_are_ordinary_pods(source: str) -> None:
    """Somebody has written the annotation in the template: it names a missing pod, a peer, or the pod itself."""
    world = super_pods(4, 4)
    world.add(*(pods := [annotated(each, {BACKUP_SOURCE: source}) for each in job(4)]))
    running = [bind(world, each) for each in pods]
    assert [each.spec.node_name for each in running] == ["0-0", "0-1", "1-0", "1-1"]
    world.cluster.pod_deleted(running[2])
    world.add(new := again(running[2]))
    assert world.engine.place(new).node == "1-0"


def test_a_job_without_blocks_has_its_backup_on_any_free_node() -> None:
    world = super_pods(1, 1, 1)
    pods = [replace(each, spec=replace(each.spec, node_selector={})) for each in job(2, None)]
    world.add(*pods)
    for each in pods:
        held = world.engine.place(each)
        world.add(replace(each, spec=replace(each.spec, node_name=held.node)))
    new = backup(pods[0])
    world.add(new := replace(new, spec=replace(new.spec, node_selector={})))
    held = world.engine.place(new)
    assert (held.node, world.cluster.jobs.job_of(new).rank_of(new)) == ("2-0", 0)
