"""A pod with scheduling gates is not there: it does not complete its gang and gets no seat until they are removed."""

import pytest
from msgspec.structs import replace

from allocator.state.reservation import Stage
from ascend.annotations import PLACEMENT_GATE
from ascend.reasons import Reason
from tests.allocator.builders import gated, pod
from tests.allocator.gangs.builders import bind, gang, reason, world_of

KUEUE = "kueue.x-k8s.io/admission"


def test_peers_of_a_gated_pod_wait_until_its_gate_is_removed() -> None:
    world = world_of(2)
    first, second = gang("train", 2)
    world.add(first, gated(second, KUEUE))
    refusal = world.refusal(first)
    assert refusal.reason is Reason.GANG_INCOMPLETE
    assert refusal.message.endswith("1 exists, 1 is missing; 1 has scheduling gates")
    assert len(world.ledger) == 0
    world.add(second)
    assert {bind(world, each).spec.node_name for each in (first, second)} == {"n0", "n1"}


def test_no_seat_is_planned_for_a_gated_pod_beyond_the_minimum() -> None:
    world = world_of(3)
    pods = gang("train", 3, minimum=2)
    late = gated(pods[2], KUEUE)
    world.add(*pods[:2], late)
    world.engine.place(pods[0])
    assert {seat.uid for seat in world.ledger} == {each.uid for each in pods[:2]}
    # The webhook or a scheduler that does not know the gate may call for it nevertheless.
    assert reason(world, late) is Reason.POD_GATED
    assert len(world.ledger) == 2
    world.add(pods[2])
    assert world.engine.place(pods[2]).node not in {seat.node for seat in world.ledger if seat.uid != pods[2].uid}


def test_a_gated_pod_does_not_wait_for_chips() -> None:
    world = world_of(1)
    each = pod("p", 8)
    world.add(gated(each, KUEUE))
    assert len(world.cluster.waiting) == 0
    assert reason(world, gated(each, KUEUE)) is Reason.POD_GATED
    assert len(world.ledger) == 0
    world.add(each)
    assert [waiting.uid for waiting in world.cluster.waiting] == [each.uid]
    assert world.engine.place(each).stage is Stage.RESERVED


def test_a_scheduler_may_see_before_the_informers_that_a_gate_is_gone() -> None:
    world = world_of(2)
    first, second = gang("train", 2)
    world.add(first, gated(second, KUEUE))
    assert world.engine.place(second).node
    assert len(world.ledger) == 2
    world.add(second)
    assert {bind(world, each).spec.node_name for each in (first, second)} == {"n0", "n1"}


@pytest.mark.parametrize(("gates", "placed"), [((PLACEMENT_GATE,), 2), ((PLACEMENT_GATE, KUEUE), 0)])
def test_pods_that_only_the_allocator_gates_are_there(gates: tuple[str, ...], placed: int) -> None:
    world = world_of(2)
    pods = [gated(each, *gates) for each in gang("train", 2)]
    world.add(*pods)
    if placed:
        world.engine.place(pods[0])
    else:
        assert reason(world, pods[0]) is Reason.POD_GATED
    assert len(world.ledger) == placed
    assert len(world.cluster.waiting) == placed


def test_a_gated_pod_leaves_its_job_when_it_is_deleted() -> None:
    world = world_of(2)
    first, second = gang("train", 2)
    world.add(first, gated(second, KUEUE))
    job = world.cluster.jobs.job_of(first)
    assert job.gated == 1
    world.add(
        gated(replace(second, metadata=replace(second.metadata, deletion_timestamp="2026-01-01T00:00:00Z")), KUEUE)
    )
    assert job.gated == 0
    world.cluster.pod_deleted(second)
    assert job.gated == 0
