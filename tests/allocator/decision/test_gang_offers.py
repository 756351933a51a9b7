"""Victims of a gang end only on nodes that the scheduler has offered for the pod that gets their chips."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.gang_victims import RetryError
from allocator.decision.preemption import Preemption
from allocator.gangs.start_queue import TURN_S
from allocator.rules.victims import Suggestion
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Condition, Pod
from tests.allocator.builders import GROUP, World, pod
from tests.allocator.decision.test_gang_preemption import end, everywhere, gang, holder, world_of


def lows(count: int) -> list[Pod]:
    return [holder(f"low-{number}", f"n{number}", range(8)) for number in range(count)]


def differing(count: int) -> list[Pod]:
    """A gang whose pods differ, so that each may be on other nodes."""
    annotations = {GROUP: "urgent", MIN_AVAILABLE: str(count)}
    return [
        pod(f"urgent-{number}", 8, priority=9, annotations=annotations, requirements=number) for number in range(count)
    ]


async def improve(preemption: Preemption, each: Pod, *nodes: str, **more: Any) -> str | None:
    chosen = await preemption.improve(each, {name: Suggestion(**more) for name in nodes})
    return chosen.node if chosen is not None else None


async def test_each_pod_of_a_gang_preempts_where_its_scheduler_offers() -> None:
    pods = differing(2)
    world, preemption = world_of(3, *lows(3), *pods)
    with pytest.raises(RetryError, match="1 more of its pods has to be tried"):
        await improve(preemption, pods[0], "n2")
    assert not world.ledger.promises
    chosen = await improve(preemption, pods[1], "n0", "n1")
    assert chosen in {"n0", "n1"}
    assert preemption.unanswered_peers(pods[1]) == [pods[0]]
    assert await improve(preemption, pods[0], "n2") == "n2"
    end(world, ["low-2"])
    assert await improve(preemption, pods[0], "n2") is None


async def test_free_nodes_count_for_the_pod_for_which_they_passed_the_filters() -> None:
    pods = differing(2)
    world, preemption = world_of(2, *lows(1), *pods)
    preemption.on_filter(pods[0], ["n1"])
    assert await improve(preemption, pods[1], "n0") == "n0"
    world, preemption = world_of(2, *lows(1), *pods)
    preemption.on_filter(pods[1], ["n1"])
    # The free node is not for pod 0, which its scheduler has not offered any.
    with pytest.raises(RetryError):
        await improve(preemption, pods[1], "n0")
    assert not world.ledger.promises


async def test_nodes_without_disruption_come_first_for_each_pod() -> None:
    pods = differing(2)
    _, preemption = world_of(3, *lows(3), *pods)
    with pytest.raises(RetryError):
        await improve(preemption, pods[0], "n0")
    chosen = await preemption.improve(pods[1], {"n1": Suggestion(pdb_violations=1), "n2": Suggestion()})
    assert chosen is not None
    assert chosen.node == "n2"


async def test_victims_are_chosen_later_if_the_gang_changes_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    pods = gang(2)
    world, preemption = world_of(4, *lows(4), *pods)
    asking = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    number = 0
    while not asking.done():
        annotations = {**pods[1].metadata.annotations, "x": str(number)}
        world.add(pod("urgent-1", 8, priority=9 + number % 2, annotations=annotations))
        number += 1
        await asyncio.sleep(0)
    with pytest.raises(RetryError, match="nodes have changed"):
        await asking


async def held_gang(world: World, preemption: Preemption, count: int) -> list[Pod]:
    """A gang with seats on n0 and following nodes, of which the first pod is refused by its scheduler no more."""
    pods = gang(count)
    world.add(*pods)
    for each in pods:
        await preemption.improve(each, everywhere(world))
    end(world, [f"low-{number}" for number in range(count)])
    for each in pods:
        world.engine.place(each)
    return pods


async def test_a_pod_that_is_refused_its_seat_beside_its_peers_preempts_elsewhere() -> None:
    world, preemption = world_of(4, *lows(4))
    pods = await held_gang(world, preemption, 2)
    hold(world, pods[0])
    # n0 and n1 are in one zone, for example.
    assert await improve(preemption, pods[1], "n2", "n3") == "n2"
    gang = world.engine.gang_of(pods[1])
    assert gang is not None
    assert pods[1].uid in world.engine.gangs.awaiting_victims(gang)
    end(world, ["low-2"])
    assert world.engine.place(pods[1], ["n2", "n3"]).node == "n2"


async def test_pods_that_are_refused_beside_held_peers_preempt_only_together() -> None:
    world, preemption = world_of(6, *lows(6))
    pods = await held_gang(world, preemption, 3)
    hold(world, pods[0])
    with pytest.raises(RetryError):  # its scheduler has not said yet where the other one may be
        await improve(preemption, pods[1], "n4", "n5")
    assert not [promise for promise in world.ledger.promises if "n4" in promise.chips]
    assert await improve(preemption, pods[2], "n5") == "n5"
    assert await improve(preemption, pods[1], "n4", "n5") == "n4"


def hold(world: World, each: Pod) -> None:
    world.ledger.advance(each.uid, Stage.HELD)


async def test_a_gang_that_has_evicted_others_in_vain_waits_ever_longer() -> None:
    world, preemption = world_of(2, *lows(2))
    pods = await held_gang(world, preemption, 2)
    job = world.engine.gang_of(pods[0])
    assert job is not None
    for wait_s in (60, 120, 240):
        world.engine.gangs.step_back(job, [], "a test says so")
        world.ledger.promises.drop(job.key.plan)
        world.add(*lows(2))  # their controller has created them again
        with pytest.raises(RetryError):
            await improve(preemption, pods[0], "n0", "n1")
        world.now_s += wait_s - 1
        with pytest.raises(RetryError, match="it waits for 1 s"):
            await improve(preemption, pods[1], "n0", "n1")
        world.now_s += 2
        chosen = [await tried(preemption, each, "n0", "n1") for each in (*pods, pods[0])]
        assert set(chosen) >= {"n0", "n1"}
        end(world, ["low-0", "low-1"])
    assert TURN_S < 60  # others have their turn meanwhile


async def test_the_chips_of_victims_in_vain_are_free_for_others_once_the_gang_rests() -> None:
    world, preemption = world_of(2, *lows(2))
    pods = await held_gang(world, preemption, 2)
    job, gangs = world.cluster.jobs.job_of(pods[0]), world.engine.gangs
    for number in range(3):
        assert world.ledger.promises.get(job.key.plan) is not None, number
        assert job not in gangs._attempts.resting, number
        gangs.step_back(job, [pods[1].uid], "a test says so")
    assert job in gangs._attempts.resting
    assert world.ledger.promises.get(job.key.plan) is None
    world.add(other := pod("other", 8))
    assert world.engine.place(other).node


async def test_the_wait_after_an_eviction_in_vain_begins_when_the_chips_are_kept_no_longer() -> None:
    world, preemption = world_of(2, *lows(2))
    pods = await held_gang(world, preemption, 2)
    job = world.cluster.jobs.job_of(pods[0])
    world.engine.gangs.step_back(job, [], "a test says so")
    world.now_s += 150  # as long as its chips are kept for victims with a long grace period
    world.ledger.promises.drop(job.key.plan)
    world.add(*lows(2))  # their controller has created them again
    with pytest.raises(RetryError, match="it waits for 60 s"):
        await improve(preemption, pods[0], "n0", "n1")


async def tried(preemption: Preemption, each: Pod, *nodes: str) -> str | None:
    try:
        return await improve(preemption, each, *nodes)
    except Refusal:
        return None


@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=3), st.sets(st.integers(0, 4)))
async def test_victims_end_only_where_the_pod_may_be_and_only_if_all_fit(
    allowed: list[set[int]], occupied: set[int]
) -> None:
    pods = differing(len(allowed))
    world, preemption = world_of(5, *(low for number, low in enumerate(lows(5)) if number in occupied), *pods)
    found: dict[str, str] = {}
    for _ in range(2):
        for each, numbers in zip(pods, allowed, strict=True):
            if each.name in found:
                continue
            if free := [f"n{number}" for number in numbers - occupied]:
                preemption.on_filter(each, free)
            chosen = await tried(preemption, each, *(f"n{number}" for number in numbers & occupied))
            if chosen is not None:
                found[each.name] = chosen
                assert int(chosen[1:]) in numbers & occupied
    possible = _matching([sorted(numbers) for numbers in allowed], frozenset())
    assert possible or not world.ledger.promises
    assert len(allowed) > 2 or bool(world.ledger.promises) == possible
    if world.ledger.promises:
        kept = {name for promise in world.ledger.promises for name in promise.chips}
        assert set(found.values()) == kept & {f"n{number}" for number in occupied}
    else:
        assert not found


def _matching(choices: list[list[int]], used: frozenset[int]) -> bool:
    """Whether each pod can have a node of its own."""
    if not choices:
        return True
    return any(_matching(choices[1:], used | {number}) for number in choices[0] if number not in used)


async def test_a_pod_that_is_refused_its_seat_before_its_peer_is_held_preempts_elsewhere() -> None:
    world, preemption = world_of(4, *lows(4))
    pods = await held_gang(world, preemption, 2)
    # Its scheduler has accepted the first pod, and is about to ask for its Binding.
    assert await improve(preemption, pods[1], "n2", "n3") == "n2"


async def test_the_last_pod_of_a_gang_may_preempt_although_others_ended_in_vain() -> None:
    world, preemption = world_of(4, *lows(4))
    pods = await held_gang(world, preemption, 2)
    job = world.engine.gang_of(pods[0])
    assert job is not None
    world.engine.gangs.step_back(job, [], "a test says so")
    for each in pods:
        with suppress(Refusal):
            world.engine.place(each, ["n0", "n1"])
    hold(world, pods[0])
    assert await improve(preemption, pods[1], "n2", "n3") == "n2"


def says(each: Pod, message: str) -> Pod:
    """The pod with what its scheduler says of it."""
    verdict = Condition("PodScheduled", "False", "Unschedulable", message)
    return replace(each, status=replace(each.status, conditions=(verdict,)))


async def test_nobody_is_evicted_while_a_pod_that_is_needed_is_refused_for_other_reasons_than_chips() -> None:
    pods = gang(2)
    world, preemption = world_of(2, *lows(2), *pods)
    pods[1] = says(pods[1], '0/2 nodes are available: persistentvolumeclaim "missing" not found.')
    world.add(pods[1])
    for _ in range(3):
        with pytest.raises(RetryError, match=r'no other pod ends for it: .*"missing" not found'):
            await improve(preemption, pods[0], "n0", "n1")
        world.now_s += 100
    assert not world.ledger.promises
    # Its scheduler finds victims for it now, so its own filters accept it.
    assert await improve(preemption, pods[1], "n0", "n1") is not None
    assert await improve(preemption, pods[0], "n0", "n1") is not None


async def test_others_end_for_a_gang_although_a_pod_that_it_can_spare_is_refused_for_other_reasons() -> None:
    pods = gang(3)
    pods = [
        replace(each, metadata=replace(each.metadata, annotations=gang(2)[0].metadata.annotations)) for each in pods
    ]
    world, preemption = world_of(2, *lows(2), *pods)
    world.add(says(pods[2], "0/2 nodes are available: 2 Insufficient cpu."))
    assert await improve(preemption, pods[0], "n0", "n1") is not None
