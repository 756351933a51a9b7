"""A pod that preempts for a part of a chip is promised a part of its own until it is placed."""

import random
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.preemption import Preemption
from allocator.rules.victims import Suggestion, VictimSet
from allocator.state.node import NodeRecord
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.vnpus import Vnpu
from tests.allocator.builders import World
from tests.allocator.cores import core_node, core_pod
from tests.allocator.expiry import expire
from tests.allocator.vnpus import cut, cut_node, vnpu_pod

HERE = {"n1": Suggestion()}
SMALL, LARGE = "vir05_1c_16g", "vir10_3c_32g"
TEMPLATE = {5: SMALL, 10: LARGE}


def holder(name: str, cores: int, chip: int, priority: int = 0) -> Pod:
    """A running pod that holds a part of a chip, or the whole chip."""
    has = f"{chip}-{TEMPLATE[cores]}" if cores in TEMPLATE else str(chip)
    return core_pod(name, cores, has=has, node="n1", priority=priority, phase="Running")


def full(world: World, chips: Iterable[int]) -> None:
    """Fill chips with pods of 5, 5 and 10 AI cores of priority 0."""
    for chip in chips:
        world.add(*(holder(f"f{chip}{mark}", cores, chip) for mark, cores in (("a", 5), ("b", 5), ("c", 10))))


def world_of(*objects: Pod, chips: int = 8) -> tuple[World, Preemption]:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=range(chips)), *objects)
    return world, Preemption(world.cluster, world.ledger, world.engine)


def nominated(each: Pod, name: str = "n1") -> Pod:
    return replace(each, status=replace(each.status, nominated_node_name=name))


def terminating(each: Pod) -> Pod:
    return replace(each, metadata=replace(each.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))


async def preempt(preemption: Preemption, each: Pod) -> list[str]:
    chosen = await preemption.improve(each, HERE)
    assert isinstance(chosen, VictimSet)
    return sorted(one.uid.removeprefix("uid-") for one in chosen.victims)


def end(world: World, names: Iterable[str]) -> None:
    for name in names:
        world.cluster.pod_deleted(world.cluster.pods[f"uid-{name}"])


def place(world: World, each: Pod) -> Take:
    """Place a pod, and show it bound."""
    take = world.engine.place(each, ["n1"]).take
    has = take.cut.name if take.cut is not None else ",".join(map(str, take.chips))
    world.add(core_pod(each.name, take.cores, has=has, node="n1", priority=each.priority, phase="Running"))
    return take


def all_fit(pods: Iterable[Pod], gone: Collection[str]) -> bool:
    """Whether pods get room one after the other on a node that was full before these have gone."""
    world, _ = world_of()
    full(world, range(8))
    end(world, gone)
    try:
        for each in pods:
            place(world, each)
    except Refusal:
        return False
    return True


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("requested", [(10, 20), (20, 10), (10, 10), (5, 5), (5, 20), (20, 20), (40, 5)])
async def test_preemptors_that_come_together_get_enough_victims_for_all(
    requested: tuple[int, int], order: tuple[int, int]
) -> None:
    world, preemption = world_of()
    full(world, range(8))
    high = [core_pod(f"hi{number}", cores, priority=1000) for number, cores in enumerate(requested)]
    world.add(*high)
    victims = {name for each in high for name in await preempt(preemption, each)}
    # None ends in vain.
    assert not any(all_fit(high, victims - {name}) for name in victims)
    end(world, victims)
    world.add(*map(nominated, high))
    for number in order:
        place(world, world.cluster.pods[high[number].uid])
    assert not world.ledger.promises


async def test_one_victim_makes_room_for_two_preemptors_if_it_has_enough() -> None:
    world, preemption = world_of(holder("low", 20, 0), chips=1)
    high = [core_pod(f"hi{number}", 10, priority=1000) for number in range(3)]
    world.add(*high)
    assert [await preempt(preemption, each) for each in high[:2]] == [["low"], ["low"]]
    assert await preemption.improve(high[2], HERE) is None
    end(world, ["low"])
    assert world.refusal(high[2], ["n1"]).reason is Reason.CHIPS_KEPT
    assert {place(world, each).names for each in high[:2]} == {("0-vir10_3c_32g",)}


async def test_a_pod_whose_free_cores_count_for_another_nominated_pod_preempts() -> None:
    # Both wait for the same ten cores: their victims were chosen by a leader that counted them for both.
    world, preemption = world_of(holder("a", 10, 0), holder("b", 20, 1, 1), chips=2)
    one, two = (nominated(core_pod(name, 10, priority=1000)) for name in ("one", "two"))
    world.add(one, two)
    assert await preempt(preemption, one) == ["a"]
    # Ten cores are promised to each. Both are of one chip, so it does not matter who waits for the victim.
    assert await preempt(preemption, two) == ["a"]
    end(world, ["a"])
    assert {place(world, each).names for each in (one, two)} == {("0-vir10_3c_32g",)}


async def test_a_nominated_pod_counts_after_its_promise_has_ended() -> None:
    world, preemption = world_of(holder("a", 20, 0), holder("b", 20, 1), chips=2)
    one, two = (core_pod(name, 20, priority=1000) for name in ("one", "two"))
    world.add(one, two)
    (first,) = await preempt(preemption, one)
    world.add(nominated(one))
    end(world, [first])
    world.now_s += 1000
    expire(world.ledger)
    assert not world.ledger.promises
    assert await preempt(preemption, two) == [*({"a", "b"} - {first})]


async def test_a_pod_of_lower_priority_counts_neither_as_victim_nor_as_nominated() -> None:
    world, preemption = world_of(holder("low", 20, 0), chips=1)
    low, high = nominated(core_pod("mid", 10, priority=5)), core_pod("high", 20, priority=1000)
    world.add(low, high)
    assert await preempt(preemption, low) == ["low"]
    assert await preempt(preemption, high) == ["low"]
    assert [promise.owner for promise in world.ledger.promises] == [high.uid]


async def test_a_part_is_kept_from_pods_of_lower_and_equal_priority() -> None:
    world, preemption = world_of(holder("keep", 10, 0, 2000), holder("low", 10, 0), chips=2)
    world.add(holder("other", 10, 1, 2000), holder("more", 5, 1, 2000))
    high = core_pod("high", 10, priority=1000)
    world.add(high)
    assert await preempt(preemption, high) == ["low"]
    world.add(nominated(high))
    assert place(world, core_pod("beside", 5, priority=1)).names == ("1-vir05_1c_16g",)
    end(world, ["low"])
    for priority in (1, 1000):
        refusal = world.refusal(core_pod("thief", 5, priority=priority), ["n1"])
        assert (refusal.reason, refusal.message) == (
            Reason.CHIPS_KEPT,
            (
                "5 AI cores requested, 0 free, but no chip has left what vir05_1c_16g needs; "
                "parts of chips are kept for pod default/high"
            ),
        )
    assert world.engine.filter(core_pod("higher", 5, priority=1001)).fitting == ["n1"]
    assert place(world, nominated(high)).names == ("0-vir10_3c_32g",)


async def test_no_part_is_cut_out_of_a_chip_that_is_promised_as_a_whole() -> None:
    world, preemption = world_of(holder("a", 10, 0), holder("b", 5, 0), holder("other", 20, 1, 2000), chips=2)
    high = core_pod("high", 20, priority=1000)
    world.add(high)
    assert await preempt(preemption, high) == ["a", "b"]
    # Five cores are free now, and fifteen once one of the victims has ended.
    assert world.refusal(core_pod("thief", 5, priority=1), ["n1"]).reason is Reason.CHIPS_KEPT
    end(world, ["a"])
    assert world.refusal(core_pod("thief", 10, priority=1), ["n1"]).reason is Reason.CHIPS_KEPT
    end(world, ["b"])
    assert world.refusal(core_pod("thief", 20, priority=1), ["n1"]).reason is Reason.CHIPS_KEPT
    assert place(world, high).names == ("Ascend910-0",)


async def test_a_promise_ends_when_a_more_important_pod_takes_its_chip() -> None:
    for cores, stays in ((20, False), (10, True)):
        world, preemption = world_of(holder("low", 20, 0), chips=1)
        high = core_pod("high", 10, priority=5)
        world.add(high)
        await preempt(preemption, high)
        end(world, ["low"])
        place(world, core_pod("higher", cores, priority=9))
        assert bool(world.ledger.promises) is stays  # both parts fit


async def test_preemptors_of_vnpus_get_victims_of_their_own() -> None:
    parts = cut([0], parts=2)
    world = World(vnpus_per_job=0)
    world.add(cut_node("n1", parts))
    world.add(*(vnpu_pod(f"low{n}", vnpu=each, node="n1", phase="Running") for n, each in enumerate(parts)))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    high = [vnpu_pod(f"hi{number}", priority=1000) for number in range(3)]
    world.add(*high)
    victims = [name for each in high[:2] for name in await preempt(preemption, each)]
    assert sorted(victims) == ["low0", "low1"]
    assert await preemption.improve(high[2], HERE) is None
    end(world, victims)
    refusal = world.refusal(high[2], ["n1"])
    assert (refusal.reason, refusal.message) == (
        Reason.CHIPS_KEPT,
        (
            "1 vNPU Ascend910-2c requested, 0 free of 2 healthy; "
            "parts of chips are kept for pod default/hi0 and pod default/hi1"
        ),
    )
    assert {world.engine.place(each, ["n1"]).take.vnpu for each in high[:2]} == set(parts)


async def test_a_free_vnpu_beside_a_promised_one_is_given_to_others() -> None:
    held, free, other = Vnpu("2c", 0, 100), Vnpu("2c", 0, 101), Vnpu("4c", 1, 102)
    world = World(vnpus_per_job=0)
    world.add(cut_node("n1", [held, free, other]))
    world.add(vnpu_pod("low", vnpu=held, node="n1", phase="Running"))
    world.add(vnpu_pod("keep", "4c", vnpu=other, node="n1", phase="Running", priority=9))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    one, two = vnpu_pod("one", priority=5), vnpu_pod("two", priority=5)
    world.add(nominated(one), two)
    assert await preempt(preemption, two) == ["low"]
    # `one` was promised the free one, and `two` that of its victim.
    assert world.refusal(vnpu_pod("thief"), ["n1"]).reason is Reason.CHIPS_KEPT
    assert world.engine.place(nominated(one), ["n1"]).take.vnpu == free
    end(world, ["low"])
    assert world.engine.place(two, ["n1"]).take.vnpu == held


def test_another_leader_keeps_the_parts_of_nominated_pods() -> None:
    world, preemption = world_of(holder("low", 10, 0), holder("keep", 10, 0, 2000), chips=1)
    world.add(terminating(holder("low", 10, 0)))
    high = nominated(core_pod("high", 10, priority=1000))
    world.add(high)
    preemption.resume()
    (promise,) = world.ledger.promises
    assert (promise.owner, promise.chips, promise.part) == (high.uid, {"n1": 0}, Cut(0, LARGE))
    end(world, ["low"])
    assert world.refusal(core_pod("thief", 5, priority=1000), ["n1"]).reason is Reason.CHIPS_KEPT
    assert place(world, high).names == ("0-vir10_3c_32g",)


def counted(record: NodeRecord) -> int:
    return sum(each.counted_cores for each in record.holdings.values())


@given(
    running=st.lists(st.tuples(st.sampled_from([5, 10, 20]), st.integers(0, 2)), max_size=12),
    asked=st.lists(st.tuples(st.sampled_from([5, 10, 20, 40]), st.integers(1, 3)), min_size=2, max_size=6),
    seed=st.integers(0, 99),
)
async def test_every_promised_part_is_there_once_the_victims_have_ended(
    running: list[tuple[int, int]], asked: list[tuple[int, int]], seed: int
) -> None:
    world, preemption = world_of(chips=4)
    for number, (cores, priority) in enumerate(running):
        try:
            place(world, core_pod(f"low{number}", cores, priority=priority))
        except Refusal:
            continue
    for number, (cores, priority) in enumerate(asked):
        world.add(core_pod(f"p{number}", cores, priority=priority))
    # A more important pod may have been promised what was promised to one before: that is answered again.
    for number in (*range(len(asked)), *range(len(asked)), *range(len(asked))):
        each = world.cluster.pods[f"uid-p{number}"]
        chosen = await preemption.improve(each, HERE)
        if chosen is not None:
            assert world.ledger.promises.get(each.uid) is not None
            world.add(nominated(each), *(terminating(world.cluster.pods[one.uid]) for one in chosen.victims))
    end(world, [pod.name for pod in world.cluster.pods.values() if pod.is_terminating])
    kept = [promise.owner for promise in world.ledger.promises]
    for number in range(16):
        try:
            place(world, core_pod(f"thief{number}", 5, priority=0))
        except Refusal:
            break
    # What was promised to others may have been given to a more important one meanwhile.
    most = max((world.cluster.pods[owner].priority for owner in kept), default=0)
    first = [world.cluster.pods[owner] for owner in kept if world.cluster.pods[owner].priority == most]
    # kube-scheduler counts them for each other.
    requested = sum(each.spec.containers[0].cores for each in first)
    assert counted(world.cluster.nodes["n1"]) + requested <= 80
    random.Random(seed).shuffle(first)
    for each in first:
        place(world, each)
