"""Gangs whose pods exclude each other rest after a try in vain, with all gangs whose pods ask for the same."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.gangs.resting import FIRST_REST_S, LONGEST_REST_S, SHARE, Resting
from allocator.gangs.start_queue import IDLE_S
from allocator.rules.job_products import SUB_HEALTH_STRATEGY
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod, pod_group, report
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


def test_a_gang_of_equal_pods_rests_after_some_tries_whatever_is_still_offered() -> None:
    """Their anti-affinity is about zones: each node is offered for each of them, and no three nodes at once."""
    world, tried = world_of(6, **MESHES), gang("tried")
    world.add(*tried)
    job, gangs = world.cluster.jobs.job_of(tried[0]), world.engine.gangs
    for number in range(4):
        assert job not in gangs._attempts.resting, number
        for each in tried:
            with suppress(Refusal):
                world.engine.place(each)
        for each in tried[:2]:
            world.engine.place(each)
            world.ledger.advance(each.uid, Stage.HELD)
        gangs.step_back(job, [tried[2].uid], f"{tried[2].name} was refused")
    assert is_resting(world, tried)


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
        resting.begin(job)
    begin_s, kept = world.now_s, 0.0
    for wait_s, chip_s, has_changed in tries:
        world.now_s += wait_s
        world.cluster.openings += has_changed
        for job in jobs:
            if job not in resting:
                kept += 0 if resting.owes(job) else chip_s
                resting.count_kept(chip_s)
                resting.begin(job)
        assert kept <= SHARE * 16 * (world.now_s - begin_s) + 200


@given(kept=st.lists(st.floats(0, 1000), max_size=20), has_changed=st.booleans())
def test_a_gang_rests_for_5_minutes_at_most_whatever_is_owed(*, kept: list[float], has_changed: bool) -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    job, resting = world.cluster.jobs.job_of(pods[0]), Resting(world.cluster, lambda: world.now_s)
    for chip_s in kept:
        resting.count_kept(chip_s)
        resting.begin(job)
        assert job in resting
        world.cluster.openings += has_changed
        world.now_s += FIRST_REST_S if has_changed else LONGEST_REST_S
        assert job not in resting


RUNS = pod("runs", 1, node="n1", chips=[7])
LAUNCHER = pod("launcher", None, node="n1", annotations={MIN_AVAILABLE: "2"}, phase="Running")
PLAIN = pod("plain", None, node="n1", phase="Running")


def list_none(world: World) -> None:
    world.cluster.plain.list_started()
    world.cluster.plain.list_ended()


CHANGES: dict[str, Callable[[World], object]] = {
    "a pod ends": lambda world: world.cluster.pod_deleted(RUNS),
    "a plain pod ends": lambda world: world.cluster.pod_deleted(PLAIN),
    "a plain pod is not listed any more": list_none,
    "a launcher has finished": lambda world: world.add(
        replace(LAUNCHER, status=replace(LAUNCHER.status, phase="Succeeded"))
    ),
    "a launcher is gone": lambda world: world.cluster.pod_deleted(LAUNCHER),
    "a pod comes": lambda world: world.add(pod("new", 1, node="n1", chips=[6])),
    "a plain pod comes": lambda world: world.add(pod("new", None, node="n1")),
    "a pod has other labels": lambda world: world.add(
        replace(RUNS, metadata=replace(RUNS.metadata, labels={"new": "label"}))
    ),
    "a node comes": lambda world: world.add(node("n2", labels=MESHES)),
    "a node goes": lambda world: world.cluster.node_deleted(node("faulty")),
    "a node has other labels": lambda world: world.add(node("n1", labels={**MESHES, "new": "label"})),
    "a node has more healthy chips": lambda world: world.add(report("faulty", unhealthy=range(1, 8))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_long_rest_ends_after_a_change_that_a_scheduler_reads(change: str) -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods, RUNS, LAUNCHER, PLAIN, node("faulty", labels=MESHES), report("faulty", unhealthy=range(8)))
    for _ in range(2):
        world.now_s += 1000
        try_in_vain(world, pods)
    CHANGES[change](world)
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


@pytest.mark.parametrize("is_gang", [True, False])
@pytest.mark.parametrize("is_owed", [True, False])
def test_the_next_try_of_a_gang_keeps_no_chips_from_others_while_much_is_owed(*, is_gang: bool, is_owed: bool) -> None:
    world, pods = world_of(2, **MESHES), gang("tried")
    world.add(*pods)
    try_in_vain(world, pods)
    world.now_s += FIRST_REST_S
    if is_owed:
        world.engine.gangs.resting.count_kept(16.0)
    for each in pods[:-1]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    held = world.engine.place(pods[-1])
    world.ledger.advance(held.uid, Stage.HELD)
    settings = {GROUP: "other", MIN_AVAILABLE: "2"} if is_gang else {}
    others = [pod(f"other-{rank}", 8, annotations=settings, requirements=9) for rank in range(2)]
    world.add(*others)
    if is_owed:
        assert {world.engine.place(each).node for each in others} == {"n0", "n1"}
        assert world.ledger.get(held.uid) is None
    else:
        world.engine.gangs.pass_on()
        assert [world.engine.may_fit(each) for each in others] == [not is_gang, not is_gang]
        assert world.ledger.get(held.uid) is not None
