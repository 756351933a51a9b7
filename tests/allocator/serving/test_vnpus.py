"""Pods that request a vNPU, at each front end."""

import base64
import json
from pathlib import Path

import pytest
import pytest_asyncio

from ascend.annotations import INDEPENDENT, MIN_AVAILABLE, PREDICATE_TIME
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import RESOURCE
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, Json, node_manifest, pod_manifest, ref, review, running, until

SIZE = f"{RESOURCE}-2c"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def cut_manifest(name: str, vnpus: list[str]) -> Json:
    """A 910A server whose chip 0 is cut into these vNPUs."""
    made = node_manifest(name)
    infos = json.loads(made["metadata"]["annotations"][BASE_DEVICE_INFOS])
    del infos["Ascend910-0"]
    made["metadata"]["annotations"][BASE_DEVICE_INFOS] = json.dumps({**infos, **{name: {} for name in vnpus}})
    quantities = {RESOURCE: "7", SIZE: str(len(vnpus))}
    made["status"] |= {"allocatable": quantities, "capacity": quantities}
    return made


def part_manifest(name: str, **metadata: object) -> Json:
    """A pod that requests a vNPU."""
    made = pod_manifest(name, None, **metadata)  # type: ignore[arg-type]  # only metadata
    made["spec"]["containers"][0]["resources"] = {"limits": {SIZE: "1"}, "requests": {SIZE: "1"}}
    return made


async def part(allocator: Allocator, name: str) -> Json:
    created = await allocator.server.create(part_manifest(name))
    await until(lambda: created["metadata"]["uid"] in allocator.app.cluster.pods)
    return created


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(allocator: Allocator) -> Allocator:
    """The shared allocator with a node of two vNPUs."""
    await allocator.server.create(cut_manifest("n1", ["Ascend910-2c-100-0", "Ascend910-2c-101-0"]))
    await until(lambda: "n1" in allocator.app.cluster.nodes)
    return allocator


async def test_the_scheduler_gets_a_node_and_the_pod_its_vnpu(allocator: Allocator) -> None:
    created = [await part(allocator, name) for name in "abc"]
    for each in created[:2]:
        assert await allocator.schedule(each, ["n1"]) == "n1"
    written = [(await allocator.read(name))["metadata"]["annotations"] for name in "ab"]
    assert {each[SIZE] for each in written} == {"Ascend910-2c-100-0", "Ascend910-2c-101-0"}
    assert all(PREDICATE_TIME in each and RESOURCE not in each for each in written)
    refused = await allocator.filter(created[2], ["n1"])
    assert refused["FailedAndUnresolvableNodes"]["n1"].startswith("NoFreeVnpu: 1 vNPU Ascend910-2c requested, 0 free")
    # A repeated call finds the pod bound, also once the reservation has ended.
    await until(lambda: len(allocator.app.ledger) == 0)
    assert await allocator.bind(created[0], "n1") == ""


async def test_grpc_names_the_vnpu_and_who_holds_it(allocator: Allocator) -> None:
    pod = ref(await part(allocator, "a"))
    assert list((await allocator.stub.Filter(pb.FilterRequest(pod=pod))).nodes) == ["n1"]
    reserved = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
    assert (list(reserved.chips), list(reserved.vnpus)) == ([], ["Ascend910-2c-100-0"])
    assert reserved.annotations[SIZE] == "Ascend910-2c-100-0"
    (state,) = (await allocator.stub.GetState(pb.GetStateRequest())).nodes
    assert [each.name for each in state.chips] == [f"Ascend910-{chip}" for chip in range(1, 8)]
    assert [(each.name, [holder.pod for holder in each.holders]) for each in state.vnpus] == [
        ("Ascend910-2c-100-0", ["default/a"]),
        ("Ascend910-2c-101-0", []),
    ]
    bound = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
    assert (bound.bound, list(bound.vnpus)) == (True, ["Ascend910-2c-100-0"])
    job = pb.ValidateJobRequest(job="default/train", pods=[pb.PodRequest(resources={SIZE: 1}, replicas=2)])
    assert "a job may have one" in (await allocator.stub.ValidateJob(job)).refusal.message
    job.pods[0].annotations[INDEPENDENT] = "true"
    assert not (await allocator.stub.ValidateJob(job)).HasField("refusal")
    job.pods[0].annotations[MIN_AVAILABLE] = "2"
    assert "a job may have one" in (await allocator.stub.ValidateJob(job)).refusal.message
    del job.pods[0].annotations[MIN_AVAILABLE], job.pods[0].annotations[INDEPENDENT]
    job.pods[0].replicas = 1
    assert not (await allocator.stub.ValidateJob(job)).HasField("refusal")


async def test_bindings_of_other_schedulers_get_a_vnpu_and_lose_forged_ones(allocator: Allocator) -> None:
    meta = (await part(allocator, "a"))["metadata"]
    forged = {SIZE: "Ascend910-2c-101-0", f"{RESOURCE}-4c": "x", "note": "kept"}
    binding = {
        "metadata": {"name": "a", "uid": meta["uid"], "annotations": forged},
        "target": {"name": "n1"},
    }
    answer = await review(allocator, "bindings", binding)
    assert answer["allowed"]
    reservation = allocator.app.ledger.get(meta["uid"])
    assert reservation is not None
    assert reservation.take.names == ("Ascend910-2c-100-0",)
    written = json.loads(base64.b64decode(answer["patch"]))[-1]["value"]
    assert (written[SIZE], written["note"]) == ("Ascend910-2c-100-0", "kept")
    assert f"{RESOURCE}-4c" not in written


async def test_a_pod_is_validated_and_told_at_its_creation(allocator: Allocator) -> None:
    assert (await review(allocator, "pods", part_manifest("a"))) == {"uid": "r1", "allowed": True}
    labels = {"tor-affinity": "large-model-schema"}
    denied = await review(allocator, "pods", part_manifest("a", labels=labels))
    assert not denied["allowed"]
    assert "tor-affinity" in denied["status"]["message"]


async def test_kube_scheduler_may_preempt_a_pod_with_a_vnpu(allocator: Allocator) -> None:
    for name in "ab":
        assert await allocator.schedule(await part(allocator, name), ["n1"]) == "n1"
    await until(lambda: len(allocator.app.ledger) == 0)
    low = [await allocator.read(name) for name in "ab"]
    urgent = part_manifest("urgent")
    urgent["spec"]["priority"] = 9
    urgent = await allocator.server.create(urgent)
    await until(lambda: urgent["metadata"]["uid"] in allocator.app.cluster.pods)
    victims = {"Pods": [{"UID": each["metadata"]["uid"]} for each in low], "NumPDBViolations": 0}
    answer = await allocator.post("preempt", {"Pod": urgent, "NodeNameToMetaVictims": {"n1": victims}})
    chosen = answer["NodeNameToMetaVictims"]["n1"]["Pods"]
    assert len(chosen) == 1


async def test_free_vnpus_are_counted_by_size(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await server.create(cut_manifest("n1", ["Ascend910-2c-100-0", "Ascend910-2c-101-0"]))
        await until(lambda: "n1" in allocator.app.cluster.nodes)
        assert await allocator.schedule(await part(allocator, "a"), ["n1"]) == "n1"
        await allocator.app.gauges.measure()
        _, page = await allocator.get("/metrics")
        assert 'ascend_allocator_free_vnpus{size="2c"} 1.0' in page
