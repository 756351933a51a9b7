"""Why a pod waits, as whoever may get the pod is told: a PodExplanation that is created in a dry run."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from allocator.serving.explanations import REFUSAL_S
from ascend.reasons import Reason
from tests.allocator.harness import Allocator, events_of, pod_manifest, review, until

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio(loop_scope="module")

UNTOLD = "is not there or requests no chips, or you may not get it"
ANN = {"username": "ann", "groups": ["team-a", "system:authenticated"], "extra": {"scope": ["a"]}}


async def ask(allocator: Allocator, pod: Json, *, dry_run: bool = True, user: Json = ANN, **changed: Any) -> Json:
    """Create a PodExplanation as the API server shows it to the webhook; ``changed`` is of the pod's metadata."""
    meta = {**pod["metadata"], **changed}
    question = {"metadata": {"name": meta["name"], "namespace": meta["namespace"]}, "spec": {"uid": meta["uid"]}}
    return await review(allocator, "explanations", question, dryRun=dry_run, userInfo=user)


def status(answer: Json) -> Json:
    (step,) = json.loads(base64.b64decode(answer["patch"]))
    assert (answer["allowed"], step["op"], step["path"]) == (True, "add", "/status")
    found: Json = step["value"]
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def foreign(allocator: Allocator) -> AsyncIterator[Json]:
    """A pod of another namespace."""
    created = await allocator.server.create(pod_manifest("secret-project", 16, namespace="kube-system"))
    uid, pods = created["metadata"]["uid"], allocator.app.cluster.pods
    await until(lambda: uid in pods)
    yield created
    (stored,) = allocator.server.store.objects_in("kube-system")
    allocator.server.store.remove(stored)
    await until(lambda: uid not in pods)


async def test_who_asks_is_told_what_the_event_on_the_pod_says(allocator: Allocator) -> None:
    await allocator.node("n1")
    await allocator.node("n2", chips=0)
    assert await allocator.schedule(await allocator.pod("holder", 8), ["n1"]) == "n1"
    pod = await allocator.pod("train", 4)
    urgent = await allocator.server.create(pod_manifest("urgent", 8, priority=1))
    await until(lambda: urgent["metadata"]["uid"] in allocator.app.cluster.pods)
    await allocator.filter(pod, ["n1", "n2"])
    (event,) = [each for each in await events_of(allocator) if each["regarding"]["name"] == "train"]
    told = status(await ask(allocator, pod))
    assert (told["state"], told["reason"]) == ("waits", event["reason"])
    assert told["message"].startswith(event["note"])
    assert {each["reason"]: each["nodes"] for each in told["obstacles"]}[Reason.NOT_ENOUGH_CHIPS] == 1
    assert told["ahead"] == {"pods": 1, "chips": 8}
    await allocator.delete("holder")
    await until(lambda: not allocator.app.cluster.nodes["n1"].holdings)
    fits = status(await ask(allocator, pod))
    assert (fits["state"], fits["reason"], fits["fitting"]) == ("fits", "", 1)


async def test_a_placed_pod_and_a_gated_one_are_no_riddles(allocator: Allocator) -> None:
    await allocator.node("n1")
    placed = await allocator.pod("placed", 2)
    assert await allocator.schedule(placed, ["n1"]) == "n1"
    assert status(await ask(allocator, placed))["node"] == "n1"
    manifest = pod_manifest("gated", 2)
    manifest["spec"]["schedulingGates"] = [{"name": "kueue"}]
    gated = await allocator.server.create(manifest)
    await until(lambda: gated["metadata"]["uid"] in allocator.app.cluster.pods)
    assert status(await ask(allocator, gated))["reason"] == Reason.POD_GATED


@pytest.mark.parametrize(
    "changed", [{"uid": "guessed"}, {"uid": ""}, {"name": "other"}, {"name": ""}, {"namespace": "mine"}]
)
async def test_who_does_not_know_the_uid_learns_nothing(allocator: Allocator, changed: Json) -> None:
    pod = await allocator.pod("train", 4)
    refused = await ask(allocator, pod, **changed)
    said = {**pod["metadata"], **changed}
    absent = await ask(allocator, {"metadata": {**said, "uid": "absent"}})
    for answer, uid in ((refused, said["uid"]), (absent, "absent")):
        which = f"pod {said['namespace']}/{said['name']} with uid {uid!r}"
        assert not answer["allowed"]
        assert answer["status"]["code"] == 404
        assert answer["status"]["message"] == f"PodUnknown: {which} {UNTOLD}"


async def test_who_may_not_get_the_pod_is_told_as_if_it_was_not_there(allocator: Allocator) -> None:
    pod = await allocator.pod("train", 4)
    allocator.server.denied.add(("get", "pods"))
    begin_s = time.monotonic()
    try:
        refused = await ask(allocator, pod)
    finally:
        allocator.server.denied.clear()
    assert time.monotonic() - begin_s >= REFUSAL_S  # so few reviews in a second can be caused
    assert refused["status"]["code"] == 404
    assert refused["status"]["message"].endswith(UNTOLD)


async def test_pods_without_chips_are_not_spoken_of(allocator: Allocator) -> None:
    assert not (await ask(allocator, await allocator.pod("plain", None)))["allowed"]


async def test_nothing_is_stored(allocator: Allocator) -> None:
    refused = await ask(allocator, await allocator.pod("train", 4), dry_run=False)
    assert not refused["allowed"]
    assert "ask by a dry run (dryRun=All" in refused["status"]["message"]


@pytest.mark.usefixtures("foreign")
async def test_names_of_other_namespaces_are_left_out(allocator: Allocator) -> None:
    await allocator.node("n1")
    told = json.dumps(status(await ask(allocator, await allocator.pod("train", 16))))
    told += json.dumps(status(await ask(allocator, await allocator.pod("small", 1))))
    assert "secret-project" not in told
    assert "kube-system" not in told


async def test_without_the_api_servers_word_nobody_is_told_anything(allocator: Allocator) -> None:
    pod = await allocator.pod("train", 4)
    allocator.server.fail_next("POST", "subjectaccessreviews", 403)
    refused = await ask(allocator, pod)
    assert (refused["allowed"], refused["status"]["code"]) == (False, 403)


async def test_a_flood_of_questions_leaves_other_namespaces_and_filters_alone(
    allocator: Allocator, foreign: Json
) -> None:
    await allocator.node("n1")
    flooding = await allocator.pod("train", 16)
    asked = [asyncio.create_task(ask(allocator, flooding)) for _ in range(100)]
    assert await allocator.schedule(await allocator.pod("filtered", 4), ["n1"]) == "n1"
    assert (await ask(allocator, foreign))["allowed"]
    answers = await asyncio.gather(*asked)
    refused = [each["status"] for each in answers if not each["allowed"]]
    assert 0 < len(refused) < len(answers)
    assert {each["code"] for each in refused} == {503}
    assert all("another question about namespace default is being answered" in each["message"] for each in refused)
    assert (await ask(allocator, flooding))["allowed"]
