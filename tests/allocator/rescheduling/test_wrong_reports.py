"""What counts as a fault, and what as a wrong report."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rescheduling.fault_watch import CONFIRM_S, REGION_LABEL, ZONE_LABEL, too_many_faults, why_dark
from ascend.kube.objects import Node
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import Scene, job, lost, scene, sub_healthy


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


@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.001, 1.0))
def test_never_more_than_half_of_the_nodes_are_believed_to_have_faults(faulty: int, nodes: int, share: float) -> None:
    if 2 * faulty > nodes:
        assert too_many_faults(faulty, nodes, share) is not None


def singles(count: int, mode: str = "force") -> Scene:
    """So many nodes, each with a job of one pod."""
    pods = [each for n in range(1, count + 1) for each in job(1, name=f"j{n}", first_node=n, fault_scheduling=mode)]
    return scene(pods, nodes=count, reschedule_faulty_share=1.0)


@pytest.mark.parametrize(
    ("faulty", "nodes", "goes"),
    [
        *((1, 1, False), (1, 2, True), (2, 2, False), (1, 3, True), (2, 3, False), (3, 3, False)),
        *((2, 4, True), (3, 4, False), (3, 5, False), (3, 6, True), (30, 60, True), (31, 60, False)),
    ],
)
@pytest.mark.parametrize("kind", ["lost", "faulty chips"])
async def test_pods_stay_while_more_than_half_of_the_nodes_look_faulty(
    faulty: int, nodes: int, kind: str, *, goes: bool
) -> None:
    stage = singles(nodes)
    numbers = range(1, faulty + 1)
    stage.world.add(*(lost(f"n{n}") if kind == "lost" else report(f"n{n}", unhealthy=[0]) for n in numbers))
    await stage.look()
    went = [*await stage.look(30.0), *await stage.look(60.0), *await stage.look(61.0)]
    assert len(went) == (faulty if goes else 0)
    assert stage.metric("rescheduling_stopped") == (not goes)
    if not goes:
        sentence = f"more than half of {nodes} node{'s' if nodes > 1 else ''} have faults at one time"
        assert all(sentence in note for _, note in stage.said)
        assert len(stage.said) == faulty


@pytest.mark.parametrize(
    ("nodes", "cordoned", "used", "goes"),
    [(3, 3, 3, False), (10, 6, 6, False), (10, 6, 3, True), (10, 5, 5, True), (1, 1, 1, False)],
)
async def test_cordoned_nodes_with_pods_count_for_the_half(nodes: int, cordoned: int, used: int, *, goes: bool) -> None:
    """A rolling upgrade cordons nodes whose pods run on: they go dark together if it goes wrong."""
    stage = singles(used)
    stage.world.add(*(node(f"n{number}") for number in range(1, nodes + 1)))
    dark = range(1, cordoned + 1)
    stage.world.add(*(node(f"n{number}", cordoned=True) for number in dark))
    await stage.look()
    stage.world.add(*(node(f"n{number}", cordoned=True, ready=False) for number in dark))
    await stage.look()
    assert bool(await stage.look(60.0)) is goes


async def test_pods_that_another_program_deletes_are_not_marked_while_too_many_nodes_look_faulty() -> None:
    stage = singles(3, "external-force")
    stage.world.add(*(lost(f"n{number}") for number in (1, 2, 3)))
    await stage.look()
    await stage.look(30.0)
    assert stage.marked == {}
    assert "nothing is marked: more than half of 3 nodes have faults at one time" in stage.said[0][1]


def in_zone(name: str, zone: str, *, ready: bool = True, chips: bool = True) -> Node:
    labels = {ZONE_LABEL: zone, REGION_LABEL: "here"}
    return node(name, ready=ready, labels=labels) if chips else node(
        name, ready=ready, labels=labels, chips=[], allocatable=None, infos="")  # fmt: skip


@pytest.mark.parametrize(
    ("lost_nodes", "nodes", "dark"),
    [(1, 1, False), (2, 2, True), (1, 2, False), (2, 3, False), (3, 5, True), (3, 6, False), (6, 10, True)],
)
def test_a_zone_is_dark_by_the_thresholds_of_kubernetes(lost_nodes: int, nodes: int, *, dark: bool) -> None:
    assert (why_dark("z", lost_nodes, nodes) is not None) is dark


async def test_pods_in_a_zone_that_went_dark_stay_and_others_go() -> None:
    stage = singles(20)
    stage.world.add(*(in_zone(f"n{n}", "dark" if n < 4 else "lit", ready=n > 4) for n in range(1, 21)))
    await stage.look()
    assert await stage.look(30.0) == ["j4-0"]
    assert stage.metric("rescheduling_dark_zones") == 1
    why = "it stays on its node: most nodes of zone dark are not Ready, which is taken for a network that is cut off"
    assert [note for _, note in stage.said if note.startswith("it stays")] == [why] * 3
    stage.world.add(in_zone("n1", "dark"), in_zone("n2", "dark"))
    assert await stage.look() == []
    assert await stage.look(29.0) == []
    assert await stage.look(1.0) == ["j3-0"]
    assert stage.metric("rescheduling_dark_zones") == 0


async def test_a_job_with_a_pod_in_a_dark_zone_is_not_ended_by_a_fault_elsewhere() -> None:
    stage = scene(job(3), reschedule_faulty_share=1.0)
    stage.world.add(*(in_zone(f"n{n}", "dark", ready=False) for n in (1, 2)), report("n3", unhealthy=[0]))
    await stage.look()
    assert await stage.look(30.0) == []
    assert any(note.startswith("nothing is deleted: most nodes of zone dark are not Ready") for _, note in stage.said)


@pytest.mark.parametrize("lit", [True, False])
async def test_other_nodes_tell_whether_the_zone_of_a_lone_server_is_dark(*, lit: bool) -> None:
    stage = scene(job(1))
    stage.world.add(in_zone("n1", "edge", ready=False), in_zone("cpu", "edge", ready=lit, chips=False))
    await stage.look()
    assert await stage.look(30.0) == (["train-0"] if lit else [])


async def test_nodes_that_go_dark_one_after_the_other_are_said_once() -> None:
    stage = singles(40)
    for number in range(1, 41):
        stage.world.add(in_zone(f"n{number}", f"z{number % 2}", ready=False))
        await stage.look(1.0)
    await stage.look(60.0)
    by_pod = Counter(regarding.name for regarding in stage.about)
    assert max(by_pod.values()) <= 2
