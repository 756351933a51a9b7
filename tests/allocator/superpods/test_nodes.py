"""Which nodes and chips the pods of jobs with blocks get, and how long their plan is kept: the reference's cases."""

from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rules.job_products import SCHEDULE_POLICY
from ascend.annotations import MIN_AVAILABLE, RANK, SERVER_INDEX, SUPER_POD_ID
from ascend.chips import chip_set, parse_names
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap, Metadata, Node, Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, node, pod
from tests.allocator.superpods.cases import of_area
from tests.allocator.superpods.test_ranks import annotated
from tests.allocator.superpods.world import CHIPS, SELECTOR, bind, job, placed, server, super_pods

ALL = frozenset(range(CHIPS))


def report(name: str, network_unhealthy: int) -> ConfigMap:
    """The device-info ConfigMap of an A3 server with these chips whose network is unhealthy."""
    written = encode_report(DeviceReport(0xFFFF & ~network_unhealthy, 0, network_unhealthy, update_time_s=1))
    return ConfigMap(metadata=Metadata(name=config_map_name(name), namespace=NAMESPACE, labels=LABELS), data=written)


def single(chips: int) -> Pod:
    """A pod that is a job of its own, with the block that the rule gives it."""
    return pod("alone", chips, annotations={"sp-block": str(chips)}, selector=SELECTOR)


@of_area("superpod.node")
def test_a_node_is_a_candidate_as_in_the_cases(case: dict[str, Any]) -> None:
    given = case["given"]
    blocks, bad = given.get("logical_super_pods", 1), parse_names(given.get("network_unhealthy", ""))
    world = super_pods()
    world.add(*(server(given.get("super_pod_id", 0), index) for index in range(2 * blocks)))
    world.add(*(report(name, chip_set(bad)) for name in world.cluster.nodes))
    world.add(*(pods := job(2 * blocks)))
    if case["expect"]["eligible"]:
        assert len(set(placed(world, pods))) == len(pods)
    else:
        assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT


@of_area("superpod.chips")
def test_chips_of_a_part_of_a_server_are_chosen_as_in_the_cases(case: dict[str, Any]) -> None:
    free = frozenset(case["given"]["available"])
    world = super_pods(1)
    world.fill("0-0", ALL - free)
    world.add(each := single(case["given"]["request"]))
    if case["expect"].get("eligible", True):
        chosen = world.engine.place(each).take.chips
        assert (list(chosen), sorted(free - set(chosen))) == (case["expect"]["chosen"], case["expect"]["left"])
    else:
        with pytest.raises(Refusal):
            world.engine.place(each)


@of_area("superpod.single")
def test_a_single_pod_goes_where_the_fewest_chips_are_idle_as_in_the_case(case: dict[str, Any]) -> None:
    given = case["given"]
    world = super_pods()
    for index, (name, idle) in enumerate(given["idle_per_node"].items()):
        made = server(0, index)
        world.add(replace(made, metadata=replace(made.metadata, name=name)))
        world.fill(name, range(idle, CHIPS))
        if name in given["sub_healthy"]:
            annotations = made.metadata.annotations | {"NodeHealthyStatus": "SubHealthy"}
            world.add(replace(made, metadata=replace(made.metadata, name=name, annotations=annotations)))
    world.add(each := single(given["request"]))
    assert [world.engine.place(each).node] == case["expect"]["candidate_nodes"]


@of_area("superpod.validate.a3.pod")
def test_a_pod_of_a_job_with_blocks_takes_a_whole_server_as_in_the_cases(case: dict[str, Any]) -> None:
    (chips,) = (each["npus"] for each in case["given"]["pods"])
    world = super_pods(4)
    first, second = job(2)
    asked = second if chips == CHIPS else pod("p", chips, annotations=second.metadata.annotations, selector=SELECTOR)
    world.add(first, asked)
    if case["expect"]["valid"]:
        assert world.engine.place(asked).take.chips == tuple(range(CHIPS))
    else:  # the allocator does not place pods without chips, but without them the job is one of a single pod
        refusal = world.refusal(first)
        assert refusal.reason is Reason.INVALID_REQUEST
        assert "sp-block=32: the block of a single pod is the number of its chips" in refusal.message


# Case cached-5 has another rule here (docs/deviations.md): a plan reserves its nodes, and is kept whatever the setting.
def test_the_plan_of_a_job_that_is_not_ready_is_not_used() -> None:
    """Cases cached-1 and cached-2: before its last pod exists a job has no plan, and one whose pod has gone none."""
    world = super_pods(4)
    first, second = job(2)
    world.add(first)
    assert world.refusal(first).reason is Reason.GANG_INCOMPLETE
    world.add(second)
    assert placed(world, [first, second]) == ["0-0", "0-1"]
    world.cluster.pod_deleted(second)
    assert world.refusal(first).reason is Reason.GANG_INCOMPLETE


def test_a_plan_is_kept_while_the_nodes_of_the_pods_that_wait_can_be_used() -> None:
    """Case cached-7: the nodes of running pods need not be candidates."""
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    nodes = placed(world, pods)
    bind(world, pods[0])
    world.add(server(2, 0), server(2, 1))
    assert placed(world, pods[1:]) == nodes[1:]


def test_a_pod_gets_another_node_where_its_scheduler_does_not_offer_the_planned_one() -> None:
    """Case cached-9: of two blocks of one server one runs, and the node of the other one is no candidate."""
    world = super_pods(3, 3)
    world.add(*(pods := job(2, 1)))
    nodes = placed(world, pods)
    bind(world, pods[0])
    other = next(name for name in ("0-2", "1-2") if name not in nodes)
    assert world.engine.place(pods[1], [other]).node == other


def test_the_blocks_of_the_policy_of_atlas_850_are_placed_on_such_servers() -> None:
    world = super_pods(4)
    for super_pod, size in ((1, 3), (2, 2)):
        for index in range(size):
            ids = {SUPER_POD_ID: str(super_pod), SERVER_INDEX: str(index)}
            made = node(f"{super_pod}-{index}", labels={TYPE: "850-SuperPod-Atlas-8"})
            world.add(replace(made, metadata=replace(made.metadata, annotations=made.metadata.annotations | ids)))
    marks = {GROUP: "train", MIN_AVAILABLE: "4", SCHEDULE_POLICY: "chip8-node8-sp", "sp-block": "16"}
    world.add(*(pods := [pod(f"p-{rank}", 8, annotations=marks | {RANK: str(rank)}) for rank in range(4)]))
    nodes = placed(world, pods)
    assert [name[0] for name in nodes] in (["1", "1", "2", "2"], ["2", "2", "1", "1"])
    assert len(set(nodes)) == 4


def test_a_single_pod_with_another_block_than_its_chips_is_refused() -> None:
    world = super_pods(1)
    world.add(each := annotated(single(4), {"sp-block": "8"}))
    assert world.refusal(each).reason is Reason.INVALID_REQUEST


def relocated(name: str, super_pod: int | None) -> Node:
    """The server with this name in another SuperPod, or in none that is known."""
    made = server(super_pod if super_pod is not None else 0, 9)
    annotations = made.metadata.annotations
    if super_pod is None:
        annotations = {key: value for key, value in annotations.items() if key not in {SUPER_POD_ID, SERVER_INDEX}}
    return replace(made, metadata=replace(made.metadata, name=name, annotations=annotations))


@pytest.mark.parametrize("super_pod", [1, None])
@pytest.mark.parametrize("labels", [{}, {"super-pod-affinity": "soft"}])
def test_a_plan_is_dropped_when_a_server_of_it_leaves_its_super_pod(
    super_pod: int | None, labels: dict[str, str]
) -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4, labels=labels)))
    assert placed(world, pods) == ["0-0", "0-1", "1-0", "1-1"]
    world.add(relocated("0-1", super_pod))
    nodes = placed(world, pods)
    assert "0-1" not in nodes[:2]
    homes = [world.cluster.index.topology.location(name).super_pod for name in nodes]
    assert homes[0] == homes[1] >= 0
    assert homes[2] == homes[3] >= 0


def test_a_seat_is_planned_anew_when_its_server_leaves_the_super_pod_of_running_peers() -> None:
    world = super_pods(4, 4)
    world.add(*(pods := job(4)))
    assert placed(world, pods) == ["0-0", "0-1", "1-0", "1-1"]
    bind(world, pods[0])
    world.add(relocated("0-1", 1))
    assert placed(world, pods[1:]) == ["0-2", "1-0", "1-1"]
