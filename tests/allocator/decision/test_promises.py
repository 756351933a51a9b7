"""What a preemptor was promised is kept for it until it is placed."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.preemption import DEFAULT_KEEP_S, Preemption
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import Suggestion, VictimSet
from ascend.annotations import CLAIMED, PREDICATE_TIME
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod
from tests.allocator.expiry import expire

CLAIM = {PREDICATE_TIME: str(CLAIMED)}
EVERYWHERE = {"n0": Suggestion(), "n1": Suggestion()}


def holder(name: str, chips: Iterable[int], priority: int = 1, on: str = "n0", **more: Any) -> Pod:
    """A running pod that holds chips."""
    held = list(chips)
    return pod(name, len(held), node=on, chips=held, phase="Running", priority=priority, **more)


def world_of(*pods: Pod) -> tuple[World, Preemption]:
    world = World()
    world.add(node("n0"), node("n1"), *pods)
    return world, Preemption(world.cluster, world.ledger, world.engine)


def nominated(each: Pod, name: str) -> Pod:
    return replace(each, status=replace(each.status, nominated_node_name=name))


def end(world: World, *names: str) -> None:
    for name in names:
        world.cluster.pod_deleted(world.cluster.pods[f"uid-{name}"])


async def preempt(preemption: Preemption, each: Pod, suggested: dict[str, Suggestion] = EVERYWHERE) -> VictimSet:
    chosen = await preemption.improve(each, suggested)
    assert chosen is not None
    return chosen


def names(chosen: VictimSet) -> list[str]:
    return [each.uid.removeprefix("uid-") for each in chosen.victims]


FULL = holder("full", range(8), 100, on="n1")


async def test_a_lower_priority_pod_does_not_take_chips_of_a_ring_that_was_freed() -> None:
    high = pod("high", 4, priority=50)
    world, preemption = world_of(holder("keep", [7], 100), holder("low", range(4)), FULL, high)
    assert names(await preempt(preemption, high)) == ["low"]
    end(world, "low")
    world.add(nominated(high, "n0"))
    assert world.engine.place(pod("small", 2, priority=1)).take.chips == (4, 5)
    assert world.engine.place(nominated(high, "n0"), ["n0"]).take.chips == (0, 1, 2, 3)


async def test_kept_chips_are_named_in_the_refusal() -> None:
    high = pod("high", 8, priority=50)
    world, preemption = world_of(holder("low", range(8)), FULL, high)
    await preempt(preemption, high)
    end(world, "low")
    sentence = "1 chip requested, 0 free of 8 healthy; 8 chips are kept for pod default/high"
    assert world.refusal(pod("small", 1, priority=50), ["n0"]).message == sentence


async def test_chips_that_are_kept_are_why_no_ring_has_enough() -> None:
    high, rest = pod("high", 2, priority=50), [holder("a", [2, 3], 2), holder("b", [4, 5], 2)]
    world, preemption = world_of(holder("keep", [6, 7], 100), holder("low", [0, 1]), *rest, FULL, high)
    assert names(await preempt(preemption, high)) == ["low"]
    end(world, "low", "a", "b")
    refused = world.refusal(pod("late", 4, priority=1), ["n0"])
    assert refused.reason is Reason.CHIPS_KEPT
    assert refused.message == (
        "4 chips requested must be within one ring; the rings have 2 + 2 free chips; "
        "2 chips are kept for pod default/high"
    )
    # Eight chips would not fit without what is kept either.
    assert world.refusal(pod("large", 8, priority=1), ["n0"]).reason is Reason.NOT_ENOUGH_CHIPS


async def test_two_preemptors_are_not_promised_the_same_chips() -> None:
    one, two, important = pod("one", 4, priority=50), pod("two", 8, priority=50), pod("important", 8, priority=51)
    world, preemption = world_of(holder("low", range(8)), FULL, one, two, important)
    assert names(await preempt(preemption, one)) == ["low"]
    assert await preemption.improve(two, EVERYWHERE) is None
    # The victim's other chips are free for a second one; a more important one may take all.
    assert names(await preempt(preemption, pod("three", 4, priority=2))) == ["low"]
    assert len(world.ledger.promises) == 2
    assert names(await preempt(preemption, important)) == ["low"]
    assert [promise.owner for promise in world.ledger.promises] == [important.uid]


async def test_a_pod_of_higher_priority_takes_kept_chips_only_if_it_fits_nowhere_else() -> None:
    high, higher = pod("high", 4, priority=50), pod("higher", 4, priority=51)
    world, preemption = world_of(
        holder("low", range(4)), holder("keep", [4], 100), holder("b", range(4), on="n1"), high
    )
    await preempt(preemption, high, {"n0": Suggestion()})
    end(world, "low")
    assert world.engine.place(higher).node == "n1"
    assert world.ledger.promises
    assert world.engine.filter(pod("another", 4, priority=51)).fitting == ["n0"]
    assert world.engine.place(pod("another", 4, priority=51)).node == "n0"
    assert not world.ledger.promises
    assert isinstance(world.engine.filter(high).refused["n0"], Refusal)


async def test_a_preemptor_is_not_answered_other_victims_while_its_own_end() -> None:
    high = pod("high", 8, priority=50)
    world, preemption = world_of(holder("a", range(8), 1), holder("b", range(8), 2, on="n1"), high)
    assert names(await preempt(preemption, high)) == ["a"]
    assert names(await preempt(preemption, high)) == ["a"]
    world.add(holder("a", range(8), 1, terminating=True))
    assert names(await preempt(preemption, high)) == ["a"]
    assert await preemption.improve(high, {"n1": Suggestion()}) is None
    end(world, "a")
    assert await preemption.improve(high, {"n1": Suggestion()}) is None
    world.now_s += 1000
    world.engine.filter(high)
    assert not world.ledger.promises


@pytest.mark.parametrize("what", ["bound", "deleted", "finished", "nominated elsewhere", "time"])
async def test_a_promise_ends_when_its_pod_needs_it_no_more(what: str) -> None:
    high = pod("high", 8, priority=50)
    world, preemption = world_of(holder("low", range(8)), FULL, high)
    await preempt(preemption, high)
    world.add(nominated(high, "n0"))
    end(world, "low")
    assert isinstance(world.refusal(pod("small", 1)), Refusal)
    if what == "bound":
        world.add(holder("high", range(8), 50, on="elsewhere"))
    elif what == "deleted":
        world.cluster.pod_deleted(high)
    elif what == "finished":
        world.add(pod("high", 8, priority=50, phase="Failed"))
    elif what == "nominated elsewhere":
        world.add(nominated(high, "n1"))
    else:
        world.now_s += 89.9  # the default grace period of 30 s, and 60 s
        assert isinstance(world.refusal(pod("small", 1)), Refusal)
        world.now_s += 0.2
    assert world.engine.place(pod("small", 1)).node == "n0"


async def test_chips_are_kept_for_the_grace_period_of_the_victims() -> None:
    slow = holder("slow", range(8))
    slow = replace(slow, spec=replace(slow.spec, termination_grace_period_seconds=600))
    high = pod("high", 8, priority=50)
    world, preemption = world_of(slow, FULL, high)
    await preempt(preemption, high)
    world.now_s += 650
    end(world, "slow")
    assert isinstance(world.refusal(pod("small", 1)), Refusal)


async def test_nobody_else_is_preempted_while_promised_chips_are_in_doubt() -> None:
    low = [pod(f"low{chip}", 1, node="n0", chips=[chip], phase="Running") for chip in range(8)]
    high = pod("high", 4, priority=50)
    world, preemption = world_of(*low, holder("other", range(8), on="n1"), high)
    # They start together: each may have the chips of another one, as MindCluster's device plugin hands them over.
    for each in low:
        annotations = each.metadata.annotations | CLAIM
        world.add(replace(each, metadata=replace(each.metadata, annotations=annotations)))
    victims = names(await preempt(preemption, high))
    assert len(victims) == 4
    world.add(waiting := nominated(high, "n0"))
    end(world, *victims)
    refused = {"n0": world.refusal(waiting, ["n0"])}
    assert preemption.waiting(waiting, refused) == ("n0",)
    for asking in (waiting, high):  # kube-scheduler takes the nomination back
        world.add(asking)
        assert await preemption.improve(asking, EVERYWHERE) is None
    world.now_s += DEFAULT_KEEP_S + 60
    expire(world.ledger)
    left = {each.name for each in low}.difference(victims)
    assert set(names(await preempt(preemption, high))) == left


async def test_a_cleared_nomination_does_not_end_a_promise() -> None:
    # kube-scheduler clears it also when it has found no other victims.
    high = pod("high", 8, priority=50)
    world, preemption = world_of(holder("low", range(8)), FULL, high)
    await preempt(preemption, high)
    world.add(nominated(high, "n0"))
    world.add(high)
    end(world, "low")
    assert isinstance(world.refusal(pod("small", 1)), Refusal)


def test_another_leader_keeps_the_chips_of_nominated_pods() -> None:
    high = nominated(pod("high", 4, priority=50), "n0")
    fits = nominated(pod("fits", 1, priority=50), "n1")
    world, preemption = world_of(
        holder("low", range(4), terminating=True), holder("other", range(4, 8), 100), high, fits,
    )  # fmt: skip
    preemption.resume()
    assert [(promise.owner, dict(promise.chips)) for promise in world.ledger.promises] == [(high.uid, {"n0": 0xF})]
    late = pod("late", 4, priority=50)
    world.add(holder("more", range(8), 1, on="n1", terminating=True), late, nominated(late, "n1"))
    assert {promise.owner for promise in world.ledger.promises} == {high.uid, late.uid}


async def test_a_single_answer_of_victims_is_promised() -> None:
    # A scheduler with several to choose from nominates the pod for one.
    high = pod("high", 8, priority=50)
    world, preemption = world_of(holder("a", range(8)), holder("b", range(8), on="n1"), high)
    assert len(await preemption.victim_sets(high, ["n0", "n1"], 10)) == 2
    assert not world.ledger.promises
    assert len(await preemption.victim_sets(high, ["n1", "nowhere"], 10)) == 1
    assert [dict(promise.chips) for promise in world.ledger.promises] == [{"n1": 0xFF}]


_PRIORITIES = st.integers(0, 3)


@given(
    running=st.lists(st.tuples(st.sampled_from(["n0", "n1"]), st.integers(0, 7), _PRIORITIES), max_size=16),
    preemptors=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), _PRIORITIES), min_size=2, max_size=6),
)
async def test_no_chip_is_promised_twice_or_taken_by_a_less_important_pod(
    running: list[tuple[str, int, int]], preemptors: list[tuple[int, int]]
) -> None:
    held = {(on, chip): priority for on, chip, priority in running}
    world, preemption = world_of(
        *(holder(f"{on}-{chip}", [chip], priority, on=on) for (on, chip), priority in held.items())
    )
    ending: set[str] = set()
    for number, (chips, priority) in enumerate(preemptors):
        each = pod(f"p{number}", chips, priority=priority)
        world.add(each)
        chosen = await preemption.improve(each, EVERYWHERE)
        if chosen is None:
            continue
        ending.update(names(chosen))
        promise = world.ledger.promises.get(each.uid)
        assert promise is not None
        assert sum(taken.bit_count() for taken in promise.chips.values()) == chips
    for name in ("n0", "n1"):
        promised = [promise.chips.get(name, 0) for promise in world.ledger.promises]
        assert sum(taken.bit_count() for taken in promised) == functools.reduce(operator.or_, promised, 0).bit_count()
    end(world, *ending)
    kept = {promise.owner: promise for promise in world.ledger.promises}
    for _ in range(16):  # as many as there are chips
        try:
            world.engine.place(pod(f"thief-{_}", 1, priority=0))
        except Refusal:
            break
    assert {promise.owner for promise in world.ledger.promises} == set(kept)
    for owner, promise in kept.items():
        (name,) = promise.chips
        assert world.engine.place(world.cluster.pods[owner], [name]).node == name
    assert all(isinstance(record.offer, Vacancy) for record in world.cluster.nodes.values())


async def test_a_victim_whose_chips_are_promised_to_another_pod_does_not_count_twice() -> None:
    high, other = pod("high", 4, priority=50), pod("other", 4, priority=50)
    _, preemption = world_of(holder("a", range(4), 1), holder("b", range(4, 8), 2), FULL, high, other)
    assert names(await preempt(preemption, high)) == ["a"]
    assert names(await preempt(preemption, other)) == ["b"]
