"""Rescheduling of pods that have a vNPU."""

import pytest

from allocator.rescheduling.faults import FaultKind, NodeFaults, fault_of
from allocator.rescheduling.memory import Deleted, Memory, decode, encode
from allocator.rules.switches import Switches
from allocator.rules.vacancy import Vacancy
from allocator.state.node import read_holding
from ascend.vnpus import Vnpu
from tests.allocator.builders import World
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
        fault = fault_of(pod, holding.occupied, node, Switches())
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
