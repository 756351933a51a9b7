"""Where a pod preempts others, and which ones: by the chips they hold."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from allocator.decision.preemption import Preemption
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import Suggestion, VictimSet
from allocator.state.view import Without
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod, report, selecting
from tests.allocator.reference import reference_cases

COUNTING: Final[dict[str, Any]] = reference_cases("preemption_counting")


def holder(name: str, chips: Iterable[int], priority: int = 0, *, node: str = "n1", **more: Any) -> Pod:
    """A running pod that holds chips."""
    held = list(chips)
    return pod(name, len(held), node=node, chips=held, phase="Running", priority=priority, **more)


def world_of(*pods: Pod) -> tuple[World, Preemption]:
    """A world with these pods and their nodes."""
    world = World()
    world.add(*(node(name) for name in sorted({each.spec.node_name for each in pods})), *pods)
    return world, Preemption(world.cluster, world.ledger, world.engine)


def victims_of(chosen: VictimSet | Refusal | None) -> list[str]:
    assert isinstance(chosen, VictimSet)
    return [each.uid.removeprefix("uid-") for each in chosen.victims]


@pytest.mark.parametrize("case", COUNTING["cases"], ids=str)
def test_free_chips_per_ring_without_the_victims(case: dict[str, Any]) -> None:
    world = World()
    unhealthy = case["unhealthy"]
    world.add(node("n1", chips=case["available"]), report("n1", unhealthy=unhealthy))
    world.add(pod("victim", 1, node="n1", chips=COUNTING["preemptee_chips"], priority=1))
    world.add(*(pod(f"other-{chip}", 1, node="n1", chips=[chip], priority=9) for chip in case["other_pods"]))
    left = world.cluster.offer_of(world.cluster.nodes["n1"], Without({"uid-victim"}))
    assert isinstance(left, Vacancy)
    expected = case.get("free") or {"1": case["free_of_card_1"]}
    for ring, count in expected.items():
        assert (ASCEND_910A.rings[int(ring)] & left.free).bit_count() == count


async def test_victims_are_chosen_by_ring_instead_of_by_count() -> None:
    _, preemption = world_of(holder("a", [0]), holder("b", [4, 5, 6]), holder("c", [1, 2]))
    # By count any one of them is enough, because 2 chips are free. Within one ring a and c are victims, or b alone.
    chosen = await preemption.improve(pod("x", 4, priority=9), {"n1": Suggestion(("uid-c",), 0)})
    assert victims_of(chosen) == ["b"]


def test_a_pod_of_equal_priority_is_not_preempted() -> None:
    _, preemption = world_of(holder("a", range(8), 5))
    refused = preemption.victims(pod("x", 1, priority=5), "n1")
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NOT_ENOUGH_CHIPS
    assert victims_of(preemption.victims(pod("x", 1, priority=6), "n1")) == ["a"]


def test_a_pod_with_policy_never_only_waits_for_terminating_pods() -> None:
    _, preemption = world_of(holder("a", range(4), terminating=True), holder("b", range(4, 8)))
    never: dict[str, Any] = {"priority": 9, "preemption_policy": "Never"}
    assert victims_of(preemption.victims(pod("x", 4, **never), "n1")) == ["a"]
    assert isinstance(preemption.victims(pod("x", 8, **never), "n1"), Refusal)


async def test_suggested_victims_without_chips_are_kept() -> None:
    world, preemption = world_of(holder("a", range(8), 1))
    world.add(pod("no-chips", None, node="n1", phase="Running", priority=3))
    chosen = await preemption.improve(pod("x", 8, priority=9), {"n1": Suggestion(("uid-a", "uid-no-chips"), 2)})
    assert victims_of(chosen) == ["no-chips", "a"]
    assert isinstance(chosen, VictimSet)
    assert chosen.pdb_violations == 2


async def test_the_priority_of_victims_without_chips_decides_between_nodes() -> None:
    pods = (holder("a", range(8)), holder("b", range(8), node="n2"))
    others = (pod("costly", None, node="n1", priority=5), pod("cheap", None, node="n2", priority=2))
    world, preemption = world_of(*pods, *others)
    assert len(world.cluster.plain) == len(others)
    suggested = {"n1": Suggestion(("uid-a", "uid-costly"), 0), "n2": Suggestion(("uid-b", "uid-cheap"), 0)}
    assert victims_of(await preemption.improve(pod("x", 8, priority=9), suggested)) == ["cheap", "b"]


async def test_pods_without_chips_end_for_their_cpu_where_the_chips_are_free() -> None:
    plain = pod("plain", None, node="n1", phase="Running", priority=1)
    world, preemption = world_of(holder("a", range(4)), plain)
    suggested = {"n1": Suggestion(("uid-plain",), 0)}
    for _ in range(2):  # the same while it has not ended
        assert victims_of(await preemption.improve(pod("x", 4, priority=9), suggested)) == ["plain"]
    with pytest.raises(Refusal):
        world.engine.place(pod("later", 4), ["n1"])  # the chips are kept for x
    world.cluster.pod_deleted(plain)
    assert await preemption.improve(pod("x", 4, priority=9), suggested) is None


async def test_only_the_node_with_the_cheapest_victims_is_named() -> None:
    _, preemption = world_of(
        holder("a", range(8), 5, node="n1"),
        holder("b", range(4), 2, node="n2"),
        holder("c", range(4, 8), 2, node="n2"),
        holder("d", range(8), 2, node="n3"),
        holder("e", range(8), 1, node="n4"),
    )
    suggested = {name: Suggestion(("uid-any",), int(name == "n4")) for name in ("n1", "n2", "n3", "n4")}
    with mock.patch.object(preemption, "_engine", wraps=preemption._engine) as engine:
        best = await preemption.improve(pod("x", 8, priority=9), suggested)
    # To read a request may take long.
    engine.request_of.assert_called_once()
    # n4 has the least important victim, but a disruption budget would be violated; n3 has one victim, n2 two.
    assert best is not None
    assert best.node == "n3"


async def test_nodes_where_preemption_is_needless_or_useless_are_skipped() -> None:
    world, preemption = world_of(holder("a", range(4)), holder("b", [0, 1, 4, 5], 99, node="n2"))
    suggested = {name: Suggestion(("uid-a",), 0) for name in ("n1", "n2", "nowhere")}
    assert await preemption.improve(pod("x", 4, priority=9), suggested) is None
    world.engine.place(pod("other", 4), ["n1"])
    best = await preemption.improve(pod("x", 4, priority=9), suggested)
    assert victims_of(best) == ["a"]


async def test_examining_many_nodes_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each node takes a turn
    _, preemption = world_of(*(holder(f"low-{number}", range(8), node=f"n{number}") for number in range(100)))
    suggested = {f"n{number}": Suggestion((), 0) for number in range(100)}
    improving = asyncio.create_task(preemption.improve(pod("x", 8, priority=9), suggested))
    turns = 0
    while not improving.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 100
    assert victims_of(await improving) == ["low-0"]


async def test_a_node_deleted_while_others_are_examined_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)
    world, preemption = world_of(
        *(holder(f"low-{number}", range(8), number, node=f"n{number}") for number in range(40))
    )
    suggested = {f"n{number}": Suggestion((), 0) for number in reversed(range(40))}
    improving = asyncio.create_task(preemption.improve(pod("x", 8, priority=99), suggested))
    await asyncio.sleep(0)
    assert not improving.done()
    world.cluster.node_deleted(node("n0"))
    assert victims_of(await improving) == ["low-1"]


def test_reserved_chips_are_not_preempted() -> None:
    world, preemption = world_of(holder("a", range(4)))
    world.engine.place(pod("other", 4), ["n1"])
    assert victims_of(preemption.victims(pod("x", 4, priority=9), "n1")) == ["a"]
    refused = preemption.victims(pod("x", 8, priority=9), "n1")
    assert isinstance(refused, Refusal)
    # The reserved chips of the pod itself count as free.
    assert victims_of(preemption.victims(pod("other", 8, priority=9), "n1")) == ["a"]


PAIR: Final = {GROUP: "train", MIN_AVAILABLE: "2"}
MODULE: Final = {TYPE: "module"}
OTHER_SERVERS: Final = {TYPE: "module-910b-8"}


@pytest.mark.parametrize("annotations", [PAIR, {GROUP: "train"}])
async def test_no_pod_is_preempted_on_servers_of_another_product(annotations: dict[str, str]) -> None:
    low = [holder("low-a", range(8), node="a2"), holder("low-b", range(8), node="b1")]
    late = selecting(pod("train-1", 8, priority=9, annotations=annotations), MODULE)
    world, preemption = world_of(holder("train-0", range(8), priority=9, node="a1", annotations=annotations), *low)
    world.add(
        node("a2", labels=MODULE),
        node("b1", labels=OTHER_SERVERS),
        owned_by(late, "PyTorchJob", "kubeflow.org/v1"),
    )
    late = world.cluster.pods["uid-train-1"]
    refused = preemption.victims(late, "b1")
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.WRONG_PRODUCT
    assert victims_of(preemption.victims(late, "a2")) == ["low-a"]
    both = {name: Suggestion((f"uid-low-{name[0]}",), 0) for name in ("a2", "b1")}
    assert victims_of(await preemption.improve(late, both)) == ["low-a"]


def test_a_pod_does_not_wait_on_servers_of_another_product() -> None:
    terminating = [holder(f"low-{name[0]}", range(8), node=name, terminating=True) for name in ("a2", "b1")]
    world, preemption = world_of(holder("train-0", range(8), node="a1", annotations=PAIR), *terminating)
    world.add(node("a2", labels=MODULE), node("b1", labels=OTHER_SERVERS))
    for name, waits in (("a2", True), ("b1", False)):
        late = selecting(pod("train-1", 8, annotations=PAIR), MODULE)
        late = msgspec.structs.replace(late, status=msgspec.structs.replace(late.status, nominated_node_name=name))
        world.add(late)
        occupied = {name: Refusal(Reason.NOT_ENOUGH_CHIPS, "")}
        assert bool(preemption.waiting(late, occupied)) is waits


def force_deleted(world: World, name: str) -> None:
    """A pod is deleted without its kubelet, so its chips stay held."""
    lost = world.cluster.pods[f"uid-{name}"]
    held = world.cluster.nodes[lost.spec.node_name].holdings[lost.uid]
    world.cluster.hold_deleted(lost.uid, lost.spec.node_name, held)
    world.cluster.pod_deleted(lost)


def test_held_chips_of_a_pod_deleted_by_force_are_no_victim() -> None:
    world, preemption = world_of(holder("lost", range(4)), holder("low", range(4, 8)))
    force_deleted(world, "lost")
    assert victims_of(preemption.victims(pod("x", 4, priority=9), "n1")) == ["low"]
    assert isinstance(preemption.victims(pod("x", 8, priority=9), "n1"), Refusal)


def test_a_new_leader_goes_on_where_a_pod_is_nominated_beside_held_chips() -> None:
    world, preemption = world_of(holder("lost", range(4)), holder("low", range(4, 8)))
    force_deleted(world, "lost")
    waiting = pod("x", 4, priority=9)
    world.add(replace(waiting, status=replace(waiting.status, nominated_node_name="n1")))
    preemption.resume()
    assert [each.owner for each in world.ledger.promises] == ["uid-x"]
