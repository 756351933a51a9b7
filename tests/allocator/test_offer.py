"""What a node offers, and that whatever is unclear makes it unusable rather than its chips free."""

import json

import pytest

from allocator.rules.vacancy import Vacancy
from allocator.state.report import NodeReport, read_report
from ascend.annotations import ALLOCATED, CLAIMED, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import DEVICE_INFO, DeviceReport, check_code, encode_report
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, Node, Pod
from tests.allocator.builders import World, node, pod, report

CLAIM = {PREDICATE_TIME: str(CLAIMED)}


def offer(world: World, name: str = "n1") -> Vacancy | Refusal:
    found = world.cluster.nodes[name].offer
    assert found is not None
    return found


def vacancy(world: World) -> Vacancy:
    found = offer(world)
    assert isinstance(found, Vacancy), found
    return found


def free(world: World) -> list[int]:
    return [chip for chip in range(8) if vacancy(world).free >> chip & 1]


def test_a_whole_server_without_a_report_is_judged_by_its_annotation_alone() -> None:
    world = World()
    world.add(node("n1"))
    assert (vacancy(world).healthy, vacancy(world).free, vacancy(world).room) == (8, 0xFF, 8)


def test_unhealthy_chips_are_neither_free_nor_counted() -> None:
    world = World()
    world.add(node("n1", allocatable=6), report("n1", unhealthy=[0, 5]))
    assert free(world) == [1, 2, 3, 4, 6, 7]
    assert vacancy(world).healthy == 6
    world.add(report("n1"))
    assert vacancy(world).healthy == 8


def test_live_pods_hold_their_chips_until_they_are_finished_or_gone() -> None:
    world = World()
    running = pod("a", 2, node="n1", chips=[0, 1], phase="Running")
    world.add(node("n1"), running, pod("b", 1, node="n1", chips=[7]))
    assert free(world) == [2, 3, 4, 5, 6]
    assert vacancy(world).room == 5
    world.add(pod("b", 1, node="n1", chips=[7], phase="Failed"))
    assert free(world) == [2, 3, 4, 5, 6, 7]
    world.cluster.pod_deleted(running)
    assert free(world) == list(range(8))


def test_a_pod_seen_before_its_node_holds_its_chips_all_the_same() -> None:
    world = World()
    world.add(pod("a", 1, node="n1", chips=[3]), report("n1", unhealthy=[0]))
    world.add(node("n1"))
    assert free(world) == [1, 2, 4, 5, 6, 7]


def test_a_node_that_comes_back_remembers_its_pods() -> None:
    world = World()
    world.add(node("n1"), pod("a", 1, node="n1", chips=[3]))
    world.cluster.node_deleted(node("n1"))
    assert isinstance(offer(world), Refusal)
    world.add(node("n1"))
    assert 3 not in free(world)


def test_nothing_is_kept_of_a_node_that_is_gone_with_its_pods() -> None:
    world = World()
    held = pod("a", 1, node="n1", chips=[3])
    world.add(node("n1"), report("n1", unhealthy=[1]), held)
    world.cluster.pod_deleted(held)
    world.cluster.report_deleted(report("n1"))
    world.cluster.node_deleted(node("n1"))
    assert not world.cluster.nodes
    assert len(world.cluster.index) == 0


def test_what_the_device_plugin_gave_counts_once_it_has_claimed_the_pod() -> None:
    world = World()
    world.add(node("n1"), pod("a", 2, node="n1", chips=[0, 1], annotations={REAL: "Ascend910-4,Ascend910-5", **CLAIM}))
    assert free(world) == [0, 1, 2, 3, 6, 7]


def test_a_pod_author_can_not_hide_its_chips_behind_a_real_list_of_its_own() -> None:
    world = World()
    world.add(node("n1"), pod("a", 2, node="n1", chips=[0, 1], annotations={REAL: "Ascend910-7"}))
    assert free(world) == [2, 3, 4, 5, 6]


def test_annotations_of_a_pod_that_asks_for_no_chips_hold_nothing() -> None:
    world = World()
    world.add(node("n1"), pod("a", None, node="n1", annotations={ALLOCATED: "Ascend910-0", REAL: "rubbish"}))
    assert free(world) == list(range(8))


def test_the_kubelet_would_not_admit_more_than_it_offers() -> None:
    world = World()
    # The kubelet is behind: it offers six, while eight look healthy.
    world.add(node("n1", allocatable=6), pod("a", 4, node="n1", chips=[0, 1, 2, 3]))
    assert vacancy(world).free == chip_set(range(4, 8))
    assert vacancy(world).room == 2


@pytest.mark.parametrize(
    ("it", "reason", "words"),
    [
        (Node(metadata=Metadata(name="n1")), "NotAnNpuNode", "baseDeviceInfos"),
        (node("n1", infos="{"), "InvalidReport", "baseDeviceInfos"),
        (node("n1", infos='{"Ascend910-0-1":{}}'), "InvalidReport", "Ascend910-0-1"),
        (node("n1", chips=range(9)), "InvalidReport", "Ascend910-8"),
        (node("n1", labels={"accelerator": "huawei-Ascend310"}), "UnknownProduct", "huawei-Ascend310"),
        (node("n1", ready=False), "NodeNotReady", "n1"),
        (node("n1", cordoned=True), "NodeCordoned", "n1"),
        (node("n1", allocatable=None), "ResourceNotOffered", "n1"),
        (node("n1", allocatable=0), "ResourceNotOffered", "n1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_node_that_can_not_be_used_says_why(it: Node, reason: str, words: str) -> None:
    world = World()
    world.add(it)
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert words in found.message


@pytest.mark.parametrize("data", [{}, {DEVICE_INFO: "{"}, None])
def test_a_report_that_can_not_be_trusted_makes_the_node_unusable(data: dict[str, str] | None) -> None:
    if data is None:
        good = report("n1").data
        data = {**good, DEVICE_INFO: good[DEVICE_INFO].replace("Ascend910-7", "Ascend910-6")}
    world = World()
    world.add(node("n1"), report("n1", data=data))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InvalidReport"
    assert "kube-system/mindx-dl-deviceinfo-n1" in found.message
    world.add(report("n1"))
    assert isinstance(offer(world), Vacancy)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (pod("bad", 1, node="n1", annotations={ALLOCATED: "Ascend910-0, Ascend910-1"}), "' Ascend910-1'"),
        (pod("bad", 1, node="n1", chips=[0], annotations={REAL: "Ascend910-2c-1"}), REAL),
        (pod("bad", 1, node="n1"), "no annotation says which"),
    ],
    ids=["malformed", "real-malformed", "without-chips"],
)
def test_a_pod_whose_chips_are_unclear_makes_its_node_unusable_while_it_lives(holder: Pod, words: str) -> None:
    world = World()
    world.add(node("n1"), holder)
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "UnreadablePod"
    assert "default/bad" in found.message
    assert words in found.message
    world.cluster.pod_deleted(holder)
    assert free(world) == list(range(8))


def test_a_chip_an_operator_took_out_is_not_given() -> None:
    taken_out = DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=0, update_time_s=1, manually_separated=0b100)
    assert read_report(report("n1", data=encode_report(taken_out))) == NodeReport(0b100, 0, 1)


@pytest.mark.parametrize(
    "garbled",
    [
        {RESOURCE: "Ascend910-4, Ascend910-5"},
        {f"{RESOURCE}-Unhealthy": "Ascend910-3,Ascend910-3"},
        {f"{RESOURCE}-Fault": '[{"npu_name":"Ascend910-3","fault_time_and_level_map":null}]'},
    ],
    ids=["free", "twice", "null"],
)
def test_a_slip_in_what_placing_does_not_need_leaves_the_node_in_use(garbled: dict[str, str]) -> None:
    device_list = {f"{RESOURCE}-Unhealthy": "Ascend910-3", **garbled}
    inner = {"DeviceList": device_list, "UpdateTime": 1}
    data = {DEVICE_INFO: json.dumps({"DeviceInfo": inner, "CheckCode": check_code(device_list, 1)})}
    world = World()
    world.add(node("n1"), report("n1", data=data))
    assert free(world) == [0, 1, 2, 4, 5, 6, 7]
