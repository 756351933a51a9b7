"""Gangs whose pods exclude each other rest after a try in vain, with all gangs whose pods ask for the same."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.gangs.resting import FIRST_REST_S, LONGEST_REST_S, MOST_OWED_S, SHARE, Resting
from allocator.gangs.start_queue import IDLE_S
from allocator.rules.job_kinds import VOLCANO
from allocator.rules.job_products import SUB_HEALTH_STRATEGY
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod, pod_group
from tests.allocator.gangs.builders import MESHES, bind, reason, world_of

AVOIDS_SUB_HEALTHY = {SUB_HEALTH_STRATEGY: "graceExit"}


def gang(name: str, *, requirements: int = 1, labels: Mapping[str, str] = MappingProxyType({})) -> list[Pod]:
    """Three pods with 2 chips each."""
    annotations = {GROUP: name, MIN_AVAILABLE: "3"}
    own = {"job": name, **labels}
    names = [f"{name}-{rank}" for rank in range(3)]
    return [pod(each, 2, annotations=annotations, labels=own, requirements=requirements) for each in names]


def try_in_vain(world: World, pods: list[Pod]) -> None:
    """A node accepts one pod of the gang."""
    job = world.cluster.jobs.job_of(pods[0])
    if world.engine.gangs.queue.get(job) is None:
        world.engine.place(pods[0])
        world.engine.gangs.step_back(job, (), "a test says so")
    for each in pods[:-1]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    world.engine.place(pods[-1])
    first = world.engine.place(pods[0]).node
    world.ledger.advance(pods[0].uid, Stage.HELD)
    (other,) = {"n0", "n1"} - {first}
    assert world.engine.place(pods[1], [other]).node == other
    world.ledger.advance(pods[1].uid, Stage.HELD)
    world.engine.gangs.step_back(job, [pods[2].uid], f"{pods[2].name} was refused")


def is_resting(world: World, pods: list[Pod]) -> bool:
    """Whether a gang waits for a turn although no gang has it."""
    return "waits for its turn" in world.refusal(pods[0]).message and world.engine.gangs.queue.first is None


def test_gangs_with_equal_pods_rest_after_a_try_in_vain_and_others_do_not() -> None:
    world, tried, equal, other = world_of(2, **MESHES), gang("tried"), gang("equal"), gang("other", requirements=2)
    world.add(*tried, *equal, *other)
    try_in_vain(world, tried)
    assert is_resting(world, tried)
    assert is_resting(world, equal)
    assert not any(map(world.engine.may_fit, (*tried, *equal)))
    assert world.engine.place(other[0]).node


def test_gangs_rest_after_a_try_of_one_with_the_same_settings_only() -> None:
    world, tried, equal = world_of(2, **MESHES), gang("tried"), gang("equal")
    other = gang("other", labels=AVOIDS_SUB_HEALTHY)
    world.add(*tried, *equal, *other)
    try_in_vain(world, tried)
    assert is_resting(world, equal)
    assert world.engine.place(other[0]).node


@pytest.mark.parametrize("is_alike", [True, False])
def test_the_settings_of_its_pod_group_count_for_the_rest_of_a_gang(*, is_alike: bool) -> None:
    world, tried, other = world_of(2, **MESHES), gang("tried"), gang("other")
    world.add(*tried, *other)
    for name in ("tried", "other"):
        group, labels = pod_group(3, name=name), AVOIDS_SUB_HEALTHY if is_alike or name == "other" else {}
        world.cluster.jobs.group_applied(VOLCANO, replace(group, metadata=replace(group.metadata, labels=labels)))
    try_in_vain(world, tried)
    if is_alike:
        assert is_resting(world, other)
    else:
        assert world.engine.place(other[0]).node


def test_a_gang_that_starts_makes_its_successor_rest_no_longer_than_a_new_one() -> None:
    world, pods, successor = world_of(2, **MESHES), gang("tried"), gang("next")
    world.add(*pods)
    for _ in range(6):
        world.now_s += 1000
        try_in_vain(world, pods)
    world.now_s += 1000
    for each in pods[:-1]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    for each in reversed(pods):
        bind(world, each)
    world.engine.gangs.pass_on()
    for each in pods:
        world.cluster.pod_deleted(each)
    world.add(*successor)
    try_in_vain(world, successor)
    world.now_s += FIRST_REST_S
    assert not is_resting(world, successor)


def test_a_rest_is_longer_after_each_try_in_vain() -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    for rest_s in (FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S):
        try_in_vain(world, pods)
        world.now_s += rest_s - 1
        assert is_resting(world, pods)
        world.now_s += 1


@given(
    tries=st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 200), st.booleans()), min_size=20, max_size=60),
    kinds=st.integers(1, 8),
)
def test_tries_of_gangs_that_have_rested_keep_few_chips_whatever_changes(
    tries: list[tuple[float, float, bool]], kinds: int
) -> None:
    world, gangs = world_of(2, **MESHES), [gang(f"g{number}", requirements=number + 1) for number in range(kinds)]
    world.add(*(each for pods in gangs for each in pods))
    jobs = [world.cluster.jobs.job_of(pods[0]) for pods in gangs]
    resting = Resting(world.cluster, lambda: world.now_s)
    for job in jobs:
        resting.kept(job, 1000)  # the first try is free
        resting.begin(job)
    begin_s, kept = world.now_s, 0.0
    for wait_s, chip_s, has_changed in tries:
        world.now_s += wait_s
        world.cluster.openings += has_changed
        for job in jobs:
            if job not in resting:
                resting.kept(job, chip_s)
                resting.begin(job)
                kept += chip_s
        assert kept <= SHARE * 16 * (world.now_s - begin_s + MOST_OWED_S) + 200


def test_a_gang_that_has_rested_tries_again_in_time_and_after_a_change_at_once() -> None:
    world, gangs = world_of(2, **MESHES), [gang(f"g{number}", requirements=number + 1) for number in range(2)]
    world.add(*(each for pods in gangs for each in pods))
    one, other = (world.cluster.jobs.job_of(pods[0]) for pods in gangs)
    resting, chip_s = Resting(world.cluster, lambda: world.now_s), 8 * 12.0
    for job in (one, other, one):
        resting.kept(job, chip_s)
        resting.begin(job)
    world.now_s += FIRST_REST_S
    assert other in resting
    world.cluster.openings += 1
    assert other not in resting
    resting.begin(other)
    world.now_s += LONGEST_REST_S
    assert one not in resting
    assert other not in resting


@pytest.mark.parametrize(
    "change",
    [
        "a pod ends", "a node comes", "a node changes", "a plain pod is not listed any more", "a launcher has finished",
        "a launcher is gone",
    ],
)  # fmt: skip
def test_a_long_rest_ends_when_a_pod_ends_or_a_node_changes(change: str) -> None:
    world, pods, runs = world_of(2, **MESHES), gang("tried"), pod("runs", 1, node="n1", chips=[7])
    launcher = pod("launcher", None, node="n1", annotations={MIN_AVAILABLE: "2"}, phase="Running")
    world.add(*pods, runs, launcher, pod("plain", None, node="n1", phase="Running"))
    for _ in range(2):
        world.now_s += 1000
        try_in_vain(world, pods)
    match change:
        case "a plain pod is not listed any more":
            world.cluster.plain.list_started()
            world.cluster.plain.list_ended()
        case "a launcher has finished":
            world.add(replace(launcher, status=replace(launcher.status, phase="Succeeded")))
        case "a launcher is gone":
            world.cluster.pod_deleted(launcher)
        case "a pod ends":
            world.cluster.pod_deleted(runs)
        case "a node comes":
            world.add(node("n2", labels=MESHES))
        case _:
            world.add(node("n1", labels={**MESHES, "new": "label"}))
    assert is_resting(world, pods)
    world.now_s += FIRST_REST_S
    assert not is_resting(world, pods)


def test_a_node_that_reports_its_health_again_ends_no_rest() -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    for _ in range(2):
        world.now_s += 1000
        try_in_vain(world, pods)
    record = world.cluster.nodes["n1"].node
    assert record is not None
    world.add(replace(record, status=replace(record.status, conditions=(*record.status.conditions,))))
    world.now_s += FIRST_REST_S + IDLE_S
    assert is_resting(world, pods)


def test_a_gang_that_lacks_chips_does_not_rest() -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    try_in_vain(world, pods)
    world.now_s += FIRST_REST_S
    world.fill("n0")
    world.fill("n1")
    assert reason(world, pods[0]) in {Reason.GANG_STEPPED_BACK, Reason.GANG_DOES_NOT_FIT}
    assert not is_resting(world, pods)


def test_what_a_scheduler_offers_while_a_gang_rests_does_not_count_in_its_next_try() -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    try_in_vain(world, pods)
    for each in pods:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    world.now_s += FIRST_REST_S
    try_in_vain(world, pods)
