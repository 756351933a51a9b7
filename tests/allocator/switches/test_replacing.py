"""Pods of jobs with switch affinity that are placed while others of the job are there, or were."""

import json

import pytest
from msgspec.structs import replace

from allocator.binding.annotations import Stamper
from allocator.state.reservation import Stage
from allocator.switches.replacing import Staying, replace_v1, replace_v2, return_single_layer, return_v1, return_v2
from allocator.switches.rooms import NoFit, Room, Schema, ServerSet, SwitchState, Use
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.leaf_switches import Spot
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
    world.cluster.switches.apply(table(range(2)))
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
    world.cluster.switches.apply(replace(changed, data={"tor_info": json.dumps(info)}))
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
    assert isinstance(filler, NoFit)
    assert "below the switch of its other pods (a filler job, with fewer than 4 pods)" in filler.sentence
    below_one = replace_v2(rooms, 1, Staying(there, job_pods=4), Schema.LARGE, 2)
    assert isinstance(below_one, NoFit)
    assert "(the job was placed below one switch)" in below_one.sentence
    assert isinstance(replace_v1(rooms, 1, Staying(there), Schema.LARGE), NoFit)
    assert not isinstance(replace_v1(rooms, 1, Staying(there, job_pods=4), Schema.LARGE), NoFit)


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


@BOTH
def test_pods_do_not_return_to_a_switch_that_another_large_job_has_taken_meanwhile(version: str) -> None:
    world = switches(ALL, (0,), (), version=version)
    world.cluster.switches.apply(table(range(4)))
    gone = start(world, job(5, LARGE, name="first", owner="Job"))
    for each in gone:
        world.cluster.pod_deleted(each)
    world.add(*(server(1, slot) for slot in (1, 2, 3)), *(server(2, slot) for slot in ALL))
    world.fill("t1-0")
    for slot in ALL:
        world.fill(f"t0-{slot}")
    if version == "1.0":
        for name in ("t1-3", "t2-1", "t2-2"):
            world.fill(name)
    start(world, job(4 if version == "1.0" else 7, LARGE, name="second"))
    assert set(world.cluster.switches.uses()) == {1, 2}
    for name in ("t1-0", *(f"t0-{slot}" for slot in ALL)):
        world.cluster.pod_deleted(world.cluster.pods[f"uid-on-{name}"])
    world.add(*(server(3, slot) for slot in ALL))
    world.add(*(pods := again(5, *range(5), name="first")))
    nodes = placed(world, pods)
    assert nodes[:4] == ["t0-0", "t0-1", "t0-2", "t0-3"]
    assert nodes[4].startswith("t3-")


FREE_ROOM, SHARED_ROOM = Room(0, (0, 1, 2)), Room(1, (0, 1, 2), SwitchState(Use.SHARED), frozenset({Schema.LARGE}))
OTHER_SHARED = Room(2, (0, 1, 2), SwitchState(Use.SHARED), frozenset({Schema.LARGE}))
EXCLUSIVE_ROOM = Room(3, (0, 1, 2), SwitchState(Use.EXCLUSIVE), frozenset({Schema.NORMAL}))
UNHEALTHY = Room(4, (0, 1, 2), SwitchState(Use.SHARED, is_healthy=False), frozenset({Schema.NORMAL}))
OF_ALL = [FREE_ROOM, SHARED_ROOM, OTHER_SHARED, EXCLUSIVE_ROOM, UNHEALTHY]
EACH_ONE = {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


@pytest.mark.parametrize(
    ("there", "homes", "most_shared", "expected"),
    [
        ([], EACH_ONE, 2, {0, 1, 2}),
        ([], EACH_ONE, 1, {0, 2}),  # where more of its pods return
        ([Spot(1, 3)], EACH_ONE, 1, {0, 1}),  # it shares one already
        ([Spot(3, 3)], {3: 1, 4: 1}, 2, {3}),
        ([], {4: 2}, 2, {4}),  # it spans none
    ],
)
def test_to_which_switches_pods_return_in_version_2(
    there: list[Spot], homes: dict[int, int], most_shared: int, expected: set[int]
) -> None:
    staying = Staying(there, {spot.switch: OF_ALL[spot.switch].state for spot in there}, 6)
    assert return_v2(OF_ALL, 6, staying, homes, Schema.LARGE, most_shared=most_shared) == expected


@pytest.mark.parametrize(
    ("schema", "missing", "homes", "expected"),
    [
        (Schema.LARGE, 6, EACH_ONE, {0}),
        (Schema.NORMAL, 6, EACH_ONE, {0, 3, 4}),
        (Schema.LARGE, 4, {3: 4}, set()),  # it has three servers, so others would be below another one
        (Schema.LARGE, 3, {3: 3}, {3}),
        (Schema.LARGE, 3, {0: 1, 3: 2}, set()),  # a filler spans none
    ],
)
def test_to_which_switches_pods_return_in_version_1(
    schema: Schema, missing: int, homes: dict[int, int], expected: set[int]
) -> None:
    assert return_v1(OF_ALL, missing, Staying([]), homes, schema) == expected


@pytest.mark.parametrize(
    ("there", "homes", "expected"),
    [([], {0: 2}, {0}), ([], {3: 2}, {3}), ([], {0: 1, 3: 1}, set()), ([Spot(0, 3)], {0: 1, 3: 1}, {0})],
)
def test_to_which_switches_pods_return_in_one_layer(
    there: list[Spot], homes: dict[int, int], expected: set[int]
) -> None:
    assert return_single_layer(OF_ALL, 2, Staying(there), homes) == expected


def test_a_filler_of_version_2_returns_below_one_switch_only() -> None:
    homes = {0: 1, 1: 2}
    assert return_v2(OF_ALL, 3, Staying([]), homes, Schema.LARGE, most_shared=2) == set()


@pytest.mark.parametrize("by_webhook", [False, True])
def test_a_pod_stays_below_the_switch_of_its_job_if_another_large_job_spans_that(*, by_webhook: bool) -> None:
    world = switches((0, 1), (2, 3))
    world.cluster.switches.apply(table(range(3), width=8))
    spanning = start(world, job(4, LARGE, name="first"))
    assert [each.spec.node_name for each in spanning] == ["t0-0", "t0-1", "t1-2", "t1-3"]
    world.add(*(server(0, slot) for slot in range(2, 6)))
    below_one = start(world, job(4, LARGE, owner="Job"))
    world.add(*(server(2, slot) for slot in ALL))
    world.cluster.pod_deleted(below_one[0])
    world.fill("t0-2")
    world.add(*(pods := again(4, 0)))
    sentence = r"below the switch of its other pods \(another job spans it\), with 0 servers"
    with pytest.raises(Refusal, match=sentence):
        _ = world.engine.place_on(pods[0], "t2-0") if by_webhook else world.engine.place(pods[0])
    for each in spanning:
        world.cluster.pod_deleted(each)
    assert placed(world, pods) != []


@pytest.mark.parametrize("schema", [LARGE, "normal-schema"])
def test_a_job_whose_scheduler_chooses_nodes_starts_where_its_minimum_fits(schema: str) -> None:
    world = switches((0, 1, 2), (0,))
    world.add(*(pods := job(6, schema, annotations={MIN_AVAILABLE: "2"})))
    for each, node in zip(pods, ("t0-0", "t0-1", "t0-2"), strict=False):
        assert bind_on(world, each, node).spec.node_name == node


def test_a_job_whose_scheduler_chooses_nodes_waits_where_not_even_its_minimum_fits() -> None:
    world = switches((0, 1, 2), (0,))
    world.add(*(pods := job(6, annotations={MIN_AVAILABLE: "5"})))
    with pytest.raises(Refusal, match="its 5 pods need as many servers below switches; it can use 4"):
        world.engine.place_on(pods[0], "t0-0")


def test_the_nodes_on_which_pods_are_still_ending_are_those_to_which_their_successors_return() -> None:
    world = switches(ALL, ALL)
    world.now_s = 1767225600.0
    bound = start(world, job(5, LARGE, owner="Job"))
    world.add(
        *(replace(each, metadata=replace(each.metadata, deletion_timestamp="2026-01-01T00:00:05Z")) for each in bound)
    )
    world.add(*(pods := again(5, *range(5))))
    sentence = "5 pods of it are still ending on nodes to which its pods return: t0-0"
    assert sentence in world.refusal(pods[0]).message


@pytest.mark.parametrize(("pods", "uses"), [(5, ["1"]), (8, ["2"] * 4)])
def test_a_switch_to_which_a_scheduler_returns_pods_is_shared_if_servers_are_left_then(
    pods: int, uses: list[str]
) -> None:
    world = switches(ALL, ALL, version="2.0")
    bound = start(world, job(pods, LARGE, owner="Job"))
    for each in bound[4:]:
        world.cluster.pod_deleted(each)
    world.add(*(made := again(pods, *range(4, pods))))
    returned = [bind_on(world, each, f"t1-{slot}") for slot, each in enumerate(made)]
    assert written(returned, "isSharedTor") == uses


@pytest.mark.parametrize(
    ("case", "left", "expected"),
    [
        ("tor2-4", {0: (3,), 1: (), 2: ALL, 3: (0, 1)}, 0),  # the switches of the job suffice
        ("tor2-5", {2: ALL, 3: (0, 1)}, 2),  # the nodes below these are gone
    ],
)
def test_a_pod_of_eight_is_replaced_as_the_reference_does_it(
    case: str, left: dict[int, tuple[int, ...]], expected: int
) -> None:
    states = {0: SwitchState(Use.SHARED), 2: SwitchState(Use.SHARED), 3: SwitchState(Use.SHARED, is_healthy=False)}
    rooms = [Room(switch, slots, states.get(switch, SwitchState(Use.FREE))) for switch, slots in left.items()]
    there = [*(Spot(0, slot) for slot in range(3)), *(Spot(1, slot) for slot in ALL)]
    written = {0: SwitchState(Use.SHARED), 1: SwitchState(Use.EXCLUSIVE)}
    found = replace_v2(rooms, 1, Staying(there, written, 8), Schema.NORMAL, 2)
    assert isinstance(found, ServerSet), case
    assert [spot.switch for spot in found.spots] == [expected]


def test_a_job_shares_no_more_switches_than_it_may_when_pods_are_replaced() -> None:
    """It shares two already, so the missing pods need a switch of their own, or have to wait."""
    there = [Spot(0, 0), Spot(1, 0)]
    staying = Staying(there, {0: SwitchState(Use.SHARED), 1: SwitchState(Use.SHARED)}, 4)
    shared = Room(2, (0, 1), SwitchState(Use.SHARED))
    assert isinstance(replace_v2([shared], 2, staying, Schema.LARGE, 2), NoFit)
    found = replace_v2([shared, Room(3, (0, 1), SwitchState(Use.FREE))], 2, staying, Schema.LARGE, 2)
    assert isinstance(found, ServerSet)
    assert {spot.switch for spot in found.spots} == {3}


def test_pods_are_replaced_below_exclusive_switches_of_the_job_first() -> None:
    there = [*(Spot(0, slot) for slot in (0, 1)), Spot(1, 0)]
    staying = Staying(there, {0: SwitchState(Use.SHARED), 1: SwitchState(Use.EXCLUSIVE)}, 4)
    rooms = [Room(0, (2,), SwitchState(Use.SHARED)), Room(1, (2,), SwitchState(Use.EXCLUSIVE))]
    found = replace_v2(rooms, 1, staying, Schema.LARGE, 2)
    assert isinstance(found, ServerSet)
    assert found.spots == [Spot(1, 2)]
