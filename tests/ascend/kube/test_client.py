"""The client: typed errors, preconditions, and an identity that is reloaded."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from ascend.annotations import RANK
from ascend.errors import ApiError, Conflict, InvalidValue, NotFound, Throttled, Unauthorized, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.identity import Access, trusting
from ascend.kube.objects import PODS
from ascend.serving.http import serve_http
from sandbox.apiserver import ApiServer
from tests.allocator.authority import Authority
from tests.ascend.kube.objects import pod, write_kubeconfig

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_each_error_of_the_server_has_its_type(server: ApiServer, client: KubeClient) -> None:
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
    ("header", "waits_s"),
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
async def test_retry_after_is_parsed_strictly_and_limited(header: str, waits_s: float | None) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 503 Busy\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def anonymous() -> dict[str, str]:
        return {}

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with KubeClient(Access(url, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), anonymous)) as client:
            with pytest.raises(ApiError) as refused:
                await client.get(PODS, "one", "default")
    assert refused.value.retry_after_s == waits_s


async def test_a_lost_answer_is_not_an_error_of_the_server(server: ApiServer, client: KubeClient) -> None:
    server.lose_answer("POST", "/pods")
    with pytest.raises(Unreachable):
        await client.create(PODS, pod("lost"), "default")
    assert (await client.get(PODS, "lost", "default")).name == "lost"
    server.delay("/pods", 5)
    with pytest.raises(Unreachable):
        await client.request("GET", PODS.path(), timeout_s=0.05)
    server.delay("/pods", 0)


async def test_a_binding_writes_node_and_annotations_in_one_step(client: KubeClient) -> None:
    created = await client.create(PODS, pod("one", app="yes"), "default")
    with pytest.raises(Conflict):
        await client.bind(namespace="default", name="one", uid="another", node="n1", annotations={RANK: "1"})
    assert not (await client.get(PODS, "one", "default")).spec.node_name
    await client.bind(namespace="default", name="one", uid=created.uid, node="n1", annotations={RANK: "1"})
    bound = await client.get(PODS, "one", "default")
    assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"app": "yes", RANK: "1"})


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("default", "../pods/other"), ("default", "other?x="), ("x/../default", "other"), ("default", "other#")],
)
async def test_an_invalid_name_reaches_no_other_object(client: KubeClient, namespace: str, name: str) -> None:
    await client.create(PODS, pod("other"), "default")
    with pytest.raises(NotFound):
        await client.get(PODS, name, namespace)


async def test_a_patch_with_a_uid_does_not_change_a_recreated_pod(client: KubeClient) -> None:
    await client.create(PODS, pod("one"), "default")
    change = {"metadata": {"uid": "another", "annotations": {"a": "b"}}}
    with pytest.raises(ApiError) as refused:
        await client.patch(PODS, "one", change, namespace="default")
    assert refused.value.reason in {"Conflict", "Invalid"}
    assert (await client.get(PODS, "one", "default")).metadata.annotations == {}


async def test_a_json_patch_is_sent_with_its_content_type(client: KubeClient) -> None:
    await client.create(PODS, pod("one"), "default")
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {RANK: "1"}}]
    patched = await client.patch(PODS, "one", patch, namespace="default", content_type="application/json-patch+json")
    assert patched.metadata.annotations == {RANK: "1"}


async def test_a_rejected_identity_is_reloaded(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "stale")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        with pytest.raises(Unauthorized):
            await client.list_objects(PODS)
        write_kubeconfig(tmp_path, server, "fresh")
        assert await client.list_objects(PODS) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "clusters: 7"])
async def test_a_kubeconfig_that_breaks_later_is_read_again(server: ApiServer, tmp_path: Path, content: str) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "stale")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        kubeconfig.write_text(content)
        with pytest.raises(Unreachable, match=" again: "):
            await client.list_objects(PODS)
        write_kubeconfig(tmp_path, server, "fresh")
        assert await client.list_objects(PODS) == []


async def test_an_exec_plugin_provides_the_identity(server: ApiServer, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("token", ["secret\n", "secret\r\nImpersonate-User: root"])
async def test_a_token_that_is_no_header_is_an_error(server: ApiServer, tmp_path: Path, token: str) -> None:
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server, token))) as client:
        with pytest.raises(Unreachable, match="control character"):
            await client.list_objects(PODS)


async def test_a_missing_kubeconfig_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=str(tmp_path / "none")):
        await KubeClient.connect(str(tmp_path / "none"))


async def test_the_proxy_variables_of_the_environment_are_used(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = write_kubeconfig(tmp_path, server, "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where no server listens
    monkeypatch.setenv("no_proxy", "")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await client.list_objects(PODS)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        assert await client.list_objects(PODS) == []


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
async def test_a_binding_that_a_proxy_redirects_to_its_login_page_is_not_made(status: int) -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=200 if request.path == "/login" else status, headers={"Location": "/login"})

    async def token() -> dict[str, str]:
        return {"Authorization": "Bearer x"}

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", redirect)
    async with (
        serve_http(app, "127.0.0.1:0") as address,
        KubeClient(Access(f"http://{address}", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), token)) as client,
    ):
        with pytest.raises(ApiError) as refused:
            await client.bind(namespace="default", name="pod", uid="u", node="n1", annotations={})
    assert (refused.value.status, asked) == (status, ["/api/v1/namespaces/default/pods/pod/binding"])


@asynccontextmanager
async def rejecting(
    posted: list[float], reload: Callable[[], Awaitable[None]], *, until: int = 1
) -> AsyncIterator[KubeClient]:
    """A client of a server that answers the first requests with 401; each reload of the credentials calls ``reload``.

    ``posted`` gets the query ``timeout`` of each request, in milliseconds; 0 for none.
    """

    async def answer(request: web.Request) -> web.Response:
        posted.append(float(request.query.get("timeout", "0ms").removesuffix("ms")))
        return web.json_response({}, status=401 if len(posted) <= until else 200)

    async def token() -> dict[str, str]:
        return {"Authorization": "Bearer x"}

    async def load() -> Access:
        await reload()
        return access

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serve_http(app, "127.0.0.1:0") as address:
        access = Access(f"http://{address}", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), token)
        async with KubeClient(access, load) as client:
            yield client


async def hang() -> None:
    """A credential plugin that does not answer."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
async def test_the_timeout_of_a_request_includes_loading_fresh_credentials(method: str) -> None:
    async with rejecting([], hang) as client:
        with pytest.raises(Unreachable, match=r"no answer within 0.1 s"):
            await client.request(method, "/api/v1/pods", timeout_s=0.1)


async def test_a_watch_is_not_opened_for_ever_if_fresh_credentials_do_not_come() -> None:
    async with rejecting([], hang) as client:
        with pytest.raises(Unreachable, match=r"no answer within 0.1 s"):
            async with client.stream("/api/v1/pods", query={"watch": "true"}, idle_timeout_s=0.1):
                pass


async def test_a_binding_posted_again_with_fresh_credentials_has_the_time_that_is_left() -> None:
    async def slowly() -> None:
        answered = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, answered.set)
        await answered.wait()

    posted: list[float] = []
    async with rejecting(posted, slowly) as client:
        await client.bind(namespace="default", name="p", uid="u", node="n1", annotations={}, timeout_s=5.0)
    first, second = posted
    assert 4_000 < first <= 5_000
    assert second <= first - 200


async def test_a_binding_is_not_posted_again_after_its_time() -> None:
    posted: list[float] = []
    async with rejecting(posted, hang) as client:
        with pytest.raises(Unreachable, match="no answer within"):
            await client.bind(namespace="default", name="p", uid="u", node="n1", annotations={}, timeout_s=0.2)
    assert len(posted) == 1


async def read_lines(client: KubeClient) -> None:
    async with client.stream("/x", query={}, idle_timeout_s=0.2) as lines:
        async for _ in lines:
            pass


CHUNK = "Transfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n"
BEGINNINGS = {
    "no answer": "",
    "a part of the headers": "HTTP/1.1 200 OK\r\nX",
    "a part of a body": f"HTTP/1.1 200 OK\r\n{CHUNK}",
    "a part of an error": f"HTTP/1.1 403 Forbidden\r\n{CHUNK}",
    "a part of a refusal": f"HTTP/1.1 401 Unauthorized\r\n{CHUNK}",
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_connection_over_tls_ends_without_the_server(
    streams: bool,  # noqa: FBT001
    beginning: str,
    tmp_path: Path,
) -> None:
    # The orderly end of TLS waits for the other side: the connection would outlive the client, and its event loop.
    authority = Authority(tmp_path)
    pair = authority.sign("server", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)

    async def anonymous() -> dict[str, str]:
        return {}

    def serve(listening: socket.socket) -> socket.socket:
        """Begin to answer a request, and leave the connection to itself."""
        accepted, _ = listening.accept()
        left = socket.socket(fileno=os.dup(accepted.fileno()))
        # On a busy machine the client gives up before the server begins.
        with suppress(OSError), tls.wrap_socket(accepted, server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(beginning.encode())
        return left

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        serving = asyncio.create_task(asyncio.to_thread(serve, listening))
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        access = Access(url, trusting(authority.cert), anonymous)
        async with KubeClient(access, lambda: asyncio.sleep(0, access)) as client:
            asked = read_lines(client) if streams else client.request("GET", "/x", timeout_s=0.2)
            with pytest.raises(Unreachable):
                await asked
        with await serving as connection:
            connection.settimeout(5)
            while await asyncio.to_thread(connection.recv, 1 << 16):
                pass
