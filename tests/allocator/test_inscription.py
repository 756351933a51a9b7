"""What is written on a pod: its chips, whether it is distributed, its rank, and what rank tables are made from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from allocator.binding.annotations import Stamper
from allocator.rules.job import OPERATOR, VOLCANO
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import (
    ALLOCATED,
    BASE_DEVICE_INFOS,
    CONFIGURATION,
    DISTRIBUTED,
    MIN_AVAILABLE,
    PREDICATE_TIME,
    RANK,
    REAL,
    ChipAddress,
    write_base_device_infos,
)
from ascend.kube.objects import (
    Metadata,
    Node,
    NodeAddress,
    OwnerReference,
    Pod,
    PodGroup,
    StatefulSet,
    StatefulSetSpec,
)
from tests.allocator.builders import World, node, pod

CASES = json.loads((Path(__file__).parent / "cases" / "ranks.json").read_text())


def owned(made: Pod, kind: str, name: str = "train", labels: Mapping[str, str] | None = None) -> Pod:
    """The pod with a controller, and labels."""
    owner = OwnerReference(kind=kind, name=name, uid="o", controller=True)
    metadata = msgspec.structs.replace(made.metadata, owner_references=[owner], labels=dict(labels or {}))
    return msgspec.structs.replace(made, metadata=metadata)


def server(annotations: Mapping[str, str] | None = None, *, allocatable: int = 8) -> Node:
    made = node("n1", allocatable=allocatable)
    infos = write_base_device_infos({chip: ChipAddress(f"10.0.0.{chip}", chip) for chip in range(8)})
    metadata = Metadata(name="n1", annotations={BASE_DEVICE_INFOS: infos, **(annotations or {})})
    status = msgspec.structs.replace(made.status, addresses=[NodeAddress("InternalIP", "192.0.2.1")])
    return msgspec.structs.replace(made, metadata=metadata, status=status)


def written(each: Pod, chips: int, at: Node | None = None, *peers: Pod, world: World | None = None) -> dict[str, str]:
    world = world or World()
    world.add(*([at] if at is not None else []), each, *peers)
    reservation = Reservation(each.uid, each.key, "n1", tuple(range(chips)), Stage.BINDING, 0.0, 5)
    return Stamper(world.cluster, world.ledger, lambda: 1).annotations(each, reservation)


def test_a_pod_alone_gets_its_chips_the_time_and_that_it_is_not_distributed() -> None:
    assert written(pod("a", 2), 2, server()) == {
        ALLOCATED: "Ascend910-0,Ascend910-1",
        PREDICATE_TIME: "5",
        DISTRIBUTED: "false",
    }


def test_a_pod_with_a_peer_that_asks_for_chips_is_distributed() -> None:
    marks = {"scheduling.k8s.io/group-name": "train"}
    one, two, asks_for_none = (
        owned(pod(name, count, annotations=marks), "PyTorchJob") for name, count in (("a", 1), ("b", 1), ("c", None))
    )
    for peer, distributed in ((two, "true"), (asks_for_none, "false")):
        world = World()
        world.cluster.jobs.group_applied(VOLCANO, PodGroup(metadata=Metadata(name="train", namespace="default")))
        assert written(one, 1, server(), peer, world=world)[DISTRIBUTED] == distributed


@pytest.mark.parametrize(("replicas", "distributed"), [(1, "false"), (2, "true")])
def test_the_first_pod_of_an_owner_is_as_distributed_as_those_that_will_follow(replicas: int, distributed: str) -> None:
    first = owned(pod("train-0", 1), "StatefulSet")
    world = World()
    owner = Metadata(name="train", namespace="default")
    world.cluster.jobs.owner_applied(StatefulSet(metadata=owner, spec=StatefulSetSpec(replicas)))
    assert written(first, 1, server(), world=world)[DISTRIBUTED] == distributed


def test_a_pod_that_takes_the_whole_node_gets_what_a_rank_table_needs() -> None:
    annotations = written(pod("a", 8), 8, server({"superPodID": "3", "serverIndex": "7"}))
    assert annotations[REAL] == ",".join(f"Ascend910-{chip}" for chip in range(8))
    configuration = json.loads(annotations[CONFIGURATION])
    assert (configuration["host_ip"], configuration["server_id"]) == ("192.0.2.1", "uid-a")
    assert (configuration["super_pod_id"], configuration["server_index"]) == (3, "7")
    assert [each["device_ip"] for each in configuration["devices"]] == [f"10.0.0.{chip}" for chip in range(8)]


def test_a_pod_of_an_operator_gets_it_too() -> None:
    operated = owned(pod("a", 2), "Job", labels={OPERATOR: "x"})
    assert written(operated, 2, server())[REAL] == "Ascend910-0,Ascend910-1"


@pytest.mark.parametrize("at", [None, server(allocatable=7), server({BASE_DEVICE_INFOS: "{"})])
def test_on_a_node_that_is_not_whole_or_not_known_only_the_device_plugin_writes_it(at: Node | None) -> None:
    annotations = written(pod("a", 8), 8, at)
    assert REAL not in annotations
    assert CONFIGURATION not in annotations


def test_a_pod_that_takes_all_chips_a_node_offers_but_not_all_it_has_takes_no_whole_node() -> None:
    assert REAL not in written(pod("a", 4), 4, server(allocatable=4))


@pytest.mark.parametrize("case", CASES["set_rank_index"], ids=str)
def test_the_rank_is_written_where_the_reference_writes_it(case: dict[str, Any]) -> None:
    annotations = {MIN_AVAILABLE: "1"} if case.get("schedule_minAvailable") else {}
    if case["existing"] is not None:
        annotations[RANK] = case["existing"]
    index = case["task_index"] or 0
    peers = [owned(pod(f"train-{number}", 1), case["owner"] or "StatefulSet") for number in range(index)]
    made = pod("train-last", 1, annotations=annotations)
    made = owned(made, case["owner"]) if case["owner"] else owned(made, "StatefulSet")
    world = World()
    world.add(*peers)
    for peer in peers:
        world.cluster.jobs.job_of(peer).rank_of(peer)
    result = written(made, 1, world=world)
    assert result.get(RANK, case["existing"]) == case["rank"]
