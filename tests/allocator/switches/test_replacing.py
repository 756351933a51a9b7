"""Pods of jobs with switch affinity that are placed while others of the job are there, or were."""

import json

import pytest
from msgspec.structs import replace

from allocator.binding.annotations import Stamper
from allocator.state.reservation import Stage
from allocator.switches.replacing import Staying, replace_v1, replace_v2
from allocator.switches.rooms import Lack, Room, Schema, Spot
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from tests.allocator.builders import World
from tests.allocator.switches.world import bind, job, placed, server, switches, table, written

ALL = range(4)
LARGE = "large-model-schema"
BOTH = pytest.mark.parametrize("version", ["1.0", "2.0"])


def start(world: World, pods: list[Pod]) -> list[Pod]:
    """Pods that come, and are bound."""
    world.add(*pods)
    return bind(world, pods)


def again(pods: int, *ranks: int, schema: str = LARGE, name: str = "train") -> list[Pod]:
    """The successors of pods of a job with an owner."""
    made = job(pods, schema, ranks=ranks, owner="Job", name=name)
    return [
        replace(each, metadata=replace(each.metadata, name=f"new-{each.name}", uid=f"uid-new-{each.name}"))
        for each in made
    ]


def bind_on(world: World, pod: Pod, node: str) -> Pod:
    """A pod that its scheduler binds to a node that it has chosen itself."""
    stamper = Stamper(world.cluster, world.ledger, lambda: 1)
    held = stamper.stamp(world.engine.place_on(pod, node), Stage.ASSUMED)
    written = pod.metadata.annotations | stamper.annotations(pod, held)
    bound = replace(
        pod,
        metadata=replace(pod.metadata, annotations=written),
        spec=replace(pod.spec, node_name=node),
        status=replace(pod.status, phase="Running"),
    )
    world.add(bound)
    return bound


@BOTH
def test_a_large_job_that_starts_with_few_pods_is_no_filler(version: str) -> None:
    world = switches((0,), (1,), version=version)
    world.add(*(pods := job(6, LARGE, annotations={MIN_AVAILABLE: "2"})))
    assert placed(world, pods[:2]) == ["t0-0", "t1-1"]


def test_the_other_pods_of_a_large_job_that_has_started_may_be_below_other_switches() -> None:
    world = switches((0, 1), ())
    world.cluster.switches.applied(table(range(2)))
    pods = job(5, LARGE, annotations={MIN_AVAILABLE: "2"})
    world.add(*pods)
    bind(world, pods[:2])
    world.add(server(1, 2))
    assert placed(world, pods[2:3]) == ["t1-2"]


@BOTH
def test_a_large_job_of_which_a_server_is_below_no_switch_any_more_is_no_filler(version: str) -> None:
    world = switches((0, 1), (2, 3), version=version)
    bound = start(world, job(4, LARGE, owner="Job"))
    changed = table(range(3))
    info = json.loads(changed.data["tor_info"])
    info["server_list"][1]["server"][2]["server_ip"] = "10.9.9.9"
    world.cluster.switches.applied(replace(changed, data={"tor_info": json.dumps(info)}))
    world.add(*(server(2, slot) for slot in ALL))
    world.cluster.pod_deleted(bound[3])
    world.fill("t1-3")
    world.add(*(pods := again(4, 3)))
    assert placed(world, pods)[0].startswith("t2-")


@BOTH
def test_a_large_job_that_its_scheduler_places_pod_by_pod_again_is_no_filler(version: str) -> None:
    world = switches((0, 1), (2, 3), version=version)
    nodes = ["t0-0", "t0-1", "t1-2", "t1-3"]
    world.add(*(pods := job(4, LARGE, owner="Job")))
    for gone in [bind_on(world, *each) for each in zip(pods, nodes, strict=True)]:
        world.cluster.pod_deleted(gone)
    world.add(*(pods := again(4, *range(4))))
    assert [bind_on(world, *each).spec.node_name for each in zip(pods, nodes, strict=True)] == nodes


def test_why_a_pod_must_be_below_the_switch_of_its_peers_is_said() -> None:
    rooms, there = [Room(1, (0, 1))], [Spot(0, 0), Spot(0, 1)]
    filler = replace_v2(rooms, 1, Staying(there), Schema.LARGE, 2)
    assert isinstance(filler, Lack)
    assert "below the switch of its other pods (a filler job, with fewer than 4 pods)" in filler.sentence
    below_one = replace_v2(rooms, 1, Staying(there, job_pods=4), Schema.LARGE, 2)
    assert isinstance(below_one, Lack)
    assert "(the job was placed below one switch)" in below_one.sentence
    assert isinstance(replace_v1(rooms, 1, Staying(there), Schema.LARGE), Lack)
    assert not isinstance(replace_v1(rooms, 1, Staying(there, job_pods=4), Schema.LARGE), Lack)


@pytest.mark.parametrize("ended", [[0, 1, 2, 3, 4], [4]])
def test_a_shared_switch_stays_shared_when_all_pods_of_the_job_there_are_made_again(ended: list[int]) -> None:
    world = switches(ALL, ALL, ALL, version="2.0")
    bound = start(world, job(5, LARGE, owner="Job"))
    assert written(bound, "isSharedTor") == ["2", "2", "2", "2", "1"]
    for rank in ended:
        world.cluster.pod_deleted(bound[rank])
    made = start(world, again(5, *ended))
    assert written(made, "isSharedTor") == [["2", "2", "2", "2", "1"][rank] for rank in ended]
    assert written(made, "sharedTorIp")[-1] == "192.168.0.1"
    world.add(*(other := job(7, LARGE, name="other")))
    assert len(placed(world, other)) == 7


def test_a_switch_becomes_exclusive_where_the_job_shares_as_many_as_it_may() -> None:
    world = switches((0, 1), (0, 1), (0, 1), (), version="2.0", most_shared=1)
    bound = start(world, job(6, LARGE, owner="Job"))
    assert written(bound, "isSharedTor") == ["2"] * 6
    for each in bound:
        world.cluster.pod_deleted(each)
    world.add(*(server(switch, slot) for switch in range(3) for slot in (2, 3)))
    assert written(start(world, again(6, *range(6))), "isSharedTor") == ["1"] * 2 + ["2"] * 4
