"""What a node has left for pods; unclear input makes a node unusable, and never a chip free."""

import json
import re
from itertools import permutations

import pytest
from msgspec import structs

from allocator.decision.preemption import Preemption
from allocator.rules.victims import VictimSet
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.report import NodeReport, read_report
from ascend.annotations import ALLOCATED, CLAIMED, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, chip_ids, chip_set
from ascend.deviceinfo import DEVICE_INFO, DeviceReport, check_code, encode_report
from ascend.faults import chip_fault
from ascend.kube.objects import ConfigMap, Metadata, Node, NodeStatus, Pod
from ascend.products import ASCEND_910A
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod, report

CLAIM = {PREDICATE_TIME: str(CLAIMED)}


def free(world: World) -> list[int]:
    """The free chips of n1."""
    return [chip for chip in range(8) if world.vacancy().free >> chip & 1]


def test_without_a_report_the_annotation_alone_counts() -> None:
    world = World()
    world.add(node("n1"))
    assert (world.vacancy().healthy, world.vacancy().free, world.vacancy().room) == (8, 0xFF, 8)


def test_unhealthy_chips_are_neither_free_nor_counted() -> None:
    world = World()
    world.add(node("n1", allocatable=6), report("n1", unhealthy=[0, 5]))
    assert free(world) == [1, 2, 3, 4, 6, 7]
    assert world.vacancy().healthy == 6
    world.add(report("n1"))
    assert world.vacancy().healthy == 8


def test_live_pods_hold_their_chips_until_they_end() -> None:
    world = World()
    running = pod("a", 2, node="n1", chips=[0, 1], phase="Running")
    world.add(node("n1"), running, pod("b", 1, node="n1", chips=[7]))
    assert free(world) == [2, 3, 4, 5, 6]
    assert world.vacancy().room == 5
    world.add(pod("b", 1, node="n1", chips=[7], phase="Failed"))
    assert free(world) == [2, 3, 4, 5, 6, 7]
    world.cluster.pod_deleted(running)
    assert free(world) == list(range(8))


def test_a_pod_seen_before_its_node_holds_its_chips() -> None:
    world = World()
    world.add(pod("a", 1, node="n1", chips=[3]), report("n1", unhealthy=[0]))
    world.add(node("n1"))
    assert free(world) == [1, 2, 4, 5, 6, 7]


def test_a_recreated_node_has_its_pods() -> None:
    world = World()
    world.add(node("n1"), pod("a", 1, node="n1", chips=[3]))
    world.cluster.node_deleted(node("n1"))
    world.node_refusal()
    world.add(node("n1"))
    assert 3 not in free(world)


def test_a_deleted_node_without_pods_leaves_no_state() -> None:
    world = World()
    held = pod("a", 1, node="n1", chips=[3])
    world.add(node("n1"), report("n1", unhealthy=[1]), held)
    world.cluster.pod_deleted(held)
    world.cluster.reports.delete(report("n1"))
    world.cluster.node_deleted(node("n1"))
    assert not world.cluster.nodes
    assert len(world.cluster.index.entries) == 0


@pytest.mark.parametrize("claim", [{}, CLAIM], ids=["unclaimed", "claimed"])
def test_chips_written_and_chips_in_ascend_real_both_count(claim: dict[str, str]) -> None:
    world = World()
    world.add(node("n1"), pod("a", 2, node="n1", chips=[0, 1], annotations={REAL: "Ascend910-1,Ascend910-5", **claim}))
    assert free(world) == [2, 3, 4, 6, 7]
    record = world.cluster.nodes["n1"]
    assert record.disputed == 1
    world.add(pod("b", 2, node="n1", chips=[2, 3], annotations={REAL: "Ascend910-2,Ascend910-3", **claim}))
    assert record.disputed == 1
    # What the kubelet counts is no more than the pod requests.
    assert world.vacancy().room == 4


def test_a_forged_real_annotation_does_not_hide_chips() -> None:
    world = World()
    world.add(node("n1"), pod("a", 2, node="n1", chips=[0, 1], annotations={REAL: "Ascend910-7"}))
    assert free(world) == [2, 3, 4, 5, 6]


def test_annotations_of_a_pod_without_chips_hold_nothing() -> None:
    world = World()
    world.add(node("n1"), pod("a", None, node="n1", annotations={ALLOCATED: "Ascend910-0", REAL: "malformed"}))
    assert free(world) == list(range(8))


def test_room_is_limited_by_the_kubelets_allocatable_chips() -> None:
    world = World()
    # The kubelet's count is behind: it has 6 chips, while the report has 8 healthy ones.
    world.add(node("n1", allocatable=6), pod("a", 4, node="n1", chips=[0, 1, 2, 3]))
    assert world.vacancy().free == chip_set(range(4, 8))
    assert world.vacancy().room == 2


def devices(prefix: str, count: int) -> str:
    """An annotation with many names: each takes tens of microseconds to read, at each change of the Node."""
    return json.dumps({f"{prefix}{number}": {} for number in range(count)})


@pytest.mark.parametrize(
    ("each", "reason", "words"),
    [
        (Node(metadata=Metadata(name="n1")), Reason.NOT_AN_NPU_NODE, "baseDeviceInfos"),
        (node("n1", infos="{"), Reason.INVALID_REPORT, "baseDeviceInfos"),
        (node("n1", infos='{"Ascend310P-0":{}}'), Reason.NOT_AN_NPU_NODE, "names no Ascend910 chip: Ascend310P-0"),
        (node("n1", chips=range(9)), Reason.UNKNOWN_PRODUCT, "Ascend910-8"),
        (node("n1", infos=devices("Ascend910-", 1_025)), Reason.INVALID_REPORT, "1,025 devices, more than 1,024"),
        (node("n1", infos=devices("Ascend310-", 1_025)), Reason.INVALID_REPORT, "1,025 devices, more than 1,024"),
        (node("n1", infos=devices("Ascend310-", 1_024)), Reason.NOT_AN_NPU_NODE, "names no Ascend910 chip"),
        (node("n1", labels={"accelerator": "huawei-Ascend310"}), Reason.UNKNOWN_PRODUCT, "huawei-Ascend310"),
        (node("n1", ready=False), Reason.NODE_NOT_READY, "n1"),
        (node("n1", cordoned=True), Reason.NODE_CORDONED, "n1"),
        (node("n1", allocatable=None), Reason.RESOURCE_NOT_OFFERED, "n1"),
        (node("n1", allocatable=0), Reason.RESOURCE_NOT_OFFERED, "n1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_unusable_node_has_a_reason(each: Node, reason: str, words: str) -> None:
    world = World()
    world.add(each)
    found = world.node_refusal()
    assert found.reason == reason
    assert words in found.message


def test_more_allocatable_than_capacity_makes_the_node_unusable() -> None:
    plain = node("n1")
    status = NodeStatus(allocatable={RESOURCE: "8"}, capacity={RESOURCE: "4"}, conditions=plain.status.conditions)
    world = World()
    world.add(Node(metadata=plain.metadata, status=status))
    found = world.node_refusal()
    assert found.reason is Reason.INCONSISTENT_CAPACITY
    assert re.search("8 .*huawei.com/Ascend910.* 4", found.message)


@pytest.mark.parametrize("data", [{}, {DEVICE_INFO: "{"}, None])
def test_an_invalid_report_makes_the_node_unusable(data: dict[str, str] | None) -> None:
    if data is None:
        good = report("n1").data
        data = {**good, DEVICE_INFO: good[DEVICE_INFO].replace("Ascend910-7", "Ascend910-6")}
    world = World()
    world.add(node("n1"), report("n1", data=data))
    found = world.node_refusal()
    assert found.reason is Reason.INVALID_REPORT
    assert "kube-system/mindx-dl-deviceinfo-n1" in found.message
    world.add(report("n1"))
    world.vacancy()


UNREADABLE = pytest.mark.parametrize(
    ("holder", "words"),
    [
        (pod("bad", 1, node="n1", annotations={ALLOCATED: "Ascend910-0, Ascend910-1"}), "' Ascend910-1'"),
        (pod("bad", 1, node="n1", chips=[0], annotations={REAL: "Ascend910-2c-1"}), REAL),
        (pod("bad", 1, node="n1"), "annotation"),
    ],
    ids=["malformed", "real-malformed", "without-chips"],
)


@UNREADABLE
def test_a_pod_with_unreadable_chips_makes_its_node_unusable(holder: Pod, words: str) -> None:
    world = World()
    world.add(node("n1"), holder)
    found = world.node_refusal()
    assert found.reason is Reason.UNREADABLE_POD
    assert "default/bad" in found.message
    assert words in found.message
    world.cluster.pod_deleted(holder)
    assert free(world) == list(range(8))


@UNREADABLE
def test_with_our_plugin_such_a_pod_takes_no_more_than_its_own_number(holder: Pod, words: str) -> None:  # noqa: ARG001
    world = World()
    world.add(node("n1"), report("n1", ours=True), holder, pod("good", 2, node="n1", chips=[0, 1]))
    vacancy = world.vacancy()
    assert (tuple(chip_ids(vacancy.free)), vacancy.room) == ((2, 3, 4, 5, 6, 7), 5)
    # What the plugin has given to it, as its report says, is nobody's.
    world.add(report("n1", ours=True, free=[4, 5, 6, 7]))
    vacancy = world.vacancy()
    assert (tuple(chip_ids(vacancy.free)), vacancy.room) == ((4, 5, 6, 7), 5)
    # Another plugin gives pods chips that are not written on them.
    world.add(report("n1"))
    assert world.node_refusal().reason is Reason.UNREADABLE_POD


def test_a_manually_separated_chip_is_unhealthy() -> None:
    separated = DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=0, update_time_s=1, manually_separated=0b100)
    assert read_report(report("n1", data=encode_report(separated))) == NodeReport(0b100, 0, 1, free=0xFF, listed=0xFF)


def listing(device_list: dict[str, str]) -> ConfigMap:
    """A report with exactly these lists, as any plugin may write it."""
    inner = {"DeviceList": device_list, "UpdateTime": 1}
    code = check_code(device_list, 1)
    return report("n1", data={DEVICE_INFO: json.dumps({"DeviceInfo": inner, "CheckCode": code})})


@pytest.mark.parametrize(
    "lists",
    [
        {RESOURCE: "Ascend910-4, Ascend910-5"},
        {f"{RESOURCE}-Unhealthy": "Ascend910-3,Ascend910-3"},
        {f"{RESOURCE}-Fault": '[{"npu_name":"Ascend910-3","fault_time_and_level_map":null}]'},
    ],
    ids=["space", "twice", "null"],
)
def test_errors_in_lists_that_placement_ignores_are_harmless(lists: dict[str, str]) -> None:
    world = World()
    world.add(node("n1"), listing({f"{RESOURCE}-Unhealthy": "Ascend910-3", **lists}))
    assert free(world) == [0, 1, 2, 4, 5, 6, 7]


def reporting_fault(chip: int, level: str, *, network: bool = False, unhealthy: int = 0) -> ConfigMap:
    """A report with a fault of this level on a chip."""
    fault = chip_fault(chip_id=chip, level=level, codes={}, network=network)
    return report("n1", data=encode_report(DeviceReport(0xFF, unhealthy, 0, update_time_s=1, faults=(fault,))))


def test_a_chip_with_a_fault_that_bars_new_pods_is_not_free() -> None:
    world = World()
    holder = pod("a", 1, node="n1", chips=[3], phase="Running")
    world.add(node("n1"), holder, reporting_fault(3, "PreSeparateNPU"))
    assert (free(world), world.vacancy().healthy, world.vacancy().faulty) == ([0, 1, 2, 4, 5, 6, 7], 8, 0)
    world.cluster.pod_deleted(holder)
    assert free(world) == [0, 1, 2, 4, 5, 6, 7]
    world.add(reporting_fault(3, "PreSeparateNPU", unhealthy=0b1000))
    assert (free(world), world.vacancy().healthy, world.vacancy().faulty) == ([0, 1, 2, 4, 5, 6, 7], 7, 1)
    world.add(report("n1"))
    assert free(world) == list(range(8))


def test_preempting_the_pod_on_a_barred_chip_frees_nothing() -> None:
    world = World()
    holders = [pod(f"h{chip}", 1, node="n1", chips=[chip], phase="Running") for chip in range(8)]
    world.add(node("n1"), *holders, reporting_fault(3, "PreSeparateNPU"))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    found = preemption.victims(pod("urgent", 4, priority=9), "n1")
    assert isinstance(found, VictimSet)
    assert sorted(victim.pod for victim in found.victims) == [f"default/h{chip}" for chip in range(4, 8)]


@pytest.mark.parametrize("level", ["NormalNPU", "NotHandleFault", "SubHealthFault"])
def test_a_chip_with_a_lesser_fault_is_free(level: str) -> None:
    world = World()
    world.add(node("n1"), reporting_fault(3, level))
    assert free(world) == list(range(8))


def test_a_network_fault_of_that_level_does_not_bar_the_chip() -> None:
    world = World()
    world.add(node("n1"), reporting_fault(3, "PreSeparateNPU", network=True))
    assert free(world) == list(range(8))


@pytest.mark.parametrize("entry", ['"npu_name":"card"', '"npu_name":""', '"fault_type":""'])
@pytest.mark.parametrize("key", ["fault_level", "fault_handling"])
def test_a_barring_fault_without_a_chip_invalidates_the_report(key: str, entry: str) -> None:
    world = World()
    world.add(node("n1"), listing({f"{RESOURCE}-Fault": f'[{{{entry},"{key}":"PreSeparateNPU"}}]'}))
    found = world.node_refusal()
    assert found.reason is Reason.INVALID_REPORT
    assert "huawei.com/Ascend910-Fault" in found.message


def without_chip_names(*, capacity: int | None = 8, allocatable: int | None = 8) -> Node:
    """A node without the annotation that names its chips."""
    plain = node("n1", allocatable=allocatable)
    status = structs.replace(plain.status, capacity={} if capacity is None else {RESOURCE: str(capacity)})
    return structs.replace(plain, metadata=Metadata(name="n1"), status=status)


def reporting(free: int, unhealthy: int = 0) -> ConfigMap:
    """A report with these chips."""
    return report("n1", data=encode_report(DeviceReport(free, unhealthy, 0, update_time_s=1)))


def test_without_the_annotation_report_and_pods_name_the_chips() -> None:
    objects: tuple[Node | ConfigMap | Pod, ...] = (
        without_chip_names(allocatable=7),
        reporting(0b1111_0011, 0b1),
        pod("a", 2, node="n1", chips=[2, 3], phase="Running"),
    )
    for order in permutations(objects):
        world = World()
        world.add(*order)
        assert free(world) == [1, 4, 5, 6, 7]
        assert (world.vacancy().product, world.vacancy().healthy, world.vacancy().faulty) == (ASCEND_910A, 7, 1)
        assert world.engine.place(pod("b", 4)).take.chips == (4, 5, 6, 7)


@pytest.mark.parametrize(("capacity", "allocatable"), [(8, 8), (8, 4), (None, 8)])
def test_missing_chips_do_not_make_a_node_a_smaller_server(capacity: int | None, allocatable: int) -> None:
    world = World()
    holder = pod("a", 4, node="n1", chips=range(4, 8), phase="Running")
    world.add(without_chip_names(capacity=capacity, allocatable=allocatable), reporting(0xF), holder)
    assert free(world) == [0, 1, 2, 3]
    world.cluster.pod_deleted(holder)
    found = world.node_refusal()
    assert found.reason is Reason.NO_BASE_DEVICE_INFOS
    assert re.search("n1 .*baseDeviceInfos.* 4 chips.* 8", found.message)
    world.add(reporting(0xFF))
    assert free(world) == list(range(8))


def test_without_the_annotation_the_reports_error_is_the_reason() -> None:
    world = World()
    world.add(without_chip_names(), report("n1", data={}))
    found = world.node_refusal()
    assert found.reason is Reason.INVALID_REPORT
    world.add(reporting(0xFF))
    world.vacancy()
    world.cluster.reports.delete(reporting(0xFF))
    found = world.node_refusal()
    assert found.reason is Reason.NOT_AN_NPU_NODE
    world.add(reporting(0xFF), node("n1", chips=range(4), allocatable=4))
    assert free(world) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "lost"),
    [("Ascend910-2c-100-3", [3]), ("Ascend910-0-1", []), ("Ascend310P-0", []), ("Ascend910-4.5", [])],
)
def test_an_odd_name_costs_one_chip_at_most_not_the_node(name: str, lost: list[int]) -> None:
    infos = json.dumps({**{f"Ascend910-{chip}": {} for chip in range(8) if chip not in lost}, name: {}})
    world = World()
    world.add(node("n1", infos=infos, allocatable=8 - len(lost)), report("n1"))
    assert free(world) == [chip for chip in range(8) if chip not in lost]
    assert (world.vacancy().product, world.vacancy().healthy) == (ASCEND_910A, 8 - len(lost))


def test_a_chip_cut_into_vnpus_counts_for_the_product() -> None:
    """With only chips 0-3 left as a whole, the server still has two rings."""
    infos = json.dumps(
        {
            **{f"Ascend910-{chip}": {} for chip in range(4)},
            **{f"Ascend910-2c-{100 + chip}-{chip}": {} for chip in range(4, 8)},
        }
    )
    world = World()
    world.add(node("n1", infos=infos, allocatable=4), report("n1"))
    assert (world.vacancy().product, free(world)) == (ASCEND_910A, [0, 1, 2, 3])


@pytest.mark.parametrize("key", ["Unhealthy", "NetworkUnhealthy", "Recovering"])
def test_a_vnpu_in_a_list_of_the_report_stands_for_its_chip(key: str) -> None:
    data = encode_report(DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=0, update_time_s=1))
    content = json.loads(data[DEVICE_INFO])
    listed = content["DeviceInfo"]["DeviceList"]
    listed[f"{RESOURCE}-{key}"] = "Ascend910-2c-100-3"
    content["CheckCode"] = check_code(listed, 1)
    read = read_report(report("n1", data={**data, DEVICE_INFO: json.dumps(content)}))
    assert isinstance(read, NodeReport)
    assert read.unhealthy | read.network_unhealthy == 1 << 3
    # It says nothing of the whole chip, which is cut.
    listed[RESOURCE] = "Ascend910-0,Ascend910-1"
    content["CheckCode"] = check_code(listed, 1)
    read = read_report(report("n1", data={**data, DEVICE_INFO: json.dumps(content)}))
    assert isinstance(read, NodeReport)
    assert read.listed == 0b11


def test_odd_names_are_passed_on_once_until_they_change() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []
    cluster = Cluster(Ledger(ttl_s=30.0, monotonic=lambda: 0.0), ignored=lambda name, names: seen.append((name, names)))
    odd: dict[str, object] = {
        **{f"Ascend910-{chip}": {} for chip in range(7)},
        "Ascend910-x-100-7": {},
        "Ascend910-2c-100-7": {},
    }
    for ready in (True, False, True):
        cluster.node_applied(node("n1", infos=json.dumps(odd), ready=ready))
    cluster.node_applied(node("n2"))
    assert seen == [("n1", ("Ascend910-x-100-7",))]
    cluster.node_applied(node("n1", infos=json.dumps(odd | {"npu-9": {}})))
    assert seen[1:] == [("n1", ("Ascend910-x-100-7", "npu-9"))]
