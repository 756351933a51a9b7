"""A custom scheduler requests chips by gRPC; it binds the pod itself, or lets the allocator bind it."""

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
from tests.e2e.world import Setup, World, annotated

SETUP = Setup(schedulers=("default-scheduler", "my-scheduler"))

R = TypeVar("R")


async def created(world: World, name: str, chips: int) -> tuple[Pod, pb.PodRef]:
    pod = await world.create(name, chips, schedulerName="my-scheduler")
    return pod, pb.PodRef(namespace="default", name=name, uid=pod.uid)


async def once_known(world: World, call: Callable[[], Awaitable[R]]) -> R:
    """Call until the allocator's watch has received the pod; return the response."""

    async def attempt() -> R | None:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    return await world.eventually(attempt, "the allocator knows the pod")


async def test_pods_of_a_custom_scheduler_get_exactly_the_chips_from_grpc(world: World) -> None:
    first, second = (node.name for node in world.nodes)
    for name, chip in (("a", 0), ("b", 4)):
        await world.bind(await world.create(name, 1, schedulerName="none"), first, chip, predicate_time=time.time_ns())
        await check_hand_over(world, name, 1)
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        stub = AllocatorStub(channel)
        # The first node has six free chips, but only three in each ring. The scheduler binds this pod itself.
        pod, ref = await created(world, "four", 4)
        filtered = await once_known(world, lambda: stub.Filter(pb.FilterRequest(pod=ref)))
        assert list(filtered.nodes) == [second]
        (others,) = filtered.refused
        assert (list(others.nodes), others.refusal.reason) == ([first], "RingTooSmall")
        (best,) = (await stub.Score(pb.ScoreRequest(pod=ref))).nodes
        kept = await stub.Allocate(pb.AllocateRequest(pod=ref, nodes=[best.node]))
        assert (kept.node, kept.bound) == (second, False)
        await world.client.bind(
            namespace="default", name="four", uid=pod.uid, node=kept.node, annotations=dict(kept.annotations)
        )
        await stub.Confirm(pb.ConfirmRequest(pod=ref, node=kept.node))
        four = await check_hand_over(world, "four", 4)
        assert four.metadata.annotations[RESOURCE] == ",".join(kept.chips)
        # Chips reserved for one pod are refused to another until they are released. The allocator binds this pod.
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
