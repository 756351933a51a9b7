"""What is believed of a call: the API server's pod, never what the caller says of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio

from allocator.binding.known_pods import FOR_ANYONE
from allocator.state.promises import Promise
from ascend.annotations import ALLOCATED
from ascend.chips import RESOURCE
from ascend.reasons import Reason
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, Json, failure, pod_manifest, ref, review, running, until

NODES = ["n1", "n2", "n3", "n4"]
READ = ("", "get pods")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(tmp_path: Path) -> AsyncIterator[Allocator]:
    """An allocator with four servers."""
    async with ApiServer() as server, running(server, tmp_path, volcano=True) as made:
        for name in NODES:
            await made.node(name)
        yield made


def ghost(name: str, **metadata: Any) -> Json:
    """A pod that does not exist."""
    return pod_manifest(name, 8, uid=f"ghost-{name}", **metadata)


async def victims(allocator: Allocator, pod: Json, of: Json) -> tuple[int, str]:
    """Status and text of the answer to a preempt call for a pod, with one victim on n1."""
    body = {"Pod": pod, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": of["metadata"]["uid"]}]}}}
    url = f"http://{allocator.app.extender_address}/scheduler/preempt"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        return response.status, await response.text()


async def ask_volcanos(allocator: Allocator, verb: str, pod: Json, node: str) -> Json:
    task = {"UID": pod["metadata"]["uid"], "NodeName": node, "Status": 2, "Pod": pod}
    url = f"http://{allocator.app.extender_address}/volcano/{verb}"
    call = {"task": task, "node": {"Name": node, "Tasks": None}, "job": {"Tasks": {task["UID"]: task}}}
    async with aiohttp.ClientSession() as http, http.post(url, json=call) as response:
        assert response.status == 200
        answer: Json = await response.json()
        return answer


def lag(allocator: Allocator) -> None:
    """Let the informers see nothing from now on."""
    allocator.server.pause_watches()


async def foreign(allocator: Allocator, name: str, count: int | None, scheduler: str = "nobody") -> Json:
    """A pod of another scheduler."""
    manifest = pod_manifest(name, count)
    manifest["spec"] |= {"schedulerName": scheduler, "nodeSelector": {"trusted": "yes"}}
    manifest["spec"]["volumes"] = [{"name": "s", "secret": {"secretName": "payroll-db"}}]
    created = await allocator.server.create(manifest)
    uid, cluster = created["metadata"]["uid"], allocator.app.cluster
    await until(lambda: uid in cluster.pods or uid in cluster.plain)
    return created


async def test_pods_that_do_not_exist_book_nothing(allocator: Allocator) -> None:
    for number in range(4):
        pod = ghost(f"g{number}")
        answer = await allocator.filter(pod, NODES)
        assert (answer["NodeNames"], answer["FailedAndUnresolvableNodes"]) == (None, {})
        assert answer["Error"].startswith("PodUnknown: the API server has no pod default/g")
        assert (await allocator.bind(pod, "n1")).startswith("PodUnknown: ")
        status, text = await victims(allocator, pod, pod)
        assert (status, text.partition(":")[0]) == (503, "PodUnknown")
        for call in (
            allocator.stub.Filter(pb.FilterRequest(pod=ref(pod))),
            allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod))),
            allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)),
            allocator.stub.SelectVictims(pb.SelectVictimsRequest(pod=ref(pod))),
        ):
            code, info = await failure(call)
            assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, Reason.POD_UNKNOWN)
        assert (await ask_volcanos(allocator, "allocateFunc", pod, "n1"))["errorMessage"].startswith("PodUnknown: ")
        assert not (await ask_volcanos(allocator, "jobReady", pod, "n1"))["status"]
        binding = {"metadata": pod["metadata"], "target": {"name": "n1"}}
        answer = await review(allocator, "bindings", binding)
        assert (answer["allowed"], answer["status"]["code"]) == (False, 404)
    assert len(allocator.app.ledger) == 0
    assert (await allocator.filter(await allocator.pod("honest", 1), NODES))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("count", [None, 0, 8])
async def test_the_pod_of_another_scheduler_is_neither_bound_nor_booked(
    allocator: Allocator, count: int | None
) -> None:
    pod = await foreign(allocator, "payroll", count)
    sentence = (await allocator.bind(pod, "n4")).partition("; ")[0]
    assert sentence.startswith("SchedulerNotServed: pod default/payroll names the scheduler 'nobody'")
    assert "scheduler_names (default-scheduler)" in sentence
    if count:
        answer = await allocator.filter(pod, NODES)
        assert answer["NodeNames"] == []
        assert set(answer["FailedAndUnresolvableNodes"].values()) == {sentence}
        for bind in (False, True):
            code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=bind)))
            assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.SCHEDULER_NOT_SERVED)
        assert (await allocator.stub.Explain(pb.ExplainRequest(pod=ref(pod)))).standing == "fits"
    assert "nodeName" not in (await allocator.read("payroll"))["spec"]
    assert len(allocator.app.ledger) == 0


async def test_what_another_scheduler_has_placed_is_not_released_over_grpc(allocator: Allocator) -> None:
    pod = await foreign(allocator, "theirs", 8, "volcano")
    assert (await ask_volcanos(allocator, "allocateFunc", pod, "n2"))["errorMessage"] == ""
    code, info = await failure(allocator.stub.Release(pb.ReleaseRequest(pod_uid=pod["metadata"]["uid"])))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, Reason.SCHEDULER_NOT_SERVED)
    code, info = await failure(allocator.stub.Confirm(pb.ConfirmRequest(pod=ref(pod))))
    assert info.reason == Reason.SCHEDULER_NOT_SERVED
    assert len(allocator.app.ledger) == 1


async def test_a_webhook_serves_pods_of_any_scheduler(allocator: Allocator) -> None:
    pod = await foreign(allocator, "theirs", 8, "volcano")
    answer = await review(allocator, "bindings", {"metadata": pod["metadata"], "target": {"name": "n3"}})
    assert answer["allowed"]
    assert [each.node for each in allocator.app.ledger] == ["n3"]


@pytest.mark.parametrize("count", [None, 8])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen yet"])
async def test_no_answer_tells_a_uid_that_the_caller_did_not_have(
    allocator: Allocator,
    count: int | None,
    seen: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    if not seen:
        lag(allocator)
    pod = await (allocator.pod("payroll", count) if seen else allocator.server.create(pod_manifest("payroll", count)))
    uid = pod["metadata"]["uid"]
    guessed: Json = {**pod, "metadata": {**pod["metadata"], "uid": "guess"}}
    absent: Json = {**guessed, "metadata": {**guessed["metadata"], "name": "absent"}}
    for call in (guessed, absent):
        name = call["metadata"]["name"]
        texts = [
            (await allocator.filter(call, NODES))["Error"],
            await allocator.bind(call, "n1"),
            (await victims(allocator, call, call))[1],
        ]
        # A wrong uid and a wrong name are told apart by nothing.
        assert set(texts) == {f"PodUnknown: the API server has no pod default/{name} with uid 'guess'"}
        binding = {"metadata": call["metadata"], "target": {"name": "n1"}}
        texts.append(json.dumps(await review(allocator, "bindings", binding)))
        for rpc in (
            allocator.stub.Allocate(pb.AllocateRequest(pod=ref(call), bind=True)),
            allocator.stub.Explain(pb.ExplainRequest(pod=ref(call))),
            allocator.stub.Confirm(pb.ConfirmRequest(pod=ref(call))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rpc
            texts.append(f"{refused.value.details()} {refused.value.trailing_metadata()}")
        texts.append(json.dumps(await ask_volcanos(allocator, "allocateFunc", call, "n1")))
        assert not [text for text in texts if uid in text]


@pytest.mark.parametrize("count", [None, 8])
async def test_a_pod_recreated_meanwhile_keeps_its_uid_to_itself(allocator: Allocator, count: int | None) -> None:
    old = await allocator.pod("payroll", count)
    lag(allocator)
    await allocator.delete("payroll")
    new = await allocator.server.create(pod_manifest("payroll", count))
    error = await allocator.bind(old, "n1")
    assert error.startswith("PodGone: pod default/payroll was recreated")
    assert new["metadata"]["uid"] not in error
    assert "nodeName" not in (await allocator.read("payroll"))["spec"]


async def test_request_and_priority_are_those_of_the_api_server(allocator: Allocator) -> None:
    low = await allocator.pod("low", 8, priority=5)
    assert await allocator.schedule(low, ["n1"]) == "n1"
    pod = await allocator.pod("modest", 8, priority=1)
    forged = {**pod, "spec": {**pod["spec"], "priority": 1_000}}
    status, text = await victims(allocator, forged, low)
    assert (status, json.loads(text)) == (200, {"NodeNameToMetaVictims": {}})
    small = json.loads(json.dumps(pod))
    small["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    small["metadata"]["annotations"] = {"huawei.com/schedule_minAvailable": "7"}
    assert (await allocator.filter(small, ["n2"]))["NodeNames"] == ["n2"]
    (held,) = (each for each in allocator.app.ledger if each.uid == pod["metadata"]["uid"])
    assert len(held.take.chips) == 8
    nothing = {**pod, "spec": {"containers": []}}
    assert (await allocator.filter(nothing, ["n1"]))["NodeNames"] == []  # it is in use


async def test_a_scheduler_ahead_of_the_informers_is_served_by_one_read(allocator: Allocator) -> None:
    lag(allocator)
    pod = await allocator.server.create(pod_manifest("new", 8))
    before = allocator.server.requests[READ]
    assert (await allocator.filter(pod, NODES))["NodeNames"] == ["n1"]
    assert allocator.server.requests[READ] == before + 1
    assert await allocator.bind(pod, "n1") == ""
    assert (await allocator.read("new"))["metadata"]["annotations"][ALLOCATED].count(",") == 7
    other = await foreign_unseen(allocator)
    assert (await allocator.bind(other, "n2")).startswith("SchedulerNotServed: ")


async def foreign_unseen(allocator: Allocator) -> Json:
    manifest = pod_manifest("other", None)
    manifest["spec"]["schedulerName"] = "nobody"
    return await allocator.server.create(manifest)


async def test_a_pod_that_has_changed_since_it_was_seen_is_read(allocator: Allocator) -> None:
    manifest = pod_manifest("queued", 8)
    manifest["spec"]["schedulingGates"] = [{"name": "example.com/queue"}]
    pod = await allocator.server.create(manifest)
    await until(lambda: pod["metadata"]["uid"] in allocator.app.cluster.pods)
    assert "PodGated" in str(await allocator.filter(pod, NODES))
    before = allocator.server.requests[READ]
    lag(allocator)
    admitted = await allocator.patch("queued", {"spec": {"schedulingGates": None}})
    assert (await allocator.filter(admitted, NODES))["NodeNames"] == ["n1"]
    assert allocator.server.requests[READ] == before + 1
    assert "PodGated" in str(await allocator.filter({**admitted, "metadata": pod["metadata"]}, NODES))
    assert allocator.server.requests[READ] == before + 1


async def test_a_pod_that_can_not_be_read_again_is_judged_as_it_was_seen(allocator: Allocator) -> None:
    pod = await allocator.pod("a", 8)
    ahead = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(10**30)}}
    allocator.server.fail_next("GET", "/pods/a", 500)
    assert (await allocator.filter(ahead, NODES))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("count", [None, 8])
async def test_a_uid_under_another_name_is_refused(allocator: Allocator, count: int | None) -> None:
    mine, theirs = await allocator.pod("mine", count), await allocator.pod("theirs", 8)
    uid = mine["metadata"]["uid"]
    for namespace, name in (("default", "theirs"), ("other", "mine"), ("default", "absent"), ("..", ".."), ("", "")):
        call: Json = {**theirs, "metadata": {"namespace": namespace, "name": name, "uid": uid}}
        error = await allocator.bind(call, "n1")
        assert error.partition(":")[0] in {"PodUnknown", "PodGone", "NotFound"}, (namespace, name, error)
        assert theirs["metadata"]["uid"] not in error
    assert [("nodeName" in (await allocator.read(name))["spec"]) for name in ("mine", "theirs")] == [False, False]


async def test_a_finished_pod_books_nothing(allocator: Allocator) -> None:
    pod = await allocator.pod("done", 8)
    await allocator.patch("done", {"status": {"phase": "Succeeded"}}, subresource="status")
    await until(lambda: not allocator.app.cluster.pods[pod["metadata"]["uid"]].is_live)
    assert "PodFinished" in str(await allocator.filter(pod, NODES))
    assert "PodFinished" in (await ask_volcanos(allocator, "allocateFunc", pod, "n1"))["errorMessage"]
    assert len(allocator.app.ledger) == 0


async def test_strangers_can_not_make_the_allocator_read_without_limit(allocator: Allocator) -> None:
    before, started_s = allocator.server.requests[READ], time.monotonic()
    refs = [(f"tenant-{number % 40}", f"ghost-{number}") for number in range(10 * FOR_ANYONE.burst)]
    bindings = [
        {"metadata": {"namespace": namespace, "name": name, "uid": "x"}, "target": {"name": "n1"}}
        for namespace, name in refs
    ]
    answers = await asyncio.gather(*(review(allocator, "bindings", each) for each in bindings))
    assert {answer["status"]["code"] for answer in answers} == {404, 503}
    most = FOR_ANYONE.burst + FOR_ANYONE.per_s * (time.monotonic() - started_s) + 1
    assert FOR_ANYONE.at_once <= allocator.server.requests[READ] - before <= most  # how many depends on the machine
    # Pods that the informers have seen need no read, and schedulers have a limit of their own.
    pod = await allocator.pod("a", 8)
    assert (await review(allocator, "bindings", {"metadata": pod["metadata"], "target": {"name": "n1"}}))["allowed"]
    lag(allocator)
    assert (await allocator.filter(await allocator.server.create(pod_manifest("b", 8)), ["n2"]))["NodeNames"] == ["n2"]


async def test_one_namespace_leaves_reads_of_pods_to_others(allocator: Allocator) -> None:
    target = {"name": "n1"}
    for number in range(2 * FOR_ANYONE.burst):
        metadata = {"namespace": "tenant", "name": f"ghost-{number}", "uid": "x"}
        assert not (await review(allocator, "bindings", {"metadata": metadata, "target": target}))["allowed"]
    lag(allocator)
    pod = await allocator.server.create(pod_manifest("new", 8))
    assert (await review(allocator, "bindings", {"metadata": pod["metadata"], "target": target}))["allowed"]


async def test_volcanos_calls_read_nothing(allocator: Allocator) -> None:
    lag(allocator)
    pod = await allocator.server.create(pod_manifest("new", 8))
    before = allocator.server.requests[READ]
    answer = await ask_volcanos(allocator, "predicate", pod, "n1")
    assert (answer["status"].partition(":")[0], answer["code"]) == ("PodUnknown", 1)
    assert allocator.server.requests[READ] == before


@pytest.mark.parametrize("metadata", [{"name": "other"}, {"name": "a", "namespace": "elsewhere"}])
async def test_a_binding_that_contradicts_its_review_is_denied(allocator: Allocator, metadata: Json) -> None:
    pod = await allocator.pod("a", 8)
    binding = {"metadata": {"uid": pod["metadata"]["uid"], **metadata}, "target": {"name": "n1"}}
    body = {"request": {"uid": "r", "object": binding, "name": "a", "namespace": "default"}}
    url = f"http://{allocator.app.extender_address}/webhook/bindings"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        assert response.status == 400  # the API server denies what a webhook does not answer
        assert "names another one" in await response.text()
    assert len(allocator.app.ledger) == 0


@pytest.mark.parametrize(("name", "namespace"), [("..", "default"), ("", "default"), ("a", ".."), ("A/b", "default")])
async def test_a_name_that_no_pod_can_have_is_not_asked_for(allocator: Allocator, name: str, namespace: str) -> None:
    before = allocator.server.requests.copy()
    binding = {"metadata": {"name": name, "uid": "u"}, "target": {"name": "n1"}}
    answer = await review(allocator, "bindings", binding, namespace=namespace)
    assert (answer["allowed"], answer["status"]["code"]) == (False, 404)
    assert allocator.server.requests == before


async def test_no_event_is_posted_about_pods_that_do_not_exist(allocator: Allocator) -> None:
    await allocator.bind(ghost("g"), "n1")
    await review(allocator, "bindings", {"metadata": {"name": "g", "uid": "x"}, "target": {"name": "n1"}})
    assert "nothing" not in await allocator.bind(await allocator.pod("invalid", 3), "n1")
    await until(lambda: allocator.server.requests["", "post events"])
    assert allocator.server.requests["", "post events"] == 1


async def test_no_refusal_names_what_waits_in_other_namespaces(allocator: Allocator) -> None:
    kept = dict.fromkeys(NODES, 255)
    allocator.app.ledger.promises.keep(Promise("secret", "job team-a/merger", 5, kept, time.monotonic() + 600))
    for namespace in ("team-a", "team-b"):
        await allocator.server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        pod = await allocator.server.create(pod_manifest("waits", 8, namespace=namespace))
        await until(lambda uid=pod["metadata"]["uid"]: uid in allocator.app.cluster.pods)  # type: ignore[misc]  # bound
        binding = {"metadata": pod["metadata"], "target": {"name": "n1"}}
        texts = [
            json.dumps(await allocator.filter(pod, NODES)),
            await allocator.bind(pod, "n1"),
            json.dumps(await review(allocator, "bindings", binding)),
            json.dumps(await ask_volcanos(allocator, "predicate", pod, "n1")),
        ]
        assert all("ChipsKept" in text for text in texts)
        assert [("merger" in text) for text in texts] == [namespace == "team-a"] * len(texts)
