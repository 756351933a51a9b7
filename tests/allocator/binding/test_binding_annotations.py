"""What a Binding writes on a pod: its chips, the predicate time, its rank and the data for rank tables."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.annotations import DAY_NS, Stamper
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import ALLOCATED, CLAIMED, CONFIGURATION, DISTRIBUTED, MIN_AVAILABLE, PREDICATE_TIME, RANK, REAL
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.jobs.kubeflow import OPERATOR
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Metadata, Node, NodeAddress, Pod
from ascend.takes import Take
from ascend.turn import at_once
from ascend.vnpus import Vnpu
from tests.allocator.builders import GROUP, World, node, owned_by, pod, pod_group, report, stateful_set
from tests.allocator.reference import reference_cases
from tests.allocator.vnpus import cut, cut_node, vnpu_pod

CASES = reference_cases("ranks")


def server(annotations: Mapping[str, str] | None = None, *, allocatable: int = 8) -> Node:
    """A server with addresses and these annotations."""
    made = node("n1", allocatable=allocatable)
    infos = write_base_device_infos({chip: ChipAddress(f"10.0.0.{chip}", chip) for chip in range(8)})
    metadata = Metadata(name="n1", annotations={BASE_DEVICE_INFOS: infos, **(annotations or {})})
    status = msgspec.structs.replace(made.status, addresses=[NodeAddress("InternalIP", "192.0.2.1")])
    return msgspec.structs.replace(made, metadata=metadata, status=status)


def annotations_of(
    each: Pod, chips: int, at: Node | None = None, *peers: Pod, world: World | None = None
) -> dict[str, str]:
    """The annotations of the Binding of a pod."""
    world = world or World()
    world.add(*([at] if at is not None else []), each, *peers)
    reservation = Reservation(each.uid, each.key, "n1", Take.whole(range(chips)), Stage.BINDING, 0.0, 5)
    return Stamper(world.cluster, world.ledger, lambda: 1).annotations(each, reservation)


@pytest.mark.parametrize("labels", [{}, {OPERATOR: "default"}])
def test_a_pod_gets_its_vnpu_under_the_name_of_the_resource(labels: dict[str, str]) -> None:
    # On a node without whole chips it is no whole-node pod either.
    world, each = World(), vnpu_pod("a", labels=labels)
    world.add(cut_node("n1", cut(range(8))), each)
    reservation = Reservation(each.uid, each.key, "n1", Take.part(Vnpu("2c", 1, 104)), Stage.BINDING, 0.0, 5)
    written = Stamper(world.cluster, world.ledger, lambda: 1).annotations(each, reservation)
    assert {key: written[key] for key in (PREDICATE_TIME, f"{ALLOCATED}-2c")} == {
        PREDICATE_TIME: "5",
        f"{ALLOCATED}-2c": "Ascend910-2c-104-1",
    }
    assert not {ALLOCATED, REAL, CONFIGURATION} & written.keys()


def test_a_single_pod_gets_chips_and_time_and_is_not_distributed() -> None:
    assert annotations_of(pod("a", 2), 2, server()) == {
        ALLOCATED: "Ascend910-0,Ascend910-1",
        PREDICATE_TIME: "5",
        DISTRIBUTED: "false",
    }


def test_a_pod_with_a_peer_that_requests_chips_is_distributed() -> None:
    annotations = {GROUP: "train"}
    one, two, launcher = (
        owned_by(pod(name, count, annotations=annotations), "PyTorchJob")
        for name, count in (("a", 1), ("b", 1), ("c", None))
    )
    for peer, distributed in ((two, "true"), (launcher, "false")):
        world = World()
        world.cluster.jobs.group_applied(VOLCANO, pod_group())
        assert annotations_of(one, 1, server(), peer, world=world)[DISTRIBUTED] == distributed


@pytest.mark.parametrize(("replicas", "distributed"), [(1, "false"), (2, "true")])
def test_the_first_pod_is_distributed_if_its_owner_has_replicas(replicas: int, distributed: str) -> None:
    first = owned_by(pod("train-0", 1), "StatefulSet")
    world = World()
    world.cluster.jobs.owners.apply(stateful_set(replicas))
    assert annotations_of(first, 1, server(), world=world)[DISTRIBUTED] == distributed


def test_a_pod_on_a_whole_node_gets_the_data_for_rank_tables() -> None:
    annotations = annotations_of(pod("a", 8), 8, server({"superPodID": "3", "serverIndex": "7"}))
    assert annotations[REAL] == ",".join(f"Ascend910-{chip}" for chip in range(8))
    configuration = json.loads(annotations[CONFIGURATION])
    assert (configuration["host_ip"], configuration["server_id"]) == ("192.0.2.1", "uid-a")
    assert (configuration["super_pod_id"], configuration["server_index"]) == (3, "7")
    assert [each["device_ip"] for each in configuration["devices"]] == [f"10.0.0.{chip}" for chip in range(8)]


@pytest.mark.parametrize("on_node", [{}, {"superPodID": "-2", "serverIndex": "-2"}])
def test_the_super_pod_that_only_the_report_names_is_in_the_data_for_rank_tables(on_node: dict[str, str]) -> None:
    world = World()
    at = server(on_node)
    data = encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1, super_pod_id=5, server_index=2))
    world.add(report(at.name, data=data))
    configuration = json.loads(annotations_of(pod("a", 8), 8, at, world=world)[CONFIGURATION])
    assert (configuration["super_pod_id"], configuration["server_index"]) == (5, "2")


def test_a_pod_of_an_operator_gets_the_data_for_rank_tables() -> None:
    operated = owned_by(pod("a", 2, labels={OPERATOR: "x"}), "Job")
    assert annotations_of(operated, 2, server())[REAL] == "Ascend910-0,Ascend910-1"


@pytest.mark.parametrize("at", [None, server(allocatable=7), server({BASE_DEVICE_INFOS: "{"})])
def test_a_partial_or_unknown_node_yields_no_data_for_rank_tables(at: Node | None) -> None:
    annotations = annotations_of(pod("a", 8), 8, at)
    assert REAL not in annotations
    assert CONFIGURATION not in annotations


def test_all_allocatable_chips_of_a_partial_node_are_no_whole_node() -> None:
    assert REAL not in annotations_of(pod("a", 4), 4, server(allocatable=4))


@pytest.mark.parametrize("case", CASES["set_rank_index"], ids=str)
def test_ranks_are_written_as_in_the_reference(case: dict[str, Any]) -> None:
    annotations = {MIN_AVAILABLE: "1"} if case.get("schedule_minAvailable") else {}
    if case["existing"] is not None:
        annotations[RANK] = case["existing"]
    index = case["task_index"] or 0
    peers = [owned_by(pod(f"train-{number}", 1), case["owner"] or "StatefulSet") for number in range(index)]
    made = owned_by(pod("train-last", 1, annotations=annotations), case["owner"] or "StatefulSet")
    world = World()
    world.add(*peers)
    for peer in peers:
        world.cluster.jobs.job_of(peer).rank_of(peer)
    result = annotations_of(made, 1, world=world)
    assert result.get(RANK, case["existing"]) == case["rank"]


NOW_NS = 1_795_000_000_000_000_000


def world_with_times(*times: int) -> World:
    """A world whose bound pods carry these predicate times."""
    world = World()
    world.add(*(pod(f"p{n}", 1, node="n1", chips=[n], time=time, phase="Running") for n, time in enumerate(times)))
    return world


@given(
    clock=st.lists(st.integers(NOW_NS - DAY_NS, NOW_NS + DAY_NS), min_size=2, max_size=20),
    times=st.lists(st.integers(0, NOW_NS), max_size=3),
)
def test_predicate_times_increase_strictly(clock: list[int], times: list[int]) -> None:
    ticks, world = iter(clock), world_with_times(*times)
    stamper = Stamper(world.cluster, world.ledger, lambda: next(ticks))
    at_once(stamper.resume())
    given_out = [stamper.next_time() for _ in clock[1:]]
    assert given_out == sorted(set(given_out))
    assert given_out[0] > max([time for time in times if time < clock[0] + DAY_NS], default=0)


def test_a_predicate_time_far_in_the_future_is_ignored() -> None:
    world = world_with_times(CLAIMED - 1, NOW_NS + 2 * DAY_NS)
    stamper = Stamper(world.cluster, world.ledger, lambda: NOW_NS)
    at_once(stamper.resume())
    assert stamper.next_time() == NOW_NS


def test_ended_and_claimed_pods_have_no_predicate_time_that_counts() -> None:
    world = world_with_times(CLAIMED)
    world.add(pod("ended", 1, node="n1", chips=[3], time=NOW_NS + 5, phase="Succeeded"))
    stamper = Stamper(world.cluster, world.ledger, lambda: NOW_NS)
    at_once(stamper.resume())
    assert stamper.next_time() == NOW_NS


def test_a_reservation_keeps_its_predicate_time_unless_renewed() -> None:
    world = World()
    stamper = Stamper(world.cluster, world.ledger, lambda: NOW_NS)
    made = world.ledger.reserve(uid="u", pod="default/p", node="n1", take=Take.whole((0,)))
    first = stamper.stamp(made, Stage.RESERVED)
    assert stamper.stamp(first, Stage.DOUBTFUL).predicate_time == first.predicate_time == NOW_NS
    assert stamper.stamp(first, Stage.BINDING, renew=True).predicate_time == NOW_NS + 1
