"""Pods that request AI cores, at each front end."""

import pytest
import pytest_asyncio

from ascend.annotations import PREDICATE_TIME, REAL
from ascend.chips import RESOURCE
from ascend.templates import RESOURCE_CORES
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from tests.allocator.harness import Allocator, Json, core_node, pod_manifest, ref, review, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def manifest(name: str, cores: int, **metadata: object) -> Json:
    """A pod that requests AI cores."""
    made = pod_manifest(name, None, **metadata)  # type: ignore[arg-type]  # only metadata
    quantities = {RESOURCE_CORES: str(cores)}
    made["spec"]["containers"][0]["resources"] = {"limits": quantities, "requests": quantities}
    return made


async def requesting(allocator: Allocator, name: str, cores: int) -> Json:
    created = await allocator.server.create(manifest(name, cores))
    await until(lambda: created["metadata"]["uid"] in allocator.app.cluster.pods)
    return created


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(allocator: Allocator) -> Allocator:
    """The shared allocator with a node of 160 AI cores."""
    await core_node(allocator, "n1")
    return allocator


async def test_the_scheduler_gets_a_node_and_the_pod_its_part(allocator: Allocator) -> None:
    sizes = {"a": 5, "b": 10, "c": 40}
    created = {name: await requesting(allocator, name, cores) for name, cores in sizes.items()}
    for each in created.values():
        assert await allocator.schedule(each, ["n1"]) == "n1"
    written = [(await allocator.read(name))["metadata"]["annotations"] for name in sizes]
    assert [each[RESOURCE_CORES] for each in written] == ["0-vir05_1c_16g", "0-vir10_3c_32g", "1,2"]
    assert all(PREDICATE_TIME in each and RESOURCE not in each and REAL not in each for each in written)
    refused = await allocator.filter(await requesting(allocator, "d", 160), ["n1"])
    assert refused["FailedAndUnresolvableNodes"]["n1"].startswith(
        "NotEnoughChips: 160 AI cores are 8 whole chips of this node: 8 chips requested, 5 free"
    )
    # A repeated call finds the pod bound, also once the reservation has ended.
    await until(lambda: len(allocator.app.ledger) == 0)
    assert await allocator.bind(created["a"], "n1") == ""


async def test_grpc_names_the_part_and_who_holds_it(allocator: Allocator) -> None:
    pod = ref(await requesting(allocator, "a", 5))
    reserved = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
    assert (list(reserved.chips), list(reserved.vnpus)) == ([], ["0-vir05_1c_16g"])
    assert reserved.annotations[RESOURCE_CORES] == "0-vir05_1c_16g"
    (state,) = (await allocator.stub.GetState(pb.GetStateRequest())).nodes
    assert len(state.chips) == 8
    assert [(each.name, [holder.pod for holder in each.holders]) for each in state.vnpus] == [
        ("0-vir05_1c_16g", ["default/a"])
    ]
    whole = await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(await requesting(allocator, "b", 40)), bind=True))
    assert (list(whole.chips), list(whole.vnpus)) == (["Ascend910-1", "Ascend910-2"], [])


async def test_what_no_chip_allows_is_denied_at_creation(allocator: Allocator) -> None:
    denied = await review(allocator, "pods", manifest("seven", 7))
    assert not denied["allowed"]
    assert "a pod may request 5, 6, 10 or 12, or a multiple of 20, 24 or 25" in denied["status"]["message"]
    assert (await review(allocator, "pods", manifest("six", 6)))["allowed"]


async def test_annotations_of_the_allocator_are_removed_from_new_pods(allocator: Allocator) -> None:
    made = manifest("copied", 5, annotations={RESOURCE_CORES: "0-vir05_1c_16g", "note": "x"})
    answer = await review(allocator, "pods", made)
    assert answer["allowed"]
