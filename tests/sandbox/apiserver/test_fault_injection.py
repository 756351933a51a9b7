"""What tests can control: authentication, injected failures, watches, and admission hooks."""

import asyncio
from typing import Any

import aiohttp
import pytest

from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import CONFIGMAPS as CONFIGMAP_KIND
from sandbox.apiserver.resources import ServedResource
from sandbox.apiserver.status import forbidden
from tests.sandbox.apiserver.client import Client, a_configmap, a_pod
from tests.sandbox.apiserver.conftest import Connect

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def test_requests_need_a_known_token_and_probes_do_not(connect: Connect) -> None:
    async with ApiServer(tokens={"good": "allocator"}) as server:
        session = connect(server.url).session
        for token, status in (("", 401), ("bad", 401), ("good", 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(f"{server.url}{PODS}", headers=headers) as response:
                assert response.status == status
                assert (await response.json()).get("reason") == ("Unauthorized" if status == 401 else None)
        async with session.get(f"{server.url}/readyz") as response:
            assert (response.status, await response.text()) == (200, "ok")
        kubeconfig = server.kubeconfig("good")
        assert kubeconfig["clusters"][0]["cluster"]["server"] == server.url
        assert kubeconfig["users"][0]["user"] == {"token": "good"}


async def test_requests_are_counted_by_user_and_by_verb_and_resource(connect: Connect) -> None:
    async with ApiServer(tokens={"good": "allocator", "other": "kubelet"}) as server:
        session = connect(server.url).session
        paths = ["", "?limit=1", "?watch=true&timeoutSeconds=1", "/missing", "/missing/status"]
        for path in paths:
            headers = {"Authorization": "Bearer good"}
            async with session.get(f"{server.url}{PODS}{path}", headers=headers):
                pass
        for token, path in (("other", PODS), ("other", "/apis"), ("bad", PODS), ("other", "/readyz")):
            async with session.get(f"{server.url}{path}", headers={"Authorization": f"Bearer {token}"}):
                pass
        assert server.requests == {
            ("allocator", "get pods"): 3,
            ("allocator", "watch pods"): 1,
            ("allocator", "get pods/status"): 1,
            ("kubelet", "get pods"): 1,
            ("kubelet", "get /apis"): 1,
        }


async def test_injected_failures_apply_to_the_next_matching_requests_only(client: Client, server: ApiServer) -> None:
    server.fail_next("POST", "/configmaps", 429, times=2, retry_after_s=3)
    assert (await client("GET", CONFIGMAPS)).status == 200
    for _ in range(2):
        answer = await client("POST", CONFIGMAPS, a_configmap("a"))
        assert (answer.status, answer.reason, answer.headers["Retry-After"]) == (429, "TooManyRequests", "3")
    assert (await client("POST", CONFIGMAPS, a_configmap("a"))).status == 201
    server.fail_next("*", "watch=true", 500)
    assert (await client("GET", f"{CONFIGMAPS}?watch=true")).reason == "InternalError"


async def test_an_answer_can_be_lost_after_the_request_was_executed(client: Client, server: ApiServer) -> None:
    server.lose_answer("POST", "/configmaps")
    with pytest.raises(aiohttp.ClientError):
        await client("POST", CONFIGMAPS, a_configmap("a"))
    assert (await client("GET", f"{CONFIGMAPS}/a")).status == 200


async def test_dropped_watches_lose_their_connection(client: Client, server: ApiServer) -> None:
    watch = await client.watch(CONFIGMAPS)
    await server.watches.wait_for_count(1)
    server.drop_watches()
    with pytest.raises(aiohttp.ClientPayloadError):
        await watch.response.content.read()
    await server.watches.wait_for_count(0)


async def test_a_watch_ends_when_its_client_disconnects(client: Client, server: ApiServer) -> None:
    watch = await client.watch(CONFIGMAPS)
    await server.watches.wait_for_count(1)
    watch.response.close()
    await server.watches.wait_for_count(0)


async def test_paused_watches_deliver_nothing_until_resumed(client: Client, server: ApiServer) -> None:
    watch = await client.watch(CONFIGMAPS)
    await server.watches.wait_for_count(1)
    server.pause_watches()
    await client("POST", CONFIGMAPS, a_configmap("a"))
    reading = asyncio.create_task(watch.next())
    await client("GET", CONFIGMAPS)
    assert not reading.done()
    server.resume_watches()
    kind, document = await reading
    assert (kind, document["metadata"]["name"]) == ("ADDED", "a")


async def test_a_watch_with_too_many_undelivered_events_is_closed(connect: Connect) -> None:
    async with ApiServer(watcher_limit=3) as server:
        watch = await connect(server.url).watch("/api/v1/nodes")
        await server.watches.wait_for_count(1)
        server.pause_watches()
        for number in range(4):
            await server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}})
        with pytest.raises(aiohttp.ClientPayloadError):
            await watch.response.content.read()


async def test_only_requests_for_a_delayed_path_wait(client: Client, server: ApiServer) -> None:
    server.delay("/configmaps", 3600)
    slow = asyncio.create_task(client("GET", CONFIGMAPS))
    assert (await client("GET", PODS)).status == 200
    assert not slow.done()
    slow.cancel()
    server.delay("/configmaps", 0)
    assert (await client("GET", CONFIGMAPS)).status == 200


async def test_admission_hooks_can_change_and_deny_requests(client: Client, server: ApiServer) -> None:
    seen: list[tuple[str, str, str]] = []

    async def hook(
        operation: str, resource: ServedResource, subresource: str, document: dict[str, Any]
    ) -> dict[str, Any]:
        seen.append((operation, document["kind"], subresource))
        if operation == "DELETE":
            raise forbidden(resource, document["metadata"]["name"], "it is protected")
        if subresource == "binding":
            metadata = {**document["metadata"], "annotations": {"hooked": "yes"}}
            return {**document, "metadata": metadata}
        return document

    server.admission.append(hook)
    await client("POST", PODS, a_pod("p"))
    binding = {"kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n1"}}
    await client("POST", f"{PODS}/p/binding", binding)
    assert (await client("GET", f"{PODS}/p")).body["metadata"]["annotations"] == {"hooked": "yes"}
    refused = await client("DELETE", f"{PODS}/p")
    assert (refused.status, refused.body["message"]) == (403, 'pods "p" is forbidden: it is protected')
    assert seen == [("CREATE", "Pod", ""), ("CREATE", "Binding", "binding"), ("DELETE", "Pod", "")]


async def test_an_update_starts_again_if_the_object_changes_during_a_hook(client: Client, server: ApiServer) -> None:
    stale = (await client("POST", CONFIGMAPS, a_configmap("c", a="1"))).body

    async def change_meanwhile(_: str, resource: ServedResource, __: str, document: dict[str, Any]) -> dict[str, Any]:
        server.admission.clear()
        assert resource is CONFIGMAP_KIND
        await client.merge(f"{CONFIGMAPS}/c", {"data": {"b": "2"}})
        return document

    server.admission.append(change_meanwhile)
    merged = await client.merge(f"{CONFIGMAPS}/c", {"data": {"a": "3"}})
    assert merged.body["data"] == {"a": "3", "b": "2"}
    server.admission.append(change_meanwhile)
    assert (await client("PUT", f"{CONFIGMAPS}/c", stale)).status == 409


async def test_discovery_lists_version_groups_and_resources(client: Client) -> None:
    assert (await client("GET", "/version")).body["gitVersion"] == "v1.34.4"
    assert (await client("GET", "/api")).body["versions"] == ["v1"]
    groups = (await client("GET", "/apis")).body["groups"]
    assert {group["name"] for group in groups} == {"apps", "batch", "coordination.k8s.io", "events.k8s.io"}
    assert (await client("GET", "/apis/coordination.k8s.io")).body["kind"] == "APIGroup"
    rows = (await client("GET", "/api/v1")).body["resources"]
    assert {"pods", "pods/status", "pods/binding", "nodes", "nodes/status"} <= {row["name"] for row in rows}


async def test_watchers_of_one_node_receive_only_the_pods_of_that_node(server: ApiServer, client: Client) -> None:
    selections = [f"/api/v1/pods?fieldSelector=spec.nodeName%3Dn{number}" for number in range(50)]
    watches = [await client.watch(selection) for selection in selections]
    await server.watches.wait_for_count(50)
    for number in reversed(range(50)):
        await server.create({"apiVersion": "v1", "kind": "Pod", **a_pod(f"p{number}", nodeName=f"n{number}")})
    assert [await watch.names(1) for watch in watches] == [[("ADDED", f"p{number}")] for number in range(50)]
