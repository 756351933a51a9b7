"""Gangs that nobody starts keep nothing, or little: neither many of one namespace, nor of many."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.earmarks import PATIENCE_S
from allocator.decision.setbacks import ASIDE_S, LONGEST_S, Setbacks
from allocator.rules.job import JobKey
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Condition, Pod
from tests.allocator.builders import World, pod
from tests.allocator.decision.test_earmarks import end, gang, holder, places, world_of

SERVED = "default-scheduler"
HOUR_S, STEP_S = 3600, 10


def of(namespace: str, pods: Iterable[Pod], scheduler: str = SERVED, **spec: object) -> list[Pod]:
    return [
        replace(
            each,
            metadata=replace(each.metadata, namespace=namespace, uid=f"{namespace}-{each.uid}"),
            spec=replace(each.spec, scheduler_name=scheduler, **spec),
        )
        for each in pods
    ]


def world_with(*pods: Pod) -> World:
    world = world_of(4, share=0.5)
    world.cluster.plain.schedulers = frozenset({SERVED})
    world.add(*pods)
    return world


def blocked(world: World, seconds: int = HOUR_S, servers: int = 3) -> float:
    """The part of the time in which so many pods of whole servers don't fit on four that are empty."""
    refused = 0
    for step in range(seconds // STEP_S):
        world.now_s += STEP_S
        pods = [pod(f"victim-{step}-{number}", 8) for number in range(servers)]
        for each in pods:
            world.add(each)
        refused += not all(places(world, each) for each in pods)
        for each in pods:
            world.cluster.pod_deleted(each)
    return refused * STEP_S / seconds


def test_nothing_is_kept_for_gangs_whose_scheduler_does_not_exist() -> None:
    world = world_with(*(each for number in range(7) for each in of("evil", gang(f"g{number}", 2), "nobody")))
    assert blocked(world) == 0


@pytest.mark.parametrize("is_tried", ["by its scheduler", "by a call"])
def test_nodes_are_kept_for_a_gang_of_another_scheduler_that_has_tried_it(is_tried: str) -> None:
    pods = of("tenant", gang("big", 2), "volcano")
    if is_tried == "by its scheduler":
        message = "0/4 nodes are available: 4 Insufficient huawei.com/Ascend910."
        verdict = Condition("PodScheduled", "False", "Unschedulable", message)
        pods = [replace(each, status=replace(each.status, conditions=(verdict,))) for each in pods]
    world = world_with(*(holder(f"s{number}", f"n{number}") for number in range(4)), *pods)
    if is_tried == "by a call":
        for each in pods:
            world.engine.gangs.obstacles.on_request(each)
    end(world, "s0")
    assert not places(world, pod("late", 8))


@settings(max_examples=4, deadline=None)
@given(
    gangs=st.integers(1, 10),
    namespaces=st.integers(1, 10),
    priority=st.integers(0, 1),
)
def test_gangs_that_never_start_keep_chips_for_little_of_the_time(gangs: int, namespaces: int, priority: int) -> None:
    pods = [
        each
        for number in range(gangs)
        for each in of(f"evil-{number % namespaces}", gang(f"g{number}", 2, priority=priority))
    ]
    assert blocked(world_with(*pods)) < 0.3  # 1.0 with seven gangs, before


@pytest.mark.parametrize("namespaces", [1, 7])
def test_pods_that_never_start_keep_chips_for_little_of_the_time(namespaces: int) -> None:
    # Their scheduler says that they lack chips, and does not bind them when there are some.
    verdict = Condition("PodScheduled", "False", "Unschedulable", "4 Insufficient huawei.com/Ascend910.")
    alone = [
        replace(each, status=replace(each.status, conditions=(verdict,)))
        for number in range(14)
        for each in of(f"evil-{number % namespaces}", [pod(f"p{number}", 8)])
    ]
    world = world_with(*alone)
    assert blocked(world, servers=4) < 0.3
    assert blocked(world, servers=4) < 0.1


def test_many_namespaces_keep_chips_for_little_of_the_time() -> None:
    pods = [each for number in range(14) for each in of(f"evil-{number % 7}", gang(f"g{number}", 2))]
    world = world_with(*pods)
    assert blocked(world) < 0.3
    assert blocked(world) < 0.1
    kept = world.engine.earmarks.kept_chip_s
    assert set(kept) == {f"evil-{number}" for number in range(7) if kept[f"evil-{number}"]}
    assert sum(kept.values()) < 0.2 * 2 * HOUR_S * 16


def test_a_namespace_that_has_used_what_was_kept_does_not_wait_for_others() -> None:
    world = world_with(*(holder(f"s{number}", f"n{number}") for number in range(4)))
    setbacks = world.engine.earmarks.setbacks
    first = of("honest", gang("first", 2))
    world.add(*first)
    assert not places(world, first[0])
    end(world, "s0")
    end(world, "s1")
    nodes = [world.engine.place(each, None).node for each in first]
    second = JobKey("honest", "second", VOLCANO)
    setbacks.in_vain(JobKey("evil", "g", VOLCANO))
    world.engine.earmarks.choose()
    assert setbacks.is_aside(second)  # it has places, but has not started
    for each, on in zip(first, nodes, strict=True):
        world.add(replace(each, spec=replace(each.spec, node_name=on)))
    world.engine.earmarks.choose()
    assert not setbacks.is_aside(second)
    assert setbacks.is_aside(JobKey("other", "gang", VOLCANO))


key = st.builds(JobKey, st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y"]), st.just(VOLCANO))


@given(st.lists(st.tuples(key, st.floats(0, 10_000)), max_size=40), key)
def test_a_gang_comes_again_after_an_hour_at_most(attempts: list[tuple[JobKey, float]], asked: JobKey) -> None:
    now_s = 0.0
    setbacks = Setbacks(lambda: now_s)
    for gang_key, pause_s in attempts:
        setbacks.in_vain(gang_key)
        assert setbacks.is_aside(gang_key)
        now_s += pause_s
    now_s += LONGEST_S
    assert not setbacks.is_aside(asked)


def test_the_time_doubles_for_a_gang_and_from_the_second_for_its_namespace() -> None:
    now_s = 0.0
    setbacks = Setbacks(lambda: now_s)
    one, two, three = (JobKey("tenant", name, VOLCANO) for name in ("one", "two", "three"))
    setbacks.on_use(three)  # so only its own attempts count
    setbacks.in_vain(one)
    assert (setbacks.is_aside(one), setbacks.is_aside(two)) == (True, False)
    setbacks.in_vain(two)
    assert setbacks.is_aside(three)
    now_s += ASIDE_S
    assert not any(map(setbacks.is_aside, (one, two, three)))
    setbacks.in_vain(one)
    now_s += 2 * ASIDE_S - 1
    assert (setbacks.is_aside(one), setbacks.is_aside(three)) == (True, True)
    setbacks.on_use(two)
    assert (setbacks.is_aside(one), setbacks.is_aside(three)) == (True, False)
    now_s += 1
    assert not setbacks.is_aside(one)
    assert PATIENCE_S < ASIDE_S
