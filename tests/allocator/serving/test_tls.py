"""TLS: which clients are answered, and certificates that change while they are served."""

import asyncio
import functools
import shutil
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import grpc
import pytest
from grpc_status import rpc_status

from allocator.serving import ports
from ascend.addresses import split_address
from ascend.daemon.certificates import Certificates
from ascend.daemon.settings import TlsFiles
from ascend.errors import InvalidValue
from ascend.kube.identity import trusting
from ascend.serving import limits
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from sandbox.apiserver import ApiServer
from tests.allocator.authority import ALLOWED, Authority, Pair, settings_for
from tests.allocator.harness import Allocator, running
from tests.ascend.serving.http2_client import Client

RELOAD_S = 0.05
WEBHOOKS = ("bindings", "pods")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of server and clients."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority."""
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def fast_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed files are read soon."""
    monkeypatch.setattr(ports, "Certificates", functools.partial(Certificates, poll_s=RELOAD_S))


async def call_grpc(allocator: Allocator, authority: Authority, client: Pair | None) -> str:
    """Call gRPC; the answer is OK, or the error."""
    roots = authority.cert.read_bytes()
    pair = (client.key.read_bytes(), client.cert.read_bytes()) if client is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(roots, *pair)
    async with grpc.aio.secure_channel(allocator.app.grpc_address, credentials) as channel:
        try:
            await AllocatorStub(channel).GetState(pb.GetStateRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            status = rpc_status.from_call(cast("Any", error))  # its type requires more than is read
            kinds = [detail.TypeName() for detail in status.details] if status is not None else []
            return " ".join((f"{error.code().name}: {error.details()}", *kinds))
    return "OK"


async def call_http(
    allocator: Allocator, authority: Authority, client: Pair | None, path: str = "/scheduler/filter"
) -> tuple[int, str]:
    """Status and text of a page, at the address that serves it; status 0 if the handshake fails."""
    app = allocator.app
    address = {"/readyz": app.probe_address, "/metrics": app.probe_address}.get(path, app.extender_address)
    if path.startswith("/webhook/"):
        address = app.webhook_address
    return await call_at(address, authority, client, path)


async def call_at(address: str, authority: Authority, client: Pair | None, path: str) -> tuple[int, str]:
    """Status and text of a page; status 0 if the handshake fails."""
    context = trusting(authority.cert)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as http:
        method = "GET" if path in {"/readyz", "/metrics"} else "POST"
        try:
            async with http.request(method, f"https://{address}{path}", data=b"{}") as response:
                return response.status, await response.text()
        except aiohttp.ClientError as error:
            return 0, str(error)


async def test_only_clients_with_an_allowed_name_are_answered(tmp_path: Path, authority: Authority) -> None:
    allowed = authority.sign("allowed", "DNS:other", f"URI:{ALLOWED}")
    other = authority.sign("other", "DNS:other")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        assert await call_grpc(allocator, authority, allowed) == "OK"
        refused = await call_grpc(allocator, authority, other)
        assert refused.startswith("PERMISSION_DENIED: ClientNotAllowed: ")
        assert "a certificate for other;" in refused
        assert refused.endswith(" google.rpc.ErrorInfo")
        assert (await call_grpc(allocator, authority, None)).startswith("UNAVAILABLE")
        assert (await call_http(allocator, authority, allowed))[0] == 200
        status, text = await call_http(allocator, authority, other)
        assert (status, "for other" in text) == (403, True)
        assert (await call_http(allocator, authority, None))[0] == 0
        assert (await call_http(allocator, authority, None, "/readyz"))[0] == 200
        with pytest.raises(grpc.aio.AioRpcError):
            await allocator.stub.GetState(pb.GetStateRequest(), timeout=2)  # plaintext


async def test_nothing_is_read_of_a_client_without_a_certificate(tmp_path: Path, authority: Authority) -> None:
    allowed, unnamed = authority.sign("allowed", f"URI:{ALLOWED}"), authority.sign("other", "DNS:other")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        calls = allocator.app.extender_address
        for path in ("/scheduler/bind", "/scheduler", "/another", "/", "/metrics", "/readyz", "/webhook/bindings"):
            assert (await call_at(calls, authority, None, path))[0] == 0
            assert (await call_at(calls, authority, unnamed, path))[0] == 403
        for path in ("/another", "/metrics", "/readyz", "/webhook/bindings"):
            assert (await call_at(calls, authority, allowed, path))[0] == 404
        assert (await call_http(allocator, authority, None, "/webhook/bindings"))[0] == 400
        assert (await call_http(allocator, authority, None, "/metrics"))[0] == 200
        for address in (allocator.app.webhook_address, allocator.app.probe_address):
            assert (await call_at(address, authority, allowed, "/scheduler/bind"))[0] == 404


async def test_a_certificate_with_another_name_counts_among_strangers(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALLS", replace(limits.CALLS, per_address=4, header_s=60.0))
    allowed, other = authority.sign("allowed", f"URI:{ALLOWED}"), authority.sign("other", "DNS:other")
    context = trusting(authority.cert)
    context.load_cert_chain(other.cert, other.key)
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        host, port = split_address(allocator.app.extender_address)
        opened = [await asyncio.open_connection(host, port, ssl=context) for _ in range(7)]
        try:
            async with asyncio.timeout(10):
                for reader, _ in opened[:3]:
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
            assert (await call_http(allocator, authority, allowed))[0] == 200
        finally:
            for _, writer in opened:
                writer.transport.abort()


async def test_over_http2_nothing_is_read_of_a_client_with_another_name(tmp_path: Path, authority: Authority) -> None:
    signed = {403: authority.sign("other", "DNS:other"), 200: authority.sign("allowed", f"URI:{ALLOWED}")}
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        host, port = split_address(allocator.app.extender_address)
        for status, pair in signed.items():
            context = trusting(authority.cert)
            context.load_cert_chain(pair.cert, pair.key)
            context.set_alpn_protocols(["h2", "http/1.1"])
            client = Client(*await asyncio.open_connection(host, port, ssl=context))
            client.http2.initiate_connection()
            begun = client.ask("/scheduler/filter", b"{", length=2, is_whole=False)
            reading = asyncio.create_task(client.read())
            if status == 200:
                client.http2.send_data(begun, b"}", end_stream=True)
                client.flush()
            assert await client.answered(begun) == [status]
            reading.cancel()
            client.writer.transport.abort()


async def test_a_certificate_for_servers_is_none_for_clients(tmp_path: Path, authority: Authority) -> None:
    served = authority.sign("server-only", f"URI:{ALLOWED}", usage="serverAuth")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        assert (await call_http(allocator, authority, served))[0] == 0


async def test_anyone_may_call_until_its_scheduler_has_a_certificate_if_that_is_set(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    allowed, unnamed = authority.sign("allowed", f"URI:{ALLOWED}"), authority.sign("other", "DNS:other")
    unknown = other_authority.sign("client", f"URI:{ALLOWED}")
    files = {**settings_for(tmp_path, authority), "insecure_anyone_may_bind_pods": True}
    async with ApiServer() as server, running(server, tmp_path, **files) as allocator:
        answers = [(await call_http(allocator, authority, each))[0] for each in (None, allowed, unnamed, unknown)]
        assert answers == [200, 200, 403, 0]
        assert (await call_grpc(allocator, authority, None)).startswith("UNAVAILABLE")


async def test_volcano_is_answered_where_certificates_are_demanded_or_at_an_insecure_address(
    tmp_path: Path, authority: Authority
) -> None:
    allowed = authority.sign("allowed", f"URI:{ALLOWED}")
    files = {**settings_for(tmp_path, authority), "volcano": True}
    path = "/volcano/jobReady"
    async with ApiServer() as server:
        async with running(server, tmp_path, **files) as allocator:
            assert (await call_http(allocator, authority, None, path))[0] == 0
            assert (await call_http(allocator, authority, allowed, path))[0] == 200
            assert allocator.app.insecure_volcano_address == ""
        async with (
            running(server, tmp_path, **files, insecure_volcano_address="127.0.0.1:0") as allocator,
            aiohttp.ClientSession() as http,
            http.post(f"http://{allocator.app.insecure_volcano_address}{path}", data=b"{}") as answer,
        ):
            assert answer.status == 200


async def test_the_webhooks_have_client_names_of_their_own(tmp_path: Path, authority: Authority) -> None:
    server_name = "kube-apiserver"
    caller, scheduler = authority.sign("api", f"DNS:{server_name}"), authority.sign("scheduler", f"URI:{ALLOWED}")
    files = settings_for(tmp_path, authority)
    async with ApiServer() as server:
        async with running(server, tmp_path, **files, webhook_client_names=[server_name]) as allocator:
            for name in WEBHOOKS:
                path = f"/webhook/{name}"
                assert (await call_http(allocator, authority, caller, path))[0] == 400  # {} is no AdmissionReview
                assert (await call_http(allocator, authority, None, path))[0] == 0
                status, text = await call_http(allocator, authority, scheduler, path)
                shown = f"a certificate for {ALLOWED}"
                assert status == 403
                assert all(word in text for word in ("ClientNotAllowed: ", shown, "webhook_client_names"))
            assert (await call_http(allocator, authority, caller))[0] == 403  # the extender has other client names
        for served in ([], ["pods"], ["bindings"], ["bindings", "pods"]):
            async with running(server, tmp_path, **files, webhooks=served) as allocator:
                for name in WEBHOOKS:
                    status, _ = await call_http(allocator, authority, None, f"/webhook/{name}")
                    assert status == (400 if name in served else 404)


async def test_a_certificate_of_an_unknown_authority_is_rejected(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    unknown = other_authority.sign("client", f"URI:{ALLOWED}")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        assert (await call_grpc(allocator, authority, unknown)).startswith("UNAVAILABLE")
        assert (await call_http(allocator, authority, unknown))[0] == 0


async def until_true(check: Callable[[], Any]) -> None:
    """Wait until a check succeeds."""
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - only a call shows it
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("fast_reload")
async def test_new_certificates_and_a_new_authority_are_reloaded(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    files, new = settings_for(tmp_path, authority), other_authority
    old_client, new_client = authority.sign("client", f"URI:{ALLOWED}"), new.sign("client", f"URI:{ALLOWED}")
    async with ApiServer() as server, running(server, tmp_path, **files) as allocator:
        assert await call_grpc(allocator, authority, old_client) == "OK"
        served = new.sign("served", "DNS:localhost", "IP:127.0.0.1")
        shutil.copy(served.cert, files["tls_cert_file"])
        await asyncio.sleep(5 * RELOAD_S)  # the files are read meanwhile, but half of them don't replace the old ones
        assert (await call_http(allocator, authority, old_client))[0] == 200
        assert await call_grpc(allocator, authority, old_client) == "OK"
        shutil.copy(served.key, files["tls_key_file"])
        shutil.copy(new.cert, files["client_ca_file"])

        async def reloaded() -> bool:
            return (await call_http(allocator, new, new_client))[0] == 200

        await until_true(reloaded)
        assert await call_grpc(allocator, new, new_client) == "OK"
        mixed = Authority.__new__(Authority)
        mixed.cert = new.cert
        assert (await call_grpc(allocator, mixed, old_client)).startswith("UNAVAILABLE")
        assert (await call_http(allocator, mixed, old_client))[0] == 0


def call_in_session(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
    """Whether a call is answered, and a session to resume."""
    request = b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with (
        socket.create_connection(("localhost", port)) as connection,
        context.wrap_socket(connection, server_hostname="localhost", session=session) as secured,
    ):
        secured.sendall(request)
        answer = b"".join(iter(lambda: secured.recv(65536), b""))
        assert secured.session is not None
        return answer.startswith(b"HTTP/1.1 200 "), secured.session


@pytest.mark.usefixtures("fast_reload")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_not_resumed_after_its_authority_was_removed(
    tmp_path: Path, authority: Authority, other_authority: Authority, version: ssl.TLSVersion
) -> None:
    files = settings_for(tmp_path, authority)
    client = authority.sign("client", f"URI:{ALLOWED}")
    context = trusting(authority.cert)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(client.cert, client.key)
    async with ApiServer() as server, running(server, tmp_path, **files) as allocator:
        port = int(allocator.app.extender_address.rpartition(":")[2])

        async def is_answered(session: ssl.SSLSession | None = None) -> bool:
            try:
                return (await asyncio.to_thread(call_in_session, port, context, session))[0]
            except OSError:  # an SSLError is one
                return False

        answered, session = await asyncio.to_thread(call_in_session, port, context, None)
        assert (answered, session.has_ticket) == (True, False)
        shutil.copy(other_authority.cert, files["client_ca_file"])

        async def refused() -> bool:
            return not await is_answered()

        await until_true(refused)
        assert not await is_answered(session)


def test_certificate_files_that_do_not_match_are_named(tmp_path: Path, authority: Authority) -> None:
    one, other = authority.sign("one", "DNS:a"), authority.sign("other", "DNS:a")
    with pytest.raises(InvalidValue, match=r"can't be used \(.*-one-.*crt, .*-other-.*key\): .*MISMATCH"):
        Certificates(TlsFiles(one.cert, other.key))
    with pytest.raises(InvalidValue, match="No such file"):
        Certificates(TlsFiles(one.cert, tmp_path / "absent.key"))
    (tmp_path / "empty.crt").write_text("")
    with pytest.raises(InvalidValue, match=r"empty\.crt"):
        Certificates(TlsFiles(one.cert, one.key, tmp_path / "empty.crt"))
