"""AI cores: what pods get of nodes whose chips are cut while pods run, and what counts as in use."""

from typing import Any

import pytest

from allocator.binding.annotations import Stamper
from allocator.binding.binding import read_assignment
from allocator.decision.preemption import Preemption
from allocator.leadership.handover import HandOver
from allocator.rescheduling.memory import Deleted
from allocator.state.holding import read_holding
from allocator.state.reservation import Stage
from allocator.state.supply import SupplyReader
from ascend.annotations import MIN_AVAILABLE, REAL
from ascend.chips import RESOURCE
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES
from tests.allocator.builders import GROUP, World, node, owned_by, pod, report
from tests.allocator.cores import A3_20, B1, B3, B4, core_node, core_pod
from tests.allocator.vnpus import cut, cut_node, vnpu_pod


def place(world: World, name: str, cores: int = 5, **more: Any) -> tuple[str, str]:
    """Place a pod, show it bound, and return its node and what is written on it."""
    asked = core_pod(name, cores, **more)
    made = world.engine.place(asked)
    stamper = Stamper(world.cluster, world.ledger, lambda: 7)
    written = stamper.annotations(asked, stamper.stamp(made, Stage.BINDING))
    world.add(
        core_pod(name, cores, **{**more, "annotations": written | more.get("annotations", {}), "node": made.node})
    )
    return made.node, written[RESOURCE_CORES]


def refusals(world: World, each: Pod) -> dict[str, tuple[Reason, str]]:
    return {name: (one.reason, one.message) for name, one in world.engine.filter(each).refused.items()}


def test_parts_fill_the_chip_with_the_least_left_then_the_fullest_node() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("a"), core_node("b"))
    world.add(core_pod("old", 40, has="6,7", node="b"), core_pod("half", 10, has="3-vir10_3c_32g", node="a"))
    assert [place(world, f"p{number}") for number in range(3)] == [
        ("a", "3-vir05_1c_16g"),
        ("a", "3-vir05_1c_16g"),
        ("b", "0-vir05_1c_16g"),  # in use are 40 cores there, 20 on the other
    ]
    assert place(world, "ten", 10) == ("b", "0-vir10_3c_32g")
    assert place(world, "chips", 40) == ("b", "1,2")  # the rule of the product


def test_a_multiple_of_a_chips_cores_is_whole_uncut_chips_by_the_rule_of_the_product() -> None:
    world = World()
    world.add(core_node("n1", A3_20), core_pod("old", 5, has="0-vir05_1c_16g", node="n1"))
    # Cards of two dies: one die comes from the broken card, two from a whole one.
    assert place(world, "one", 20) == ("n1", "1")
    assert place(world, "two", 40) == ("n1", "2,3")
    says = "60 AI cores are 3 whole chips of this node: a pod may request 1, 2, 4, 6, 8 chips of an A3-8 server, not 3"
    assert refusals(world, core_pod("three", 60)) == {"n1": (Reason.INVALID_REQUEST, says)}
    says = "160 AI cores are 8 whole chips of this node: 8 chips requested, 4 free of 8 healthy"
    assert refusals(world, core_pod("all", 160)) == {"n1": (Reason.NOT_ENOUGH_CHIPS, says)}


def test_the_templates_are_those_of_each_node() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("b1", B1), core_node("b3", B3), core_node("b4", B4), node("whole"))
    assert place(world, "six", 6) == ("b1", "0-vir06_1c_16g")
    assert place(world, "media", 10, labels={"vnpu-dvpp": "yes"}) == ("b4", "0-vir10_4c_16g_m")
    says = refusals(world, core_pod("p", 10, labels={"vnpu-dvpp": "no"}))
    assert says["b1"] == (
        Reason.NO_SUCH_VNPU,
        "10 AI cores requested; a pod on this node may request 6 or 12, or a multiple of 25",
    )
    assert says["b3"] == (
        Reason.NO_SUCH_VNPU,
        "label vnpu-dvpp=no needs a chip with 32 GB (910B4); this node has chips with 64 GB",
    )
    level = refusals(world, core_pod("p", 10, labels={"vnpu-level": "high"}))
    assert level["b3"][1].startswith("label vnpu-level=high needs a chip with 32 GB")
    assert says["whole"] == (Reason.NO_SUCH_VNPU, "10 AI cores requested, the node does not offer huawei.com/npu-core")
    assert world.refusal(core_pod("seven", 7)).reason is Reason.INVALID_REQUEST


def test_media_units_and_cpus_of_a_chip_are_counted() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", B4, chips=[0]))
    assert place(world, "all", 10, labels={"vnpu-dvpp": "yes"}) == ("n1", "0-vir10_4c_16g_m")
    # 10 cores and 2 CPUs are left, no media units.
    reason, sentence = refusals(world, core_pod("p", 5))["n1"]
    assert reason is Reason.NO_FREE_VNPU
    assert sentence == "5 AI cores requested, 10 free, but no chip has left what vir05_1c_8g needs"


def test_whole_chips_and_parts_never_share_a_chip() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1]), core_pod("old", 5, has="1-vir05_1c_16g", node="n1"))
    assert place(world, "chip", 20) == ("n1", "0")
    assert world.refusal(core_pod("other", 20), ["n1"]).reason is Reason.NOT_ENOUGH_CHIPS
    assert place(world, "part", 10) == ("n1", "1-vir10_3c_32g")


def test_reservations_of_different_templates_on_one_chip_are_counted() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0]))
    made = [world.engine.place(core_pod(f"p{number}", cores)) for number, cores in enumerate((5, 10, 5))]
    assert [each.take.names for each in made] == [("0-vir05_1c_16g",), ("0-vir10_3c_32g",), ("0-vir05_1c_16g",)]
    assert world.engine.place(core_pod("p1", 10)) == made[1]
    assert world.refusal(core_pod("q"), ["n1"]).reason is Reason.NO_FREE_VNPU
    world.engine.release("uid-p1")
    assert world.engine.place(core_pod("q", 10)).take == made[1].take
    world.ledger.advance("uid-p0", Stage.DOUBTFUL)
    world.now_s += 1000
    assert world.engine.place(core_pod("r", 10)).take.names == ("0-vir10_3c_32g",)
    assert world.refusal(core_pod("s", 10), ["n1"]).reason is Reason.NO_FREE_VNPU


def test_what_the_device_plugin_reports_counts_beside_what_was_written() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1, 2]))
    world.add(core_pod("same", 10, has="0-vir10_3c_32g", real="Ascend910-10c.3cpu.32g-100-0_1", node="n1"))
    world.add(core_pod("foreign", 5, real="Ascend910-5c.1cpu.16g-101-0_2", node="n1"))
    world.add(core_pod("chip", 20, real="Ascend910-2", node="n1"))
    vacancy = world.vacancy()
    assert vacancy.cores is not None
    assert [(each.chip, each.cores) for each in vacancy.cores.cut] == [(0, 5)]
    assert (vacancy.free, vacancy.cores.used, vacancy.cores.room) == (0b010, 35, 25)
    # Another one than was written: both count until it ends.
    world.add(core_pod("swapped", 5, has="0-vir05_1c_16g", real="Ascend910-5c.1cpu.16g-102-1_1", node="n1"))
    vacancy = world.vacancy()
    assert vacancy.cores is not None
    assert [(each.chip, each.cores) for each in vacancy.cores.cut] == [(0, 0), (1, 15)]
    assert not vacancy.free


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({}, "pod default/foreign is bound with 5 AI cores, but no annotation names them"),
        ({RESOURCE_CORES: "0-vir07"}, "names an unknown template"),
        ({RESOURCE_CORES: "zero"}, "names neither chips (0,1) nor a vNPU"),
        ({RESOURCE_CORES: "0,0"}, "names a chip twice"),
        ({REAL: "Ascend910-2c-100-0_1"}, "no template is of the size of"),
        ({REAL: "Ascend910-5c.1cpu.16g-100-0_1,Ascend910-x-1-0_2"}, "not a vNPU name"),
        ({REAL: "Ascend910-5c.1cpu.16g_1"}, "not a chip name"),
    ],
)
def test_a_pod_of_unknown_cores_closes_its_node(annotations: dict[str, str], words: str) -> None:
    world = World()
    world.add(core_node("n1"), core_pod("foreign", node="n1", annotations=annotations))
    for cores in (5, 20):
        reason, sentence = refusals(world, core_pod("p", cores))["n1"]
        assert reason is Reason.UNREADABLE_POD
        assert words in sentence
    # It was a node with AI cores, and offers chips now.
    world.add(node("n1"))
    assert world.node_refusal().reason is Reason.UNREADABLE_POD


def test_a_pod_without_a_part_takes_no_more_than_its_cores_where_our_plugin_cuts() -> None:
    world = World()
    world.add(core_node("n1"), report("n1", ours=True), core_pod("foreign", 5, node="n1"))
    vacancy = world.vacancy()
    assert vacancy.cores is not None
    assert (vacancy.cores.used, vacancy.cores.room) == (5, 20 * vacancy.free.bit_count() - 5)
    assert place(world, "p", 5)[0] == "n1"


def test_no_part_of_an_unhealthy_chip_is_given() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1], cores=20), core_pod("old", 5, has="0-vir05_1c_16g", node="n1"))
    world.add(report("n1", unhealthy=[0]))
    assert place(world, "p") == ("n1", "1-vir05_1c_16g")
    assert place(world, "q", 10) == ("n1", "1-vir10_3c_32g")
    # 5 cores are left there, but the kubelet offers 20, and counts those of the old pod as well.
    assert refusals(world, core_pod("r"))["n1"][0] is Reason.NO_ROOM_AT_KUBELET


def test_the_kubelet_has_to_admit_the_cores() -> None:
    world = World()
    world.add(core_node("n1", cores=5))
    assert refusals(world, core_pod("p", 10))["n1"] == (
        Reason.NO_ROOM_AT_KUBELET,
        "10 AI cores requested, the kubelet would admit 5",
    )
    assert refusals(world, core_pod("p", 20))["n1"][0] is Reason.NO_ROOM_AT_KUBELET
    assert place(world, "q") == ("n1", "0-vir05_1c_16g")


def test_a_node_is_used_only_if_its_labels_name_a_chip_that_can_be_cut() -> None:
    world = World()
    for labels in ({"servertype": "Ascend910B-32"}, {"mind-cluster/npu-chip-memory": ""}, {"servertype": "x-20"}):
        world.add(core_node("n1", labels=labels))
        refusal = world.node_refusal()
        assert refusal.reason is Reason.CHIPS_NOT_DIVISIBLE
        assert "no chip that can be cut has the labels servertype=" in refusal.message
    for missing, words in (
        (
            ["servertype", "mind-cluster/npu-chip-memory"],
            "but the labels servertype and mind-cluster/npu-chip-memory are",
        ),
        (["servertype"], "offers huawei.com/npu-core, but the label servertype is missing"),
    ):
        unlabelled = core_node("n1")
        for key in missing:
            del unlabelled.metadata.labels[key]
        world.add(unlabelled)
        assert words in world.node_refusal().message
    both = core_node("n1")
    both.status.allocatable[RESOURCE] = "8"
    world.add(both)
    assert world.node_refusal().reason is Reason.INCONSISTENT_CAPACITY
    world.add(core_node("n1"))
    assert refusals(world, pod("whole", 1))["n1"] == (
        Reason.RESOURCE_NOT_OFFERED,
        "the node offers its chips as huawei.com/npu-core only, 20 for each chip",
    )
    assert refusals(world, vnpu_pod("static"))["n1"][0] is Reason.NO_SUCH_VNPU
    world.add(core_node("n1", cores=0))
    assert world.node_refusal().reason is Reason.RESOURCE_NOT_OFFERED
    assert world.node_refusal().message == "node n1 has no allocatable huawei.com/npu-core now"
    world.add(cut_node("n1", cut(range(8)), allocatable={"2c": 0}))
    assert world.node_refusal().message == "node n1 has no allocatable huawei.com/Ascend910-2c now"


@pytest.mark.parametrize(
    ("annotations", "labels", "reason", "words"),
    [
        ({}, {"tor-affinity": "large-model-schema"}, Reason.UNSUPPORTED_POLICY, "tor-affinity"),
        ({"sp-block": "16"}, {}, Reason.UNSUPPORTED_POLICY, "this one requests 5 AI cores; remove the annotation"),
        ({"huawei.com/schedule_policy": "chip4-node8"}, {}, Reason.WRONG_PRODUCT, "910A"),
    ],
)
def test_cores_with_what_only_whole_chips_have_are_refused(
    annotations: dict[str, str], labels: dict[str, str], reason: Reason, words: str
) -> None:
    world = World()
    world.add(core_node("n1"))
    refusal = world.refusal(core_pod("p", annotations=annotations, labels=labels), ["n1"])
    assert refusal.reason is reason
    assert words in refusal.message


def test_chips_or_a_static_vnpu_beside_cores_are_refused() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1"))
    for cores, other, what in (("5", RESOURCE, "1 chip"), ("20", f"{RESOURCE}-2c", "1 vNPU Ascend910-2c")):
        both = Container("main", Resources(limits={RESOURCE_CORES: cores, other: "1"}))
        refusal = world.refusal(pod("both", containers=[both]))
        assert refusal.reason is Reason.INVALID_REQUEST
        assert f"requests {what} and {cores} AI cores; beside AI cores a pod may request neither" in refusal.message


def test_a_job_has_one_vnpu_unless_the_setting_lifts_it() -> None:
    def of_job(name: str) -> Pod:
        return owned_by(core_pod(name), "PyTorchJob", "kubeflow.org/v1")

    for most, fit in ((1, 1), (0, 3)):
        world = World(vnpus_per_job=most)
        world.add(core_node("n1"))
        for number, name in enumerate("abc"):
            world.add(of_job(name))
            if number < fit:
                world.engine.place(of_job(name))
            else:
                says = world.refusal(of_job(name)).message
                assert f"requests {number + 1} vNPUs; a job may have one at a time (allocator setting vnpus" in says


def test_whole_chips_by_cores_are_no_vnpus_of_their_job() -> None:
    world = World()
    world.add(core_node("n1"))
    pods = [owned_by(core_pod(name, 40), "PyTorchJob", "kubeflow.org/v1") for name in "abc"]
    world.add(*pods)
    assert [world.engine.place(each).take.chips for each in pods] == [(0, 1), (2, 3), (4, 5)]
    blocks = world.refusal(core_pod("block", 160, annotations={"sp-block": "8"}), ["n1"])
    assert "annotation sp-block=8: blocks consist of pods that request huawei.com/Ascend910" in blocks.message
    assert "this one requests 160 AI cores" in blocks.message


def test_a_gang_of_pods_with_cores_is_placed_together_or_not_at_all() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1]))
    marks = {GROUP: "train", MIN_AVAILABLE: "5"}
    pods = [core_pod(f"train-{rank}", 10, annotations=marks) for rank in range(5)]
    world.add(*pods)
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "10 AI cores" in refusal.message
    world.add(core_node("n1", chips=[0, 1, 2]))
    names = sorted(name for each in pods for name in world.engine.place(each).take.names)
    assert names == [f"{chip}-vir10_3c_32g" for chip in (0, 0, 1, 1, 2)]


def test_several_pods_with_whole_chips_follow_the_rules_of_several() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("a", A3_20), core_node("b", A3_20))
    marks = {GROUP: "train", MIN_AVAILABLE: "2"}
    pods = [core_pod(f"train-{rank}", 40, annotations=marks) for rank in range(2)]
    world.add(*pods)
    assert {world.engine.place(each).node for each in pods} == {"a", "b"}  # servers of their own


def victims(world: World, preemptor: Pod) -> list[str] | Refusal:
    found = Preemption(world.cluster, world.ledger, world.engine).victims(preemptor, "n1")
    return found if isinstance(found, Refusal) else sorted(each.pod for each in found.victims)


def test_the_least_important_pods_that_make_room_are_preempted() -> None:
    world = World()
    world.add(core_node("n1", chips=[0, 1]), core_pod("chip", 20, has="1", node="n1", priority=4, phase="Running"))
    for priority in (1, 2, 3, 4):
        world.add(core_pod(f"p{priority}", has="0-vir05_1c_16g", node="n1", priority=priority, phase="Running"))
    assert victims(world, core_pod("five", 5, priority=9)) == ["default/p1"]
    assert victims(world, core_pod("ten", 10, priority=9)) == ["default/p1", "default/p2"]
    world.add(core_pod("chip", 20, has="1", node="n1", priority=2, phase="Running"))
    assert victims(world, core_pod("chips", 20, priority=3)) == ["default/chip"]
    low = victims(world, core_pod("low", 10, priority=1))
    assert isinstance(low, Refusal)
    assert low.reason is Reason.NO_FREE_VNPU
    world.add(core_pod("p3", has="0-vir05_1c_16g", node="n1", priority=3, phase="Running", terminating=True))
    assert victims(world, core_pod("five", 5, priority=9)) == ["default/p3"]
    assert not world.ledger.promises


def test_what_is_written_is_read_back_as_what_was_taken() -> None:
    for has, cores in (("0-vir05_1c_16g", 5), ("2,0", 40)):
        bound = read_assignment(core_pod("p", cores, has=has, node="n1"))
        assert bound is not None
        assert bound.grant.annotations() == {RESOURCE_CORES: has, "predicate-time": "7"}
        assert bound.grant.take.cores == cores
        holding = read_holding(core_pod("p", cores, has=has, node="n1"))
        assert holding is not None
        assert (holding.counted, holding.counted_cores, holding.disputed) == (0, cores, False)
        deleted = Deleted(
            "default/p", "n1", 0.0, [0, 2] if "," in has else [], cuts=[each.name for each in holding.cuts], cores=cores
        )
        assert deleted.holding == holding


def test_the_note_to_the_next_leader_has_cores() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1]), core_pod("p", 10), core_pod("q", 20))
    for each in (core_pod("p", 10), core_pod("q", 20)):
        world.engine.place(each)
        world.ledger.advance(each.uid, Stage.DOUBTFUL, predicate_time=5)
    note = HandOver(world.cluster, world.ledger).write()
    assert note is not None
    cut, whole = Take.part(Cut(0, "vir10_3c_32g")), Take.whole((1,), cores=20)
    beside = core_pod("r", 10, has="0-vir10_3c_32g", node="n1")
    more = core_pod("s", 5, has="0-vir05_1c_16g", node="n1")
    on_whole = core_pod("t", 5, has="1-vir05_1c_16g", node="n1")
    on_cut = core_pod("u", 20, has="0", node="n1")
    for held, takes in (
        ([], [cut, whole]),
        ([beside], [cut, whole]),
        ([beside, more], [whole]),
        ([on_whole], [cut]),
        ([on_cut], [whole]),
    ):
        successor = World(vnpus_per_job=0)
        successor.add(core_node("n1", chips=[0, 1]), core_pod("p", 10), core_pod("q", 20), *held)
        taken = HandOver(successor.cluster, successor.ledger).read(note)
        assert [each.take for each in taken] == takes
    with pytest.raises(ValueError, match="is not a chip and a template"):
        HandOver(world.cluster, world.ledger).read('[["u","d/p","n1",[],5,"","x",5]]')


async def test_free_cores_are_counted_by_product_and_whole_chips_for_gangs() -> None:
    world = World()
    world.add(core_node("n1"), core_pod("old", 5, has="0-vir05_1c_16g", node="n1"))
    supply = await SupplyReader(world.cluster.index).read()
    assert supply.cores == {"910B-8": 155}
    assert supply.largest_gang == {("910B-8", 1): 7, ("910B-8", 2): 3, ("910B-8", 4): 1, ("910B-8", 8): 0}
