"""TLS: who may ask, certificates that change while they are served, and no plaintext by mistake."""

import asyncio
import functools
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import grpc
import pytest
from grpc_status import rpc_status

from allocator import app as app_module
from allocator.settings import Settings
from ascend.daemon.certificates import Certificates, TlsFiles
from ascend.daemon.settings import read_settings
from ascend.errors import InvalidValue
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from sandbox.apiserver import ApiServer
from tests.allocator.authority import Authority, Pair
from tests.allocator.harness import Allocator, running

ALLOWED = "spiffe://cluster.local/ns/volcano-system/sa/scheduler"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_for(folder: Path, authority: Authority) -> dict[str, Any]:
    served = authority.sign("served", "DNS:localhost", "IP:127.0.0.1")
    shutil.copy(served.cert, folder / "tls.crt")
    shutil.copy(served.key, folder / "tls.key")
    shutil.copy(authority.cert, folder / "ca.crt")
    return {
        "tls_cert_file": folder / "tls.crt",
        "tls_key_file": folder / "tls.key",
        "client_ca_file": folder / "ca.crt",
        "client_names": [ALLOWED],
    }


async def ask_grpc(allocator: Allocator, authority: Authority, client: Pair | None) -> str:
    roots = authority.cert.read_bytes()
    pair = (client.key.read_bytes(), client.cert.read_bytes()) if client is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(roots, *pair)
    async with grpc.aio.secure_channel(allocator.app.grpc_address, credentials) as channel:
        try:
            await AllocatorStub(channel).GetState(pb.GetStateRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            status = rpc_status.from_call(cast("Any", error))  # the stub asks for more than is read
            kinds = [detail.TypeName() for detail in status.details] if status is not None else []
            return " ".join((f"{error.code().name}: {error.details()}", *kinds))
    return "OK"


async def ask_http(
    allocator: Allocator, authority: Authority, client: Pair | None, path: str = "/scheduler/filter"
) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=authority.cert)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as http:
        method = "GET" if path == "/readyz" else "POST"
        async with http.request(method, f"https://{allocator.app.extender_address}{path}", data=b"{}") as response:
            return response.status, await response.text()


async def test_only_clients_with_an_allowed_name_are_answered(tmp_path: Path, authority: Authority) -> None:
    allowed = authority.sign("allowed", "DNS:other", f"URI:{ALLOWED}")
    other = authority.sign("other", "DNS:other")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        assert await ask_grpc(allocator, authority, allowed) == "OK"
        refused = await ask_grpc(allocator, authority, other)
        assert refused.startswith("PERMISSION_DENIED: ClientNotAllowed: the client shows a certificate for other;")
        assert refused.endswith(" google.rpc.ErrorInfo")
        assert (await ask_grpc(allocator, authority, None)).startswith("UNAVAILABLE")
        assert (await ask_http(allocator, authority, allowed))[0] == 200
        status, text = await ask_http(allocator, authority, other)
        assert (status, "for other" in text) == (403, True)
        status, text = await ask_http(allocator, authority, None)
        assert (status, "no certificate" in text) == (403, True)
        assert (await ask_http(allocator, authority, None, "/readyz"))[0] == 200
        with pytest.raises(grpc.aio.AioRpcError):
            await allocator.stub.GetState(pb.GetStateRequest(), timeout=2)  # plaintext


@pytest.mark.parametrize("path", ["/webhook/bindings", "/webhook/pods"])
async def test_the_webhooks_are_there_for_whom_their_own_setting_names(
    tmp_path: Path, authority: Authority, path: str
) -> None:
    server_name = "kube-apiserver"
    caller, scheduler = authority.sign("api", f"DNS:{server_name}"), authority.sign("scheduler", f"URI:{ALLOWED}")
    files = settings_for(tmp_path, authority)
    async with ApiServer() as server:
        async with running(server, tmp_path, **files, webhook_client_names=[server_name]) as allocator:
            assert (await ask_http(allocator, authority, caller, path))[0] == 400  # {} is no AdmissionReview
            for client, shown in ((scheduler, f"a certificate for {ALLOWED}"), (None, "no certificate")):
                status, text = await ask_http(allocator, authority, client, path)
                sentence = f"ClientNotAllowed: the client shows {shown}; webhook_client_names says who may ask\n"
                assert (status, text) == (403, sentence)
            assert (await ask_http(allocator, authority, caller))[0] == 403  # the extender is not its business
        async with running(server, tmp_path, **files) as allocator:
            assert (await ask_http(allocator, authority, None, path))[0] == 400
        other = "pods" if path.endswith("bindings") else "bindings"
        for served in ([], [other]):
            async with running(server, tmp_path, **files, webhooks=served) as allocator:
                assert (await ask_http(allocator, authority, None, path))[0] == 404


async def test_a_strangers_certificate_ends_the_connection(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "stranger").sign("client", f"URI:{ALLOWED}")
    async with ApiServer() as server, running(server, tmp_path, **settings_for(tmp_path, authority)) as allocator:
        assert (await ask_grpc(allocator, authority, stranger)).startswith("UNAVAILABLE")
        with pytest.raises(aiohttp.ClientError):
            await ask_http(allocator, authority, stranger, "/readyz")


async def until_true(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - a server that answers so can only be asked
            await asyncio.sleep(0.05)


async def test_new_certificates_and_a_new_authority_are_taken_over_while_it_serves(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "Certificates", functools.partial(Certificates, poll_s=0.1))
    files = settings_for(tmp_path, authority)
    new = Authority(tmp_path, "new")
    old_client, new_client = authority.sign("client", f"URI:{ALLOWED}"), new.sign("client", f"URI:{ALLOWED}")
    async with ApiServer() as server, running(server, tmp_path, **files) as allocator:
        assert await ask_grpc(allocator, authority, old_client) == "OK"
        served = new.sign("served", "DNS:localhost", "IP:127.0.0.1")
        shutil.copy(served.cert, files["tls_cert_file"])
        await asyncio.sleep(0.5)  # longer than it takes to look: half of the files don't replace the old ones
        assert (await ask_http(allocator, authority, old_client, "/readyz"))[0] == 200
        assert await ask_grpc(allocator, authority, old_client) == "OK"
        shutil.copy(served.key, files["tls_key_file"])
        shutil.copy(new.cert, files["client_ca_file"])

        async def taken_over() -> bool:
            try:
                return (await ask_http(allocator, new, new_client))[0] == 200
            except aiohttp.ClientError:
                return False

        await until_true(taken_over)
        assert await ask_grpc(allocator, new, new_client) == "OK"
        mixed = Authority.__new__(Authority)
        mixed.cert = new.cert
        assert (await ask_grpc(allocator, mixed, old_client)).startswith("UNAVAILABLE")
        with pytest.raises(aiohttp.ClientError):
            await ask_http(allocator, mixed, old_client)


def ask_by_session(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
    """Whether it is answered, and a session to resume."""
    question = b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with (
        socket.create_connection(("localhost", port)) as connection,
        context.wrap_socket(connection, server_hostname="localhost", session=session) as secured,
    ):
        secured.sendall(question)
        answer = b"".join(iter(lambda: secured.recv(65536), b""))
        assert secured.session is not None
        return answer.startswith(b"HTTP/1.1 200 "), secured.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_of_a_client_whose_authority_was_removed_is_not_resumed(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    files = settings_for(tmp_path, authority)
    client = authority.sign("client", f"URI:{ALLOWED}")
    context = ssl.create_default_context(cafile=authority.cert)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(client.cert, client.key)
    async with ApiServer() as server, running(server, tmp_path, **files) as allocator:
        port = int(allocator.app.extender_address.rpartition(":")[2])

        async def is_answered(session: ssl.SSLSession | None = None) -> bool:
            try:
                return (await asyncio.to_thread(ask_by_session, port, context, session))[0]
            except OSError:  # an SSLError is one
                return False

        answered, session = await asyncio.to_thread(ask_by_session, port, context, None)
        assert (answered, session.has_ticket) == (True, False)
        shutil.copy(Authority(tmp_path, "new").cert, files["client_ca_file"])

        async def refused() -> bool:
            return not await is_answered()

        await until_true(refused)
        assert not await is_answered(session)


def test_files_that_do_not_fit_each_other_are_named(tmp_path: Path, authority: Authority) -> None:
    one, other = authority.sign("one", "DNS:a"), authority.sign("other", "DNS:a")
    with pytest.raises(InvalidValue, match=r"can't be used \(.*one.crt, .*other.key\): .*MISMATCH"):
        Certificates(TlsFiles(one.cert, other.key))
    with pytest.raises(InvalidValue, match="No such file"):
        Certificates(TlsFiles(one.cert, tmp_path / "absent.key"))
    (tmp_path / "empty.crt").write_text("")
    with pytest.raises(InvalidValue, match=r"empty\.crt"):
        Certificates(TlsFiles(one.cert, one.key, tmp_path / "empty.crt"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--extender-address=0.0.0.0:8080", "extender_address: 0.0.0.0:8080 is reached by other machines"),
        ("--extender-address=:8080", "extender_address: :8080 is reached by other machines"),
        ("--extender-address=[::]:8080", "extender_address: [::]:8080 is reached by other machines"),
        ("--grpc-address=10.0.0.7:1", "grpc_address: 10.0.0.7:1 is reached by other machines"),
        ("--grpc-address=0.0.0.0:1 --tls-cert-file=c --tls-key-file=k", "client_ca_file and client_names"),
        ("--tls-cert-file=c", "one is of no use without the other"),
        ("--client-ca-file=c --client-names=n", "which needs tls_cert_file"),
        ("--tls-cert-file=c --tls-key-file=k --client-ca-file=a", "client_ca_file and client_names"),
        ("--client-names=n", "client_ca_file and client_names"),
        ("--webhook-client-names=n", "webhook_client_names: nobody vouches for clients without client_ca_file"),
    ],
)
def test_what_would_be_open_to_everybody_is_refused_at_the_start(flags: str, sentence: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_settings(Settings, "p", flags.split())
    assert sentence in str(refused.value)
    assert "got" not in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--extender-address=localhost:1 --grpc-address=[::1]:1",
        "--grpc-address=unix:/run/a.sock",
        "--extender-address=0.0.0.0:8080 --grpc-address=0.0.0.0:1 --insecure=true",
        "--extender-address=0.0.0.0:8080 --tls-cert-file=c --tls-key-file=k",
        "--grpc-address=0.0.0.0:1 --tls-cert-file=c --tls-key-file=k --client-ca-file=a --client-names=a,b",
    ],
)
def test_what_is_protected_or_meant_to_be_open_is_taken(flags: str) -> None:
    assert read_settings(Settings, "p", flags.split()).client_names in ([], ["a", "b"])


def test_no_webhook_is_served_unless_it_is_wanted() -> None:
    assert read_settings(Settings, "p", []).webhooks == []
    assert read_settings(Settings, "p", ["--webhooks=bindings,pods"]).webhooks == ["bindings", "pods"]
    with pytest.raises(InvalidValue, match=r"webhooks\.0"):
        read_settings(Settings, "p", ["--webhooks=binding"])
