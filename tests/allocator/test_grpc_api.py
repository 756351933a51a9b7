"""``ascend.allocator.v1`` over a real channel and on an API server."""

from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from allocator.serving.grpc_server import SERVICE
from ascend.annotations import ALLOCATED, PREDICATE_TIME
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import ref, running, until


def health_stub(channel: grpc.aio.Channel) -> Any:
    # The stubs of these two services don't know asynchronous channels; the services do.
    return health_pb2_grpc.HealthStub(cast("Any", channel))


async def test_a_pod_is_filtered_scored_placed_and_bound(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("n2")
        await allocator.node("plain", npu=False)
        pod = ref(await allocator.pod("a", 4))
        filtered = await allocator.stub.Filter(pb.FilterRequest(pod=pod))
        assert sorted(filtered.nodes) == ["n1", "n2"]
        assert filtered.refused["plain"].reason == "NotAnNpuNode"
        scored = await allocator.stub.Score(pb.ScoreRequest(pod=pod, nodes=["n2", "n1"]))
        assert [(each.node, each.rank, each.score) for each in scored.nodes] == [("n1", 1, 256), ("n2", 1, 256)]

        kept = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
        assert (kept.node, kept.bound) == ("n1", False)
        assert list(kept.chips) == [f"Ascend910-{chip}" for chip in range(4)]
        assert kept == await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))

        bound = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
        assert (bound.node, bound.chips, bound.bound) == (kept.node, kept.chips, True)
        stored = (await allocator.read("a"))["metadata"]["annotations"]
        assert {key: stored[key] for key in (ALLOCATED, PREDICATE_TIME)} == dict(bound.annotations)
        await until(lambda: len(allocator.app.ledger) == 0)
        assert bound == await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))


async def test_kept_chips_can_be_given_back_but_not_those_of_a_bound_pod(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = ref(await allocator.pod("a", 8))
        await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
        release = pb.ReleaseRequest(pod_uid=pod.uid)
        assert (await allocator.stub.Release(release)).released
        assert not (await allocator.stub.Release(release)).released
        await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
        assert not (await allocator.stub.Release(release)).released


async def test_the_state_shows_who_holds_and_who_will(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("plain", npu=False)
        holder = await allocator.pod("a", 1)
        assert await allocator.schedule(holder, ["n1"]) == "n1"
        await until(lambda: len(allocator.app.ledger) == 0)
        waiting = await allocator.pod("b", 1)
        await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(waiting)))
        state = await allocator.stub.GetState(pb.GetStateRequest())
        assert [each.node for each in state.nodes] == ["n1", "plain"]
        chips = state.nodes[0].chips
        assert state.nodes[0].product == "910A"
        assert [chip.name for chip in chips] == [f"Ascend910-{chip}" for chip in range(8)]
        assert all(chip.healthy for chip in chips)
        assert [list(chip.holders) for chip in chips[:3]] == [
            [pb.Holder(uid=holder["metadata"]["uid"], pod="default/a")],
            [pb.Holder(uid=waiting["metadata"]["uid"], pod="default/b", reserved=True)],
            [],
        ]
        assert state.nodes[1].refusal.reason == "NotAnNpuNode"
        (unknown,) = (await allocator.stub.GetState(pb.GetStateRequest(nodes=["nowhere"]))).nodes
        assert unknown.refusal.reason == "UnknownNode"
        first = await allocator.stub.GetState(pb.GetStateRequest(page_size=1))
        rest = await allocator.stub.GetState(pb.GetStateRequest(page_size=1, page_token=first.next_page_token))
        assert [each.node for each in (*first.nodes, *rest.nodes)] == ["n1", "plain"]
        assert not rest.next_page_token
        with pytest.raises(grpc.aio.AioRpcError, match="page_size is -1") as wrong:
            await allocator.stub.GetState(pb.GetStateRequest(page_size=-1))
        assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_refusals_are_answers_in_filter_and_a_status_in_allocate(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        odd = ref(await allocator.pod("odd", 3))
        assert (await allocator.stub.Filter(pb.FilterRequest(pod=odd))).refused["n1"].reason == "InvalidRequest"
        assert not (await allocator.stub.Score(pb.ScoreRequest(pod=odd))).nodes
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await allocator.stub.Allocate(pb.AllocateRequest(pod=odd))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert str(refused.value.details()).startswith("InvalidRequest: ")

        none = ref(await allocator.pod("none", 0))
        assert (await allocator.stub.Filter(pb.FilterRequest(pod=none))).refused["n1"].reason == "InvalidRequest"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await allocator.stub.Allocate(pb.AllocateRequest(pod=none, bind=True))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await allocator.stub.Filter(pb.FilterRequest(pod=pb.PodRef(uid="nobody")))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert str(refused.value.details()).startswith("PodUnknown: ")


async def test_an_api_server_that_does_not_bind_is_reported(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = ref(await allocator.pod("a", 1))
        server.fail_next("POST", "/binding", 403)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
        assert failed.value.code() is grpc.StatusCode.ABORTED
        assert len(allocator.app.ledger) == 0


async def test_health_tells_when_questions_are_answered(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.delay(r"^/api/v1/nodes", 60)
        async with (
            running(server, tmp_path, synced=False) as allocator,
            grpc.aio.insecure_channel(allocator.app.grpc_address) as channel,
        ):
            check = health_stub(channel).Check
            for name in ("", SERVICE):
                answer = await check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await allocator.stub.GetState(pb.GetStateRequest())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        server.delay(r"^/api/v1/nodes", 0)
        async with (
            running(server, tmp_path) as allocator,
            grpc.aio.insecure_channel(allocator.app.grpc_address) as channel,
        ):
            watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            async for answer in watch:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    break
            watch.cancel()


async def test_grpcurl_finds_the_service_over_a_unix_socket(tmp_path: Path) -> None:
    async with (
        ApiServer() as server,
        running(server, tmp_path, grpc_address=f"unix:{tmp_path}/allocator.sock") as allocator,
        grpc.aio.insecure_channel(allocator.app.grpc_address) as channel,
    ):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", channel))
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            assert SERVICE in [each.name for each in answer.list_services_response.service]
            break
