"""Jobs with switch affinity: placed as a whole, with the ranks in the order of the switches."""

import pytest
from msgspec.structs import replace

from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, pod
from tests.allocator.switches.world import SELECTOR, bind, job, placed, switches, table, written

ALL = range(4)


def test_the_ranks_of_a_job_follow_the_switches() -> None:
    world = switches(ALL, ALL, (0, 1))
    world.add(*(pods := job(6)))
    assert placed(world, reversed(pods)) == ["t1-1", "t1-0", "t0-3", "t0-2", "t0-1", "t0-0"]


def test_each_pod_has_a_server_of_its_own_also_if_several_fit() -> None:
    world = switches(ALL, (0, 1))
    world.add(*(pods := job(3, chips=4)))
    assert placed(world, pods) == ["t0-0", "t0-1", "t0-2"]


def test_version_1_writes_the_rank_and_nothing_of_the_switches() -> None:
    world = switches(ALL, ALL)
    world.add(*(pods := job(5)))
    bound = bind(world, pods)
    assert written(bound, "hccl/rankIndex") == ["0", "1", "2", "3", "4"]
    assert written(bound, "isSharedTor") == [None] * 5


@pytest.mark.parametrize(("schema", "starts"), [("large-model-schema", False), ("normal-schema", True)])
def test_a_large_job_of_version_1_keeps_off_switches_that_others_span(schema: str, *, starts: bool) -> None:
    world = switches(ALL, ALL)
    bind(world, _added(world, job(5, name="first")))
    world.add(*(pods := job(3, schema, name="second")))
    assert placed(world, pods) == ["t1-1", "t1-2", "t1-3"]  # it stays below one switch
    world = switches(ALL, ALL, ALL)
    bind(world, _added(world, job(5, name="first")))
    world.add(*(pods := job(5, schema, name="second")))
    if starts:
        assert len(set(placed(world, pods))) == 5
    else:
        refusal = world.refusal(pods[0])
        assert refusal.reason is Reason.GANG_DOES_NOT_FIT
        assert "its 5 pods need as many servers below switches; it can use 4" in refusal.message


def _added(world: World, pods: list[Pod]) -> list[Pod]:
    world.add(*pods)
    return pods


def test_the_states_of_version_2_are_written_and_read_again() -> None:
    world = switches(ALL, ALL, ALL, version="2.0")
    first = bind(world, _added(world, job(5, "large-model-schema", name="first")))
    assert written(first, "isSharedTor") == ["2", "2", "2", "2", "1"]
    assert written(first, "isHealthy") == ["0"] * 5
    assert written(first, "sharedTorIp") == [None, None, None, None, "192.168.0.1"]
    assert placed(world, _added(world, job(2, "large-model-schema", name="filler"))) == ["t1-1", "t1-2"]  # shared first
    world.add(*(large := job(6, "large-model-schema", name="large")))
    assert "at most 2 healthy shared ones, which have 5 servers" in world.refusal(large[0]).message


def test_a_plan_that_is_not_bound_yet_counts_for_the_states() -> None:
    world = switches(ALL, ALL, version="2.0")
    assert placed(world, _added(world, job(5, name="first"))) == ["t0-0", "t0-1", "t0-2", "t0-3", "t1-0"]
    world.add(*(second := job(4, "large-model-schema", name="second")))
    assert "which have 3 servers" in world.refusal(second[0]).message


def test_a_job_below_one_switch_leaves_it_free() -> None:
    world = switches(ALL, ALL, version="2.0")
    bound = bind(world, _added(world, job(3)))
    assert written(bound, "isSharedTor") == ["0", "0", "0"]
    assert written(bound, "sharedTorIp") == [None] * 3


def test_one_layer_of_switches_holds_a_job_below_one() -> None:
    world = switches(ALL, (0, 1, 2), level="single_layer")
    world.add(*(small := job(3, name="small")), *(large := job(5, name="large")))
    assert placed(world, small) == ["t1-0", "t1-1", "t1-2"]
    assert (
        "must be below one switch (there is one layer of switches), and a switch has 4 servers"
        in world.refusal(large[0]).message
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_pod_that_is_replaced_is_below_the_switches_of_its_job(version: str) -> None:
    world = switches((0, 1, 2), ALL, ALL, version=version)
    bound = bind(world, _added(world, job(6, owner="Job")))
    gone = bound[0]
    node = gone.spec.node_name
    world.cluster.pod_deleted(gone)
    world.add(new := _successor(0))
    assert world.engine.place(new).node == node  # home, as long as the server is healthy
    world.ledger.release(new.uid)
    world.fill(node)
    assert world.engine.place(new).node.partition("-")[0] in {each.spec.node_name.partition("-")[0] for each in bound}


def _successor(rank: int) -> Pod:
    (made,) = job(6, ranks=[rank], owner="Job")
    return replace(made, metadata=replace(made.metadata, name=f"new-{rank}", uid=f"uid-new-{rank}"))


def test_a_job_of_which_only_some_pods_were_bound_is_completed_after_a_restart() -> None:
    before = switches(ALL, ALL, ALL, version="2.0")
    bound = bind(before, _added(before, job(6)))
    after = switches(ALL, ALL, ALL, version="2.0")
    after.add(*bound[:2], *(rest := job(6, ranks=range(2, 6))))
    assert placed(after, rest) == [each.spec.node_name for each in bound[2:]]


def test_a_whole_job_that_is_made_again_returns_to_its_servers() -> None:
    world = switches(ALL, ALL, ALL, version="2.0")
    bound = bind(world, _added(world, job(6, owner="Job")))
    nodes = [each.spec.node_name for each in bound]
    for each in bound:
        world.cluster.pod_deleted(each)
    world.fill(nodes[2])
    world.add(*(again := [_successor(rank) for rank in range(6)]))
    found = placed(world, again)
    assert found[:2] + found[3:] == nodes[:2] + nodes[3:]
    assert found[2] not in nodes


def test_a_job_waits_for_the_table_and_starts_when_it_comes() -> None:
    world = switches(ALL, ALL)
    world.cluster.switches.delete(table([0, 1]))
    world.add(*(pods := job(3)))
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.SWITCHES_UNKNOWN
    assert "ConfigMap kube-system/basic-tor-node-cm does not exist" in refusal.message
    world.cluster.switches.apply(table([0, 1]))
    assert placed(world, pods) == ["t0-0", "t0-1", "t0-2"]


def test_a_job_waits_with_the_cause_if_every_switch_of_the_table_is_left_out() -> None:
    world = switches(ALL, ALL)
    made = table([0, 1])
    info = made.data["tor_info"].replace('"tor_count": 4', '"tor_count": 2')
    world.cluster.switches.apply(replace(made, data={"tor_info": info}))
    world.add(*(pods := job(3)))
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.SWITCHES_UNKNOWN
    assert "server_list[0]: has 4 servers, more than tor_count, 2; left out" in refusal.message


def test_servers_below_no_known_switch_are_not_used() -> None:
    world = switches((0, 1), (0, 1))
    world.cluster.switches.apply(table([0]))
    world.add(*(pods := job(3)))
    assert "free for it: 2 servers below 1 switch" in world.refusal(pods[0]).message
    world.add(*(plain := job(4, None, name="plain")))
    assert len(placed(world, plain)) == 4


def test_a_seat_whose_server_has_moved_is_given_up() -> None:
    world = switches((0, 1), (0, 1))
    world.add(*(pods := job(2)))
    assert placed(world, pods) == ["t0-0", "t0-1"]
    world.cluster.switches.apply(table([1]))
    assert placed(world, pods) == ["t1-0", "t1-1"]


@pytest.mark.parametrize(
    ("label", "annotations", "reason", "sentence"),
    [
        (
            "huge",
            {},
            Reason.INVALID_REQUEST,
            "label tor-affinity='huge' is not large-model-schema, normal-schema or null",
        ),
        ("normal-schema", {"sp-block": "16"}, Reason.UNSUPPORTED_POLICY, "exclude each other"),
        ("normal-schema", {MIN_AVAILABLE: ""}, Reason.INVALID_MIN_AVAILABLE, "huawei.com/schedule_minAvailable"),
    ],
)
def test_what_contradicts_switch_affinity_is_refused(
    label: str, annotations: dict[str, str], reason: Reason, sentence: str
) -> None:
    world = switches(ALL, ALL)
    world.add(*(pods := job(2, label, annotations=annotations)))
    refusal = world.refusal(pods[0])
    assert refusal.reason is reason
    assert sentence in refusal.message


def test_a_single_pod_and_a_job_that_asks_for_nothing_need_no_table() -> None:
    world = switches(ALL)
    world.cluster.switches.delete(table([0]))
    world.add(single := pod("single", 8, labels={"tor-affinity": "normal-schema"}, selector=SELECTOR))
    world.add(*(null := job(2, "null")))
    assert placed(world, [single, *null]) == ["t0-0", "t0-1", "t0-2"]


def test_a_scheduler_that_chooses_nodes_itself_starts_a_job_where_the_plan_is() -> None:
    world = switches(ALL, ALL, (0, 1))
    world.add(*(pods := job(6)))
    for each, node in zip(pods, ("t1-2", "t0-3", "t1-0"), strict=False):
        assert world.engine.place_on(each, node).node == node
    with pytest.raises(Refusal, match=r"below other switches: 192\.168\.0\.0, 192\.168\.0\.1;"):
        world.engine.place_on(pods[3], "t2-0")
