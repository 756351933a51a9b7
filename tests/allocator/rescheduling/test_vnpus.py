"""Rescheduling of pods that have a vNPU."""

import pytest

from allocator.rescheduling.faults import FaultKind, NodeFaults, fault_of
from allocator.rescheduling.memory import Deleted, Memory
from allocator.rescheduling.storage import decode
from allocator.rules.rescheduling_labels import FaultLabels
from allocator.rules.vacancy import Vacancy
from allocator.state.holding import read_holding
from ascend.reasons import Reason
from ascend.vnpus import Vnpu
from tests.allocator.builders import World
from tests.allocator.cores import core_node, core_pod
from tests.allocator.rescheduling.scene import encode
from tests.allocator.vnpus import cut, cut_node, vnpu_pod


def test_a_pod_on_a_part_of_a_failed_chip_is_faulty() -> None:
    node = NodeFaults(chips={0: "80E18402"})
    for vnpu, real, is_faulty in (
        (Vnpu("2c", 0, 100), None, True),
        (Vnpu("2c", 1, 104), None, False),
        # What the plugin reports counts, if it has swapped them.
        (Vnpu("2c", 1, 104), Vnpu("2c", 0, 100), True),
        (Vnpu("2c", 0, 100), Vnpu("2c", 1, 104), False),
    ):
        pod = vnpu_pod("p", vnpu=vnpu, real=real, node="n1", phase="Running")
        holding = read_holding(pod)
        assert holding is not None
        fault = fault_of(pod, holding.occupied, node, FaultLabels())
        assert (fault is not None and fault.kind is FaultKind.CHIP) is is_faulty


def test_a_pod_deleted_by_force_keeps_its_vnpu_also_at_the_next_leader() -> None:
    part, other = cut([0], parts=2)
    deleted = Deleted("default/p", "n1", 0.0, vnpus=[part.name])
    memory, unreadable = decode(encode(Memory(force_deleted={"uid-p": deleted})), 0.0)
    assert not unreadable
    assert memory.force_deleted == {"uid-p": deleted}
    world = World()
    world.cluster.hold_deleted("uid-p", "n1", memory.force_deleted["uid-p"].holding)
    world.add(cut_node("n1", [part, other]))
    assert world.engine.place(vnpu_pod("q")).take.vnpu == other
    world.engine.release("uid-q")
    world.cluster.release_deleted("uid-p", "n1")
    offer = world.cluster.nodes["n1"].offer
    assert isinstance(offer, Vacancy)
    assert offer.vnpus is not None
    assert offer.vnpus.free == (part, other)


@pytest.mark.parametrize("name", ["", "Ascend910-0", "Ascend910-2c-100-0\n", "x"])
def test_a_memory_with_an_odd_name_is_not_read(name: str) -> None:
    odd = encode(Memory(force_deleted={"u": Deleted("default/p", "n1", 0.0, vnpus=[name])}))
    memory, unreadable = decode(odd, 0.0)
    assert not memory.force_deleted
    assert unreadable


def test_a_pod_on_a_part_that_was_cut_for_it_is_faulty_with_the_chip() -> None:
    node = NodeFaults(chips={0: "80E18402"})
    for has, cores, real, is_faulty in (
        ("0-vir05_1c_16g", 5, "", True),
        ("1-vir05_1c_16g", 5, "", False),
        ("1-vir05_1c_16g", 5, "Ascend910-5c.1cpu.16g-100-0_1", True),
        ("0,1", 40, "", True),
        ("1,2", 40, "", False),
    ):
        pod = core_pod("p", cores, has=has, real=real, node="n1", phase="Running")
        holding = read_holding(pod)
        assert holding is not None
        fault = fault_of(pod, holding.occupied, node, FaultLabels())
        assert (fault is not None and fault.kind is FaultKind.CHIP) is is_faulty


def test_a_pod_deleted_by_force_keeps_its_cores_also_at_the_next_leader() -> None:
    deleted = Deleted("default/p", "n1", 0.0, cuts=["0-vir10_3c_32g"], cores=10)
    memory, unreadable = decode(encode(Memory(force_deleted={"uid-p": deleted})), 0.0)
    assert not unreadable
    world = World()
    world.cluster.hold_deleted("uid-p", "n1", memory.force_deleted["uid-p"].holding)
    world.add(core_node("n1", chips=[0]))
    assert world.refusal(core_pod("chip", 20), ["n1"]).reason is Reason.NOT_ENOUGH_CHIPS
    assert world.engine.place(core_pod("half", 10)).take.names == ("0-vir10_3c_32g",)
    world.engine.release("uid-half")
    world.cluster.release_deleted("uid-p", "n1")
    assert world.engine.place(core_pod("chip", 20)).take.chips == (0,)


@pytest.mark.parametrize("name", ["", "0", "0-vir07_1c", "0-vir05_1c_16g\n"])
def test_a_memory_with_an_odd_part_is_not_read(name: str) -> None:
    odd = encode(Memory(force_deleted={"u": Deleted("default/p", "n1", 0.0, cuts=[name])}))
    memory, unreadable = decode(odd, 0.0)
    assert not memory.force_deleted
    assert unreadable
