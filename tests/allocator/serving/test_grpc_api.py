"""``ascend.allocator.v1`` over a real channel and on an API server."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from allocator.serving import grpc_api
from allocator.serving.grpc_server import SERVICE
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, MIN_AVAILABLE, PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.reasons import Reason
from ascend.turn import Turn
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, failure, node_manifest, pod_manifest, ref, running, until


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(allocator: Allocator) -> Allocator:
    """The shared allocator with two nodes."""
    await allocator.node("n1")
    await allocator.node("n2")
    return allocator


pytestmark = pytest.mark.asyncio(loop_scope="module")


def health_stub(channel: grpc.aio.Channel) -> Any:
    # The types of this stub don't know asynchronous channels.
    return health_pb2_grpc.HealthStub(cast("Any", channel))


def reasons_of(filtered: pb.FilterResponse) -> dict[str, str]:
    """Why each node is refused."""
    return {name: some.refusal.reason for some in filtered.refused for name in some.nodes}


async def test_a_pod_is_filtered_scored_reserved_and_bound(allocator: Allocator) -> None:
    await allocator.node("plain", npu=False)
    pod = ref(await allocator.pod("a", 4))
    filtered = await allocator.stub.Filter(pb.FilterRequest(pod=pod))
    assert sorted(filtered.nodes) == ["n1", "n2"]
    assert reasons_of(filtered) == {"plain": Reason.NOT_AN_NPU_NODE}
    scored = await allocator.stub.Score(pb.ScoreRequest(pod=pod, nodes=["n2", "n1"]))
    assert [(each.node, each.rank, each.score) for each in scored.nodes] == [("n1", 1, 256), ("n2", 1, 256)]

    reserved = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
    assert (reserved.node, reserved.bound) == ("n1", False)
    assert list(reserved.chips) == [f"Ascend910-{chip}" for chip in range(4)]
    assert reserved == await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))

    bound = await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
    assert (bound.node, bound.chips, bound.bound) == (reserved.node, reserved.chips, True)
    stored = (await allocator.read("a"))["metadata"]["annotations"]
    assert {key: stored[key] for key in (ALLOCATED, PREDICATE_TIME)} == dict(bound.annotations)
    await until(lambda: len(allocator.app.ledger) == 0)
    assert bound == await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))


async def test_answers_for_many_nodes_are_serialized_in_pieces_between_turns(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []

    async def serialize(parts: Iterable[pb.FilterResponse | pb.ScoreResponse], turn: Turn) -> bytes:
        made = list(parts)
        for part in made:
            refused = part.refused if isinstance(part, pb.FilterResponse) else ()
            pieces.append(len(part.nodes) + sum(len(nodes.nodes) for nodes in refused))
        return await serialized(made, turn)

    pod, serialized = ref(await allocator.pod("a", 4)), grpc_api._serialized
    names = [f"unknown-{number}" for number in range(200)]
    monkeypatch.setattr(grpc_api, "_STEP", 8)
    monkeypatch.setattr(grpc_api, "_serialized", serialize)
    monkeypatch.setattr("allocator.decision.engine._STEP", 8)
    filtered = await allocator.stub.Filter(pb.FilterRequest(pod=pod, nodes=["n1", *names]))
    assert list(filtered.nodes) == ["n1"]
    assert reasons_of(filtered) == dict.fromkeys(names, Reason.UNKNOWN_NODE)
    assert (max(pieces), sum(pieces)) == (8, 201)
    for number in range(20):
        await allocator.node(f"more-{number:02}")
    pieces.clear()
    scored = await allocator.stub.Score(pb.ScoreRequest(pod=pod))
    assert [each.node for each in scored.nodes] == [*(f"more-{number:02}" for number in range(20)), "n1", "n2"]
    assert (max(pieces), sum(pieces)) == (8, 22)
    assert (await allocator.stub.Explain(pb.ExplainRequest(pod=pod))).node == "more-00"


async def test_reserved_chips_can_be_released_but_not_bound_ones(allocator: Allocator) -> None:
    pod = ref(await allocator.pod("a", 8))
    await allocator.stub.Allocate(pb.AllocateRequest(pod=pod))
    release = pb.ReleaseRequest(pod_uid=pod.uid)
    assert (await allocator.stub.Release(release)).released
    assert not (await allocator.stub.Release(release)).released
    await allocator.stub.Allocate(pb.AllocateRequest(pod=pod, bind=True))
    assert not (await allocator.stub.Release(release)).released


async def test_the_state_shows_holders_and_reservations(allocator: Allocator) -> None:
    await allocator.node("plain", npu=False)
    holder = await allocator.pod("a", 1)
    assert await allocator.schedule(holder, ["n1"]) == "n1"
    await until(lambda: len(allocator.app.ledger) == 0)
    waiting = await allocator.pod("b", 1)
    await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(waiting)))
    state = await allocator.stub.GetState(pb.GetStateRequest())
    assert [each.node for each in state.nodes] == ["n1", "n2", "plain"]
    chips = state.nodes[0].chips
    assert state.nodes[0].product == "910A"
    assert [chip.name for chip in chips] == [f"Ascend910-{chip}" for chip in range(8)]
    assert all(chip.healthy for chip in chips)
    assert [list(chip.holders) for chip in chips[:3]] == [
        [pb.Holder(uid=holder["metadata"]["uid"], pod="default/a")],
        [pb.Holder(uid=waiting["metadata"]["uid"], pod="default/b", reserved=True)],
        [],
    ]
    assert state.nodes[2].refusal.reason == Reason.NOT_AN_NPU_NODE
    (unknown,) = (await allocator.stub.GetState(pb.GetStateRequest(nodes=["nowhere"]))).nodes
    assert unknown.refusal.reason == Reason.UNKNOWN_NODE
    first = await allocator.stub.GetState(pb.GetStateRequest(page_size=1))
    rest = await allocator.stub.GetState(pb.GetStateRequest(page_size=2, page_token=first.next_page_token))
    assert [each.node for each in (*first.nodes, *rest.nodes)] == ["n1", "n2", "plain"]
    assert not rest.next_page_token
    with pytest.raises(grpc.aio.AioRpcError, match=r"page_size.* -1") as wrong:
        await allocator.stub.GetState(pb.GetStateRequest(page_size=-1))
    assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("count", [None, 0])
async def test_a_refusal_is_an_answer_of_filter_and_an_error_of_allocate(
    allocator: Allocator, count: int | None
) -> None:
    invalid = ref(await allocator.pod("invalid", 3))
    filtered = await allocator.stub.Filter(pb.FilterRequest(pod=invalid))
    assert reasons_of(filtered) == dict.fromkeys(("n1", "n2"), Reason.INVALID_REQUEST)
    assert len(filtered.refused) == 1  # whatever the number of nodes, one sentence is sent
    assert not (await allocator.stub.Score(pb.ScoreRequest(pod=invalid))).nodes
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await allocator.stub.Allocate(pb.AllocateRequest(pod=invalid))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert str(refused.value.details()).startswith("InvalidRequest: ")

    none = ref(await allocator.pod("none", count))
    filtered = await allocator.stub.Filter(pb.FilterRequest(pod=none))
    assert reasons_of(filtered) == dict.fromkeys(("n1", "n2"), Reason.INVALID_REQUEST)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await allocator.stub.Allocate(pb.AllocateRequest(pod=none, bind=True))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await allocator.stub.Filter(pb.FilterRequest(pod=pb.PodRef(uid="unknown")))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert str(refused.value.details()).startswith("PodUnknown: ")


async def test_health_is_serving_once_calls_are_answered(tmp_path: Path) -> None:
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


async def test_reflection_works_over_a_unix_socket(tmp_path: Path) -> None:
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


async def test_errors_have_a_reason_and_metadata(allocator: Allocator) -> None:
    for name in ("n1", "n2"):
        await allocator.schedule(await allocator.pod(f"on-{name}", 1), [name])
    pod = await allocator.pod("a", 8)
    code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod))))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.NOT_ENOUGH_CHIPS)
    assert dict(info.metadata) == {"pod": "default/a", "pod_uid": pod["metadata"]["uid"]}
    unknown = pb.PodRef(namespace="default", name="b", uid="unknown")
    code, info = await failure(allocator.stub.Explain(pb.ExplainRequest(pod=unknown)))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, Reason.POD_UNKNOWN)
    code, info = await failure(allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=ref(pod), limit=-1)))
    assert (code, info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, Reason.INVALID_VALUE)


async def test_a_rejected_binding_is_an_error_and_releases_the_chips(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 1)
    allocator.server.fail_next("POST", "/binding", 403)
    code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)))
    assert code is grpc.StatusCode.ABORTED
    assert dict(info.metadata)["node"] == "n1"
    assert len(allocator.app.ledger) == 0


async def test_confirmed_chips_are_reserved_until_the_pod_is_seen_bound(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 2)
    uid = pod["metadata"]["uid"]
    confirm = pb.ConfirmRequest(pod=ref(pod), node="n1")
    code, info = await failure(allocator.stub.Confirm(confirm))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.NOT_RESERVED)
    reserved = await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod)))
    assert not (await allocator.stub.Confirm(confirm)).seen
    assert not (await allocator.stub.Confirm(confirm)).seen
    assert allocator.app.ledger.count(Stage.ASSUMED) == 1
    assert not (await allocator.stub.Release(pb.ReleaseRequest(pod_uid=uid))).released
    code, info = await failure(allocator.stub.Confirm(pb.ConfirmRequest(pod=ref(pod), node="n2")))
    assert info.reason == Reason.NOT_RESERVED
    await allocator.bind_as_another("a", uid, "n1", dict(reserved.annotations))
    await until(lambda: not len(allocator.app.ledger))
    assert (await allocator.stub.Confirm(confirm)).seen


async def test_a_binding_continues_after_the_deadline_of_its_caller(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 4)
    allocator.server.delay(r"/binding", 0.4)
    request = pb.AllocateRequest(pod=ref(pod), bind=True)
    code, info = await failure(allocator.stub.Allocate(request, timeout=0.2))
    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, Reason.UNREACHABLE)
    answer = await allocator.stub.Allocate(request)
    assert (answer.node, answer.bound) == ("n1", True)
    allocator.server.delay(r"/binding", 0)


async def test_the_pods_of_a_gang_are_bound_together(allocator: Allocator) -> None:
    annotations = {GROUP: "train", MIN_AVAILABLE: "2"}
    pods = [await allocator.pod(f"train-{rank}", 8, annotations=annotations) for rank in range(2)]
    first, second = (pb.AllocateRequest(pod=ref(pod), bind=True) for pod in pods)
    # Its caller has no time to wait: nothing is bound, and the pod keeps its seat.
    code, info = await failure(allocator.stub.Allocate(first, timeout=1.0))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.GANG_STEPPED_BACK)
    assert "nodeName" not in (await allocator.read("train-0"))["spec"]
    assert allocator.app.ledger.count(Stage.PLANNED) == 2
    answers = await asyncio.gather(allocator.stub.Allocate(first), allocator.stub.Allocate(second))
    assert sorted(answer.node for answer in answers) == ["n1", "n2"]
    assert all(answer.bound for answer in answers)


async def test_victims_are_listed_cheapest_node_first(allocator: Allocator) -> None:
    for name, priority in (("n1", 5), ("n2", 3)):
        for number in range(2):
            pod = await allocator.pod(f"{name}-{number}", 4, priority=priority + number)
            await allocator.schedule(pod, [name])
    urgent = ref(await allocator.pod("urgent", 4, priority=100))
    answer = await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=urgent))
    assert [(each.node, [victim.pod for victim in each.victims]) for each in answer.nodes] == [
        ("n2", ["default/n2-0"]),
        ("n1", ["default/n1-0"]),
    ]
    (victim,) = answer.nodes[0].victims
    assert (victim.priority, victim.ending, list(victim.chips)) == (3, False, [f"Ascend910-{n}" for n in range(4)])
    one = await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=urgent, limit=1))
    assert [each.node for each in one.nodes] == ["n2"]
    # Now the chips are kept for the pod: another one needs other victims.
    rival = ref(await allocator.pod("rival", 4, priority=9))
    answer = await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=rival))
    assert "default/n2-0" not in {victim.pod for each in answer.nodes for victim in each.victims}
    modest = ref(await allocator.pod("modest", 4, priority=3))
    assert not (await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=modest))).nodes
    invalid = ref(await allocator.pod("invalid", 3, priority=100))
    assert not (await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=invalid))).nodes


async def test_a_pod_is_explained_at_every_stage(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 8)

    async def explained(nodes: tuple[str, ...] = ()) -> pb.ExplainResponse:
        answer = await allocator.stub.Explain(pb.ExplainRequest(pod=ref(pod), nodes=nodes))
        assert isinstance(answer, pb.ExplainResponse)
        return answer

    fits = await explained()
    assert (fits.standing, fits.node, fits.fitting) == ("fits", "n1", 2)
    await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), nodes=["n2"]))
    assert ((await explained()).standing, (await explained()).node) == ("reserved", "n2")
    await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True))
    await until(lambda: not len(allocator.app.ledger))
    assert ((await explained()).standing, (await explained()).node) == ("bound", "n2")
    pod = await allocator.pod("b", 8)
    refused = await explained(("n2", "nowhere", "elsewhere"))
    assert (refused.standing, refused.fitting) == ("refused", 0)
    assert [(each.reason, each.nodes, list(each.examples)) for each in refused.obstacles] == [
        (Reason.UNKNOWN_NODE, 2, ["nowhere", "elsewhere"]),
        (Reason.NOT_ENOUGH_CHIPS, 1, ["n2"]),
    ]
    pod = await allocator.pod("c", 3)
    invalid = await explained()
    assert (invalid.standing, invalid.obstacles[0].reason) == ("refused", Reason.INVALID_REQUEST)


async def test_a_gang_member_is_explained_whatever_nodes_are_named(allocator: Allocator) -> None:
    own = node_manifest("n0")
    own["metadata"]["labels"] = {"pool": "a"}
    await allocator.server.create(own)
    pods = []
    for name in ("a", "b"):
        manifest = pod_manifest(name, 8, annotations={GROUP: "train", MIN_AVAILABLE: "2"})
        manifest["spec"]["nodeSelector"] = {"pool": "a"}
        pods.append(await allocator.server.create(manifest))
    await until(lambda: len(allocator.app.cluster.pods) == len(pods) and "n0" in allocator.app.cluster.nodes)
    # Some clients name all nodes, and not only those that the pod selects.
    answer = await allocator.stub.Explain(pb.ExplainRequest(pod=ref(pods[0]), nodes=["n0", "n1", "n2"]))
    assert (answer.standing, answer.node, answer.fitting) == ("fits", "n0", 1)


async def test_watch_sends_every_node_and_then_the_changed_ones(allocator: Allocator) -> None:
    watch = allocator.stub.Watch(pb.WatchRequest())
    first = await anext(aiter(watch))
    assert [each.node for each in first.nodes] == ["n1", "n2"]
    pod = await allocator.pod("a", 2)
    await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), nodes=["n2"]))
    changed = await anext(aiter(watch))
    assert [each.node for each in changed.nodes] == ["n2"]
    assert [holder.pod for holder in changed.nodes[0].chips[0].holders] == ["default/a"]
    assert changed.revision > first.revision
    await allocator.remove_node("n1")
    deleted = await anext(aiter(watch))
    assert list(deleted.gone) == ["n1"]
    watch.cancel()
    some = allocator.stub.Watch(pb.WatchRequest(nodes=["n2", "nowhere"]))
    assert [each.node for each in (await anext(aiter(some))).nodes] == ["n2"]
    some.cancel()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.PodRequest(resources={RESOURCE: 8}, replicas=600), ""),
        (pb.PodRequest(resources={RESOURCE: 4}), ""),
        (pb.PodRequest(resources={"cpu": 3}), ""),
        (pb.PodRequest(resources={RESOURCE: 99}), Reason.INVALID_REQUEST),
        (pb.PodRequest(resources={RESOURCE: -1}), Reason.INVALID_REQUEST),
        (
            pb.PodRequest(resources={RESOURCE: 4}, replicas=3, node_selector={"accelerator-type": "module"}),
            Reason.INVALID_REQUEST,
        ),
        (
            pb.PodRequest(
                resources={RESOURCE: 4},
                replicas=3,
                node_selector={"accelerator-type": "module"},
                annotations={"ascend-affinity.io/independent": "true"},
            ),
            "",
        ),
        (
            pb.PodRequest(resources={RESOURCE: 4}, annotations={"huawei.com/schedule_policy": "best"}),
            Reason.UNKNOWN_POLICY,
        ),
        (pb.PodRequest(resources={RESOURCE: 8}, labels={"tor-affinity": "?"}), Reason.INVALID_REQUEST),
        (pb.PodRequest(resources={RESOURCE: 8}, labels={"tor-affinity": "normal-schema"}, replicas=2), ""),
        (pb.PodRequest(resources={RESOURCE: 4}, annotations={"sp-block": "16"}), Reason.INVALID_REQUEST),
        *(
            (
                pb.PodRequest(
                    resources={RESOURCE: 16},
                    replicas=4,
                    annotations={"sp-block": block},
                    node_selector={"accelerator-type": "module-a3-16-super-pod"},
                ),
                reason,
            )
            for block, reason in (("32", ""), ("48", Reason.INVALID_REQUEST))
        ),
    ],
    ids=str,
)
async def test_a_job_is_validated_before_its_pods_exist(
    allocator: Allocator, request_: pb.PodRequest, reason: str
) -> None:
    answer = await allocator.stub.ValidateJob(pb.ValidateJobRequest(job="default/train", pods=[request_]))
    assert answer.refusal.reason == reason
    assert answer.HasField("refusal") == bool(reason)


async def test_a_job_is_validated_by_an_allocator_that_reschedules(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator.app.cluster.jobs, "reschedules", True)
    pods = [pb.PodRequest(resources={RESOURCE: 8}, labels={"fault-scheduling": "grace", "pod-rescheduling": "yes"})]
    answer = await allocator.stub.ValidateJob(pb.ValidateJobRequest(job="default/train", pods=pods))
    (sentence,) = answer.without_effect
    assert sentence.startswith("label pod-rescheduling=yes (known values: on, off): ")


async def test_what_a_job_requests_without_effect_is_named_once(allocator: Allocator) -> None:
    pods = [
        pb.PodRequest(resources={RESOURCE: 8}, labels={"fault-scheduling": "grace"}, replicas=4),
        pb.PodRequest(resources={"huawei.com/npu": 4}),
    ]
    answer = await allocator.stub.ValidateJob(pb.ValidateJobRequest(job="default/train", pods=pods))
    assert not answer.HasField("refusal")
    faults, others = answer.without_effect
    assert faults.startswith("label fault-scheduling=grace: ")
    assert others.startswith("resource huawei.com/npu: ")
    for chips, standing in ((8, "fits"), (3, "refused")):
        pod = await allocator.pod(f"a-{chips}", chips, labels={"fault-scheduling": "grace"})
        explained = await allocator.stub.Explain(pb.ExplainRequest(pod=ref(pod)))
        assert (explained.standing, list(explained.without_effect)) == (standing, [faults])
