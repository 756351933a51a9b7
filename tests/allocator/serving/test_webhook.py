"""The webhooks: chips for the Bindings of other schedulers, and early refusals of invalid pods."""

import asyncio
import base64
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from hypothesis import given, settings, strategies

from allocator.serving import webhook
from allocator.serving.webhook import MOST_VALUES
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, FENCE, PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.errors import ApiError
from ascend.kube.client import KubeClient
from ascend.reasons import Reason
from sandbox.apiserver import ApiServer
from sandbox.apiserver.patches import json_patch
from sandbox.apiserver.resources import PODS
from sandbox.apiserver.status import forbidden
from tests.allocator.harness import (
    Allocator,
    core_node,
    events_of,
    node_manifest,
    pod_manifest,
    review,
    running,
    until,
    write_kubeconfig,
)

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio(loop_scope="module")


def pod_requesting(name: str, resources: Json, **metadata: Any) -> Json:
    """A pod that requests other resources than whole chips."""
    manifest = pod_manifest(name, None, **metadata)
    manifest["spec"]["containers"][0]["resources"] = {"limits": resources, "requests": resources}
    return manifest


def register(server: ApiServer, allocator: Allocator) -> None:
    """Have the API server call the webhook for all Bindings."""

    async def hook(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        if subresource != "binding":
            return document
        answer = await review(allocator, "bindings", document)
        if not answer["allowed"]:
            sentence = f'admission webhook "bindings" denied the request: {answer["status"]["message"]}'
            raise forbidden(PODS, document["metadata"]["name"], sentence)
        if "patch" in answer:
            document = json_patch(document, json.loads(base64.b64decode(answer["patch"])))
        return document

    server.admission.append(hook)


async def bind(client: KubeClient, pod: Json, node: str, **annotations: str) -> str:
    """Bind a pod as a scheduler that knows of no chips; return the error, or nothing."""
    meta = pod["metadata"]
    try:
        await client.bind(
            namespace=meta["namespace"], name=meta["name"], uid=meta["uid"], node=node, annotations=annotations
        )
    except ApiError as error:
        return str(error)
    return ""


@pytest_asyncio.fixture(loop_scope="module")
async def scheduler(allocator: Allocator, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """The client of a scheduler that knows of no chips; the API server calls the webhook for its Bindings."""
    register(allocator.server, allocator)
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, allocator.server))) as client:
        yield client


async def test_a_binding_of_any_scheduler_gets_its_chips(allocator: Allocator, scheduler: KubeClient) -> None:
    await allocator.node("n1")
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


async def test_a_binding_that_does_not_fit_is_denied_with_the_reason(
    allocator: Allocator, scheduler: KubeClient
) -> None:
    await allocator.node("n1")
    assert await bind(scheduler, await allocator.pod("a", 8), "n1") == ""
    refused = await bind(scheduler, await allocator.pod("b", 1), "n1")
    answer = await allocator.filter(await allocator.read("b"), ["n1"])
    (sentence,) = (answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]).values()
    assert refused.endswith(f"denied the request: {sentence}")
    assert Reason.UNKNOWN_NODE in await bind(scheduler, await allocator.pod("c", 1), "nowhere")
    assert "nodeName" not in (await allocator.read("b"))["spec"]
    assert 'outcome="refused",reason="UnknownNode"' in (await allocator.get("/metrics"))[1]


@pytest.mark.parametrize("count", [None, 0])
async def test_a_binding_of_a_pod_without_chips_gets_none(
    allocator: Allocator, scheduler: KubeClient, count: int | None
) -> None:
    assert await bind(scheduler, await allocator.pod("plain", count), "anywhere") == ""
    pod = await allocator.pod("forged", count)
    assert await bind(scheduler, pod, "anywhere", **{ALLOCATED: "Ascend910-0", "note": "kept"}) == ""
    assert "annotations" not in (await allocator.read("plain"))["metadata"]
    assert (await allocator.read("forged"))["metadata"]["annotations"] == {"note": "kept"}


async def test_the_allocators_own_bindings_pass_unchanged(tmp_path: Path) -> None:
    election: Json = {"leader_election": True, "lease_duration_s": 3.0}
    async with ApiServer() as server, running(server, tmp_path, **election) as allocator:
        register(server, allocator)
        await allocator.node("n1")
        pod = await allocator.pod("a", 2)
        assert await allocator.schedule(pod, ["n1"]) == "n1"
        bound = (await allocator.read("a"))["metadata"]["annotations"]
        assert bound[ALLOCATED] == "Ascend910-0,Ascend910-1"
        await until(lambda: len(allocator.app.ledger) == 0)
        async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server))) as scheduler:
            assert await bind(scheduler, await allocator.pod("b", 2), "n1") == ""
        assert (await allocator.read("b"))["metadata"]["annotations"][FENCE] == bound[FENCE]


async def test_the_chips_of_a_denied_binding_stay_reserved_for_its_pod(
    allocator: Allocator,
    scheduler: KubeClient,
) -> None:
    failing = True

    async def deny(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        if failing and subresource == "binding":
            raise forbidden(PODS, document["metadata"]["name"], "denied by another webhook")
        return document

    allocator.server.admission.append(deny)
    for node in ("n1", "n2"):
        await allocator.node(node)
    a, b = await allocator.pod("a", 8), await allocator.pod("b", 8)
    assert "another webhook" in await bind(scheduler, a, "n1")
    assert allocator.app.ledger.count(Stage.DOUBTFUL) == 1
    failing = False
    # The first Binding may still be made, so its chips stay reserved and the pod stays on its node.
    assert "denied" in await bind(scheduler, b, "n1")
    assert Reason.ALREADY_PLACED in await bind(scheduler, a, "n2")
    assert await bind(scheduler, a, "n1") == ""
    assert await bind(scheduler, b, "n2") == ""
    await until(lambda: len(allocator.app.ledger) == 0)


async def test_the_chips_of_a_pod_deleted_instead_are_free_at_once(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("a", 8)
    binding = {"metadata": pod["metadata"] | {"annotations": {}}, "target": {"kind": "Node", "name": "n1"}}
    assert (await review(allocator, "bindings", binding))["allowed"]
    assert len(allocator.app.ledger) == 1
    await allocator.delete("a")
    await until(lambda: len(allocator.app.ledger) == 0)


@pytest.mark.parametrize("name", ["a", "plain", "none"])
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_binding_without_a_uid_tells_nothing_of_its_pod(
    allocator: Allocator, name: str, *, dry_run: bool
) -> None:
    await allocator.node("n1")
    await allocator.pod("a", 8)
    await allocator.pod("plain", 0)
    bare: Json = {"target": {"kind": "Node", "name": "n1"}}
    named = bare | {"metadata": {"name": name}}
    for binding in (named, bare):
        answer = await review(allocator, "bindings", binding, name=name, dryRun=dry_run)
        assert not answer["allowed"]
        said = f"InvalidRequest: pod default/{name}: the Binding must name its uid (metadata.uid), as posted to pods/"
        assert answer["status"]["message"] == f"{said}{name}/binding; the API server removes that of bindings"
    assert len(allocator.app.ledger) == 0


async def test_a_dry_run_reserves_nothing(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("a", 8)
    binding = {"metadata": {"uid": pod["metadata"]["uid"]}, "target": {"kind": "Node", "name": "n1"}}
    answer = await review(allocator, "bindings", binding, name="a", dryRun=True)
    assert (answer["allowed"], "patch" in answer, len(allocator.app.ledger)) == (True, False, 0)
    answer = await review(allocator, "bindings", binding, name="a")
    assert ALLOCATED in json_patch(binding, json.loads(base64.b64decode(answer["patch"])))["metadata"]["annotations"]
    (step,) = json.loads(base64.b64decode(answer["patch"]))
    assert (step["op"], step["path"]) == ("add", "/metadata/annotations")
    assert step["value"][ALLOCATED].count(",") == 7
    second = {"metadata": (await allocator.pod("b", 8))["metadata"], "target": {"name": "n1"}}
    refused = await review(allocator, "bindings", second, dryRun=True)
    assert not refused["allowed"]
    gone = await review(allocator, "bindings", {"metadata": {"name": "gone", "uid": "u"}, "target": {"name": "n1"}})
    assert (gone["allowed"], gone["status"]["code"]) == (False, 404)
    other = {"metadata": {"name": "a", "uid": "of-another"}, "target": {"name": "n1"}}
    refused = await review(allocator, "bindings", other)
    assert refused["status"]["message"].startswith("PodUnknown: ")
    assert pod["metadata"]["uid"] not in json.dumps(refused)


async def test_a_refused_dry_run_is_neither_counted_nor_reported(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for name in ("dry-run", "real"):
            pod = await allocator.pod(name, 16)
            binding = {"metadata": {"name": name, "uid": pod["metadata"]["uid"]}, "target": {"name": "n1"}}
            answer = await review(allocator, "bindings", binding, dryRun=name == "dry-run")
            assert not answer["allowed"]
        assert [each["regarding"]["name"] for each in await events_of(allocator)] == ["real"]
        _, page = await allocator.get("/metrics")
        refused = [line for line in page.splitlines() if 'decisions_total{outcome="refused"' in line]
        assert [line.rpartition(" ")[2] for line in refused] == ["1.0"]


async def test_bindings_are_denied_before_the_informers_have_synced(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.delay("/pods", 30)
        async with running(server, tmp_path, synced=False) as allocator:
            # What it does not answer it does not read: the API server gets no uid back, and denies the Binding.
            async with aiohttp.ClientSession() as http:
                url = f"http://{allocator.app.extender_address}/webhook/bindings"
                async with http.post(url, json={"request": {"uid": "r1"}}) as response:
                    assert response.status == 503
                    assert "Retry-After" not in response.headers  # or the API server would try again while it waits
                    assert Reason.VIEW_INCOMPLETE in await response.text()
            server.delay("/pods", 0)


@pytest.mark.parametrize("seed", range(3 if settings.get_current_profile_name() == "long" else 1))
async def test_racing_schedulers_share_no_chip(allocator: Allocator, scheduler: KubeClient, seed: int) -> None:
    dice = random.Random(seed)

    async def disturb(_operation: str, _resource: object, subresource: str, document: Json) -> Json:
        await asyncio.sleep(dice.random() / 50)
        if subresource == "binding" and dice.random() < 0.2:
            raise forbidden(PODS, document["metadata"]["name"], "at random")
        return document

    allocator.server.admission.append(disturb)
    nodes = ["n1", "n2", "n3"]
    for node in nodes:
        await allocator.node(node)
    pods = [await allocator.pod(f"p{number}", dice.choice([1, 2, 4])) for number in range(24)]
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


async def test_an_invalid_pod_is_denied_with_the_filters_sentence(allocator: Allocator) -> None:
    await allocator.node("n1")
    invalid = pod_manifest("invalid", 17)
    denied = await review(allocator, "pods", invalid)
    assert not denied["allowed"]
    created = await allocator.pod("invalid", 17)
    sentence = (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"]["n1"]
    assert denied["status"]["message"] == sentence
    assert (await review(allocator, "pods", pod_manifest("good", 4)))["allowed"]
    for count in (None, 0):
        assert await review(allocator, "pods", pod_manifest("plain", count)) == {"uid": "r1", "allowed": True}
    del invalid["metadata"]["name"]
    invalid["metadata"]["generateName"] = "worker-"
    assert "pod default/worker-… " in (await review(allocator, "pods", invalid))["status"]["message"]


@pytest.mark.parametrize("count", [3, 9, 16])
async def test_a_pod_that_no_server_of_this_cluster_could_take_is_denied(allocator: Allocator, count: int) -> None:
    manifest = pod_manifest("odd", count)
    assert (await review(allocator, "pods", manifest))["allowed"]  # nodes may come
    await allocator.node("n1")
    denied = await review(allocator, "pods", manifest)
    assert not denied["allowed"]
    rule = r"on 910A servers a job is one pod of 1, 2, 4 or 8 chips, .*; the cluster has no other servers for it"
    assert re.search(f"^InvalidRequest: pod default/odd requests {count} chips; {rule}$", denied["status"]["message"])
    assert (await review(allocator, "pods", pod_manifest("good", 4)))["allowed"]


async def test_a_pod_that_another_server_of_this_cluster_could_take_is_created(allocator: Allocator) -> None:
    await allocator.node("n1")
    other = node_manifest("n2")
    other["metadata"]["labels"] = {"accelerator-type": "module-910b-8"}
    await allocator.server.create(other)
    await until(lambda: len(allocator.app.cluster.labels.products()) == 2)
    assert (await review(allocator, "pods", pod_manifest("odd", 3)))["allowed"]
    manifest = pod_manifest("named", 3)
    manifest["spec"]["nodeSelector"] = {"accelerator-type": "module"}
    assert not (await review(allocator, "pods", manifest))["allowed"]


async def test_pods_with_chips_that_name_no_scheduler_get_that_of_the_path(allocator: Allocator) -> None:
    for name, count, patched in (
        ("default-scheduler", 1, True),
        (None, 1, True),
        ("volcano", 1, False),
        ("default-scheduler", 0, False),
    ):
        manifest = pod_manifest("p", count)
        if name is not None:
            manifest["spec"]["schedulerName"] = name
        answer = await review(allocator, "schedulers/ascend-scheduler", manifest)
        assert answer["allowed"]
        assert ("patch" in answer) == patched
        if patched:
            document = json_patch(manifest, json.loads(base64.b64decode(answer["patch"])))
            assert document["spec"]["schedulerName"] == "ascend-scheduler"


async def test_the_author_of_a_pod_for_a_product_that_is_not_there_is_told(allocator: Allocator) -> None:
    manifest = pod_manifest("later", 8)
    manifest["spec"]["nodeSelector"] = {"accelerator-type": "module-910b-8"}
    assert "warnings" not in await review(allocator, "pods", manifest)
    await allocator.node("n1")
    answer = await review(allocator, "pods", manifest)
    assert answer["allowed"]
    told = "pod default/later is for 910B-8 servers, of which this cluster has none: it waits until one comes"
    assert answer["warnings"] == [told]


async def test_a_controller_creates_no_more_pods_for_a_scheduler_that_binds_without_calling(
    allocator: Allocator,
) -> None:
    await allocator.node("n1")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    of_controller = pod_manifest("next", 1, ownerReferences=[owner])
    of_controller["spec"]["schedulerName"] = "default-scheduler"
    bound = pod_manifest("bound", 1, ownerReferences=[owner])
    bound["spec"]["nodeName"] = "n1"
    await allocator.server.create(bound)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "… desc = NotPlaced: …"}
    await allocator.patch("bound", {"status": status}, subresource="status")
    await until(lambda: [each.status.phase for each in allocator.app.cluster.pods.values()] == ["Failed"])
    for dry_run in (True, False):
        denied = await review(allocator, "pods", of_controller, dryRun=dry_run)
        assert not denied["allowed"]
        sentence = denied["status"]["message"]
        assert "SchedulerNotConnected: pod default/next: its scheduler 'default-scheduler' has bound pod" in sentence
    counted = 'ascend_allocator_decisions_total{outcome="refused",reason="SchedulerNotConnected"} 1.0'
    assert counted in (await allocator.get("/metrics"))[1]
    alone = await allocator.pod("alone", 1)
    assert (await review(allocator, "pods", pod_manifest("another", 1)))["allowed"]
    await allocator.filter(alone, ["n1"])
    assert (await review(allocator, "pods", of_controller))["allowed"]


@pytest.mark.parametrize("resources", [{f"{RESOURCE}-2c": "2"}, {f"{RESOURCE}-2c": "1", f"{RESOURCE}-4c.1cpu.8g": "1"}])
async def test_a_pod_with_two_vnpus_is_denied_with_the_filters_sentence(allocator: Allocator, resources: Json) -> None:
    parts = pod_requesting("parts", resources)
    denied = await review(allocator, "pods", parts)
    sentence = denied["status"]["message"]
    assert not denied["allowed"]
    assert re.search("^InvalidRequest: pod default/parts: .*; a pod may have one vNPU, in one container", sentence)
    created = await allocator.server.create(parts)
    assert (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": sentence}


async def test_the_second_vnpu_of_a_job_is_denied(allocator: Allocator) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    metadata = {"ownerReferences": [owner], "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    first, second = (pod_requesting(name, {"huawei.com/npu-core": "10"}, **metadata) for name in "ab")
    await core_node(allocator, "n1")
    assert (await review(allocator, "pods", first))["allowed"]
    created = await allocator.server.create(first)
    await until(lambda: created["metadata"]["uid"] in allocator.app.cluster.pods)
    assert (await allocator.filter(created, ["n1"]))["NodeNames"] == ["n1"]
    denied = await review(allocator, "pods", second)
    sentence = denied["status"]["message"]
    assert not denied["allowed"]
    assert re.search("^InvalidRequest: job default/train .* 2 vNPUs", sentence)
    created = await allocator.server.create(second)
    assert (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": sentence}


async def test_the_second_vnpu_of_a_job_is_not_bound_by_other_schedulers(
    allocator: Allocator, scheduler: KubeClient
) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    metadata = {"ownerReferences": [owner], "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    await core_node(allocator, "n1")
    cluster = allocator.app.cluster
    first, second = [pod_requesting(name, {"huawei.com/npu-core": "10"}, **metadata) for name in "ab"]
    first = await allocator.server.create(first)
    assert await bind(scheduler, first, "n1") == ""
    second = await allocator.server.create(second)
    await until(lambda: second["metadata"]["uid"] in cluster.pods)
    assert re.search("InvalidRequest: job default/train .* 2 vNPUs", await bind(scheduler, second, "n1"))
    # For a pod that is bound the API server itself has the answer.
    binding = {"metadata": {"name": "a", "uid": first["metadata"]["uid"]}, "target": {"name": "n1"}}
    await until(lambda: bool(cluster.pods[first["metadata"]["uid"]].spec.node_name))
    assert await review(allocator, "bindings", binding) == {"uid": "r1", "allowed": True}
    await allocator.delete("a")
    await until(lambda: first["metadata"]["uid"] not in cluster.pods)
    assert "PodGone: pod default/a was deleted" in await bind(scheduler, first, "n1")
    assert await bind(scheduler, second, "n1") == ""


async def test_an_invalid_pod_is_only_warned_about_if_configured(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, invalid_pods="warn") as allocator:
        answer = await review(allocator, "pods", pod_manifest("invalid", 17))
        assert answer["allowed"]
        assert "InvalidRequest: " in answer["warnings"][0]


async def test_a_demand_that_can_not_be_met_is_denied_with_the_filters_sentence(allocator: Allocator) -> None:
    await allocator.node("n1")
    labels = {"huawei.com/scheduler.softShareDev.policy": "fixed-share"}
    denied = await review(allocator, "pods", pod_manifest("near", 8, labels=labels))
    sentence = denied["status"]["message"]
    assert re.search(
        "^UnsupportedPolicy: pod default/near: label huawei.com/scheduler.softShareDev.policy=fixed-share: ", sentence
    )
    created = await allocator.pod("near", 8, labels=labels)
    assert (await allocator.filter(created, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": sentence}


@pytest.mark.parametrize("resource", ["huawei.com/Ascend910B-2c", "huawei.com/npu"])
async def test_what_has_no_effect_is_a_warning(allocator: Allocator, resource: str) -> None:
    answer = await review(allocator, "pods", pod_requesting("other", {resource: "1"}))
    assert answer["allowed"]
    (warning,) = answer["warnings"]
    assert warning.startswith(f"resource {resource}: the allocator does not place it")


async def test_devices_that_a_pod_names_itself_are_a_warning(allocator: Allocator) -> None:
    manifest = pod_manifest("greedy", 1)
    manifest["spec"]["nodeName"] = "n1"
    manifest["spec"]["containers"][0]["env"] = [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0-7"}]
    answer = await review(allocator, "pods", manifest)
    assert answer["allowed"]
    by_environment, by_node = answer["warnings"]
    assert "sets ASCEND_VISIBLE_DEVICES: where ascend-docker-runtime is the runtime" in by_environment
    assert by_node.startswith("its node was named by hand (spec.nodeName: n1)")


async def test_a_pod_of_many_tiny_values_is_not_decoded(allocator: Allocator) -> None:
    url = f"http://{allocator.app.webhook_address}/webhook/pods"
    body = b'{"request": {"uid": "a", "object": {"spec": {"containers": [%s]}}}}'
    small, many, texts = body % (b"{}," * 9), body % (b"{}," * MOST_VALUES), body % (b'"",' * 300_000)
    async with aiohttp.ClientSession() as http:
        for refused in (many, texts):
            async with http.post(url, data=refused) as response:
                assert response.status == 413
                assert "more than 100,000 values" in await response.text()
        _, page = await allocator.get("/metrics")
        assert 'ascend_allocator_http_refusals_total{cause="body_values"} 2.0' in page
        async with http.post(url, data=small) as response:
            assert response.status == 400  # it is decoded: a comma too many


LISTED = '[{,\\"' * 40_000
"""A text with more separators than a pod may have values."""


async def test_separators_within_texts_are_no_values(allocator: Allocator) -> None:
    manifest = pod_manifest("many", 17)
    manifest["spec"]["containers"][0]["args"] = [LISTED, "\\"]
    assert not (await review(allocator, "pods", manifest))["allowed"]  # it is read: no server has 17 chips


async def test_a_binding_may_have_copies_of_all_annotations_of_its_pod(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("train", 2)
    copied = {"list": LISTED[:250_000], **{f"key-{number}": "" for number in range(20_000)}}
    metadata = {"name": "train", "namespace": "default", "uid": pod["metadata"]["uid"], "annotations": copied}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "n1"}}
    answer = await review(allocator, "bindings", binding)
    given = json_patch(binding, json.loads(base64.b64decode(answer["patch"])))["metadata"]["annotations"]
    assert given.keys() >= copied.keys() | {ALLOCATED}


json_values = strategies.recursive(
    strategies.none() | strategies.integers() | strategies.text('",[{\\]}x\u00e9\n'),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text('",[{\\x'), inner),
    max_leaves=20,
)


def number_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(number_of, inner))


@given(value=json_values, escaped=strategies.booleans())
async def test_values_are_counted_whatever_their_texts_have(value: object, escaped: bool) -> None:  # noqa: FBT001
    found = webhook._separators(webhook._without_strings(json.dumps(value, ensure_ascii=escaped).encode()))
    assert number_of(value) - 1 <= found <= 2 * number_of(value)


@pytest.mark.parametrize("path", ["bindings", "pods", "explanations"])
@pytest.mark.parametrize("body", ["", "{}", '{"request": {"uid": "a"}}', '{"request": {"uid": "a", "object": 7}}'])
async def test_a_malformed_review_is_a_bad_request(allocator: Allocator, path: str, body: str) -> None:
    async with aiohttp.ClientSession() as http:
        url = f"http://{allocator.app.extender_address}/webhook/{path}"
        async with http.post(url, data=body) as response:
            assert response.status == 400
            assert "AdmissionReview" in await response.text()
        async with http.post(url, data=b"not compressed", headers={"Content-Encoding": "gzip"}) as response:
            assert response.status == 400
