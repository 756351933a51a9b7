"""Errors with a meaning, preconditions that hold, an identity that is refreshed."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from ascend.errors import ApiError, Conflict, InvalidValue, NotFound, Throttled, Unauthorized, Unreachable
from ascend.kube.client import JSON_PATCH, KubeClient
from ascend.kube.identity import Access
from ascend.kube.objects import PODS
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import pod, write_kubeconfig


async def test_errors_say_what_happened(server: ApiServer, client: KubeClient) -> None:
    await client.create(PODS, pod("one"), "default")
    with pytest.raises(NotFound, match='pods "none" not found'):
        await client.get(PODS, "none", "default")
    with pytest.raises(Conflict) as conflict:
        await client.create(PODS, pod("one"), "default")
    assert conflict.value.reason == "AlreadyExists"
    server.fail_next("GET", "/pods", 429, retry_after_s=7)
    with pytest.raises(Throttled) as throttled:
        await client.get(PODS, "one", "default")
    assert throttled.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("asked", "waits_s"),
    [
        ("0", 0),
        ("7", 7),
        ("3600", 30),
        ("9" * 400, 30),
        ("²", None),
        ("-1", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
async def test_a_pause_that_is_asked_for_is_bounded_whatever_is_written_there(
    asked: str, waits_s: float | None
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 503 Busy\r\nRetry-After: {asked}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def anonymous() -> dict[str, str]:
        return {}

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with KubeClient(Access(url, ssl.create_default_context(), anonymous)) as client:
            with pytest.raises(ApiError) as refused:
                await client.get(PODS, "one", "default")
    assert refused.value.retry_after_s == waits_s


async def test_no_answer_is_told_apart_from_an_error(server: ApiServer, client: KubeClient) -> None:
    server.lose_answer("POST", "/pods")
    with pytest.raises(Unreachable):
        await client.create(PODS, pod("lost"), "default")
    assert (await client.get(PODS, "lost", "default")).name == "lost"
    server.delay("/pods", 5)
    with pytest.raises(Unreachable):
        await client.request("GET", PODS.path(), timeout_s=0.05)
    server.delay("/pods", 0)


async def test_a_binding_carries_node_and_annotations_in_one_step(client: KubeClient) -> None:
    created = await client.create(PODS, pod("one", kept="yes"), "default")
    with pytest.raises(Conflict):
        await client.bind(namespace="default", name="one", uid="another", node="n1", annotations={"a": "b"})
    assert not (await client.get(PODS, "one", "default")).spec.node_name
    await client.bind(namespace="default", name="one", uid=created.uid, node="n1", annotations={"a": "b"})
    bound = await client.get(PODS, "one", "default")
    assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"kept": "yes", "a": "b"})


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("default", "../pods/other"), ("default", "other?x="), ("x/../default", "other"), ("default", "other#")],
)
async def test_a_name_that_is_none_leads_to_no_other_object(client: KubeClient, namespace: str, name: str) -> None:
    await client.create(PODS, pod("other"), "default")
    with pytest.raises(NotFound):
        await client.get(PODS, name, namespace)


async def test_a_patch_with_a_uid_never_touches_another_pod_of_the_name(client: KubeClient) -> None:
    await client.create(PODS, pod("one"), "default")
    change = {"metadata": {"uid": "another", "annotations": {"a": "b"}}}
    with pytest.raises(ApiError) as refused:
        await client.patch(PODS, "one", change, namespace="default")
    assert refused.value.reason in {"Conflict", "Invalid"}
    assert (await client.get(PODS, "one", "default")).metadata.annotations == {}


async def test_a_json_patch_is_sent_as_one(client: KubeClient) -> None:
    await client.create(PODS, pod("one"), "default")
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {"huawei.com/a": "b"}}]
    patched = await client.patch(PODS, "one", patch, namespace="default", content_type=JSON_PATCH)
    assert patched.metadata.annotations == {"huawei.com/a": "b"}


async def test_an_identity_the_server_no_longer_accepts_is_loaded_again(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "stale")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        with pytest.raises(Unauthorized):
            await client.list_objects(PODS)
        write_kubeconfig(tmp_path, server, "fresh")
        assert await client.list_objects(PODS) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "clusters: 7"])
async def test_a_kubeconfig_that_breaks_later_is_no_answer_and_is_tried_again(
    server: ApiServer, tmp_path: Path, content: str
) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "stale")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        kubeconfig.write_text(content)
        with pytest.raises(Unreachable, match="the identity could not be loaded again"):
            await client.list_objects(PODS)
        write_kubeconfig(tmp_path, server, "fresh")
        assert await client.list_objects(PODS) == []


async def test_an_exec_plugin_gives_the_identity(server: ApiServer, tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "secret"}}
    (tmp_path / "credential.json").write_text(json.dumps(credential))
    document = server.kubeconfig("unused")
    document["users"][0]["user"] = {
        "exec": {
            "apiVersion": version,
            "command": "cat",
            "args": [str(tmp_path / "credential.json")],
            "interactiveMode": "Never",
        }
    }
    kubeconfig = tmp_path / "exec.json"
    kubeconfig.write_text(json.dumps(document))
    async with await KubeClient.connect(str(kubeconfig)) as client:
        assert await client.list_objects(PODS) == []


async def test_a_missing_kubeconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=str(tmp_path / "none")):
        await KubeClient.connect(str(tmp_path / "none"))


async def test_a_proxy_of_the_environment_is_used_unless_it_says_otherwise(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await client.list_objects(PODS)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        assert await client.list_objects(PODS) == []
