"""Another placement policy is a class and a line in the table: here blocks of pods, each of which needs one rack."""

from collections.abc import Iterator

import pytest

from allocator.gangs import policies
from allocator.gangs.policies import PolicyRow
from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.rules import job_settings
from allocator.rules.asked import Asked
from allocator.state.index import NodeIndex
from allocator.state.location import Level
from allocator.state.reservation import InBlock, Seat, Stage
from ascend.annotations import BLOCK, MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube import kept
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import RACK_LABEL
from ascend.takes import Take
from ascend.turn import Steps
from tests.allocator.builders import GROUP, World, node, pod

SIZE = "example.com/pods-of-a-rack"


class RackBlocks(Policy, frozen=True):
    """Blocks of ``size`` pods, each block in one rack."""

    size: int

    @property
    def level(self) -> Level:
        return Level.RACK

    def fewest(self, gang: GangRequest, needed: int) -> int:
        last = gang.members[needed - 1].rank // self.size
        return sum(member.rank // self.size <= last for member in gang.members)

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        yield
        seats: list[Seat] = []
        used = {peer.node for peer in gang.record.values() if peer.stays}
        blocks: dict[int, list[Member]] = {}
        for member in gang.members:
            blocks.setdefault(member.rank // self.size, []).append(member)
        for block, members in blocks.items():
            verdict = index.ranking(members[0].request).verdict
            racks = {index.topology.location(peer.node).rack for peer in gang.record.values() if peer.block == block}
            for number, rack in sorted(index.topology.places(Level.RACK).items()):
                names = sorted({name for _, there in rack.fitting(verdict) for name in there} - used)
                if (not racks or number in racks) and len(names) >= len(members):
                    used.update(names[: len(members)])
                    seats += [
                        Seat(each.uid, each.pod, name, Take.whole(range(8)), InBlock(block, each.rank))
                        for each, name in zip(members, names, strict=False)
                    ]
                    break
            else:
                return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: no rack has room for block {block}")
        return seats


def read(asked: Asked) -> RackBlocks | None:
    size = asked.pod.metadata.annotations.get(SIZE)
    return RackBlocks(int(size)) if size is not None else None


@pytest.fixture(autouse=True)
def rack_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept, "POD_KEYS", kept.POD_KEYS | {SIZE})
    monkeypatch.setattr(job_settings, "DECIDING", kept.DECIDING | {SIZE})
    policies.POLICIES.insert(0, row := PolicyRow(read))
    yield
    policies.POLICIES.remove(row)


def world_of(*racks: int) -> World:
    """Racks with so many servers, ``r0-n0``, …"""
    world = World()
    for rack, nodes in enumerate(racks):
        world.add(*(node(f"r{rack}-n{number}", labels={RACK_LABEL: str(rack)}) for number in range(nodes)))
    return world


def job(count: int, *, minimum: int | None = None, size: int = 2) -> list[Pod]:
    """Pods with ranks ``0``, ``1``, … in blocks of ``size``."""
    annotations = {GROUP: "train", MIN_AVAILABLE: str(minimum if minimum is not None else count), SIZE: str(size)}
    return [
        pod(f"p{rank}", 8, annotations={**annotations, "hccl/rankIndex": str(rank)})
        for rank in range(count)
    ]  # fmt: skip


def rack_of(world: World, each: Pod) -> str:
    """The rack in which a pod is placed now."""
    return world.engine.place(each).node.partition("-")[0]


def bind(world: World, each: Pod, block: int) -> None:
    """Show a placed pod bound, as the allocator writes it."""
    held = world.engine.place(each)
    world.ledger.advance(each.uid, Stage.ASSUMED)
    annotations = each.metadata.annotations | {BLOCK: str(block)}
    world.add(pod(each.name, 8, node=held.node, chips=held.take.chips, phase="Running", annotations=annotations))


def test_the_job_says_by_which_policy_it_is_placed() -> None:
    world = world_of(1, 2, 3)
    world.add(*(pods := job(4)), *(plain := [pod("a", 8), pod("b", 8)]))
    assert [rack_of(world, each) for each in pods] == ["r1", "r1", "r2", "r2"]
    assert [world.engine.place(each).node for each in plain] == ["r0-n0", "r2-n2"]


def test_pods_exchange_their_seats_within_a_block_only() -> None:
    world = world_of(2, 2)
    world.add(*(pods := job(4)))
    nodes = [world.engine.place(each).node for each in pods]
    assert nodes == ["r0-n0", "r0-n1", "r1-n0", "r1-n1"]
    assert world.engine.place(pods[0], ["r0-n1"]).node == "r0-n1"
    assert world.engine.place(pods[1]).node == "r0-n0"
    assert world.refusal(pods[0], ["r1-n0"]).reason is Reason.GANG_DOES_NOT_FIT


def test_a_successor_takes_the_seat_of_its_own_rank() -> None:
    world = world_of(2, 2)
    world.add(*(pods := job(4)))
    nodes = [world.engine.place(each).node for each in pods]
    for each in (pods[1], pods[3]):
        world.cluster.pod_deleted(each)
    news = {rank: pod(f"new{rank}", 8, annotations=pods[rank].metadata.annotations) for rank in (3, 1)}
    world.add(*news.values())
    assert {rank: world.engine.place(new).node for rank, new in news.items()} == {3: nodes[3], 1: nodes[1]}


def test_fewer_pods_are_tried_in_whole_blocks() -> None:
    world = world_of(3, 1)
    world.add(*(pods := job(6, minimum=3)))
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT

    world = world_of(2, 2, 1)
    world.add(*(pods := job(6, minimum=3)))
    assert [rack_of(world, each) for each in pods[:4]] == ["r0", "r0", "r1", "r1"]
    assert world.ledger.get(pods[4].uid) is None


def test_a_policy_is_told_where_the_pods_that_stay_are_also_after_a_restart() -> None:
    world = world_of(3, 3)
    world.add(*(pods := job(4)))
    for rank, each in enumerate(pods):
        bind(world, each, rank // 2)
    again = world_of(3, 3)
    again.add(*world.cluster.pods.values())
    running = again.cluster.pods[pods[2].uid]
    again.cluster.pod_deleted(running)
    new = pod("new", 8, annotations=pods[2].metadata.annotations)
    again.add(new)
    assert rack_of(again, new) == running.spec.node_name.partition("-")[0] == "r1"


def test_where_the_pods_were_is_remembered_when_all_of_them_are_deleted() -> None:
    world = world_of(2, 4)
    world.add(*(pods := job(4)))
    for rank, each in enumerate(pods):
        bind(world, each, rank // 2)
    for each in list(world.cluster.pods.values()):
        world.cluster.pod_deleted(each)
    world.add(
        *(again := [pod(f"again{rank}", 8, annotations=each.metadata.annotations) for rank, each in enumerate(pods)])
    )
    assert [rack_of(world, each) for each in again] == ["r0", "r0", "r1", "r1"]
