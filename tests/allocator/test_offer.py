"""What a node offers, and that whatever is unclear makes it unusable rather than its chips free."""

import json
from itertools import permutations

import pytest
from msgspec import structs

from allocator.decision.preemption import Preemption, VictimSet
from allocator.rules.vacancy import Vacancy
from allocator.state.report import NodeReport, read_report
from ascend.annotations import ALLOCATED, CLAIMED, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import DEVICE_INFO, DeviceReport, check_code, encode_report
from ascend.errors import Refusal
from ascend.faults import chip_fault
from ascend.kube.objects import ConfigMap, Metadata, Node, Pod
from ascend.products import ASCEND_910A
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
    assert read_report(report("n1", data=encode_report(taken_out))) == NodeReport(0b100, 0, 1, listed=0xFF)


def listing(device_list: dict[str, str]) -> ConfigMap:
    """A report of these lists and no others, as any plugin may write it."""
    inner = {"DeviceList": device_list, "UpdateTime": 1}
    code = check_code(device_list, 1)
    return report("n1", data={DEVICE_INFO: json.dumps({"DeviceInfo": inner, "CheckCode": code})})


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
    world = World()
    world.add(node("n1"), listing({f"{RESOURCE}-Unhealthy": "Ascend910-3", **garbled}))
    assert free(world) == [0, 1, 2, 4, 5, 6, 7]


def told_of(chip: int, level: str, *, network: bool = False, unhealthy: int = 0) -> ConfigMap:
    """What a device plugin reports of a chip with a fault of this level."""
    fault = chip_fault(chip_id=chip, level=level, codes={}, network=network)
    return report("n1", data=encode_report(DeviceReport(0xFF, unhealthy, 0, update_time_s=1, faults=(fault,))))


def test_a_chip_left_to_its_pod_is_not_given_again_before_the_report_says_that_it_is_unhealthy() -> None:
    world = World()
    holder = pod("a", 1, node="n1", chips=[3], phase="Running")
    world.add(node("n1"), holder, told_of(3, "PreSeparateNPU"))
    assert (free(world), vacancy(world).healthy, vacancy(world).faulty) == ([0, 1, 2, 4, 5, 6, 7], 8, 0)
    world.cluster.pod_deleted(holder)
    assert free(world) == [0, 1, 2, 4, 5, 6, 7]
    world.add(told_of(3, "PreSeparateNPU", unhealthy=0b1000))
    assert (free(world), vacancy(world).healthy, vacancy(world).faulty) == ([0, 1, 2, 4, 5, 6, 7], 7, 1)
    world.add(report("n1"))
    assert free(world) == list(range(8))


def test_preempting_the_pod_on_a_chip_that_is_left_to_it_frees_nothing() -> None:
    world = World()
    holders = [pod(f"h{chip}", 1, node="n1", chips=[chip], phase="Running") for chip in range(8)]
    world.add(node("n1"), *holders, told_of(3, "PreSeparateNPU"))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    found = preemption.victims(pod("urgent", 4, priority=9), "n1")
    assert isinstance(found, VictimSet)
    assert sorted(victim.pod for victim in found.victims) == [f"default/h{chip}" for chip in range(4, 8)]


@pytest.mark.parametrize("level", ["NormalNPU", "NotHandleFault", "SubHealthFault"])
def test_a_chip_with_a_lighter_fault_is_given(level: str) -> None:
    world = World()
    world.add(node("n1"), told_of(3, level))
    assert free(world) == list(range(8))


def test_a_network_of_that_level_keeps_no_pod_of_its_own_off_the_chip() -> None:
    world = World()
    world.add(node("n1"), told_of(3, "PreSeparateNPU", network=True))
    assert free(world) == list(range(8))


@pytest.mark.parametrize("entry", ['"npu_name":"card"', '"npu_name":""', '"fault_type":""'])
@pytest.mark.parametrize("key", ["fault_level", "fault_handling"])
def test_a_fault_that_keeps_pods_off_a_chip_must_name_it(key: str, entry: str) -> None:
    world = World()
    world.add(node("n1"), listing({f"{RESOURCE}-Fault": f'[{{{entry},"{key}":"PreSeparateNPU"}}]'}))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InvalidReport"
    assert "huawei.com/Ascend910-Fault" in found.message


def unnamed(*, capacity: int | None = 8, allocatable: int | None = 8) -> Node:
    """A node that does not say which chips it has."""
    plain = node("n1", allocatable=allocatable)
    status = structs.replace(plain.status, capacity={} if capacity is None else {RESOURCE: str(capacity)})
    return structs.replace(plain, metadata=Metadata(name="n1"), status=status)


def naming(free: int, unhealthy: int = 0) -> ConfigMap:
    """A report of these chips."""
    return report("n1", data=encode_report(DeviceReport(free, unhealthy, 0, update_time_s=1)))


def test_a_node_that_names_no_chips_has_those_of_its_report_and_its_pods_whatever_is_seen_first() -> None:
    objects: tuple[Node | ConfigMap | Pod, ...] = (
        unnamed(allocatable=7),
        naming(0b1111_0011, 0b1),
        pod("a", 2, node="n1", chips=[2, 3], phase="Running"),
    )
    for order in permutations(objects):
        world = World()
        world.add(*order)
        assert free(world) == [1, 4, 5, 6, 7]
        assert (vacancy(world).product, vacancy(world).healthy, vacancy(world).faulty) == (ASCEND_910A, 7, 1)
        assert world.engine.place(pod("b", 4)).chips == (4, 5, 6, 7)


@pytest.mark.parametrize(("capacity", "allocatable"), [(8, 8), (8, 4), (None, 8)])
def test_a_node_is_no_smaller_server_because_the_report_leaves_out_chips_in_use(
    capacity: int | None, allocatable: int
) -> None:
    world = World()
    holder = pod("a", 4, node="n1", chips=range(4, 8), phase="Running")
    world.add(unnamed(capacity=capacity, allocatable=allocatable), naming(0xF), holder)
    assert free(world) == [0, 1, 2, 3]
    world.cluster.pod_deleted(holder)
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "NoBaseDeviceInfos"
    assert "n1 has no annotation baseDeviceInfos" in found.message
    assert "name 4 chips, while the kubelet knows 8" in found.message
    world.add(naming(0xFF))
    assert free(world) == list(range(8))


def test_a_node_that_names_no_chips_goes_by_what_is_wrong_with_its_report() -> None:
    world = World()
    world.add(unnamed(), report("n1", data={}))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InvalidReport"
    world.add(naming(0xFF))
    assert isinstance(offer(world), Vacancy)
    world.cluster.report_deleted(naming(0xFF))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "NotAnNpuNode"
    world.add(naming(0xFF), node("n1", chips=range(4), allocatable=4))
    assert free(world) == [0, 1, 2, 3]
