"""A pod gets the same whether its peers are there or not: their number is known, or nothing hangs on it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from ascend.chips import chip_set
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, OwnerReference, Pod, StatefulSet, StatefulSetSpec
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World, node, pod, report
from tests.allocator.harness import Json, running, until

MODULE = {"accelerator-type": "module"}
OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}


def ordinal(number: int, chips: int, *, labels: Mapping[str, str] | None = None) -> Pod:
    """A pod of a StatefulSet that names its product."""
    made = pod(f"train-{number}", chips)
    owner = OwnerReference(kind="StatefulSet", name="train", uid="u", controller=True)
    return msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, owner_references=[owner], labels=dict(labels or {})),
        spec=msgspec.structs.replace(made.spec, node_selector=MODULE),
    )


def world_of(nodes: Mapping[str, list[int]], replicas: int | None) -> World:
    """910A servers, each with the chips whose network is unhealthy, and a StatefulSet where its size is known."""
    world = World()
    for name, cut_off in nodes.items():
        told = encode_report(DeviceReport(0xFF, 0, chip_set(cut_off), update_time_s=1))
        world.add(node(name, labels=MODULE), report(name, data=told))
    if replicas is not None:
        owner = Metadata(name="train", namespace="default")
        world.cluster.jobs.owner_applied(StatefulSet(metadata=owner, spec=StatefulSetSpec(replicas)))
    return world


@pytest.mark.parametrize("replicas", [2, None])
@pytest.mark.parametrize("seen", [0, 1, 2])
def test_the_first_pod_keeps_off_chips_without_a_network_whoever_is_there(seen: int, replicas: int | None) -> None:
    world = world_of({"n1": [0], "n2": []}, replicas)
    pods = [ordinal(number, 8) for number in range(2)]
    world.add(*pods[:seen])
    assert world.engine.place(pods[0]).node == "n2"
    # ResolvedRequest again, its own chips are no reason to think otherwise.
    assert world.engine.filter(pods[0]).fitting == ["n2"]
    assert world.engine.place(pods[0]).node == "n2"


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_of_an_impossible_job_no_pod_gets_chips(seen: int) -> None:
    world = world_of({"n1": []}, 2)
    pods = [ordinal(number, 4) for number in range(2)]
    world.add(*pods[:seen])
    for each in pods:
        with pytest.raises(Refusal, match="job default/train asks for several pods of 4 chips; on 910A servers"):
            world.engine.place(each)


def test_a_job_of_one_pod_gets_part_of_a_server_and_any_chips() -> None:
    world = world_of({"n1": list(range(8))}, 1)
    assert len(world.engine.place(ordinal(0, 4)).chips) == 4


def test_where_nobody_knows_how_many_there_will_be_none_holds_chips_for_nothing() -> None:
    world = world_of({"n1": []}, None)
    pods = [ordinal(number, 4) for number in range(2)]
    for each in pods:
        assert len(world.engine.place(each).chips) == 4
        world.add(each)


def test_a_pod_that_may_be_alone_gets_chips_without_a_network_rather_than_none() -> None:
    world = world_of({"n1": [0], "n2": []}, None)
    first = ordinal(0, 8)
    for _ in ("asked", "asked again"):
        assert world.engine.filter(first, ["n1"]).fitting == ["n1"]
        assert world.engine.place(first, ["n1"]).node == "n1"
    assert world.engine.place(first, ["n1", "n2"]).node == "n2"


def test_a_pod_that_has_peers_waits_for_chips_with_a_network() -> None:
    later = ordinal(1, 8, labels={"apps.kubernetes.io/pod-index": "1"})
    with pytest.raises(Refusal, match="a job of several pods needs"):
        world_of({"n1": [0]}, None).engine.place(later, ["n1"])
    world = world_of({"n1": [0]}, None)
    world.add(ordinal(1, 8))
    with pytest.raises(Refusal, match="a job of several pods needs"):
        world.engine.place(ordinal(0, 8), ["n1"])


@pytest.mark.parametrize(
    ("owner", "marks", "size"),
    [
        ({"kind": "StatefulSet", "apiVersion": "apps/v1", "spec": {"replicas": 2}}, {}, 2),
        (
            {"kind": "Job", "apiVersion": "batch/v1", "spec": {"parallelism": 3, "completions": 2}},
            {"batch.kubernetes.io/job-completion-index": "0"},
            2,
        ),
    ],
)
async def test_owners_are_watched(owner: Json, marks: dict[str, str], size: int, tmp_path: Path) -> None:
    reference = {**OWNER, "kind": owner["kind"]}
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await server.create({**owner, "metadata": {"name": "train", "namespace": "default", "labels": {"a": "b"}}})
        created = await allocator.pod("train-0", 8, ownerReferences=[reference], labels=marks)
        cluster = allocator.app.cluster
        first = cluster.pods[created["metadata"]["uid"]]
        await until(lambda: cluster.jobs.job_of(first).cooperation_with(first).known == size)


def test_of_an_owner_only_what_tells_it_apart_is_kept() -> None:
    seen = StatefulSet(metadata=Metadata("a", "b", "c", "7", labels={"d": "e"}, annotations={"f": "g"}))
    assert seen.metadata == Metadata("a", "b", "c", "7")
