"""kube-scheduler retries pods that may preempt now, although for all nodes it has found too few chips by number."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from allocator.serving.requeue import NOWHERE, trigger
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from sandbox.apiserver.resources import ServedResource
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, Json, pod_manifest, until, write_kubeconfig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def nominated(allocator: Allocator) -> AsyncIterator[list[tuple[str, str]]]:
    """The changes of nominations so far: name of the pod and of the node."""
    found: list[tuple[str, str]] = []
    nodes: dict[str, str] = {}

    async def follow(operation: str, resource: ServedResource, subresource: str, document: Json) -> Json:
        if (operation, resource.plural, subresource) == ("UPDATE", "pods", "status"):
            name, node = document["metadata"]["name"], document["status"].get("nominatedNodeName", "")
            if nodes.get(name, "") != node:
                found.append((name, node))
                nodes[name] = node
        return document

    allocator.server.admission.append(follow)
    yield found


async def fill(allocator: Allocator, *names: str) -> Json:
    """Add nodes whose chips are all held; returns them as a scheduler suggests them."""
    suggested = {}
    for name in names:
        await allocator.node(name)
        low = await allocator.pod(f"low-{name}", 8)
        assert await allocator.schedule(low, [name]) == name
        suggested[name] = {"Pods": [{"UID": low["metadata"]["uid"]}], "NumPDBViolations": 0}
    return suggested


async def preempt(allocator: Allocator, pod: Json, suggested: Json) -> list[str]:
    answer = await allocator.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": suggested})
    return list(answer["NodeNameToMetaVictims"])


async def test_the_pods_of_a_gang_are_retried_once_it_is_complete(
    allocator: Allocator, nominated: list[tuple[str, str]]
) -> None:
    suggested = await fill(allocator, "n1", "n2", "n3")
    gang = {GROUP: "a", MIN_AVAILABLE: "3"}
    early = [await allocator.pod(f"a-{number}", 8, priority=9, annotations=gang) for number in range(2)]
    assert [await preempt(allocator, pod, suggested) for pod in early] == [[], []]
    last = await allocator.pod("a-2", 8, priority=9, annotations=gang)
    # One of them is enough: kube-scheduler retries all pods of the same priority.
    await until(lambda: nominated in ([("a-0", NOWHERE), ("a-0", "")], [("a-1", NOWHERE), ("a-1", "")]))
    answers = [await preempt(allocator, pod, suggested) for pod in (*early, last)]
    assert sorted(answers) == [["n1"], ["n2"], ["n3"]]


async def test_peers_are_retried_when_victims_were_chosen_for_them(
    allocator: Allocator, nominated: list[tuple[str, str]]
) -> None:
    # No informer has told the allocator in time that the gang was complete: they were never refused for that.
    suggested = await fill(allocator, "n1", "n2")
    gang = {GROUP: "b", MIN_AVAILABLE: "2"}
    await allocator.pod("b-0", 8, priority=9, annotations=gang)
    last = await allocator.pod("b-1", 8, priority=9, annotations=gang)
    assert len(await preempt(allocator, last, suggested)) == 1
    await until(lambda: nominated == [("b-0", NOWHERE), ("b-0", "")])


async def test_a_pod_that_could_not_preempt_yet_is_retried(
    allocator: Allocator, nominated: list[tuple[str, str]]
) -> None:
    # The pods differ: where the other one may be is known only when its scheduler has tried it.
    suggested = await fill(allocator, "n1", "n2")
    gang = {GROUP: "d", MIN_AVAILABLE: "2"}
    pods: list[Json] = []
    for number in range(2):
        manifest = pod_manifest(f"d-{number}", 8, priority=9, annotations=gang)
        manifest["spec"]["tolerations"] = [{"key": str(number)}]
        pods.append(await allocator.server.create(manifest))
    uids = {pod["metadata"]["uid"] for pod in pods}
    await until(lambda: uids <= allocator.app.cluster.pods.keys())
    assert await preempt(allocator, pods[0], suggested) == []
    await until(lambda: nominated == [("d-0", NOWHERE), ("d-0", "")])
    assert await preempt(allocator, pods[0], {"n1": suggested["n1"]}) == []
    assert await preempt(allocator, pods[1], suggested) == ["n2"]
    assert await preempt(allocator, pods[0], {"n1": suggested["n1"]}) == ["n1"]


async def test_a_nomination_of_the_scheduler_in_between_is_kept(allocator: Allocator, tmp_path: Path) -> None:
    await allocator.pod("a", 8)
    changes: Iterator[tuple[str, Json]] = iter(
        [("", {"metadata": {"labels": {"changed": "1"}}}), ("status", {"status": {"nominatedNodeName": "n1"}})]
    )

    async def change(_operation: str, _resource: ServedResource, subresource: str, document: Json) -> Json:
        if subresource == "status" and not document["status"].get("nominatedNodeName"):
            for part, body in changes:
                await allocator.patch("a", body, subresource=part)
                break
        return document

    allocator.server.admission.append(change)
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, allocator.server))) as client:
        await trigger(client, await client.get(PODS, "a", "default"))
        after = await client.get(PODS, "a", "default")
    assert after.status.nominated_node_name == "n1"
    assert after.metadata.labels == {"changed": "1"}


async def test_what_a_former_leader_has_left_is_cleared(allocator: Allocator, nominated: list[tuple[str, str]]) -> None:
    suggested = await fill(allocator, "n1", "n2")
    gang = {GROUP: "c", MIN_AVAILABLE: "2"}
    await allocator.pod("c-0", 8, priority=9, annotations=gang)
    left = await allocator.patch("c-0", {"status": {"nominatedNodeName": NOWHERE}}, subresource="status")
    uid = left["metadata"]["uid"]
    await until(lambda: allocator.app.cluster.pods[uid].status.nominated_node_name)
    assert await preempt(allocator, left, suggested) == []
    await allocator.pod("c-1", 8, priority=9, annotations=gang)
    await until(lambda: nominated == [("c-0", NOWHERE), ("c-0", "")])
