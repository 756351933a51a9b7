"""``ascend.allocator.v1`` beyond placing one pod: errors for programs, confirming, preempting, explaining, watching."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from allocator.state.changes import Changes
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, failure, node_manifest, pod_manifest, ref, running, until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running_server:
        yield running_server


@pytest.fixture
async def allocator(server: ApiServer, tmp_path: Path) -> AsyncIterator[Allocator]:
    async with running(server, tmp_path) as started:
        await started.node("n1")
        await started.node("n2")
        yield started


async def test_a_refusal_can_be_read_by_programs(allocator: Allocator) -> None:
    for name in ("n1", "n2"):
        await allocator.schedule(await allocator.pod(f"on-{name}", 1), [name])
    pod = await allocator.pod("a", 8)
    code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod))))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NotEnoughChips")
    assert dict(info.metadata) == {"pod": "default/a", "pod_uid": pod["metadata"]["uid"]}
    nobody = pb.PodRef(namespace="default", name="b", uid="nobody")
    code, info = await failure(allocator.stub.Explain(pb.ExplainRequest(pod=nobody)))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "PodUnknown")
    code, info = await failure(allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=ref(pod), limit=-1)))
    assert (code, info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "InvalidValue")


async def test_what_the_api_server_refuses_is_passed_on_with_its_reason(
    server: ApiServer, allocator: Allocator
) -> None:
    pod = await allocator.pod("a", 1)
    server.fail_next("POST", "/binding", 403)
    code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)))
    assert code is grpc.StatusCode.ABORTED
    assert dict(info.metadata)["node"] == "n1"


async def test_chips_confirmed_as_bound_are_kept_until_the_pod_is_seen_bound(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 2)
    uid = pod["metadata"]["uid"]
    confirm = pb.ConfirmRequest(pod=ref(pod), node="n1")
    code, info = await failure(allocator.stub.Confirm(confirm))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NotReserved")
    kept = await allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod)))
    assert not (await allocator.stub.Confirm(confirm)).seen
    assert not (await allocator.stub.Confirm(confirm)).seen
    assert allocator.app.ledger.count(Stage.ASSUMED) == 1
    assert not (await allocator.stub.Release(pb.ReleaseRequest(pod_uid=uid))).released
    code, info = await failure(allocator.stub.Confirm(pb.ConfirmRequest(pod=ref(pod), node="n2")))
    assert info.reason == "NotReserved"
    await allocator.bind_as_another("a", uid, "n1", dict(kept.annotations))
    await until(lambda: not len(allocator.app.ledger))
    assert (await allocator.stub.Confirm(confirm)).seen


async def test_a_caller_in_a_hurry_is_answered_in_time_and_the_binding_goes_on(
    server: ApiServer, allocator: Allocator
) -> None:
    pod = await allocator.pod("a", 4)
    server.delay(r"/binding", 0.4)
    request = pb.AllocateRequest(pod=ref(pod), bind=True)
    code, info = await failure(allocator.stub.Allocate(request, timeout=0.2))
    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "Unreachable")
    answer = await allocator.stub.Allocate(request)
    assert (answer.node, answer.bound) == ("n1", True)


async def test_victims_are_named_for_the_nodes_where_they_matter_least(allocator: Allocator) -> None:
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
    modest = ref(await allocator.pod("modest", 4, priority=3))
    assert not (await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=modest))).nodes
    senseless = ref(await allocator.pod("senseless", 3, priority=100))
    assert not (await allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=senseless))).nodes


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
        ("UnknownNode", 2, ["nowhere", "elsewhere"]),
        ("NotEnoughChips", 1, ["n2"]),
    ]
    pod = await allocator.pod("c", 3)
    senseless = await explained()
    assert (senseless.standing, senseless.obstacles[0].reason) == ("refused", "InvalidRequest")


async def test_a_dashboard_is_told_of_every_node_and_then_of_those_that_change(allocator: Allocator) -> None:
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
    gone = await anext(aiter(watch))
    assert list(gone.gone) == ["n1"]
    watch.cancel()
    some = allocator.stub.Watch(pb.WatchRequest(nodes=["n2", "nowhere"]))
    assert [each.node for each in (await anext(aiter(some))).nodes] == ["n2"]
    some.cancel()


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (pb.PodRequest(resources={RESOURCE: 8}, replicas=600), ""),
        (pb.PodRequest(resources={RESOURCE: 4}), ""),
        (pb.PodRequest(resources={"cpu": 3}), ""),
        (pb.PodRequest(resources={RESOURCE: 99}), "InvalidRequest"),
        (pb.PodRequest(resources={RESOURCE: -1}), "InvalidRequest"),
        (
            pb.PodRequest(resources={RESOURCE: 4}, replicas=3, node_selector={"accelerator-type": "module"}),
            "InvalidRequest",
        ),
        (pb.PodRequest(resources={RESOURCE: 4}, annotations={"huawei.com/schedule_policy": "best"}), "UnknownPolicy"),
    ],
    ids=str,
)
async def test_a_job_is_judged_before_any_of_its_pods_exists(
    allocator: Allocator, ask: pb.PodRequest, reason: str
) -> None:
    answer = await allocator.stub.ValidateJob(pb.ValidateJobRequest(job="default/train", pods=[ask]))
    assert answer.refusal.reason == reason
    assert answer.HasField("refusal") == bool(reason)


def test_changes_are_told_once_each_in_the_order_of_the_last_change() -> None:
    changes = Changes()
    for name in ("a", "b", "a", "c"):
        changes.note(name)
    assert changes.since(0) == ["c", "a", "b"]
    assert changes.since(3) == ["c"]
    assert changes.since(changes.revision) == []


def test_who_has_been_away_too_long_reads_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.state.changes._LIMIT", 3)
    changes = Changes()
    for name in "abcd":
        changes.note(name)
    assert changes.since(0) is None
    assert changes.since(1) == ["d", "c", "b"]


async def test_a_pod_of_a_gang_is_explained_whatever_nodes_are_named(server: ApiServer, allocator: Allocator) -> None:
    own = node_manifest("n0")
    own["metadata"]["labels"] = {"pool": "a"}
    await server.create(own)
    pods = []
    for name in ("a", "b"):
        manifest = pod_manifest(name, 8, annotations={"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"})
        manifest["spec"]["nodeSelector"] = {"pool": "a"}
        pods.append(await server.create(manifest))
    await until(lambda: len(allocator.app.cluster.pods) == len(pods) and "n0" in allocator.app.cluster.nodes)
    # Some name all nodes there are, and not only those that the pod selects.
    answer = await allocator.stub.Explain(pb.ExplainRequest(pod=ref(pods[0]), nodes=["n0", "n1", "n2"]))
    assert (answer.standing, answer.node, answer.fitting) == ("fits", "n0", 1)
