"""What counts as a fault, and what as a wrong report."""

from allocator.rescheduling.budget import too_many_faults
from allocator.rescheduling.fault_watch import CONFIRM_S
from tests.allocator.builders import report
from tests.allocator.rescheduling.scene import job, lost, scene, sub_healthy


def test_a_share_is_not_rounded_down() -> None:
    assert too_many_faults(29, 100, 0.29) is None
    assert (
        too_many_faults(30, 100, 0.29)
        == "more than 29 of 100 nodes have faults at one time, which is taken for a wrong report"
    )


async def test_a_new_fault_of_a_node_with_an_old_one_has_to_last_as_well() -> None:
    stage = scene(job(1, chips=[0, 1]))
    stage.world.add(report("n1", unhealthy=[7]))
    assert await stage.settle() == []
    stage.world.add(report("n1", unhealthy=[0, 7]))
    assert await stage.look(0.5) == []
    stage.world.add(report("n1", unhealthy=[7]))
    assert await stage.look(CONFIRM_S) == []
    stage.world.add(report("n1", unhealthy=[0, 7]))
    assert await stage.look() == []
    assert await stage.look(CONFIRM_S) == ["train-0"]


async def test_many_nodes_that_are_lost_within_a_while_are_a_plague() -> None:
    stage = scene([each for number in range(1, 31) for each in job(1, name=f"j{number}", first_node=number)])
    for number in range(1, 31):
        stage.world.add(lost(f"n{number}"))
        assert await stage.look(0.5) == []
    for _ in range(60):
        assert await stage.look(1.0) == []
    assert "more than 4 of 40 nodes have faults at one time" in stage.said[0][1]


async def test_many_nodes_that_are_sub_healthy_at_one_time_are_not_left() -> None:
    pods = [each for n in range(1, 31) for each in job(1, name=f"j{n}", first_node=n, subHealthyStrategy="forceExit")]
    stage = scene([*pods, *job(1, first_node=31)])
    for number in range(1, 31):
        stage.world.add(sub_healthy(f"n{number}"))
    stage.world.add(report("n31", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert "it stays on its sub-healthy node: more than 4 of 40 nodes are sub-healthy at one time" in stage.said[0][1]
    for number in range(5, 31):
        stage.world.add(report(f"n{number}"))
    assert await stage.look(1.0) == ["j1-0", "j2-0", "j3-0", "j4-0"]
