"""Who makes room: as few and as unimportant pods as can be, by the chips they hold."""

import asyncio
import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.preemption import Preemption, Suggestion, VictimSet
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.rules.victims import Cost, Occupant, cost, least_important_first, select_victims
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod, report
from tests.allocator.test_job_products import owned_by, selecting

COUNTING: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "cases/preemption_counting.json").read_text())
IDLE: Final = Vacancy(ASCEND_910A, 8, 0xFF, 8)
REQUESTS: Final = st.sampled_from(ASCEND_910A.requests)


@st.composite
def occupants(draw: st.DrawFn, *, limit: int = 8) -> list[Occupant]:
    """Pods that hold disjoint sets of chips."""
    owners = draw(st.lists(st.integers(-1, limit - 1), min_size=8, max_size=8))
    return [
        Occupant(
            uid=f"u{owner}",
            pod=f"default/p{owner}",
            priority=draw(st.integers(0, 2)),
            since=f"2026-01-0{draw(st.integers(1, 3))}",
            terminating=draw(st.integers(0, 3)) == 0,
            chips=chip_set(chip for chip in range(8) if owners[chip] == owner),
            counted=owners.count(owner),
        )
        for owner in sorted(set(owners) - {-1})
    ]


def fits(gone: Iterable[Occupant], everybody: list[Occupant], request: int) -> bool:
    """Said once more: what those who stay hold is not free."""
    stay = [each for each in everybody if each not in list(gone)]
    free = 0xFF & ~sum(each.chips for each in stay)
    return isinstance(
        judge(Vacancy(ASCEND_910A, 8, free, 8 - sum(each.counted for each in stay)), ChipRequest(request)), Fit
    )


@given(everybody=occupants(), request=REQUESTS)
def test_no_other_pods_would_cost_less(everybody: list[Occupant], request: int) -> None:
    chosen = select_victims(IDLE, ChipRequest(request), everybody)
    assert not isinstance(chosen, Refusal)
    every = [each for size in range(len(everybody) + 1) for each in combinations(everybody, size)]
    best: Cost = min(cost(each) for each in every if fits(each, everybody, request))
    assert fits(chosen, everybody, request)
    assert cost(chosen) == best
    assert not any(fits([each for each in chosen if each is not spared], everybody, request) for spared in chosen)


@given(everybody=occupants(), request=REQUESTS)
def test_of_sets_that_cost_the_same_the_one_of_the_youngest_pods_goes(everybody: list[Occupant], request: int) -> None:
    chosen = select_victims(IDLE, ChipRequest(request), everybody)
    assert not isinstance(chosen, Refusal)
    ending = [each for each in everybody if each.terminating]
    ranked = least_important_first(each for each in everybody if not each.terminating)
    sets = [each for size in range(len(ranked) + 1) for each in combinations(range(len(ranked)), size)]
    sets = [each for each in sets if fits([*ending, *(ranked[place] for place in each)], everybody, request)]
    best = min(sets, key=lambda each: (cost(ranked[place] for place in each), each))
    assert [each for each in reversed(chosen) if not each.terminating] == [ranked[place] for place in best]


@given(everybody=occupants(), request=REQUESTS)
def test_of_nodes_alike_but_for_the_names_of_their_pods_each_gives_its_own(
    everybody: list[Occupant], request: int
) -> None:
    others = [replace(each, uid=f"other-{each.uid}", pod=f"other/{each.pod}") for each in everybody]
    twin = dict(zip(everybody, others, strict=True))
    chosen, instead = (select_victims(IDLE, ChipRequest(request), each) for each in (everybody, others))
    assert not isinstance(chosen, Refusal)
    assert instead == tuple(twin[each] for each in chosen)


@given(everybody=occupants(), request=REQUESTS, data=st.data())
def test_the_choice_does_not_depend_on_the_order_of_the_pods(
    everybody: list[Occupant], request: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(everybody))
    assert select_victims(IDLE, ChipRequest(request), everybody) == select_victims(IDLE, ChipRequest(request), shuffled)


@pytest.mark.parametrize("request_", [1, 2, 4, 8])
def test_among_very_many_pods_none_is_displaced_that_could_stay(request_: int) -> None:
    # More pods than chips: several share one, as nobody would have it, and all of one priority.
    crowd = [Occupant(f"u{n:02}", f"default/p{n}", 5, "2026", False, 1 << n % 8, 0) for n in range(16)]  # noqa: FBT003
    chosen = select_victims(IDLE, ChipRequest(request_), crowd)
    assert not isinstance(chosen, Refusal)
    assert len(chosen) == 2 * request_


def test_where_even_nobody_would_leave_too_little_the_reason_is_the_verdict() -> None:
    refused = select_victims(Vacancy(ASCEND_910A, 8, 0b0111_0111, 6), ChipRequest(4), [])
    assert isinstance(refused, Refusal)
    assert refused.reason == "RingTooSmall"


@pytest.mark.parametrize("case", COUNTING["cases"], ids=str)
def test_free_chips_per_ring_without_the_victims(case: dict[str, Any]) -> None:
    world = World()
    sick = case["unhealthy"]
    world.add(node("n1", chips=case["available"]), report("n1", unhealthy=sick))
    world.add(pod("victim", 1, node="n1", chips=COUNTING["preemptee_chips"], priority=1))
    world.add(*(pod(f"other-{chip}", 1, node="n1", chips=[chip], priority=9) for chip in case["other_pods"]))
    left = Preemption(world.cluster, world.ledger, world.engine).without(world.cluster.nodes["n1"], {"uid-victim"})
    assert isinstance(left, Vacancy)
    expected = case.get("free") or {"1": case["free_of_card_1"]}
    for ring, count in expected.items():
        assert (ASCEND_910A.rings[int(ring)] & left.free).bit_count() == count


def held(name: str, chips: Iterable[int], priority: int = 0, *, node: str = "n1", **more: Any) -> Pod:
    taken = list(chips)
    return pod(name, len(taken), node=node, chips=taken, phase="Running", priority=priority, **more)


def world_of(*pods: Pod) -> tuple[World, Preemption]:
    world = World()
    world.add(*(node(name) for name in sorted({each.spec.node_name for each in pods})), *pods)
    return world, Preemption(world.cluster, world.ledger, world.engine)


def names(sacrifice: VictimSet | Refusal | None) -> list[str]:
    assert isinstance(sacrifice, VictimSet)
    return [each.uid.removeprefix("uid-") for each in sacrifice.victims]


async def test_victims_are_chosen_by_ring_where_a_scheduler_chose_by_number() -> None:
    _, preemption = world_of(held("a", [0]), held("b", [4, 5, 6]), held("c", [1, 2]))
    # By number one of a, b, c is enough: 2 are free. For one ring both a and c have to go, or b alone.
    chosen = await preemption.improve(pod("x", 4, priority=9), {"n1": Suggestion(("uid-c",), 0)})
    assert names(chosen) == ["b"]


def test_a_pod_of_the_same_priority_is_not_displaced() -> None:
    _, preemption = world_of(held("a", range(8), 5))
    refused = preemption.victims(pod("x", 1, priority=5), "n1")
    assert isinstance(refused, Refusal)
    assert refused.reason == "NotEnoughChips"
    assert names(preemption.victims(pod("x", 1, priority=6), "n1")) == ["a"]


def test_a_pod_that_never_preempts_only_waits_for_pods_that_end() -> None:
    _, preemption = world_of(held("a", range(4), leaving=True), held("b", range(4, 8)))
    never: dict[str, Any] = {"priority": 9, "preemption_policy": "Never"}
    assert names(preemption.victims(pod("x", 4, **never), "n1")) == ["a"]
    assert isinstance(preemption.victims(pod("x", 8, **never), "n1"), Refusal)


async def test_pods_without_chips_that_must_go_for_other_reasons_stay_on_the_list() -> None:
    world, preemption = world_of(held("a", range(8), 1))
    world.add(pod("cpu-eater", None, node="n1", phase="Running", priority=3))
    chosen = await preemption.improve(pod("x", 8, priority=9), {"n1": Suggestion(("uid-a", "uid-cpu-eater"), 2)})
    assert names(chosen) == ["cpu-eater", "a"]
    assert isinstance(chosen, VictimSet)
    assert chosen.pdb_violations == 2


async def test_the_node_whose_victims_matter_least_is_named_and_no_other() -> None:
    _, preemption = world_of(
        held("a", range(8), 5, node="n1"),
        held("b", range(4), 2, node="n2"),
        held("c", range(4, 8), 2, node="n2"),
        held("d", range(8), 2, node="n3"),
        held("e", range(8), 1, node="n4"),
    )
    suggested = {name: Suggestion(("whoever",), int(name == "n4")) for name in ("n1", "n2", "n3", "n4")}
    with mock.patch.object(preemption, "_engine", wraps=preemption._engine) as engine:
        best = await preemption.improve(pod("x", 8, priority=9), suggested)
    # What a pod asks may take a look at many nodes.
    engine.request_of.assert_called_once()
    # n4's victim is the least important one, but its budget would be violated; n3 loses one pod, n2 two.
    assert best is not None
    assert best.node == "n3"


async def test_nobody_is_displaced_where_the_pod_fits_already_or_not_even_then() -> None:
    world, preemption = world_of(held("a", range(4)), held("b", [0, 1, 4, 5], 99, node="n2"))
    suggested = {name: Suggestion(("uid-a",), 0) for name in ("n1", "n2", "nowhere")}
    assert await preemption.improve(pod("x", 4, priority=9), suggested) is None
    world.engine.place(pod("other", 4), ["n1"])
    best = await preemption.improve(pod("x", 4, priority=9), suggested)
    assert names(best) == ["a"]


async def test_while_many_nodes_are_asked_about_others_have_turns_on_the_loop() -> None:
    _, preemption = world_of(*(held(f"low-{number}", range(8), node=f"n{number}") for number in range(100)))
    suggested = {f"n{number}": Suggestion((), 0) for number in range(100)}
    asked = asyncio.create_task(preemption.improve(pod("x", 8, priority=9), suggested))
    turns = 0
    while not asked.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert names(await asked) == ["low-0"]


async def test_a_node_that_goes_while_others_are_asked_about_is_not_missed() -> None:
    world, preemption = world_of(*(held(f"low-{number}", range(8), number, node=f"n{number}") for number in range(40)))
    suggested = {f"n{number}": Suggestion((), 0) for number in reversed(range(40))}
    asked = asyncio.create_task(preemption.improve(pod("x", 8, priority=99), suggested))
    await asyncio.sleep(0)
    assert not asked.done()
    world.cluster.node_deleted(node("n0"))
    assert names(await asked) == ["low-1"]


def test_chips_kept_for_another_pod_are_nobody_s_to_take() -> None:
    world, preemption = world_of(held("a", range(4)))
    world.engine.place(pod("other", 4), ["n1"])
    assert names(preemption.victims(pod("x", 4, priority=9), "n1")) == ["a"]
    refused = preemption.victims(pod("x", 8, priority=9), "n1")
    assert isinstance(refused, Refusal)
    # Its own do not stand in its way.
    assert names(preemption.victims(pod("other", 8, priority=9), "n1")) == ["a"]


PAIR: Final = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}


OTHER_SERVERS: Final = {"accelerator-type": "module-910b-8"}


@pytest.mark.parametrize("annotations", [PAIR, {"scheduling.k8s.io/group-name": "train"}])
async def test_no_pod_is_preempted_on_servers_of_another_product(annotations: dict[str, str]) -> None:
    low = [held("low-a", range(8), node="a2"), held("low-b", range(8), node="b1")]
    late = selecting(pod("train-1", 8, priority=9, annotations=annotations), {"accelerator-type": "module"})
    world, preemption = world_of(held("train-0", range(8), priority=9, node="a1", annotations=annotations), *low)
    world.add(
        node("a2", labels={"accelerator-type": "module"}),
        node("b1", labels=OTHER_SERVERS),
        owned_by(late, "PyTorchJob", "kubeflow.org/v1"),
    )
    late = world.cluster.pods["uid-train-1"]
    refused = preemption.victims(late, "b1")
    assert isinstance(refused, Refusal)
    assert refused.reason == "WrongProduct"
    assert names(preemption.victims(late, "a2")) == ["low-a"]
    both = {name: Suggestion((f"uid-low-{name[0]}",), 0) for name in ("a2", "b1")}
    assert names(await preemption.improve(late, both)) == ["low-a"]


def test_a_pod_does_not_wait_for_pods_to_end_on_another_product() -> None:
    ending = [held(f"low-{name[0]}", range(8), node=name, leaving=True) for name in ("a2", "b1")]
    world, preemption = world_of(held("train-0", range(8), node="a1", annotations=PAIR), *ending)
    world.add(node("a2", labels={"accelerator-type": "module"}), node("b1", labels=OTHER_SERVERS))
    for name, waited_for in (("a2", True), ("b1", False)):
        late = selecting(pod("train-1", 8, annotations=PAIR), {"accelerator-type": "module"})
        late = msgspec.structs.replace(late, status=msgspec.structs.replace(late.status, nominated_node_name=name))
        world.add(late)
        occupied = {name: Refusal(Reason.NOT_ENOUGH_CHIPS, "")}
        assert bool(preemption.waiting(late, occupied)) is waited_for
