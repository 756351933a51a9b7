"""The ranks of pods and the blocks that they belong to, also where annotations and running pods contradict them."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from allocator.state.reservation import InBlock
from ascend.annotations import BLOCK, RANK
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, pod
from tests.allocator.superpods.cases import of_area
from tests.allocator.superpods.test_jobs import again
from tests.allocator.superpods.world import SELECTOR, bind, job, placed, server, super_pods

SOFT = {"super-pod-affinity": "soft"}


def annotated(each: Pod, annotations: Mapping[str, str | None]) -> Pod:
    """The pod with other annotations; None removes one."""
    written = {**each.metadata.annotations, **annotations}
    kept = {key: value for key, value in written.items() if value is not None}
    return replace(each, metadata=replace(each.metadata, annotations=kept))


def parts(world: World, pods: Iterable[Pod]) -> list[InBlock]:
    """The block and rank of each pod that is placed, without its SuperPod."""
    held = [world.ledger.get(each.uid) for each in pods]
    found = [each.part for each in held if each is not None and each.part is not None]
    return [InBlock(each.block, each.rank) for each in found]


@of_area("superpod.rank", without=("rank-7",))
def test_a_rank_belongs_to_a_block_as_in_the_cases(case: dict[str, Any]) -> None:
    blocks, last = case["given"]["blocks"], case["given"]["rank"]
    (size,) = {len(nodes) for nodes in blocks.values()}
    ranks = [*range(size * len(blocks) - 1), last] if last >= size * len(blocks) else range(size * len(blocks))
    world = super_pods(4, 4)
    world.add(*(pods := job(size * len(blocks), size, ranks=ranks)))
    if case["expect"].get("error"):
        refusal = world.refusal(pods[-1])
        assert refusal.reason is Reason.INVALID_REQUEST
        assert "its ranks would be in 3 blocks of 2 servers, but its pods fill 2" in refusal.message
        assert not world.ledger
        return
    placed(world, pods)
    part = parts(world, pods)[last]
    assert str(part.block) == case["expect"]["block"]
    assert part.rank - part.block * size == case["expect"]["local_index"]


def test_ranks_of_split_blocks_are_cumulative() -> None:
    """Case rank-7: blocks of 2, 1 and 1 servers."""
    world = super_pods(1, 1, 2)
    world.add(*(pods := job(4, labels=SOFT)))
    placed(world, pods)
    assert parts(world, pods) == [InBlock(0, 0), InBlock(0, 1), InBlock(1, 2), InBlock(2, 3)]


@pytest.mark.parametrize(("ranks", "blocks"), [([1, 2, 3, 4], 3), ([0, 2, 4, 6], 4), ([0, 1, 2, 1_000_000], 3)])
def test_ranks_that_leave_blocks_incomplete_are_refused(ranks: list[int], blocks: int) -> None:
    world = super_pods(4, 4, 4, 4)
    world.add(*(pods := job(4, ranks=ranks)))
    for each in pods:
        assert f"in {blocks} blocks of 2 servers, but its pods fill 2" in world.refusal(each).message
    assert not world.ledger


@pytest.mark.parametrize("rank", ["1", "junk", "-1", ""])
def test_a_rank_that_is_taken_or_no_number_is_replaced_by_the_free_one(rank: str) -> None:
    world = super_pods(4, 4)
    *others, last = job(4)
    world.add(*others, last := annotated(last, {RANK: rank}))
    placed(world, [*others, last])
    assert [part.rank for part in parts(world, [*others, last])] == [0, 1, 2, 3]


def test_a_pod_without_chips_takes_no_rank_of_a_block() -> None:
    """As the Scheduler of a MindSpore job (case batch-rank-1): its peers are ranked by themselves."""
    world = super_pods(4, 4)
    pods = [annotated(each, {RANK: None}) for each in job(4, minimum=5)]
    world.add(pod("scheduler", None, annotations=pods[0].metadata.annotations, selector=SELECTOR), *pods)
    placed(world, pods)
    assert parts(world, pods) == [InBlock(0, 0), InBlock(0, 1), InBlock(1, 2), InBlock(1, 3)]


@pytest.mark.parametrize("written", [None, "", "x", "-1"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_running_pod_without_its_block_on_it_still_holds_the_block_together(
    *, written: str | None, restart: bool
) -> None:
    """Another scheduler has placed it, or the job got its blocks later."""
    world = super_pods(4, 4, 8)
    world.add(*(pods := job(4)))
    lost, peer, *others = [bind(world, each) for each in pods]
    for index in range(4):
        if f"0-{index}" != peer.spec.node_name:
            world.add(server(0, index, cordoned=True))
    peer = annotated(peer, {BLOCK: written})
    if restart:
        old, world = world, super_pods(4, 4, 8)
        world.add(*(each.node for each in old.cluster.nodes.values() if each.node is not None), *others)
    world.add(peer)
    world.cluster.pod_deleted(lost)
    world.add(new := again(lost))
    assert "must join the others of the block in SuperPod 0, which has room for 0" in world.refusal(new).message
    world.add(server(0, 3))
    assert world.engine.place(new).node == "0-3"


def test_a_running_pod_of_an_unknown_part_does_not_hold_up_a_job_that_may_be_split() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4, labels=SOFT)))
    lost, peer, *_ = [bind(world, each) for each in pods]
    world.add(annotated(peer, {BLOCK: "x"}))
    world.cluster.pod_deleted(lost)
    world.add(new := again(lost))
    assert world.engine.place(new).node in {"0-0", "0-2", "0-3"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sp-block": "64"}, "rank 2 runs in block 1, but would be in block 0 now"),
        ({"sp-block": "16"}, "rank 1 runs in block 0, but would be in block 1 now"),
    ],
)
def test_a_block_that_changes_while_the_job_runs_is_refused(changed: dict[str, str], sentence: str) -> None:
    world = super_pods(4, 4, 8)
    world.add(*(pods := job(4)))
    lost, *_ = [bind(world, each) for each in pods]
    world.cluster.pod_deleted(lost)
    world.add(new := annotated(again(lost), changed))
    refusal = world.refusal(new)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert sentence in refusal.message
    world.add(new := annotated(new, {"sp-block": "32"}))
    assert world.engine.place(new).node == "0-0"


def test_no_pod_joins_a_block_that_runs_in_two_super_pods() -> None:
    """The SuperPod of a node has changed, or another program has placed a pod."""
    world = super_pods(4, 4)
    world.add(*(pods := job(3, 3)))
    lost, *_, last = [bind(world, each) for each in pods]
    world.cluster.pod_deleted(lost)
    moved = server(1, 9)
    world.add(replace(moved, metadata=replace(moved.metadata, name=last.spec.node_name)))
    world.add(new := again(lost))
    refusal = world.refusal(new)
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "the pods of block 0 that run are in the SuperPods 0 and 1" in refusal.message
    world.add(server(0, int(last.spec.node_name[-1])))
    assert world.engine.place(new).node == "0-0"


def test_a_binding_that_names_its_node_joins_running_pods_without_a_block_on_them() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    lost, peer, *_ = [bind(world, each) for each in pods]
    world.add(annotated(peer, {BLOCK: None}))
    world.cluster.pod_deleted(lost)
    world.add(new := again(lost))
    with pytest.raises(Refusal, match="must join the others of the block in SuperPod 0"):
        world.engine.place_on(new, "1-3")
    assert world.engine.place_on(new, "0-3").node == "0-3"


@pytest.mark.parametrize(
    ("changed", "labels", "said"),
    [
        ({"sp-block": "64"}, {}, "sp-block=32 and sp-block=64"),
        ({"sp-block": None}, {}, "sp-block=32 and no sp-block"),
        ({}, SOFT, "super-pod-affinity=soft and no super-pod-affinity"),
    ],
)
def test_pods_of_one_job_that_ask_for_different_blocks_are_refused(
    changed: dict[str, str | None], labels: dict[str, str], said: str
) -> None:
    """Whichever of them is scheduled first would decide."""
    world = super_pods(4, 4)
    *others, last = job(4)
    last = annotated(last, changed)
    last = replace(last, metadata=replace(last.metadata, labels=labels))
    world.add(*others, last)
    for each in (last, *others):
        refusal = world.refusal(each)
        assert refusal.reason is Reason.INVALID_REQUEST
        assert f"its pods have {said}; make them agree" in refusal.message
    assert not world.ledger
    agreed = replace(last.metadata, labels={}, annotations=others[0].metadata.annotations | {RANK: "3"})
    world.add(replace(last, metadata=agreed))
    assert len(set(placed(world, others))) == 3
