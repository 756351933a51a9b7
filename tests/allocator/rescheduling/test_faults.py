"""Which pods are faulty: chips, nodes, labels and failures, in this order."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rescheduling.faults import FaultKind, NodeFaults, fault_of, read_node
from allocator.rules.rescheduling_labels import FaultLabels, Strategy
from ascend.chips import chip_set, parse_names
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.faults import chip_fault
from ascend.kube.objects import ConfigMap
from ascend.reasons import Reason
from tests.allocator.builders import World, node, noded_says, pod, report
from tests.allocator.rescheduling.cases import of_area
from tests.allocator.rescheduling.scene import job, scene

SUB_HEALTHY = '{"NodeStatus": "SubHealthy"}'


def node_with(*, unhealthy: tuple[int, ...] = (), network: tuple[int, ...] = (), **fault: Any) -> NodeFaults:
    """What is read of a node whose plugin reports these chips, with a fault entry if ``fault`` has one."""
    world = World()
    faults = (chip_fault(chip_id=unhealthy[0], **fault),) if fault else ()
    sent = DeviceReport(0, chip_set(unhealthy), chip_set(network), 1, faults=faults)
    world.add(node("n1"), replace(report("n1"), data=encode_report(sent)))
    return read_node(world.cluster.nodes["n1"], "n1")


def kind(faults: NodeFaults, switches: FaultLabels = FaultLabels(), **options: Any) -> FaultKind | None:  # noqa: B008 - frozen
    given = pod("one", 2, node="n1", chips=[0, 1], phase=options.pop("phase", "Running"), **options)
    fault = fault_of(given, 0b11, faults, switches)
    return fault.kind if fault is not None else None


@of_area("resched.cards")
def test_only_chips_that_have_failed_make_a_pod_faulty(case: dict[str, Any]) -> None:
    said, expected = case["given"], case["expect"]
    unhealthy = parse_names(",".join(said.get("unhealthy", ())))
    network = parse_names(",".join(said.get("network_unhealthy", ())))
    faults = node_with(unhealthy=tuple(unhealthy), network=tuple(network))
    chips = parse_names(",".join(said.get("cards") or said["pod_cards"]))
    found = [
        fault_of(pod("p", 1, node="n1", phase="Running"), 1 << chip, faults, FaultLabels()) is not None
        for chip in chips
    ]
    assert found == expected.get("faulty", [expected.get("pod_faulty", False)] * len(chips))


@of_area("resched.subhealth")
async def test_pods_leave_a_sub_healthy_node_as_their_job_says(case: dict[str, Any]) -> None:
    said, expected = case["given"], case["expect"]
    assert said["has_sub_health_fault"]
    (one,) = job(1, subHealthyStrategy=said["strategy"])
    stage = scene(
        [replace(one, metadata=replace(one.metadata, annotations=one.metadata.annotations | said["annotations"]))]
    )
    healthy = report("n1")
    stage.world.add(replace(healthy, data={**healthy.data, "SwitchInfoCfg": SUB_HEALTHY}))
    goes = await stage.settle() == ["train-0"]
    # Also a pod that is deleted for a hot switch is deleted by the same request.
    assert goes is (expected["faulty"] or expected["hot_switch_delete"])
    found = kind(
        NodeFaults(sub_healthy=True), FaultLabels(strategy=Strategy(said["strategy"])), annotations=said["annotations"]
    )
    assert (found or "pod-healthy") == expected["type"]


@of_area("resched.predicate")
def test_new_pods_stay_off_sub_healthy_nodes_as_their_job_says(case: dict[str, Any]) -> None:
    said = case["given"]
    assert said["node_sub_healthy"]
    world = World()
    fault = chip_fault(chip_id=0, level="SubHealthFault", codes={})
    world.add(node("n1"), replace(report("n1"), data=encode_report(DeviceReport(0xFF, 0, 0, 1, faults=(fault,)))))
    asking = pod("one", 4, labels={"subHealthyStrategy": said["strategy"]})
    if case["expect"]["eligible"]:
        assert world.engine.place(asking).node == "n1"
    else:
        assert "NodeSubHealthy" in world.refusal(asking).message


@pytest.mark.parametrize("strategy", [Strategy.GRACE_EXIT, Strategy.FORCE_EXIT])
def test_a_pod_whose_job_says_so_leaves_a_sub_healthy_node(strategy: Strategy) -> None:
    assert kind(NodeFaults(sub_healthy=True), FaultLabels(strategy=strategy)) is FaultKind.SUB_HEALTH


def test_a_hot_switch_needs_the_word_of_the_program_that_prepares_it() -> None:
    switches = FaultLabels(strategy=Strategy.HOT_SWITCH)
    for said in ({}, {"needVolcanoOpe": "create"}, {"backupNewPodName": "one-hot"}):
        assert kind(NodeFaults(sub_healthy=True), switches, annotations=said) is None
    ready = {"needVolcanoOpe": "delete", "backupNewPodName": "one-hot"}
    assert kind(NodeFaults(sub_healthy=True), switches, annotations=ready) is FaultKind.SUB_HEALTH


def test_a_chip_about_which_nothing_is_known_makes_no_pod_faulty() -> None:
    assert node_with(unhealthy=(0,), level="SeparateNPU", codes={}).chips == {}
    assert node_with(unhealthy=(0,), level="ManuallySeparateNPU", codes={}).chips == {0: "ManuallySeparateNPU"}
    assert node_with(unhealthy=(0,)).chips == {0: ""}


def test_the_chips_that_the_pod_was_given_count_where_they_differ_from_those_written() -> None:
    swapped = {"huawei.com/AscendReal": "Ascend910-4,Ascend910-5"}
    assert kind(NodeFaults(chips={0: "A"}), annotations=swapped) is None
    assert kind(NodeFaults(chips={4: "A"}), annotations=swapped) is FaultKind.CHIP


def test_a_failed_pod_is_faulty_only_if_its_job_replaces_failed_pods() -> None:
    assert kind(NodeFaults(), phase="Failed") is None
    assert kind(NodeFaults(), FaultLabels(retries=1), phase="Failed") is FaultKind.POD
    assert kind(NodeFaults(chips={0: "A"}), FaultLabels(retries=1), phase="Failed") is FaultKind.POD


def test_a_pod_that_fails_with_another_one_has_a_label() -> None:
    assert kind(NodeFaults(), labels={"fault-type": "Separate"}) is FaultKind.RELATED
    assert kind(NodeFaults(), labels={"fault-type": "software"}) is None


def test_a_node_that_its_agent_calls_unhealthy_makes_its_pods_faulty() -> None:
    world = World()
    world.add(node("n1"))
    assert kind(read_node(world.cluster.nodes["n1"], "n1")) is None
    named = ConfigMap(
        metadata=replace(report("n1").metadata, name="mindx-dl-nodeinfo-n1"),
        data={"NodeInfo": noded_says({"FaultDevList": [], "NodeStatus": "UnHealthy"})},
    )
    world.cluster.reports.health_applied(named)
    faults = read_node(world.cluster.nodes["n1"], "n1")
    assert faults.whole == "node n1 is unhealthy: so NodeD reports"
    assert kind(faults) is FaultKind.NODE


def test_a_node_that_its_switches_call_unhealthy_makes_its_pods_faulty() -> None:
    world = World()
    healthy = report("n1")

    def said(status: str) -> NodeFaults:
        world.add(replace(healthy, data={**healthy.data, "SwitchInfoCfg": json.dumps({"NodeStatus": status})}))
        return read_node(world.cluster.nodes["n1"], "n1")

    world.add(node("n1"), healthy)
    leaves = FaultLabels(strategy=Strategy.FORCE_EXIT)
    assert kind(said("Healthy"), leaves) is None
    assert said("SubHealthy") == NodeFaults(sub_healthy=True)
    assert kind(said("SubHealthy"), leaves) is FaultKind.SUB_HEALTH
    assert said("UnHealthy").whole == "node n1 is unhealthy: so its switches report"
    assert kind(said("UnHealthy")) is FaultKind.NODE


def test_what_is_unknown_makes_no_pod_faulty() -> None:
    world = World()
    world.add(node("n1"), report("n1", data={"DeviceInfoCfg": "{"}))
    assert isinstance(world.cluster.nodes["n1"].report, Refusal)
    assert kind(read_node(world.cluster.nodes["n1"], "n1")) is None
    world.add(report("n1", unhealthy=[0]))
    assert kind(read_node(world.cluster.nodes["n1"], "n1")) is FaultKind.CHIP
    world.cluster.nodes["n1"].stale = Refusal(Reason.STALE_REPORT, "too old")
    assert kind(read_node(world.cluster.nodes["n1"], "n1")) is None


def test_a_lost_node_is_given_as_the_reason() -> None:
    assert read_node(None, "n1").whole == "node n1 does not exist"
    assert kind(read_node(None, "n1", "node n1 is not Ready")) is FaultKind.NODE
