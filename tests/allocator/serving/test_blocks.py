"""Jobs with blocks, by gRPC and by the webhook for Bindings."""

import asyncio
from pathlib import Path

import grpc

from ascend.annotations import BLOCK, BLOCK_SUPER_POD, MIN_AVAILABLE, RANK
from ascend.kube.client import KubeClient
from ascend.reasons import Reason
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, Json, failure, ref, running, until, write_kubeconfig
from tests.allocator.serving.test_webhook import bind, register
from tests.workloads.test_super_pods import CHIPS, server


async def add_super_pods(allocator: Allocator, *sizes: int) -> None:
    for super_pod, size in enumerate(sizes):
        for index in range(size):
            await allocator.server.create(server(super_pod, index))
    await until(lambda: len(allocator.app.cluster.nodes) == sum(sizes))


async def create(allocator: Allocator, pods: int, block: int) -> list[Json]:
    """Create the pods of a job with blocks of so many servers."""
    made = []
    for rank in range(pods):
        annotations = {
            "scheduling.k8s.io/group-name": "train",
            MIN_AVAILABLE: str(pods),
            RANK: str(rank),
            "sp-block": str(block * CHIPS),
        }
        made.append(await allocator.pod(f"train-{rank}", CHIPS, annotations=annotations))
    return made


async def check(allocator: Allocator, pods: list[Json], block: int) -> None:
    """Check the nodes of the pods, and what is written on them."""
    homes: dict[int, set[str]] = {}
    for rank, pod in enumerate(pods):
        found = await allocator.read(pod["metadata"]["name"])
        home = found["spec"]["nodeName"].split("-")[1]
        written = found["metadata"]["annotations"]
        assert (written[BLOCK], written[BLOCK_SUPER_POD]) == (str(rank // block), home)
        homes.setdefault(rank // block, set()).add(home)
    assert all(len(home) == 1 for home in homes.values()), homes


async def test_the_pods_of_blocks_are_allocated_and_bound_by_grpc(tmp_path: Path) -> None:
    async with ApiServer() as api, running(api, tmp_path) as allocator:
        await add_super_pods(allocator, 3, 3)
        pods = await create(allocator, 4, 2)
        requests = [pb.AllocateRequest(pod=ref(pod), bind=True) for pod in pods]
        await asyncio.gather(*map(allocator.stub.Allocate, requests))
        await check(allocator, pods, 2)


async def test_blocks_that_fit_nowhere_are_refused_by_grpc_with_the_reason(tmp_path: Path) -> None:
    async with ApiServer() as api, running(api, tmp_path) as allocator:
        await add_super_pods(allocator, 3, 1)
        (first, *_) = await create(allocator, 4, 2)
        code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(first))))
        assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.GANG_DOES_NOT_FIT)


async def test_bindings_that_keep_blocks_together_get_their_chips(tmp_path: Path) -> None:
    async with ApiServer() as api, running(api, tmp_path) as allocator:
        register(api, allocator)
        await add_super_pods(allocator, 3, 3)
        pods = await create(allocator, 4, 2)
        nodes = ["a3-1-2", "a3-1-0", "a3-0-1", "a3-0-2"]
        async with await KubeClient.connect(str(write_kubeconfig(tmp_path, api))) as scheduler:
            errors = await asyncio.gather(*(bind(scheduler, *each) for each in zip(pods, nodes, strict=True)))
        assert not any(errors)
        await check(allocator, pods, 2)


async def test_a_binding_that_would_tear_a_block_is_denied_with_the_reason(tmp_path: Path) -> None:
    async with ApiServer() as api, running(api, tmp_path) as allocator:
        register(api, allocator)
        await add_super_pods(allocator, 3, 3)
        pods = await create(allocator, 2, 2)
        async with await KubeClient.connect(str(write_kubeconfig(tmp_path, api))) as scheduler:
            errors = await asyncio.gather(bind(scheduler, pods[0], "a3-0-0"), bind(scheduler, pods[1], "a3-1-0"))
            assert any("1 pod of block 0 must join the others of the block in SuperPod" in error for error in errors)
            assert all(errors)  # a gang is bound as a whole
            again = await asyncio.gather(bind(scheduler, pods[0], "a3-1-0"), bind(scheduler, pods[1], "a3-1-1"))
            assert not any(again)
        await check(allocator, pods, 2)
