"""The webhooks: chips for Bindings of schedulers that know nothing of them, and early words about senseless pods."""

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, FENCE, PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.errors import ApiError
from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from sandbox.apiserver.patches import json_patch
from sandbox.apiserver.resources import PODS
from sandbox.apiserver.status import forbidden
from tests.allocator.harness import Allocator, pod_manifest, review, running, told, until

Json = dict[str, Any]


def asking(name: str, resources: Json, **metadata: Any) -> Json:
    """A pod that asks for other resources than whole chips."""
    manifest = pod_manifest(name, None, **metadata)
    manifest["spec"]["containers"][0]["resources"] = {"limits": resources, "requests": resources}
    return manifest


def register(server: ApiServer, allocator: Allocator) -> None:
    """Have the API server show all Bindings to the allocator."""

    async def hook(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        if subresource != "binding":
            return document
        answer = await review(allocator, "bindings", document)
        if not answer["allowed"]:
            said = f'admission webhook "bindings" denied the request: {answer["status"]["message"]}'
            raise forbidden(PODS, document["metadata"]["name"], said)
        if "patch" in answer:
            document = json_patch(document, json.loads(base64.b64decode(answer["patch"])))
        return document

    server.admission.append(hook)


async def bind(client: KubeClient, pod: Json, node: str, **annotations: str) -> str:
    """As a scheduler would that knows of no chips; the error, or nothing."""
    meta = pod["metadata"]
    try:
        await client.bind(
            namespace=meta["namespace"], name=meta["name"], uid=meta["uid"], node=node, annotations=annotations
        )
    except ApiError as error:
        return str(error)
    return ""


async def connect(server: ApiServer, folder: Path) -> KubeClient:
    path = folder / "scheduler.json"
    path.write_text(json.dumps(server.kubeconfig()))
    return await KubeClient.connect(str(path))


async def test_whatever_scheduler_binds_it_a_pod_gets_chips_in_the_same_step(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        await allocator.node("n1")
        async with await connect(server, tmp_path) as scheduler:
            assert await bind(scheduler, await allocator.pod("a", 4), "n1") == ""
            forged = {ALLOCATED: "Ascend910-0", "note": "kept"}
            assert await bind(scheduler, await allocator.pod("b", 2), "n1", **forged) == ""
        a, b = [(await allocator.read(name)) for name in "ab"]
        assert a["spec"]["nodeName"] == "n1"
        assert a["metadata"]["annotations"][ALLOCATED] == ",".join(f"Ascend910-{chip}" for chip in range(4))
        assert b["metadata"]["annotations"][ALLOCATED] == "Ascend910-4,Ascend910-5"
        assert b["metadata"]["annotations"]["note"] == "kept"
        assert int(a["metadata"]["annotations"][PREDICATE_TIME]) < int(b["metadata"]["annotations"][PREDICATE_TIME])
        await until(lambda: len(allocator.app.ledger) == 0)


async def test_a_binding_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        await allocator.node("n1")
        async with await connect(server, tmp_path) as scheduler:
            assert await bind(scheduler, await allocator.pod("a", 8), "n1") == ""
            refused = await bind(scheduler, await allocator.pod("b", 1), "n1")
            said = await allocator.filter(await allocator.read("b"), ["n1"])
            (sentence,) = (said["FailedNodes"] | said["FailedAndUnresolvableNodes"]).values()
            assert refused.endswith(f"denied the request: {sentence}")
            assert "UnknownNode" in await bind(scheduler, await allocator.pod("c", 1), "nowhere")
        assert "nodeName" not in (await allocator.read("b"))["spec"]
        assert 'outcome="refused",reason="UnknownNode"' in (await allocator.get("/metrics"))[1]


@pytest.mark.parametrize("count", [None, 0])
async def test_pods_without_chips_pass_as_they_are(tmp_path: Path, count: int | None) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        async with await connect(server, tmp_path) as scheduler:
            assert await bind(scheduler, await allocator.pod("plain", count), "anywhere") == ""
            pod = await allocator.pod("invents", count)
            assert await bind(scheduler, pod, "anywhere", **{ALLOCATED: "Ascend910-0", "note": "kept"}) == ""
        assert "annotations" not in (await allocator.read("plain"))["metadata"]
        assert (await allocator.read("invents"))["metadata"]["annotations"] == {"note": "kept"}


async def test_our_own_bindings_pass_unchanged(tmp_path: Path) -> None:
    settings: Json = {"leader_election": True, "lease_duration_s": 3.0}
    async with ApiServer() as server, running(server, tmp_path, **settings) as allocator:
        register(server, allocator)
        await allocator.node("n1")
        pod = await allocator.pod("a", 2)
        assert await allocator.schedule(pod, ["n1"]) == "n1"
        bound = (await allocator.read("a"))["metadata"]["annotations"]
        assert bound[ALLOCATED] == "Ascend910-0,Ascend910-1"
        await until(lambda: len(allocator.app.ledger) == 0)
        async with await connect(server, tmp_path) as scheduler:
            assert await bind(scheduler, await allocator.pod("b", 2), "n1") == ""
        assert (await allocator.read("b"))["metadata"]["annotations"][FENCE] == bound[FENCE]


async def test_the_chips_of_a_binding_that_failed_afterwards_are_kept_and_given_to_the_same_pod_again(
    tmp_path: Path,
) -> None:
    failing = True

    async def deny(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        if failing and subresource == "binding":
            raise forbidden(PODS, document["metadata"]["name"], "another webhook says no")
        return document

    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        server.admission.append(deny)
        for node in ("n1", "n2"):
            await allocator.node(node)
        async with await connect(server, tmp_path) as scheduler:
            a, b = await allocator.pod("a", 8), await allocator.pod("b", 8)
            assert "another webhook" in await bind(scheduler, a, "n1")
            assert allocator.app.ledger.count(Stage.DOUBTFUL) == 1
            failing = False
            # The first one may still be made, so its chips are nobody else's, and the pod is nowhere else.
            assert "denied" in await bind(scheduler, b, "n1")
            assert "AlreadyPlaced" in await bind(scheduler, a, "n2")
            assert await bind(scheduler, a, "n1") == ""
            assert await bind(scheduler, b, "n2") == ""
        await until(lambda: len(allocator.app.ledger) == 0)


async def test_the_chips_of_a_pod_that_is_deleted_instead_are_free_at_once(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 8)
        binding = {"metadata": pod["metadata"] | {"annotations": {}}, "target": {"kind": "Node", "name": "n1"}}
        assert (await review(allocator, "bindings", binding))["allowed"]
        assert len(allocator.app.ledger) == 1
        await allocator.delete("a")
        await until(lambda: len(allocator.app.ledger) == 0)


async def test_a_dry_run_keeps_nothing_and_a_binding_by_hand_names_no_uid(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.pod("a", 8)
        binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
        answer = await review(allocator, "bindings", binding, dryRun=True)
        assert (answer["allowed"], "patch" in answer, len(allocator.app.ledger)) == (True, False, 0)
        answer = await review(allocator, "bindings", binding)
        (step,) = json.loads(base64.b64decode(answer["patch"]))
        assert (step["op"], step["path"]) == ("add", "/metadata/annotations")
        assert step["value"][ALLOCATED].count(",") == 7
        bare: Json = {"target": {"kind": "Node", "name": "n1"}}
        answer = await review(allocator, "bindings", bare, name="a")
        assert ALLOCATED in json_patch(bare, json.loads(base64.b64decode(answer["patch"])))["metadata"]["annotations"]
        await allocator.pod("b", 8)
        refused = await review(
            allocator, "bindings", {"metadata": {"name": "b"}, "target": {"name": "n1"}}, dryRun=True
        )
        assert not refused["allowed"]
        gone = await review(allocator, "bindings", {"metadata": {"name": "gone"}, "target": {"name": "n1"}})
        assert (gone["allowed"], gone["status"]["code"]) == (False, 404)
        other = {"metadata": {"name": "a", "uid": "of-another"}, "target": {"name": "n1"}}
        assert "PodGone" in (await review(allocator, "bindings", other))["status"]["message"]


async def test_a_dry_run_that_is_refused_is_neither_counted_nor_told_of(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for name in ("tried", "meant"):
            await allocator.pod(name, 16)
            binding = {"metadata": {"name": name}, "target": {"name": "n1"}}
            answer = await review(allocator, "bindings", binding, dryRun=name == "tried")
            assert not answer["allowed"]
        assert [each["regarding"]["name"] for each in await told(allocator)] == ["meant"]
        _, page = await allocator.get("/metrics")
        refused = [line for line in page.splitlines() if 'decisions_total{outcome="refused"' in line]
        assert [line.rpartition(" ")[2] for line in refused] == ["1.0"]


async def test_before_its_view_is_complete_it_lets_nothing_pass(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.delay("/pods", 30)
        async with running(server, tmp_path, synced=False) as allocator:
            binding = {"metadata": {"name": "a"}, "target": {"name": "n1"}}
            answer = await review(allocator, "bindings", binding)
            assert (answer["allowed"], answer["status"]["code"]) == (False, 503)
            assert "ViewIncomplete" in answer["status"]["message"]
            server.delay("/pods", 0)


@pytest.mark.parametrize("seed", range(3))
async def test_blind_schedulers_that_race_give_no_chip_twice(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def trouble(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        await asyncio.sleep(dice.random() / 50)
        if subresource == "binding" and dice.random() < 0.2:
            raise forbidden(PODS, document["metadata"]["name"], "no luck")
        return document

    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        server.admission.append(trouble)
        nodes = ["n1", "n2", "n3"]
        for node in nodes:
            await allocator.node(node)
        pods = [await allocator.pod(f"p{number}", dice.choice([1, 2, 4])) for number in range(24)]
        async with await connect(server, tmp_path) as scheduler:
            for _ in range(4):
                await asyncio.gather(*(bind(scheduler, pod, dice.choice(nodes)) for pod in pods))
        taken = []
        for pod in pods:
            stored = await allocator.read(pod["metadata"]["name"])
            if "nodeName" in stored["spec"]:
                chips = stored["metadata"]["annotations"][ALLOCATED].split(",")
                assert len(chips) == int(stored["spec"]["containers"][0]["resources"]["limits"][RESOURCE])
                taken += [(stored["spec"]["nodeName"], chip) for chip in chips]
        assert len(taken) == len(set(taken)) > 8


async def test_a_pod_no_node_could_take_is_denied_with_the_filters_sentence(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        senseless = pod_manifest("odd", 17)
        denied = await review(allocator, "pods", senseless)
        assert not denied["allowed"]
        created = await allocator.pod("odd", 17)
        said = (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"]["n1"]
        assert denied["status"]["message"] == said
        assert (await review(allocator, "pods", pod_manifest("good", 4)))["allowed"]
        for count in (None, 0):
            assert await review(allocator, "pods", pod_manifest("plain", count)) == {"uid": "r1", "allowed": True}
        del senseless["metadata"]["name"]
        senseless["metadata"]["generateName"] = "worker-"
        assert "pod default/worker-… " in (await review(allocator, "pods", senseless))["status"]["message"]


@pytest.mark.parametrize(
    ("asked", "count"), [({f"{RESOURCE}-2c": "2"}, 2), ({f"{RESOURCE}-2c": "1", f"{RESOURCE}-4c.1cpu.8g": "1"}, 2)]
)
async def test_a_pod_of_more_than_one_vnpu_is_denied_with_the_filters_sentence(
    tmp_path: Path, asked: Json, count: int
) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        parts = asking("parts", asked)
        denied = await review(allocator, "pods", parts)
        sentence = f"InvalidRequest: pod default/parts asks for {count} vNPUs; a job may have one"
        assert (denied["allowed"], denied["status"]["message"]) == (False, sentence)
        created = await allocator.server.create(parts)
        assert (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": sentence}


async def test_a_job_may_have_one_vnpu_in_all_its_pods(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    marks = {"ownerReferences": [owner], "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    first, second = (asking(name, {"huawei.com/npu-core": "10"}, **marks) for name in "ab")
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        assert await review(allocator, "pods", first) == {"uid": "r1", "allowed": True}
        created = await server.create(first)
        await until(lambda: created["metadata"]["uid"] in allocator.app.cluster.pods)
        assert (await allocator.filter(created, ["n1"]))["NodeNames"] == ["n1"]
        denied = await review(allocator, "pods", second)
        sentence = "InvalidRequest: job default/train asks for 2 vNPUs; a job may have one"
        assert (denied["allowed"], denied["status"]["message"]) == (False, sentence)
        created = await server.create(second)
        assert (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": sentence}


async def test_a_jobs_second_vnpu_is_not_bound_by_others_either(tmp_path: Path) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    marks = {"ownerReferences": [owner], "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        register(server, allocator)
        await allocator.node("n1")
        cluster = allocator.app.cluster
        async with await connect(server, tmp_path) as scheduler:
            first, second = [asking(name, {"huawei.com/npu-core": "10"}, **marks) for name in "ab"]
            first = await server.create(first)
            assert await bind(scheduler, first, "n1") == ""
            second = await server.create(second)
            await until(lambda: second["metadata"]["uid"] in cluster.pods)
            sentence = "denied the request: InvalidRequest: job default/train asks for 2 vNPUs; a job may have one"
            assert (await bind(scheduler, second, "n1")).endswith(sentence)
            # What is bound already, or gone, the API server itself answers for.
            binding = {"metadata": {"name": "a", "uid": first["metadata"]["uid"]}, "target": {"name": "n1"}}
            await until(lambda: bool(cluster.pods[first["metadata"]["uid"]].spec.node_name))
            assert await review(allocator, "bindings", binding) == {"uid": "r1", "allowed": True}
            await allocator.delete("a")
            await until(lambda: first["metadata"]["uid"] not in cluster.pods)
            assert "not found" in await bind(scheduler, first, "n1")
            assert await bind(scheduler, second, "n1") == ""


async def test_it_only_warns_where_that_is_wanted(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, invalid_pods="warn") as allocator:
        answer = await review(allocator, "pods", pod_manifest("odd", 17))
        assert answer["allowed"]
        assert "InvalidRequest: " in answer["warnings"][0]


@pytest.mark.parametrize("path", ["bindings", "pods"])
@pytest.mark.parametrize("body", ["", "{}", '{"request": {"uid": "a"}}', '{"request": {"uid": "a", "object": 7}}'])
async def test_what_is_not_understood_is_said_so(tmp_path: Path, path: str, body: str) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator, aiohttp.ClientSession() as http:
        url = f"http://{allocator.app.extender_address}/webhook/{path}"
        async with http.post(url, data=body) as response:
            assert response.status == 400
            assert "is not understood" in await response.text()
        async with http.post(url, data=b"rubbish", headers={"Content-Encoding": "gzip"}) as response:
            assert response.status == 400
