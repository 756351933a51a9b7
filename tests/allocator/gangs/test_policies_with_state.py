"""A policy may see more of the cluster than the index: here the power that the pods of all jobs leave in a rack."""

from collections.abc import Iterator, Mapping

import pytest

from allocator.decision.preemption import Preemption
from allocator.gangs import policies
from allocator.gangs.policies import PolicyRow
from allocator.gangs.policy import GangRequest, Policy
from allocator.rules import job_settings
from allocator.rules.asked import Asked
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.job import VERSIONS, Job
from allocator.state.location import Level
from allocator.state.reservation import InBlock, Seat
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube import kept
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import RACK_LABEL
from ascend.takes import Take
from ascend.turn import Steps
from tests.allocator.builders import GROUP, World, node, pod
from tests.allocator.decision.test_gang_preemption import answers

ASKS = "example.com/within-power"
BUDGET = "example.com/pods-of-the-rack"
"""A label of nodes: how many pods the power of their rack is enough for."""


class PowerBudget(Policy, frozen=True):
    """A server for each pod, as far as the power of its rack is enough for all pods there."""

    @property
    def level(self) -> Level | None:
        return Level.RACK

    def sees(self, cluster: Cluster, job: Job, ended: frozenset[str]) -> Mapping[int, int]:
        """The number of pods for which each rack has power left, besides those of other jobs."""
        location, left = cluster.index.topology.location, dict[int, int]()
        for name, record in cluster.nodes.items():
            if record.node is not None:
                left[location(name).rack] = int(record.node.metadata.labels[BUDGET])
        for other in cluster.jobs.by_key.values():
            for name in other.nodes_beside(ended) if other is not job else ():
                left[location(name).rack] -= 1
        return left

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        yield
        assert isinstance(gang.seen, dict)
        left, found = dict(gang.seen), list[tuple[str, int]]()
        there = {peer.node for peer in gang.record.values() if peer.stays}
        for name in there:
            left[index.topology.location(name).rack] -= 1
        verdict = index.ranking(gang.members[0].request).verdict
        for number, rack in sorted(index.topology.places(Level.RACK).items()):
            names = sorted({name for _, names in rack.fitting(verdict) for name in names} - there)
            found += [(name, number) for name in names[: max(left[number], 0)]]
        if len(found) < len(gang.members):
            return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: the power is enough for {len(found)} pods")
        return [
            Seat(member.uid, member.pod, name, Take.whole(range(8)), InBlock(rack, member.rank))
            for member, (name, rack) in zip(gang.members, found, strict=False)
        ]


class Anywhere(PowerBudget, frozen=True):
    """The same, with pods that may exchange their seats everywhere."""

    @property
    def level(self) -> Level | None:
        return None


def read(asked: Asked) -> Policy | None:
    return {"true": PowerBudget(), "anywhere": Anywhere()}.get(asked.pod.metadata.annotations.get(ASKS, ""))


def revision(stated: Pod, _cluster: Cluster) -> int:
    return VERSIONS.latest if ASKS in stated.metadata.annotations else 0


@pytest.fixture(autouse=True)
def power_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept, "POD_KEYS", kept.POD_KEYS | {ASKS})
    monkeypatch.setattr(job_settings, "DECIDING", kept.DECIDING | {ASKS})
    policies.POLICIES.insert(0, row := PolicyRow(read, revision))
    yield
    policies.POLICIES.remove(row)


def world_of(*budgets: int, nodes: int = 3) -> World:
    """Racks with these budgets, each with so many servers, ``r0-n0``, …"""
    world = World()
    for rack, budget in enumerate(budgets):
        labels = {RACK_LABEL: str(rack), BUDGET: str(budget)}
        world.add(*(node(f"r{rack}-n{number}", labels=labels) for number in range(nodes)))
    return world


def job(name: str, count: int, priority: int = 0) -> list[Pod]:
    annotations = {GROUP: name, MIN_AVAILABLE: str(count), ASKS: "true"}
    return [
        pod(f"{name}-{rank}", 8, annotations={**annotations, "hccl/rankIndex": str(rank)}, priority=priority)
        for rank in range(count)
    ]


def place(world: World, pods: list[Pod]) -> list[str]:
    """Place and bind pods; their nodes."""
    nodes = []
    for each in pods:
        held = world.engine.place(each)
        nodes.append(held.node)
        annotations = each.metadata.annotations
        world.add(
            pod(each.name, 8, node=held.node, chips=held.take.chips, phase="Running", annotations=annotations)
        )  # fmt: skip
    return nodes


def test_pods_that_other_jobs_have_placed_count_bound_or_not() -> None:
    world = world_of(2, 3)
    world.add(*(first := job("first", 2)), *(second := job("second", 2)), *(third := job("third", 2)))
    assert place(world, first) == ["r0-n0", "r0-n1"]
    assert [world.engine.place(each).node for each in second] == ["r1-n0", "r1-n1"]
    with pytest.raises(Refusal, match="the power is enough for 1 pods"):
        world.engine.place(third[0])


def test_a_refused_gang_is_tried_again_once_the_policy_sees_something_else() -> None:
    world = world_of(3, nodes=4)
    world.add(*(first := job("first", 2)), *(second := job("second", 2)))
    place(world, first)
    world.add(node("r0-n0", ready=False, labels={RACK_LABEL: "0", BUDGET: "3"}))
    with pytest.raises(Refusal, match="the power is enough for 1 pods"):
        world.engine.place(second[0])
    world.cluster.pod_deleted(world.cluster.pods[first[0].uid])  # its node is in no bucket of the index
    assert [world.engine.place(each).node for each in second] == ["r0-n2", "r0-n3"]


async def test_what_ends_by_preemption_does_not_count() -> None:
    world = world_of(2)
    world.add(*(low := job("low", 2)))
    place(world, low)
    world.add(*(high := job("high", 2, priority=9)))
    victims = await answers(world, Preemption(world.cluster, world.ledger, world.engine), high)
    assert victims == {"r0-n0": ["low-0"], "r0-n1": ["low-1"]}


def test_a_pod_that_starts_alone_is_not_placed_past_the_policy() -> None:
    world = world_of(1)
    for asks in ("true", "anywhere"):
        world.add(alone := pod(asks, 8, annotations={ASKS: asks}))
        with pytest.raises(Refusal, match="say how many of its pods start together"):
            world.engine.place(alone)
