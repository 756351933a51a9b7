"""A scheduler of one's own asks for chips by gRPC: it binds the pod itself, or has it bound."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import pytest

from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from tests.e2e.test_main_job import LEFT, REAL, RIGHT, check_hand_over
from tests.e2e.world import World, annotated

R = TypeVar("R")


async def created(world: World, name: str, chips: int) -> tuple[Pod, pb.PodRef]:
    pod = await world.create(name, chips, schedulerName="my-scheduler")
    return pod, pb.PodRef(namespace="default", name=name, uid=pod.uid)


async def once_known(world: World, call: Callable[[], Awaitable[R]]) -> R:
    """The answer, asked again while the allocator's watch has not shown it the pod."""

    async def ask() -> R | None:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    return await world.eventually(ask, "the allocator knows the pod")


async def test_a_scheduler_of_ones_own_gets_chips_by_grpc_and_its_pods_exactly_those(world: World) -> None:
    first, second = (node.name for node in world.nodes)
    for name, chip in (("a", 0), ("b", 4)):
        await world.bind(await world.create(name, 1, schedulerName="none"), first, chip, predicate_time=time.time_ns())
        await check_hand_over(world, name, 1)
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        stub = AllocatorStub(channel)
        # Six are free on the first node, but three in each ring. It binds this one itself.
        pod, ref = await created(world, "four", 4)
        filtered = await once_known(world, lambda: stub.Filter(pb.FilterRequest(pod=ref)))
        assert list(filtered.nodes) == [second]
        assert filtered.refused[first].reason == "RingTooSmall"
        (best,) = (await stub.Score(pb.ScoreRequest(pod=ref))).nodes
        kept = await stub.Allocate(pb.AllocateRequest(pod=ref, nodes=[best.node]))
        assert (kept.node, kept.bound) == (second, False)
        await world.client.bind(
            namespace="default", name="four", uid=pod.uid, node=kept.node, annotations=dict(kept.annotations)
        )
        await stub.Confirm(pb.ConfirmRequest(pod=ref, node=kept.node))
        four = await check_hand_over(world, "four", 4)
        assert four.metadata.annotations[RESOURCE] == ",".join(kept.chips)
        # What is kept for one pod is refused to another, until it is given back; this one it has bound.
        _, hesitant = await created(world, "hesitant", 4)
        kept = await once_known(world, lambda: stub.Allocate(pb.AllocateRequest(pod=hesitant)))
        _, ref = await created(world, "four-more", 4)
        with pytest.raises(grpc.aio.AioRpcError, match="RingTooSmall") as refused:
            await once_known(world, lambda: stub.Allocate(pb.AllocateRequest(pod=ref, bind=True)))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (await stub.Release(pb.ReleaseRequest(pod_uid=hesitant.uid))).released
        bound = await stub.Allocate(pb.AllocateRequest(pod=ref, bind=True))
        assert (bound.node, bound.chips, bound.bound) == (second, kept.chips, True)
        four_more = await check_hand_over(world, "four-more", 4)
    assert annotated(four, REAL) | annotated(four_more, REAL) == LEFT | RIGHT
