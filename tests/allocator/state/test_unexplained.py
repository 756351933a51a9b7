"""Chips that are in use by a node's report while no pod is known to have anything of them."""

import pytest

from allocator.rules.vacancy import Vacancy
from allocator.state.reservation import Stage
from allocator.state.unexplained import WAIT_S
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod, report
from tests.allocator.cores import A3_20, core_node, core_pod

REAL_TEN = "Ascend910-10c.3cpu.32g-100-0_1"


def world_of(*, chips: int = 8) -> World:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=range(chips)), report("n1"))
    return world


def later(world: World, seconds: float) -> dict[str, int]:
    """Let time pass; return what is closed then."""
    world.now_s += seconds
    return world.cluster.close_unexplained()


def run(world: World, name: str, cores: int, has: str, real: str) -> Pod:
    """A pod runs, the report has it, and it ends."""
    made = core_pod(name, cores, has=has, real=real, node="n1", phase="Running")
    world.add(made)
    chips = {int(has.partition("-")[0])} if "-" in has else set(map(int, has.split(",")))
    world.add(report("n1", free=set(range(8)) - chips))
    return made


def chosen(world: World, cores: int) -> str | Reason:
    """What a pod would get."""
    asked = core_pod("probe", cores)
    try:
        take = world.engine.place(asked, ["n1"]).take
    except Refusal as refusal:
        return refusal.reason
    finally:
        world.engine.release(asked.uid)
    return take.names[0]


def test_a_chip_with_a_vnpu_that_was_not_given_back_gets_no_pod() -> None:
    world = world_of(chips=2)
    world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
    assert later(world, WAIT_S) == {"n1": 0b01}
    assert (chosen(world, 20), chosen(world, 40)) == ("Ascend910-1", Reason.NOT_ENOUGH_CHIPS)
    assert chosen(world, 5) == "1-vir05_1c_16g"
    world.add(core_pod("full", 20, has="1", node="n1", phase="Running"))
    assert (chosen(world, 20), chosen(world, 5)) == (Reason.NOT_ENOUGH_CHIPS, Reason.NO_FREE_VNPU)
    assert later(world, 1) == {}  # told once


def test_a_closed_chip_is_used_again_once_its_report_says_that_it_is_free() -> None:
    world = world_of(chips=1)
    world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
    later(world, WAIT_S)
    assert chosen(world, 20) is Reason.NOT_ENOUGH_CHIPS
    world.add(report("n1"))
    assert chosen(world, 20) == "Ascend910-0"
    assert later(world, 1000) == {}
    assert chosen(world, 20) == "Ascend910-0"


def test_a_chip_whose_pod_has_just_ended_is_used_at_once_if_no_other_fits() -> None:
    world = world_of(chips=2)
    world.add(core_pod("beside", 10, has="1-vir10_3c_32g", node="n1", phase="Running"))
    world.cluster.pod_deleted(run(world, "old", 20, "0", "Ascend910-0"))
    assert world.cluster.nodes["n1"].closed == 0
    assert chosen(world, 20) == "Ascend910-0"
    assert chosen(world, 10) == "1-vir10_3c_32g"
    # The report follows in time.
    later(world, WAIT_S / 2)
    world.add(report("n1", free=range(8)))
    assert later(world, WAIT_S) == {}
    assert chosen(world, 20) == "Ascend910-0"


def test_chips_that_are_in_use_by_the_report_come_last_of_all_nodes() -> None:
    world = world_of(chips=2)
    for cores, elsewhere in ((5, "0-vir05_1c_16g"), (20, "Ascend910-0")):
        world = world_of(chips=1)
        world.add(core_node("n2"), report("n2"))
        world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
        # Without doubt it would be the first: the node with fewer chips, or the same.
        made = world.engine.place(core_pod("p", cores))
        assert (made.node, made.take.names[0]) == ("n2", elsewhere)


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.DOUBTFUL])
def test_a_chip_of_a_pod_that_was_just_bound_is_not_closed(stage: Stage) -> None:
    world = world_of(chips=2)
    asked = core_pod("new", 10)
    world.add(asked)
    made = world.engine.place(asked)
    world.ledger.advance(asked.uid, stage, predicate_time=7)
    world.add(report("n1", free=range(1, 8)))  # the plugin has seen it bound before the informers
    assert chosen(world, 5) == "0-vir05_1c_16g"  # beside it
    world.add(core_pod("new", 10, has=made.take.names[0], node="n1"))
    world.add(core_pod("new", 10, has=made.take.names[0], real=REAL_TEN, node="n1", phase="Running"))
    assert later(world, 1000) == {}
    assert chosen(world, 5) == "0-vir05_1c_16g"


def test_a_pod_that_fails_on_a_doubtful_chip_does_not_prolong_the_doubt() -> None:
    world = world_of(chips=1)
    world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
    for number in range(3):
        later(world, WAIT_S / 4)
        world.add(core_pod(f"p{number}", 20, has="0", node="n1"))
        world.add(core_pod(f"p{number}", 20, has="0", node="n1", phase="Failed"))
    assert chosen(world, 20) == "Ascend910-0"
    later(world, WAIT_S / 4)
    assert chosen(world, 20) is Reason.NOT_ENOUGH_CHIPS


def test_a_pod_that_got_its_part_of_a_doubtful_chip_ends_the_doubt() -> None:
    world = world_of(chips=1)
    world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
    later(world, WAIT_S / 2)
    new = run(world, "new", 10, "0-vir10_3c_32g", REAL_TEN)
    assert later(world, WAIT_S) == {}
    assert chosen(world, 10) == "0-vir10_3c_32g"
    world.cluster.pod_deleted(new)
    assert later(world, WAIT_S / 2) == {}
    assert later(world, WAIT_S / 2) == {"n1": 1}


def test_a_new_leader_closes_the_chip_as_well() -> None:
    world = World(vnpus_per_job=0)
    world.add(report("n1", free=[1]), core_node("n1", chips=[0, 1]))
    assert chosen(world, 20) == "Ascend910-1"
    assert later(world, WAIT_S) == {"n1": 1}
    assert chosen(world, 40) is Reason.NOT_ENOUGH_CHIPS


def test_doubt_of_a_node_that_can_not_be_used_goes_on() -> None:
    world = world_of(chips=1)
    world.cluster.pod_deleted(run(world, "old", 10, "0-vir10_3c_32g", REAL_TEN))
    world.add(core_node("n1", chips=[0], cores=0))
    assert later(world, WAIT_S) == {}
    world.add(core_node("n1", chips=[0]))
    assert chosen(world, 20) is Reason.NOT_ENOUGH_CHIPS
    world.cluster.node_deleted(core_node("n1", chips=[0]))
    world.cluster.reports.delete(report("n1"))
    world.add(core_node("n1", chips=[0]))
    assert chosen(world, 20) == "Ascend910-0"
    assert list(world.cluster._unexplained.due()) == []


def test_unhealthy_chips_and_nodes_that_are_not_cut_are_not_concerned() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=range(2)), report("n1", free=[1], unhealthy=[0]))
    world.add(node("whole"), report("whole", free=[]), core_node("unreported", A3_20))
    assert later(world, 1000) == {}
    assert world.engine.place(pod("p", 8)).node == "whole"
    offer = world.cluster.nodes["unreported"].offer
    assert isinstance(offer, Vacancy)
    assert not offer.doubtful


def test_room_for_a_preemptor_is_counted_on_a_chip_whose_pods_have_just_ended() -> None:
    world = world_of(chips=2)
    old = run(world, "old", 20, "0", "Ascend910-0")
    world.add(core_pod("other", 20, has="1", real="Ascend910-1", node="n1", phase="Running"))
    world.cluster.pod_deleted(old)
    assert world.engine.filter(core_pod("high", 20, priority=9)).fitting == ["n1"]
