"""Lists in pages, and how watches start, continue and end."""

import pytest

from sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import Client, a_configmap, a_pod
from tests.sandbox.apiserver.conftest import Connect

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_list_has_a_resource_version_and_items_without_kind(client: Client, server: ApiServer) -> None:
    await client("POST", CONFIGMAPS, a_configmap("b"))
    await client("POST", CONFIGMAPS, a_configmap("a"))
    body = (await client("GET", CONFIGMAPS)).body
    assert (body["kind"], body["apiVersion"]) == ("ConfigMapList", "v1")
    assert body["metadata"] == {"resourceVersion": str(server.store.version)}
    assert [item["metadata"]["name"] for item in body["items"]] == ["a", "b"]
    assert all("kind" not in item and "apiVersion" not in item for item in body["items"])


async def test_lists_cover_one_namespace_or_all_and_obey_selectors(client: Client) -> None:
    await client("POST", PODS, a_pod("a", nodeName="n1"))
    await client("POST", "/api/v1/namespaces/kube-system/pods", a_pod("b", nodeName="n2"))
    await client("POST", PODS, {**a_pod(""), "metadata": {"name": "c", "labels": {"app": "x"}}})

    async def names(path: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await client("GET", path)).body["items"]]

    assert await names("/api/v1/pods") == ["a", "c", "b"]
    assert await names(PODS) == ["a", "c"]
    assert await names("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2") == ["b"]
    assert await names("/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending") == ["c"]
    assert await names("/api/v1/pods?labelSelector=app+in+(x,y)") == ["c"]
    assert await names("/api/v1/pods?resourceVersion=0&labelSelector=!app&limit=1") == ["a", "b"]
    assert await names("/api/v1/namespaces/missing/pods") == []


async def test_all_pages_show_the_state_of_the_first_page(client: Client) -> None:
    for name in "abc":
        await client("POST", CONFIGMAPS, a_configmap(name))
    first = (await client("GET", f"{CONFIGMAPS}?limit=1")).body
    assert first["metadata"]["remainingItemCount"] == 2
    await client("DELETE", f"{CONFIGMAPS}/b")
    await client("POST", CONFIGMAPS, a_configmap("bb"))
    second = (await client("GET", f"{CONFIGMAPS}?limit=5&continue={first['metadata']['continue']}")).body
    assert [item["metadata"]["name"] for item in second["items"]] == ["b", "c"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}


async def test_an_expired_page_comes_with_a_token_for_an_inconsistent_list(client: Client, server: ApiServer) -> None:
    for name in "abc":
        await client("POST", CONFIGMAPS, a_configmap(name))
    token = (await client("GET", f"{CONFIGMAPS}?limit=1")).body["metadata"]["continue"]
    await client("DELETE", f"{CONFIGMAPS}/b")
    server.compact()
    answer = await client("GET", f"{CONFIGMAPS}?limit=1&continue={token}")
    assert (answer.status, answer.reason) == (410, "Expired")
    rest = await client("GET", f"{CONFIGMAPS}?continue={answer.body['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest.body["items"]] == ["c"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=abc", 400),
        ("continue=zzz", 400),
        ("resourceVersion=abc", 400),
        ("resourceVersion=999999", 504),
        ("labelSelector=a%3D%3D%3Db", 400),
        ("fieldSelector=spec.foo%3Da", 400),
        ("watch=true&timeoutSeconds=abc", 400),
    ],
)
async def test_an_invalid_list_request_is_refused(client: Client, query: str, status: int) -> None:
    assert (await client("GET", f"{CONFIGMAPS}?{query}")).status == status


async def test_a_watch_starts_after_the_given_resource_version(client: Client) -> None:
    await client("POST", CONFIGMAPS, a_configmap("a"))
    version = (await client("GET", CONFIGMAPS)).version
    await client("POST", CONFIGMAPS, a_configmap("b"))
    watch = await client.watch(f"{CONFIGMAPS}?resourceVersion={version}")
    await client.merge(f"{CONFIGMAPS}/a", {"data": {"x": "1"}})
    await client("DELETE", f"{CONFIGMAPS}/b")
    events = [await watch.next() for _ in range(3)]
    assert [(kind, document["metadata"]["name"]) for kind, document in events] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
    ]
    assert all((document["kind"], document["apiVersion"]) == ("ConfigMap", "v1") for _, document in events)
    versions = [int(document["metadata"]["resourceVersion"]) for _, document in events]
    assert versions == sorted(versions)
    assert versions[-1] == int((await client("GET", CONFIGMAPS)).version)


@pytest.mark.parametrize("start", ["", "resourceVersion=0"])
async def test_a_watch_without_a_version_starts_with_the_current_objects(client: Client, start: str) -> None:
    await client("POST", CONFIGMAPS, a_configmap("b"))
    await client("POST", CONFIGMAPS, a_configmap("a"))
    watch = await client.watch(f"{CONFIGMAPS}?allowWatchBookmarks=true&{start}")
    assert await watch.names(2) == [("ADDED", "a"), ("ADDED", "b")]
    kind, bookmark = await watch.next()
    assert kind == "BOOKMARK"
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    await client("POST", CONFIGMAPS, a_configmap("c"))
    assert await watch.names(1) == [("ADDED", "c")]


async def test_a_watch_from_an_expired_version_gets_one_error_event(client: Client, server: ApiServer) -> None:
    version = (await client("POST", CONFIGMAPS, a_configmap("a"))).version
    await client("POST", CONFIGMAPS, a_configmap("b"))
    server.compact()
    watch = await client.watch(f"{CONFIGMAPS}?resourceVersion={version}")
    assert watch.response.status == 200
    ((kind, status),) = await watch.rest()
    assert kind == "ERROR"
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith(f"too old resource version: {version} (")


async def test_the_history_is_limited(connect: Connect) -> None:
    async with ApiServer(history_limit=2) as server:
        client = connect(server.url)
        version = (await client("POST", CONFIGMAPS, a_configmap("a"))).version
        for value in "123":
            await client.merge(f"{CONFIGMAPS}/a", {"data": {"x": value}})
        watch = await client.watch(f"{CONFIGMAPS}?resourceVersion={version}")
        assert [kind for kind, _ in await watch.rest()] == ["ERROR"]


async def test_starting_or_ceasing_to_match_a_selector_is_added_or_deleted(client: Client) -> None:
    version = (await client("POST", CONFIGMAPS, a_configmap("a"))).version
    watch = await client.watch(f"{CONFIGMAPS}?labelSelector=t%3D1&resourceVersion={version}")
    await client.merge(f"{CONFIGMAPS}/a", {"metadata": {"labels": {"t": "1"}}})
    await client.merge(f"{CONFIGMAPS}/a", {"data": {"x": "1"}})
    left = await client.merge(f"{CONFIGMAPS}/a", {"metadata": {"labels": {"t": None}}})
    await client("DELETE", f"{CONFIGMAPS}/a")
    await client("POST", CONFIGMAPS, {"metadata": {"name": "end", "labels": {"t": "1"}}})
    events = [await watch.next() for _ in range(4)]
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[2][1]["metadata"]["labels"] == {"t": "1"}
    assert events[2][1]["metadata"]["resourceVersion"] == left.version


async def test_a_watch_of_one_node_receives_a_pod_when_it_is_bound(client: Client) -> None:
    watch = await client.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
    for name, node in (("elsewhere", "n2"), ("here", "n1")):
        await client("POST", PODS, a_pod(name))
        binding = {"metadata": {"name": name}, "target": {"name": node}}
        await client("POST", f"{PODS}/{name}/binding", binding)
    await client("DELETE", f"{PODS}/here?gracePeriodSeconds=0")
    assert await watch.names(3) == [("ADDED", "here"), ("MODIFIED", "here"), ("DELETED", "here")]


async def test_a_watch_with_a_time_limit_ends_with_a_bookmark(client: Client, server: ApiServer) -> None:
    await client("POST", CONFIGMAPS, a_configmap("a"))
    version = str(server.store.version)
    watch = await client.watch(f"{CONFIGMAPS}?resourceVersion={version}&allowWatchBookmarks=1&timeoutSeconds=1")
    ((kind, bookmark),) = await watch.rest()
    assert kind == "BOOKMARK"
    assert bookmark == {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version}}


async def test_bookmarks_come_regularly_and_have_the_latest_version(connect: Connect) -> None:
    async with ApiServer(bookmark_interval_s=0.01) as server:
        near = connect(server.url)
        watch = await near.watch(f"/api/v1/nodes?resourceVersion={server.store.version}&allowWatchBookmarks=true")
        assert (await watch.next())[0] == "BOOKMARK"
        version = (await near("POST", CONFIGMAPS, a_configmap("of-another-kind"))).version
        while True:
            kind, bookmark = await watch.next()
            assert kind == "BOOKMARK"
            if bookmark["metadata"]["resourceVersion"] == version:
                break
