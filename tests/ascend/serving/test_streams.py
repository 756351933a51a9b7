"""Requests over HTTP/2: many at a time on one connection, from an independent client."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from h2.connection import H2Connection
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from ascend.daemon.certificates import Certificates
from ascend.daemon.settings import TlsFiles
from ascend.kube.identity import trusting
from ascend.serving.bodies import Bodies
from ascend.serving.connection import Connection
from ascend.serving.counts import Cause
from ascend.serving.frames import PREFACE, BrokenError, FrameType
from ascend.serving.http2 import Http2, Stream
from ascend.serving.streams import Streams
from tests.allocator.authority import Authority
from tests.ascend.serving.callers import LOOPS, MOST, Served, run, served, until
from tests.ascend.serving.http2_client import Client

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def certificates(authority: Authority) -> Certificates:
    pair = authority.sign("served", "DNS:localhost", "IP:127.0.0.1")
    return Certificates(TlsFiles(pair.cert, pair.key, authority.cert))


def offering(authority: Authority, protocols: Iterable[str] = ("h2", "http/1.1")) -> ssl.SSLContext:
    """What a client with a certificate offers."""
    own = authority.sign("kube-scheduler", "DNS:kube-scheduler")
    context = trusting(str(authority.cert))
    context.load_cert_chain(own.cert, own.key)
    context.set_alpn_protocols(list(protocols))
    return context


@asynccontextmanager
async def connected(authority: Authority, **options: Any) -> AsyncIterator[tuple[Served, Client]]:
    async with served(tls=certificates(authority).http(ssl.CERT_REQUIRED), **options) as port:
        caller = await port.connect(tls=offering(authority))
        assert caller.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        client = Client(caller.reader, caller.writer)
        client.http2.initiate_connection()
        client.flush()
        reading = asyncio.create_task(client.read())
        try:
            yield port, client
        finally:
            reading.cancel()
            await asyncio.wait({reading})


@LOOPS
def test_requests_of_a_connection_do_not_wait_for_each_other(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, client):
            held = [client.ask("/hold", b"x" * size) for size in (0, 1, 300)]
            await until(lambda: len(port.held) == 3)
            read = client.ask("/read", b"x" * 60_000)
            assert await client.answered(read, client.ask("/hi"), client.ask("/none")) == [200, 200, 404]
            assert port.connections == 1
            port.go.set()
            assert await client.answered(*held) == [200, 200, 200]
            assert port.bodies.held == 0

    run(new_loop, test)


@LOOPS
def test_who_resets_a_request_or_goes_ends_its_handler(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, client):
            first, _second = client.ask("/hold", b"x"), client.ask("/hold", b"x")
            await until(lambda: len(port.held) == 2)
            tasks = [request.task for request in port.held]
            client.http2.reset_stream(first)
            client.flush()
            await until(tasks[0].cancelled)
            assert not tasks[1].done()
            client.writer.transport.abort()
            await until(tasks[1].cancelled)
            await until(lambda: port.connections == 0)
            assert port.bodies.held == 0

    run(new_loop, test)


@LOOPS
def test_a_body_of_another_length_or_beyond_the_budget_is_refused(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority, bodies=Bodies(most=2 * MOST)) as (port, client):
            large = client.ask("/read", b"", length=MOST + 1)
            await until(lambda: large in client.reset)
            held = [client.ask("/hold", b"x" * 60_000) for _ in range(3)]
            await until(lambda: len(port.held) == 3)
            assert port.bodies.held == 180_000
            port.go.set()
            assert await client.answered(*held) == [200, 200, 200]
        async with connected(authority, bodies=Bodies(most=100)) as (port, client):
            refused = client.ask("/read", b"x" * 101)
            await until(lambda: refused in client.reset)
            assert port.refused(Cause.BODY_BUDGET) == 1
            assert await client.answered(client.ask("/read", b"x" * 100)) == [200]
            assert port.bodies.held == 0

    run(new_loop, test)


@LOOPS
def test_an_answer_is_sent_as_fast_as_its_client_takes_it(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority, write_s=60) as (_port, client):
            much = client.ask("/much")
            assert await client.answered(much) == [200]
            assert client.bodies[much] == 32 << 20

    run(new_loop, test)


@LOOPS
def test_who_takes_no_answer_is_ended(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, client):
            client.takes = False
            much, hi = client.ask("/much"), client.ask("/hi")
            await until(lambda: client.left)
            assert much not in client.ended
            assert hi not in client.ended  # the window of the connection is used up
            assert port.refused(Cause.WRITE) == 1

    run(new_loop, test)


@LOOPS
def test_a_body_that_does_not_arrive_ends_its_request_alone(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, client):
            slow = client.ask("/read", b"x", length=9, is_whole=False)
            held = client.ask("/hold", b"x")
            await until(lambda: slow in client.reset)
            assert port.refused(Cause.BODY_TIME) == 1
            port.go.set()
            assert await client.answered(held) == [200]

    run(new_loop, test)


@LOOPS
def test_an_idle_connection_is_ended_without_a_refusal(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority, idle_s=0.3) as (port, client):
            assert await client.answered(client.ask("/hi")) == [200]
            await until(lambda: client.left)
            assert not any(port.refused(cause) for cause in Cause)

    run(new_loop, test)


@LOOPS
def test_a_server_that_stops_answers_what_it_has_begun(new_loop: NewLoop, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, client):
            held = client.ask("/hold", b"x")
            await until(lambda: len(port.held) == 1)
            connection: Any = port.held[0].protocol
            connection.close()
            await until(lambda: client.left)
            asyncio.get_running_loop().call_later(0.05, port.go.set)
            await connection.shutdown(5.0)
            await until(lambda: client.rest.endswith(b"\0\0\4\0\1" + held.to_bytes(4, "big") + b"held"))

    run(new_loop, test)


@LOOPS
def test_a_connection_that_has_ended_leaves_nothing_to_collect(new_loop: NewLoop, authority: Authority) -> None:
    def left() -> int:
        return sum(isinstance(each, (Connection, Streams)) for each in gc.get_objects())

    async def test() -> None:
        async with served(tls=certificates(authority).http(ssl.CERT_REQUIRED)) as port:
            for _ in range(3):
                caller = await port.connect(tls=offering(authority))
                client = Client(caller.reader, caller.writer)
                client.http2.initiate_connection()
                client.ask("/hold", b"x")
                client.ask("/read", b"x", length=2, is_whole=False)
                await until(lambda: len(port.held) == 1)
                caller.close()
                await until(lambda: port.connections == 0)
                port.held.clear()
            port.callers.clear()
            await until(lambda: left() == before)

    gc.collect()
    gc.disable()
    before = left()
    try:
        run(new_loop, test)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(24),
        PREFACE + b"\xff\xff\xff\0\0\0\0\0\0",
        PREFACE + b"\0\0\0\1\5\0\0\0\2",
        PREFACE + b"\0\0\1\1\5\0\0\0\1\xff",
        PREFACE + b"\0\0\1\0\0\0\0\0\1x",
        PREFACE + b"\0\0\4\10\0\0\0\0\0\0\0\0\0",
        PREFACE + b"\0\0\0\1\0\0\0\0\1" + b"\0\0\0\6\0\0\0\0\0",
        PREFACE + b"\0\x20\0\1\0\0\0\0\1" + bytes(8192) + b"\0\0\1\11\0\0\0\0\1\0",
    ],
    ids=["no preface", "large frame", "even stream", "headers", "unknown stream", "no credit", "torn block", "flood"],
)
def test_what_no_client_means_ends_the_connection(nonsense: bytes, authority: Authority) -> None:
    async def test() -> None:
        async with connected(authority) as (port, _client):
            caller = await port.connect(tls=offering(authority))
            caller.send(nonsense)
            await caller.ended()
            await until(lambda: port.refused(Cause.HEADER) == 1)
            await until(lambda: port.connections == 1)

    run(asyncio.new_event_loop, test)


class _Requests:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def awaits(self) -> bool:
        return True

    def grown(self, _stream: Stream, _size: int) -> bool:
        return True

    def on_request(self, stream: Stream) -> None:
        self.seen.append((stream.headers[":path"], bytes(stream.body)))

    def on_end(self, _stream: Stream) -> None:
        """Do nothing."""


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 40))
def test_it_does_not_matter_how_bytes_are_cut(bodies: list[bytes], size: int) -> None:
    client, requests = H2Connection(), _Requests()
    client.initiate_connection()
    for body in bodies:
        stream = client.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "https"), (":authority", "x"), (":path", f"/{len(body)}")]
        client.send_headers(stream, fields)
        client.send_data(stream, body, end_stream=True, pad_length=len(body))
    sent, server = client.data_to_send(), Http2(requests)
    for at in range(0, len(sent), size):
        server.receive(sent[at : at + size])
    assert requests.seen == [(f"/{len(body)}", body) for body in bodies]


@given(st.lists(st.tuples(st.sampled_from([None, 0, 60, 4096]), st.sampled_from("abc")), min_size=1, max_size=20))
def test_headers_are_read_whether_or_not_a_client_uses_its_table(sent: list[tuple[int | None, str]]) -> None:
    encoder, requests = Encoder(), _Requests()
    server, number = Http2(requests), 1
    server.receive(PREFACE)
    for size, path in sent:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode([(":method", "GET"), (":path", f"/{path}")])
        server.receive(len(block).to_bytes(3, "big") + b"\1\5" + number.to_bytes(4, "big") + block)
        number += 2
    assert requests.seen == [(f"/{path}", b"") for _, path in sent]


def test_a_client_that_uses_its_table_again_finds_what_it_has_put_there() -> None:
    requests = _Requests()
    server, put = Http2(requests), b"\x82\x44\x02/a"  # a path, for the table if it has room
    server.receive(PREFACE)
    for number, block in enumerate((b"\x20" + put, put, b"\x3f\xe1\x1f\x82\x84", put, b"\x82\xbe")):
        server.receive(len(block).to_bytes(3, "big") + b"\1\5" + (2 * number + 1).to_bytes(4, "big") + block)
    assert [path for path, _ in requests.seen] == ["/a", "/a", "/", "/a", "/a"]


@given(st.integers(0, 12), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=64))
def test_any_frame_is_taken_or_ends_the_connection(kind: int, flags: int, number: int, payload: bytes) -> None:
    server = Http2(_Requests())
    frame = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload
    try:
        server.receive(PREFACE + frame)
    except BrokenError as error:
        assert kind in set(FrameType)
        server.leave(error.code)
    assert server.out


@pytest.mark.parametrize("clients", [ssl.CERT_OPTIONAL, ssl.CERT_NONE])
def test_strangers_are_not_offered_http2(clients: ssl.VerifyMode, authority: Authority) -> None:
    async def test() -> None:
        async with served(tls=certificates(authority).http(clients)) as port:
            caller = await port.connect(tls=offering(authority))
            assert caller.writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            assert await caller.get() == 200

    run(asyncio.new_event_loop, test)
