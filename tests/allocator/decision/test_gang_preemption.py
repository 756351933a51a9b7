"""A gang preempts only if all of it fits then; its victims are chosen for it as a whole."""

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision import gang_victims
from allocator.decision.preemption import Preemption
from allocator.decision.trial import Trial, Unit
from allocator.rules.victims import Suggestion, VictimSet
from allocator.state.node import Offer
from allocator.state.promises import Promise, Promises
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import at_once
from tests.allocator.builders import GROUP, TYPE, World, node, pod

MESHES = {TYPE: "module-910b-8"}


def holder(name: str, on: str, chips: Iterable[int], priority: int = 1, **more: Any) -> Pod:
    """A running pod that holds chips."""
    held = list(chips)
    return pod(name, len(held), node=on, chips=held, phase="Running", priority=priority, **more)


def gang(count: int, *, chips: int = 8, priority: int = 9, job: str = "urgent", **more: Any) -> list[Pod]:
    annotations = {GROUP: job, MIN_AVAILABLE: str(count)}
    return [
        pod(f"{job}-{number}", chips, priority=priority, annotations=annotations, **more) for number in range(count)
    ]


def world_of(nodes: int, *pods: Pod) -> tuple[World, Preemption]:
    world = World()
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(nodes)), *pods)
    return world, Preemption(world.cluster, world.ledger, world.engine)


def everywhere(world: World) -> dict[str, Suggestion]:
    return dict.fromkeys(world.cluster.nodes, Suggestion())


async def answers(world: World, preemption: Preemption, pods: list[Pod]) -> dict[str, list[str]]:
    """The node and victims that the pods are answered, one after the other."""
    found: dict[str, list[str]] = {}
    for each in pods:
        chosen = await preemption.improve(each, everywhere(world))
        if chosen is not None:
            found.setdefault(chosen.node, []).extend(
                name for victim in chosen.victims if (name := victim.uid.removeprefix("uid-")) not in found[chosen.node]
            )
    return found


def end(world: World, names: Iterable[str]) -> None:
    """The pods have terminated."""
    for name in names:
        world.cluster.pod_deleted(world.cluster.pods[f"uid-{name}"])


async def test_a_gang_that_would_not_fit_even_then_preempts_nobody() -> None:
    pods = gang(4)
    world, preemption = world_of(2, holder("low-0", "n0", range(8)), holder("low-1", "n1", range(8)), *pods)
    for each in pods:
        with pytest.raises(Refusal, match="also without the pods of lower priority") as refused:
            await preemption.improve(each, everywhere(world))
        assert refused.value.reason is Reason.GANG_DOES_NOT_FIT
    assert not world.ledger.promises


async def test_choosing_victims_for_a_gang_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    monkeypatch.setattr("allocator.gangs.board._STEP", 1)
    pods = gang(10)
    world, preemption = world_of(60, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(60)), *pods)
    improving, turns = asyncio.create_task(preemption.improve(pods[0], everywhere(world))), 0
    while not improving.done():
        await asyncio.sleep(0)
        turns += 1
    chosen = await improving
    assert chosen is not None
    assert len(chosen.victims) == 1
    # Nodes are read, all are emptied and filled again, priced, and ten are cleared; seats are looked for each time.
    assert turns > 4 * 60 + 10 * 10


async def test_one_node_is_examined_in_each_turn_for_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    examined: list[str] = []
    longest = 0

    pods = gang(20)
    world, preemption = world_of(20, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(20)), *pods)
    offer = Trial.offer

    def counted(trial: Trial, node: str, **more: Any) -> Offer:
        if more or trial.ended_on(node):
            examined.append(node)
        return offer(trial, node, **more)

    monkeypatch.setattr(Trial, "offer", counted)
    improving = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    while not improving.done():
        examined.clear()
        await asyncio.sleep(0)
        longest = max(longest, len(set(examined)))
    assert await improving is not None
    assert longest == 1


@pytest.mark.parametrize(("size", "fits"), [(2, True), (30, False)])
async def test_what_was_read_for_a_gang_is_freed_piece_by_piece(
    size: int,
    fits: bool,  # noqa: FBT001 - a parameter
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    freed, longest = 0, 0

    class Freed(Unit, eq=False):
        """Pods that end together, which say when they are no longer needed."""

        def __del__(self) -> None:
            nonlocal freed
            freed += 1

    monkeypatch.setattr("allocator.decision.trial.Unit", Freed)
    pods = gang(size)
    world, preemption = world_of(20, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(20)), *pods)
    improving = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    while not improving.done():
        before = freed
        await asyncio.sleep(0)
        longest = max(longest, freed - before)
    assert (improving.exception() is None) is fits
    assert (freed, longest) == (20, 1)


async def test_seats_are_promised_in_another_turn_than_their_victims_were_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, examined, promised = 0, list[int](), list[int]()
    needed_victims_on, keep = gang_victims._needed_victims_on, Promises.keep

    def examine(trial: Trial, name: str, taken: ChipSet) -> frozenset[str] | None:
        examined.append(turn)
        return needed_victims_on(trial, name, taken)

    def promise(promises: Promises, kept: Promise) -> None:
        promised.append(turn)
        keep(promises, kept)

    monkeypatch.setattr(gang_victims, "_needed_victims_on", examine)
    monkeypatch.setattr(Promises, "keep", promise)
    pods = gang(2)
    world, preemption = world_of(2, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(2)), *pods)
    improving = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    while not improving.done():
        await asyncio.sleep(0)
        turn += 1
    assert await improving is not None
    assert examined[-1] < min(promised)


async def test_victims_that_have_ended_before_the_answer_are_not_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    pods = gang(2)
    world, preemption = world_of(3, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(3)), *pods)
    improving = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    while not world.ledger.promises:  # noqa: ASYNC110 - whatever turn that is
        await asyncio.sleep(0)
    end(world, ["low-0", "low-1", "low-2"])
    world.ledger.promises.drop(world.cluster.jobs.job_of(pods[0]).key.plan)
    assert await improving is None


async def test_victims_are_those_of_the_nodes_as_they_are_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    pods = gang(4)
    lows = [holder(f"low-{number}", f"n{number}", range(8)) for number in range(4)]
    for turns in count(1):
        world, preemption = world_of(4, *lows, *pods)
        improving = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = improving.done()
        end(world, ["low-3"])
        chosen = await improving
        assert chosen is not None
        assert {victim.pod for victim in chosen.victims} == {"default/low-0"}
        others = {name for each in pods[1:] for name in await answers(world, preemption, [each])}
        assert others == {"n1", "n2"}, f"after {turns} turns"
        if is_over:
            break


async def test_a_gang_that_lacks_pods_preempts_nobody() -> None:
    pods = gang(2)
    world, preemption = world_of(2, holder("low-0", "n0", range(8)), holder("low-1", "n1", range(8)), pods[0])
    with pytest.raises(Refusal) as refused:
        await preemption.improve(pods[0], everywhere(world))
    assert refused.value.reason is Reason.GANG_INCOMPLETE
    with pytest.raises(Refusal):
        await preemption.victim_sets(pods[0], list(world.cluster.nodes), 10)


async def test_each_pod_of_a_gang_gets_a_node_of_its_own_with_its_victims() -> None:
    pods = gang(3)
    lows = [holder(f"low-{number}", f"n{number}", range(8)) for number in range(3)]
    world, preemption = world_of(4, *lows, *pods)
    found = await answers(world, preemption, pods)
    # One server is free: two pods have to end, not three.
    assert found == {"n0": ["low-0"], "n1": ["low-1"]}
    assert await answers(world, preemption, pods) == found
    end(world, ["low-0", "low-1"])
    assert await answers(world, preemption, pods) == {}
    assert {world.engine.place(each).node for each in pods} == {"n0", "n1", "n3"}


async def test_pods_without_chips_end_for_a_gang_where_its_chips_are_free() -> None:
    pods, plain = gang(3), [pod(f"plain-{number}", None, node=f"n{number}", priority=1) for number in range(2)]
    world, preemption = world_of(3, holder("low", "n2", range(8)), *plain, *pods)
    suggested = {f"n{number}": Suggestion((f"uid-plain-{number}",)) for number in range(2)}
    suggested["n2"] = Suggestion(("uid-low",))
    found = [await preemption.improve(each, suggested) for each in pods]
    ended = {chosen.node: [victim.uid for victim in chosen.victims] for chosen in found if chosen is not None}
    assert ended == {"n0": ["uid-plain-0"], "n1": ["uid-plain-1"], "n2": ["uid-low"]}
    job = world.cluster.jobs.job_of(pods[0])
    assert set(world.engine.gangs.awaiting_victims(job)) == {each.uid for each in pods}
    for each in plain:
        world.cluster.pod_deleted(each)
    assert len(world.engine.gangs.awaiting_victims(job)) == 1
    assert [await preemption.improve(each, suggested) for each in pods].count(None) == 2


async def test_the_seats_of_a_gang_are_kept_while_its_victims_end() -> None:
    pods = gang(2)
    world, preemption = world_of(2, holder("low", "n0", range(8)), *pods)
    assert await answers(world, preemption, pods) == {"n0": ["low"]}
    for priority, chips in ((0, 1), (9, 8)):
        refused = world.refusal(pod("other", chips, priority=priority))
        assert "1 ChipsKept, 1 NotEnoughChips" in refused.message
    end(world, ["low"])
    assert world.refusal(pod("other", 1, priority=9)).reason is Reason.CHIPS_KEPT
    assert world.engine.place(pod("important", 1, priority=10)).node == "n0"
    assert not world.ledger.promises


async def test_victims_are_chosen_again_if_the_gang_has_changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    one, two, extra = gang(3)
    pods = [
        replace(each, metadata=replace(each.metadata, annotations=gang(2)[0].metadata.annotations))
        for each in (one, two)
    ]
    world, preemption = world_of(2, holder("x", "n0", [0]), holder("y", "n1", [0]), *pods)
    asking = asyncio.create_task(preemption.improve(pods[0], everywhere(world)))
    await asyncio.sleep(0)
    assert not asking.done()
    world.add(replace(extra, metadata=replace(extra.metadata, annotations=pods[0].metadata.annotations)))
    first = await asking
    assert first is not None
    assert await answers(world, preemption, pods) == {"n0": ["x"], "n1": ["y"]}


async def test_a_gang_preempts_one_gang_rather_than_pods_of_several() -> None:
    two = {GROUP: "a", MIN_AVAILABLE: "2"}
    other = {GROUP: "b", MIN_AVAILABLE: "2"}
    world, preemption = world_of(
        4,
        holder("a-0", "n0", range(8), annotations=two),
        holder("b-0", "n1", range(8), annotations=other),
        holder("b-1", "n2", range(8), annotations=other),
        holder("a-1", "n3", range(8), annotations=two),
        *(pods := gang(2)),
    )
    found = await answers(world, preemption, pods)
    assert sorted(name for names in found.values() for name in names) in (["a-0", "a-1"], ["b-0", "b-1"])


async def test_a_gang_preempts_single_pods_rather_than_a_large_gang() -> None:
    many = {GROUP: "many", MIN_AVAILABLE: "5"}
    world, preemption = world_of(
        7,
        *(holder(f"many-{number}", f"n{number}", range(8), annotations=many) for number in range(5)),
        *(holder(f"one-{number}", f"n{5 + number // 2}", (range(4), range(4, 8))[number % 2]) for number in range(4)),
        *(pods := gang(2)),
    )  # fmt: skip
    found = await answers(world, preemption, pods)
    assert found == {"n5": ["one-0", "one-1"], "n6": ["one-2", "one-3"]}


async def test_pods_that_can_stay_are_reprieved() -> None:
    pods = gang(2, chips=2)
    low = [holder(f"low-{chip}", "n0", range(chip, chip + 2)) for chip in (0, 2, 6)]
    world, preemption = world_of(1, *low, *pods)
    # Chips 4 and 5 are free.
    assert [len(names) for names in (await answers(world, preemption, pods)).values()] == [1]


async def test_pods_of_a_job_with_an_important_peer_are_not_preempted() -> None:
    two = {GROUP: "a", MIN_AVAILABLE: "2"}
    world, preemption = world_of(
        2,
        holder("a-0", "n0", range(8), annotations=two),
        holder("a-1", "n1", range(4), priority=9, annotations=two),
        *(pods := gang(2, chips=4)),
    )
    with pytest.raises(Refusal):
        await preemption.improve(pods[0], everywhere(world))


async def test_a_gang_with_policy_never_waits_for_terminating_pods_only() -> None:
    pods = gang(2, preemption_policy="Never")
    world, preemption = world_of(
        3, holder("low", "n0", range(8)), holder("ends", "n1", range(8), terminating=True), *pods
    )
    assert await answers(world, preemption, pods) == {"n1": ["ends"]}
    world, preemption = world_of(2, holder("low", "n0", range(8)), *pods)
    with pytest.raises(Refusal):
        await preemption.improve(pods[0], everywhere(world))


async def test_victims_of_a_gang_are_on_suggested_nodes_only() -> None:
    pods = gang(2)
    world, preemption = world_of(3, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(3)), *pods)
    with pytest.raises(Refusal):
        await preemption.improve(pods[0], {"n2": Suggestion()})
    world.now_s += 6  # the refusal is valid for some seconds
    first = await preemption.improve(pods[0], {"n1": Suggestion(), "n2": Suggestion(pdb_violations=1)})
    assert isinstance(first, VictimSet)
    assert (first.node, first.pdb_violations) == ("n1", 0)
    # The other pod may not be on n2: both are planned again, with the node on which a pod is ending already.
    world.add(holder("low-1", "n1", range(8), terminating=True))
    second = await preemption.improve(pods[1], {"n0": Suggestion()})
    assert second is not None
    assert second.node == "n0"
    assert {place for promise in world.ledger.promises for place in promise.chips} == {"n0", "n1"}


@pytest.mark.parametrize(("size", "violations"), [(1, 0), (2, 0), (3, 1), (4, 2), (6, 4)])
async def test_a_gang_violates_no_more_disruption_budgets_than_it_needs(size: int, violations: int) -> None:
    # Those on n3 and n4 are the most important ones.
    lows = [holder(f"low-{number}", f"n{number}", range(8), 1 + (number in {3, 4})) for number in range(6)]
    pods = gang(size)
    world, preemption = world_of(6, *lows, *pods)
    suggested = {f"n{number}": Suggestion(pdb_violations=number not in {3, 4}) for number in range(6)}
    assert await preemption.improve(pods[0], suggested)
    (promise,) = world.ledger.promises
    assert len(promise.chips) == size
    assert len(promise.chips.keys() - {"n3", "n4"}) == violations


async def test_a_nominated_pod_of_a_gang_waits_for_the_victims_of_its_peers() -> None:
    pods = gang(2)
    world, preemption = world_of(2, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(2)), *pods)
    assert len(await answers(world, preemption, pods)) == 2
    end(world, ["low-0"])
    nominated = replace(pods[0], status=replace(pods[0].status, nominated_node_name="n0"))
    world.add(nominated)
    refused = at_once(world.engine.place_or_explain(nominated, ["n0"]))
    assert not isinstance(refused, Refusal)
    assert preemption.waiting(nominated, getattr(refused, "refused", {})) == ("n0",)


async def test_the_chips_of_a_nominated_gang_are_kept_under_another_leader() -> None:
    pods = [
        replace(each, status=replace(each.status, nominated_node_name=f"n{number}"))
        for number, each in enumerate(gang(2))
    ]
    world, preemption = world_of(
        2, *(holder(f"low-{number}", f"n{number}", range(8), terminating=True) for number in range(2)), *pods
    )
    preemption.resume()
    end(world, ["low-0", "low-1"])
    assert world.refusal(pod("other", 1, priority=9)).reason is Reason.CHIPS_KEPT
    assert {world.engine.place(each).node for each in pods} == {"n0", "n1"}


@pytest.mark.parametrize("has_ended", [True, False])
async def test_another_leader_uses_the_node_to_which_a_peer_is_nominated(
    has_ended: bool,  # noqa: FBT001 - a parameter
) -> None:
    pods = gang(2)
    pods[1] = replace(pods[1], status=replace(pods[1].status, nominated_node_name="n1"))
    world, preemption = world_of(
        3, *(holder(f"low-{number}", f"n{number}", range(8), terminating=number == 1) for number in range(3)), *pods
    )
    preemption.resume()
    if has_ended:
        end(world, ["low-1"])
    # kube-scheduler counts the nominated peer there, so it neither offers nor suggests the node.
    preemption.on_filter(pods[0], ["n0", "n2"])
    chosen = await preemption.improve(pods[0], {"n0": Suggestion(), "n2": Suggestion()})
    assert chosen is not None
    promise = world.ledger.promises.get(world.cluster.jobs.job_of(pods[0]).key.plan)
    assert promise is not None
    assert promise.chips.keys() == {chosen.node, "n1"}
    assert await preemption.improve(pods[1], {"n0": Suggestion(), "n2": Suggestion()}) is None


async def test_what_was_promised_to_a_gang_ends_when_it_has_started() -> None:
    pods = gang(2, chips=4)
    world, preemption = world_of(1, holder("low-0", "n0", range(4)), holder("low-1", "n0", range(4, 8)), *pods)
    assert await answers(world, preemption, pods) == {"n0": ["low-0", "low-1"]}
    end(world, ["low-0", "low-1"])
    for each in pods:
        assert world.ledger.promises
        held = world.engine.place(each)
        bound = replace(each, spec=replace(each.spec, node_name=held.node))
        world.add(replace(bound, metadata=holder(each.name, held.node, held.take.chips, annotations=each.metadata.annotations).metadata))  # fmt: skip  # noqa: E501
    assert not world.ledger.promises
    world, preemption = world_of(1, holder("low", "n0", range(8)), *pods)
    await answers(world, preemption, pods)
    assert world.ledger.promises
    for each in pods:
        world.cluster.pod_deleted(each)
    assert not world.ledger.promises


_SIZES = (1, 2, 4, 8)


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[int, list[Pod], list[Pod]]:
    """A number of nodes, pods that run there, alone or in gangs, and a gang that waits."""
    nodes = draw(st.integers(1, 5))
    pods: list[Pod] = []
    for number in range(nodes):
        start = 0
        while start < 8:
            size = draw(st.sampled_from([each for each in _SIZES if start % each == 0 and start + each <= 8]))
            if draw(st.integers(0, 4)):
                job = draw(st.sampled_from(["", "", "a", "b"]))
                annotations = {GROUP: job, MIN_AVAILABLE: "40"} if job else {}  # none can spare a pod
                name, priority = f"p{number}-{start}", draw(st.integers(0, 3))
                terminating = not job and not draw(st.integers(0, 9))
                pods.append(
                    holder(
                        name, f"n{number}", range(start, start + size), priority,
                        annotations=annotations, terminating=terminating,
                    )
                )  # fmt: skip
            start += size
    waiting = gang(draw(st.integers(2, 4)), chips=draw(st.sampled_from(_SIZES)), priority=draw(st.integers(1, 3)))
    return nodes, pods, waiting


def _fits_without(nodes: int, pods: list[Pod], waiting: list[Pod], gone: set[str]) -> bool:
    world, _ = world_of(nodes, *(each for each in pods if each.name not in gone), *waiting)
    try:
        world.engine.place(waiting[0])
    except Refusal:
        return False
    return True


def _units(pods: list[Pod], priority: int) -> list[set[str]]:
    """What may end together: pods of lower priority, those of a gang if all are."""
    units: dict[str, list[Pod]] = {}
    for each in pods:
        units.setdefault(each.metadata.annotations.get(GROUP) or each.name, []).append(each)
    return [{each.name for each in unit} for unit in units.values() if max(each.priority for each in unit) < priority]


@given(_clusters())
async def test_a_gang_fits_without_its_victims_and_not_with_any_of_them(
    drawn: tuple[int, list[Pod], list[Pod]],
) -> None:
    nodes, pods, waiting = drawn
    ending = {each.name for each in pods if each.is_terminating}
    world, preemption = world_of(nodes, *pods, *waiting)
    units = _units([each for each in pods if not each.is_terminating], waiting[0].priority)
    try:
        found = await answers(world, preemption, waiting)
    except Refusal:
        assert not _fits_without(nodes, pods, waiting, ending.union(*units))
        return
    victims = {name for names in found.values() for name in names}
    assert _fits_without(nodes, pods, waiting, victims | ending)
    chosen = [unit for unit in units if unit & victims]
    assert victims - ending <= set().union(*chosen)
    for unit in chosen:
        assert not _fits_without(nodes, pods, waiting, set().union(*chosen, ending) - unit)
    # The seats are free for the gang, and for nobody else, once the victims have terminated.
    end(world, victims | ending)
    free = sum(promise.chips[node].bit_count() for promise in world.ledger.promises for node in promise.chips)
    assert free == sum(each.spec.containers[0].chips for each in waiting) or not world.ledger.promises
    for each in waiting:
        world.engine.place(each)


async def test_free_nodes_count_only_if_the_scheduler_has_offered_them() -> None:
    pods = gang(2)
    world, preemption = world_of(2, holder("low", "n0", range(8)), *pods)
    with pytest.raises(Refusal):
        await preemption.improve(pods[0], {"n0": Suggestion()})
    world.now_s += 6
    preemption.on_filter(pods[0], ["n1"])
    chosen = await preemption.improve(pods[0], {"n0": Suggestion()})
    assert chosen is not None
    assert chosen.node == "n0"


async def test_a_gang_preempts_on_other_nodes_than_those_of_pods_deleted_by_force() -> None:
    pods = gang(2)
    world, preemption = world_of(3, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(3)), *pods)
    lost = world.cluster.pods["uid-low-0"]
    world.cluster.hold_deleted(lost.uid, "n0", world.cluster.nodes["n0"].holdings[lost.uid])
    world.cluster.pod_deleted(lost)
    assert await answers(world, preemption, pods) == {"n1": ["low-1"], "n2": ["low-2"]}


async def test_a_victim_that_is_deleted_by_force_is_waited_for_no_more() -> None:
    pods = gang(2)
    world, preemption = world_of(2, *(holder(f"low-{number}", f"n{number}", range(8)) for number in range(2)), *pods)
    assert await answers(world, preemption, pods) == {"n0": ["low-0"], "n1": ["low-1"]}
    lost = world.cluster.pods["uid-low-0"]
    world.cluster.hold_deleted(lost.uid, "n0", world.cluster.nodes["n0"].holdings[lost.uid])
    world.cluster.pod_deleted(lost)
    assert await answers(world, preemption, pods) == {"n1": ["low-1"]}
