"""Requests and answers as bytes: what is sent again, what is reused, and what a server may answer besides."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ascend.errors import ApiError, InvalidValue, TooLarge, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.identity import Access

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Scripted:
    """A server that gives one answer after the other; with None it ends the connection instead.

    Attributes:
        answers: the answers.
        requests: the head of each request.
        connections: how many there were.
    """

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
                if (answer := self.answers.pop(0)) is None:
                    return
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def client_of(server: Scripted, *, token: str = "x", url: str = "", proxy: str = "") -> AsyncIterator[KubeClient]:
    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        through = f"http://{proxy}@{address}" if proxy else None
        access = Access(url or f"http://{address}", ssl.create_default_context(), headers, through)
        async with KubeClient(access) as client:
            yield client


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_what_changes_nothing_twice_is_sent_again_over_another_connection(method: str) -> None:
    server = Scripted(OK, None, OK)
    async with client_of(server) as client:
        assert await client.request("GET", "/a") == b"{}"
        assert await client.request(method, "/b") == b"{}"
    assert [request.split()[1] for request in server.requests] == ["/a", "/b", "/b"]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_changes_something_is_never_sent_again(method: str) -> None:
    server = Scripted(OK, None, OK)
    async with client_of(server) as client:
        assert await client.request("GET", "/a") == b"{}"
        with pytest.raises(Unreachable, match="disconnected"):
            await client.request(method, "/b")
    assert len(server.requests) == 2


async def test_a_connection_is_reused_only_if_the_whole_answer_was_read() -> None:
    server = Scripted(OK, OK, b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 100, OK)
    async with client_of(server) as client:
        for _ in range(2):
            await client.request("GET", "/a")
        with pytest.raises(TooLarge):
            await client.request("GET", "/b", most_bytes=10)
        assert server.connections == 1
        assert await client.request("GET", "/c") == b"{}"
    assert server.connections == 2


async def test_a_credential_adds_no_header() -> None:
    server = Scripted(OK)
    async with client_of(server, token="x\r\nImpersonate-User: root") as client:
        with pytest.raises(InvalidValue, match="control character"):
            await client.request("GET", "/a")
    assert server.requests == []


async def test_compressed_answers_and_hints_are_understood() -> None:
    body = gzip.compress(b"long")
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with client_of(Scripted(hint + head + body)) as client:
        assert await client.request("GET", "/a") == b"long"


async def test_no_redirect_is_followed() -> None:
    server = Scripted(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", OK)
    async with client_of(server) as client:
        with pytest.raises(ApiError) as refused:
            await client.request("GET", "/a")
    assert (refused.value.status, len(server.requests)) == (302, 1)


async def test_what_is_no_answer_is_an_error_with_its_request() -> None:
    async with client_of(Scripted(b"SSH-2.0-OpenSSH\r\n\r\n")) as client:
        with pytest.raises(Unreachable, match=r"GET http://.*/a: the answer is not valid"):
            await client.request("GET", "/a")


async def test_a_proxy_gets_the_whole_address_and_its_own_credentials() -> None:
    server = Scripted(OK)
    async with client_of(server, url="http://api.test:8080/prefix", proxy="user:word") as client:
        assert await client.request("GET", "/api/v1/pods", query={"limit": "1"}) == b"{}"
    (request,) = server.requests
    assert request.startswith("GET http://api.test:8080/prefix/api/v1/pods?limit=1 HTTP/1.1\r\nHost: api.test:8080\r\n")
    assert "Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in request


async def test_tls_goes_through_a_tunnel_of_the_proxy() -> None:
    server = Scripted(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    async with client_of(server, url="https://api.test", proxy="user:word") as client:
        with pytest.raises(Unreachable, match="407"):
            await client.request("POST", "/api/v1/pods", body={})
    (request,) = server.requests
    assert request.startswith("CONNECT api.test:443 HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in request
    assert "Bearer" not in request
