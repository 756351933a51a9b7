"""Jobs with blocks on a cluster: placed as gangs, restored after a restart, repaired after faults."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.binding.annotations import Stamper
from allocator.decision.preemption import Preemption
from allocator.gangs.record import count_neighbours
from allocator.rules.asked import SuperPodLimits
from allocator.rules.job import JobKey
from allocator.rules.victims import Suggestion
from allocator.state.reservation import Stage
from ascend.annotations import BLOCK, BLOCK_SUPER_POD, RANK
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import OwnerReference, Pod
from ascend.reasons import Reason
from ascend.turn import at_once
from tests.allocator.builders import GROUP, World, owned_by, pod, stateful_set
from tests.allocator.superpods.cases import of_area
from tests.allocator.superpods.world import CHIPS, SELECTOR, bind, job, placed, server, super_pod_of, super_pods


def again(each: Pod, name: str = "") -> Pod:
    """The successor of a pod."""
    annotations = {key: value for key, value in each.metadata.annotations.items() if key != BLOCK}
    made = name or f"{each.name}-again"
    return pod(made, CHIPS, labels=each.metadata.labels, annotations=annotations, selector=SELECTOR)


def blocks_of(nodes: list[str], size: int) -> list[list[str]]:
    return [nodes[at : at + size] for at in range(0, len(nodes), size)]


def test_the_blocks_of_a_job_are_placed_at_once_in_the_order_of_the_servers() -> None:
    world = super_pods(4, 5, 6)
    world.add(*(pods := job(4)))
    assert placed(world, pods) == ["0-0", "0-1", "1-0", "1-1"]


def test_the_pods_are_placed_in_whatever_order_they_are_scheduled() -> None:
    world = super_pods(4, 5, 6)
    world.add(*(pods := job(4)))
    assert placed(world, reversed(pods)) == ["1-1", "1-0", "0-1", "0-0"]


def test_a_sub_healthy_server_is_used_last() -> None:
    world = super_pods(4)
    degraded = server(0, 0)
    degraded.metadata.annotations["NodeHealthyStatus"] = "SubHealthy"
    world.add(degraded, *(pods := job(2)))
    assert placed(world, pods) == ["0-1", "0-2"]


def test_what_is_missing_is_said() -> None:
    world = super_pods(3, 1)
    world.add(*(pods := job(4)))
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert refusal.message == (
        "job default/train: 2 blocks of 2 servers must be placed at once, each in one SuperPod; there is room for 1; "
        "servers that are free for it: 3 in SuperPod 0, 1 in SuperPod 1"
    )


def test_a_server_in_no_super_pod_is_never_used() -> None:
    world = super_pods()
    world.add(*(server(-1, index) for index in range(4)), *(pods := job(2)))
    assert world.refusal(pods[0]).message.endswith(
        "; no server of a SuperPod is free for it; 4 free servers are in no SuperPod (no SuperPodID in the report, no "
        "annotation superPodID or label huawei.com/topotree.superpodid with a number)"
    )


def test_only_servers_that_are_free_are_counted_in_no_super_pod() -> None:
    world = super_pods(1)
    world.add(*(server(-1, index) for index in range(2)), *(pods := job(2)))
    world.fill("-1-0", [0])
    assert "1 in SuperPod 0; 1 free server is in no SuperPod (no SuperPodID" in world.refusal(pods[0]).message


def test_a_partly_used_server_is_never_used() -> None:
    world = super_pods(2)
    world.fill("0-0", [0, 1])
    world.add(*(pods := job(2)))
    assert "1 in SuperPod 0" in world.refusal(pods[0]).message


def test_a_super_pod_with_more_servers_than_the_setting_says_is_an_error() -> None:
    world = super_pods(4, 3, limits=SuperPodLimits(3, 1))
    world.add(*(pods := job(2)))
    assert "SuperPod 0 has 4 free nodes, more than the setting super_pod_size, 3" in world.refusal(pods[0]).message


def test_a_job_that_is_no_gang_is_told_what_it_lacks() -> None:
    world = super_pods(4)
    (alone, *_) = job(2, minimum=1)
    world.add(alone, *job(2, minimum=1)[1:])
    refusal = world.refusal(alone)
    assert refusal.reason is Reason.INVALID_MIN_AVAILABLE
    assert "minMember" in refusal.message


def test_seats_are_exchanged_within_a_block_only() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    assert placed(world, pods) == ["0-0", "0-1", "1-0", "1-1"]
    assert world.engine.place(pods[0], ["0-1"]).node == "0-1"
    assert world.engine.place(pods[1]).node == "0-0"
    with pytest.raises(Refusal):
        world.engine.place(pods[0], ["1-0", "1-1"])


def test_the_block_is_written_on_each_pod() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    stamper = Stamper(world.cluster, world.ledger, lambda: 1)
    for rank, each in enumerate(pods):
        reservation = stamper.stamp(world.engine.place(each), Stage.BINDING)
        written = stamper.annotations(each, reservation)
        assert (written[BLOCK], written[BLOCK_SUPER_POD], written[RANK]) == (str(rank // 2), str(rank // 2), str(rank))


def test_a_job_of_one_block_may_use_chips_whose_network_is_unhealthy() -> None:
    """The cases node-2 and node-3 have this rule with a node (test_nodes.py)."""
    for pods_of_job, fits in ((2, True), (4, False)):
        world = super_pods(4)
        world.add(*(pods := job(pods_of_job)))
        request = world.engine.request_of(pods[0])
        assert request.distributed
        assert request.needs_network is not fits


def test_a_job_whose_minimum_fits_starts_with_whole_blocks() -> None:
    world = super_pods(3, 3)
    world.add(*(pods := job(6, minimum=3)))
    world.engine.place(pods[0])
    assert len(world.ledger) == 4
    assert placed(world, pods[:4]) == ["0-0", "0-1", "1-0", "1-1"]
    assert world.refusal(pods[4]).reason is Reason.GANG_DOES_NOT_FIT
    # A block joins later, when there is room for it.
    world.add(server(2, 0), server(2, 1))
    assert placed(world, pods[4:]) == ["2-0", "2-1"]


def test_soft_blocks_are_split_where_they_must_be() -> None:
    world = super_pods(1, 1, 2)
    world.add(*(pods := job(4, labels={"super-pod-affinity": "soft"})))
    assert placed(world, pods) == ["2-0", "2-1", "0-0", "1-0"]
    parts = [held.part for each in pods if (held := world.ledger.get(each.uid)) is not None]
    assert [part.block for part in parts if part is not None] == [0, 0, 1, 2]


@of_area("superpod.rank.soft")
def test_the_parts_of_a_new_job_are_numbered_as_in_the_cases(case: dict[str, Any]) -> None:
    """No ids are left from pods that have ended: the first one is given."""
    assert not case["given"]["pending_ids"]
    world = super_pods(1, 1)
    world.add(*(pods := job(2, labels={"super-pod-affinity": "soft"})))
    placed(world, pods)
    held = [world.ledger.get(each.uid) for each in pods]
    numbers = [each.part.block for each in held if each is not None and each.part is not None]
    assert numbers == [int(case["expect"]["id"]), case["expect"]["right"]]


def test_soft_blocks_that_lack_room_are_refused() -> None:
    world = super_pods(1, 1, 1)
    world.add(*(pods := job(4, labels={"super-pod-affinity": "soft"})))
    assert "4 servers of SuperPods are needed, 3 are free" in world.refusal(pods[0]).message


@pytest.mark.parametrize("restart", [False, True])
def test_a_pod_that_has_ended_is_replaced_in_its_super_pod(*, restart: bool) -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    bound = [bind(world, each) for each in pods]
    lost = bound[2]
    world.add(server(1, 0, ready=False))
    if restart:
        old, world = world, super_pods(4, 4)
        world.add(server(1, 0, ready=False), *old.cluster.pods.values())
    world.cluster.pod_deleted(lost)
    world.add(new := again(lost))
    assert world.engine.place(new).node == "1-2"
    assert [world.cluster.pods[each.uid].spec.node_name for each in bound if each is not lost] == ["0-0", "0-1", "1-1"]


def test_a_block_without_room_waits_while_its_other_pods_run() -> None:
    world = super_pods(2, 4)
    world.add(*(pods := job(2, annotations={})))
    bound = [bind(world, each) for each in pods]
    home = super_pod_of(bound[0].spec.node_name)
    assert home == 1
    world.cluster.pod_deleted(bound[0])
    for index in range(4):
        if f"1-{index}" != bound[1].spec.node_name:
            world.add(server(1, index, cordoned=True))
    world.add(new := again(bound[0]))
    message = world.refusal(new).message
    assert "1 pod of block 0 must join the others of the block in SuperPod 1, which has room for 0" in message


def made_by(uid: str, each: Pod) -> Pod:
    """The pod, made by the object with this uid."""
    owner = OwnerReference("example.com/v1", "Train", "train", uid, controller=True)
    return replace(each, metadata=replace(each.metadata, owner_references=(owner,)))


def test_a_job_that_is_made_again_returns_to_its_undamaged_blocks() -> None:
    world = super_pods(4, 4, 4)
    world.add(*(pods := [made_by("u1", each) for each in job(6)]))
    bound = [bind(world, each) for each in pods]
    nodes = [each.spec.node_name for each in bound]
    for each in bound:
        world.cluster.pod_deleted(each)
    world.add(server(super_pod_of(nodes[2]), int(nodes[2][-1]), ready=False))
    world.add(*(new := [made_by("u1", again(each)) for each in bound]))
    after = placed(world, new)
    assert after[:2] == nodes[:2]
    assert after[4:] == nodes[4:]
    assert after[3] == nodes[3]
    assert after[2] != nodes[2]
    assert super_pod_of(after[2]) == super_pod_of(nodes[2])


def test_another_job_of_the_same_name_is_placed_as_a_new_one() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := [made_by("u1", each) for each in job(2)]))
    bound = [bind(world, each) for each in pods]
    assert {super_pod_of(each.spec.node_name) for each in bound} == {0}
    for each in bound:
        world.cluster.pod_deleted(each)
    world.fill("0-3")
    world.fill("1-3")
    world.fill("1-2")  # now SuperPod 1 is the better one: no server is left over beside its reserve
    world.add(server(0, 4), server(0, 5), server(1, 4), server(1, 5))
    world.add(*(new := [made_by("u2", again(each)) for each in bound]))
    assert {super_pod_of(name) for name in placed(world, new)} == {1}


def test_an_unstarted_plan_is_dropped_when_a_server_of_it_is_lost() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    placed(world, pods)
    world.add(server(0, 0, ready=False))
    nodes = placed(world, pods)
    assert "0-0" not in nodes
    assert all(len(set(map(super_pod_of, block))) == 1 for block in blocks_of(nodes, 2))


def test_a_binding_that_names_its_node_has_to_be_in_the_super_pod_of_its_block() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    running = [bind(world, each) for each in pods]
    world.cluster.pod_deleted(running[0])
    world.add(new := again(running[0]))
    key = JobKey("default", "train", VOLCANO)
    gang = world.cluster.jobs.by_key[key]
    request = world.engine.request_of(new)
    with pytest.raises(Refusal, match="must join the others of the block in SuperPod 0"):
        world.engine.gangs.place_on(new, request, gang, "1-3")
    assert world.engine.gangs.place_on(new, request, gang, "0-3").node == "0-3"


def test_a_mind_ie_job_prefers_the_super_pods_of_the_pods_that_it_names() -> None:
    term = {"podAffinityTerm": {"labelSelector": {"matchLabels": {"tier": "cache"}}}}
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    for chosen, preference in ((0, None), (1, affinity)):
        world = super_pods(5, 6)
        world.add(pod("db", 2, node="1-5", chips=[0, 1], phase="Running", labels={"tier": "cache"}))
        plain = job(2, labels={"app": "ie", "jobID": "1"})
        pods = [replace(each, spec=replace(each.spec, affinity=preference)) for each in plain]
        world.add(*pods)
        assert {super_pod_of(name) for name in placed(world, pods)} == {chosen}


def test_the_instances_of_a_service_are_in_one_super_pod() -> None:
    world = super_pods(5, 9)
    first = job(2, name="one", labels={"inferserviceid": "s"})
    world.add(*first)
    assert [bind(world, each).spec.node_name for each in first] == ["1-0", "1-1"]
    world.add(*(server(2, index) for index in range(10)))
    second = job(2, name="two", labels={"inferserviceid": "s"})
    world.add(*second)
    assert {super_pod_of(name) for name in placed(world, second)} == {1}


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    block=st.integers(1, 3),
    number=st.integers(1, 3),
    faults=st.lists(st.integers(0, 8), max_size=3),
)
def test_whatever_fails_a_block_is_in_one_super_pod_and_running_pods_stay(
    sizes: list[int], block: int, number: int, faults: list[int]
) -> None:
    if block * number < 2:
        return
    world = super_pods(*sizes)
    world.add(*(pods := job(block * number, block)))
    try:
        running = {rank: bind(world, each) for rank, each in enumerate(pods)}
    except Refusal:
        assert sum(size // block for size in sizes) < number
        return
    for fault in faults:
        rank = fault % len(pods)
        lost = running[rank]
        super_pod, _, index = lost.spec.node_name.partition("-")
        world.cluster.pod_deleted(lost)
        world.add(server(int(super_pod), int(index), ready=False))
        world.add(new := again(lost))
        try:
            running[rank] = bind(world, new)
        except Refusal:
            break
        by_block = {rank // block: set[str]() for rank in running}
        for each, there in running.items():
            by_block[each // block].add(there.spec.node_name)
        assert all(len(nodes) == block for nodes in by_block.values())
        assert all(len(set(map(super_pod_of, nodes))) == 1 for nodes in by_block.values())
        assert max(Counter(each.spec.node_name for each in running.values()).values()) == 1


def test_no_nodes_drain_for_a_job_with_blocks() -> None:
    """They would be of any SuperPods, and of no use to it."""
    world = super_pods(4, 4, earmark_share=1.0)
    for name in ("0-0", "0-1", "0-2", "1-0", "1-1", "1-2"):
        world.fill(name, range(CHIPS))
    world.add(*(pods := job(2)))
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.engine.earmarks.choose()
    assert not world.ledger.promises
    annotations = {**job(4)[0].metadata.annotations, GROUP: "plain"}
    del annotations["sp-block"]
    world.add(*(plain := [pod(f"plain-{at}", CHIPS, annotations=annotations | {RANK: str(at)}) for at in range(4)]))
    assert world.refusal(plain[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.engine.earmarks.choose()
    assert world.ledger.promises


def test_blocks_are_placed_where_the_scheduler_offers_nodes() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    offered = ["0-3", "1-0", "1-1", "1-2", "1-3"]
    assert [world.engine.place(each, offered).node for each in pods] == ["1-0", "1-1", "1-2", "1-3"]


def test_a_job_that_has_stepped_back_is_placed_where_every_pod_may_be() -> None:
    world = super_pods(4, 4, 4)
    world.add(*(pods := job(4)))
    assert placed(world, pods) == ["0-0", "0-1", "1-0", "1-1"]
    gang = world.cluster.jobs.job_of(pods[0])
    world.engine.gangs.step_back(gang, [pods[0].uid], "pod default/train-0 was refused")
    # Its scheduler finds no CPU on 0-0 for the first pod, and none in SuperPod 1 for the last one.
    offers = [[f"{number}-{index}" for number in range(3) for index in range(4)] for _ in pods]
    offers[0].remove("0-0")
    offers[3] = [name for name in offers[3] if not name.startswith("1-")]
    for each, names in zip(pods[:3], offers[:3], strict=True):
        assert world.refusal(each, names).reason is Reason.GANG_STEPPED_BACK
    nodes = [world.engine.place(each, names).node for each, names in reversed(list(zip(pods, offers, strict=True)))][
        ::-1
    ]
    assert "0-0" not in nodes
    assert all(super_pod_of(name) in {0, 2} for name in nodes)
    assert all(len(set(map(super_pod_of, block))) == 1 for block in blocks_of(nodes, 2))


async def test_a_large_job_is_planned_piece_by_piece() -> None:
    world = super_pods(40, 40, limits=SuperPodLimits(48, 2))
    world.add(*(pods := job(72, 8)))
    await world.engine.prepare(pods[5])
    assert len(world.ledger) == len(pods)
    nodes = placed(world, pods)
    assert len(set(nodes)) == len(pods)
    assert all(len(set(map(super_pod_of, block))) == 1 for block in blocks_of(nodes, 8))
    assert Counter(map(super_pod_of, nodes)) == {0: 40, 1: 32}


async def test_a_job_with_blocks_evicts_only_where_its_blocks_fit_then() -> None:
    """One server is free in each SuperPod: in the second one a single victim makes room for the block."""
    world = super_pods(3, 3)
    holds = {"0-0": 9, "0-1": 1, "0-2": 0, "1-0": 1, "1-1": 9, "1-2": 0}
    for name, priority in holds.items():
        if priority:
            world.add(pod(f"on-{name}", CHIPS, priority=priority, node=name, chips=range(CHIPS), phase="Running"))
    world.add(server(0, 2, cordoned=True))
    pods = [replace(each, spec=replace(each.spec, priority=5)) for each in job(2)]
    world.add(*pods)
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    suggested = dict.fromkeys(world.cluster.nodes, Suggestion())
    chosen = [await preemption.improve(each, suggested) for each in pods]
    victims = {victim.uid for each in chosen if each is not None for victim in each.victims}
    assert victims == {"uid-on-1-0"}


def test_the_server_index_decides_before_the_name() -> None:
    world = super_pods(12, limits=SuperPodLimits(12, 0))
    world.add(*(pods := job(12, 12)))
    assert placed(world, pods) == [f"0-{index}" for index in range(12)]


def test_nodes_that_are_left_to_others_are_not_used() -> None:
    world = super_pods(4)
    world.add(*(pods := job(2)))
    gang = world.cluster.jobs.job_of(pods[0])
    request, _ = at_once(world.engine.gangs.gang_request(pods[0], world.engine.request_of(pods[0]), gang, None))
    found = at_once(request.policy.place(replace(request, limits={"0-0": 0, "0-2": 1}), world.cluster.index))
    assert not isinstance(found, Refusal)
    assert [seat.node for seat in found] == ["0-1", "0-2"]


def test_a_block_that_may_be_split_needs_the_network() -> None:
    world = super_pods(4)
    world.add(*(pods := job(2, labels={"super-pod-affinity": "soft"})))
    assert world.engine.request_of(pods[0]).needs_network


def test_a_mind_ie_job_without_preference_is_spread_over_the_idlest_super_pods() -> None:
    world = super_pods(8, 7)
    world.add(*(pods := job(6, labels={"app": "ie", "jobID": "1"}, annotations={"sp-fit": "idlest"})))
    assert [super_pod_of(name) for name in placed(world, pods)] == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(("block", "told"), [(4, 0), (2, 1), (None, 0)])
def test_a_mind_ie_job_with_several_blocks_is_told_so(block: int | None, told: int) -> None:
    world = super_pods(8, 7)
    world.add(*(pods := job(4, block, labels={"app": "ie", "jobID": "1"})))
    for each in pods:
        sentences = world.engine.without_effect(each)
        assert len(sentences) == told
        assert all(said.startswith("annotation sp-block=32 of a MindIE job of 64 chips: ") for said in sentences)
    placed(world, pods)
    for other in ({}, {"app": "ie", "jobID": "1", "inferserviceid": "s"}):
        world.add(*(pods := job(4, 2, name="other", labels=other)))
        assert not world.engine.without_effect(pods[0])


def test_neighbours_are_live_pods_of_other_jobs_with_all_labels() -> None:
    world = super_pods(2, 2, 2)
    own = job(2)
    labels = {"tier": "cache", "app": "a"}
    world.add(
        pod("there", 1, node="0-0", chips=[0], phase="Running", labels=labels),
        pod("too", 1, node="0-1", chips=[0], phase="Running", labels=labels | {"more": "x"}),
        pod("ended", 1, node="1-0", chips=[0], phase="Succeeded", labels=labels),
        pod("other", 1, node="1-1", chips=[0], phase="Running", labels=labels | {"app": "b"}),
        pod("waiting", 1, labels=labels),
        replace(
            foreign := pod("foreign", 1, node="2-1", chips=[0], phase="Running", labels=labels),
            metadata=replace(foreign.metadata, namespace="elsewhere"),
        ),
        *(replace(each, metadata=replace(each.metadata, labels=labels)) for each in own),
    )
    bound = pod("train-0", CHIPS, node="2-0", chips=range(CHIPS), phase="Running", labels=labels,
                annotations=own[0].metadata.annotations)  # fmt: skip
    world.add(bound)
    gang = world.cluster.jobs.job_of(bound)
    assert count_neighbours(gang, labels, world.cluster) == {0: 2}


def test_a_job_is_tried_again_once_its_nodes_have_super_pods() -> None:
    world = super_pods()
    world.add(*(server(-1, index) for index in range(2)), *(pods := job(2)))
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    for index in range(2):
        there = server(3, index)
        world.add(replace(there, metadata=replace(there.metadata, name=f"-1-{index}")))
    assert placed(world, pods) == ["-1-0", "-1-1"]


@pytest.mark.parametrize("block", [None, 2])
def test_a_job_of_known_size_without_a_minimum_is_told_what_it_lacks(block: int | None) -> None:
    world = super_pods(4)
    world.cluster.jobs.owners.apply(stateful_set(4))
    annotations = {"sp-block": str(block * CHIPS)} if block is not None else {}
    each = owned_by(pod("train-0", CHIPS, annotations=annotations, selector=SELECTOR), "StatefulSet")
    world.add(each)
    assert world.refusal(each).reason is Reason.INVALID_MIN_AVAILABLE


def on(world: World, each: Pod, name: str) -> str:
    """The node of a pod whose Binding names it, as a scheduler behind the webhook posts it."""
    return world.engine.place_on(each, name).node


@pytest.mark.parametrize("labels", [{}, {"super-pod-affinity": "soft"}])
def test_bindings_that_name_their_nodes_are_served_where_a_block_has_room(labels: dict[str, str]) -> None:
    world = super_pods(1, 3, 3)
    world.add(*(pods := job(4, labels=labels)))
    if not labels:
        with pytest.raises(Refusal, match="a block of 2 servers must be in one SuperPod; SuperPod 0 has 1 free"):
            on(world, pods[0], "0-0")
    assert on(world, pods[0], "1-2") == "1-2"
    if not labels:
        with pytest.raises(Refusal, match="1 pod of block 0 must join the others of the block in SuperPod 1"):
            on(world, pods[1], "2-0")
    assert on(world, pods[1], "1-0") == "1-0"
    assert on(world, pods[2], "2-0") == "2-0"
    assert on(world, pods[3], "2-2") == "2-2"
    parts = [held.part for each in pods if (held := world.ledger.get(each.uid)) is not None]
    assert [part.block for part in parts if part is not None] == [0, 0, 1, 1]


def test_a_binding_to_a_node_without_room_is_refused_with_the_reason_of_the_node() -> None:
    world = super_pods(3)
    world.fill("0-1", [0])
    world.add(*(pods := job(2)))
    with pytest.raises(Refusal) as refused:
        on(world, pods[0], "0-1")
    assert refused.value.reason is Reason.NOT_ENOUGH_CHIPS
