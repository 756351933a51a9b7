"""Connections: how many, how long, and which of them give way."""

import asyncio
import gc
import os
import resource
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from aiohttp.http import HttpProcessingError

from ascend.kube.identity import trusting
from ascend.serving.connection import Connection
from ascend.serving.counts import Cause
from tests.allocator.authority import Authority
from tests.ascend.serving.callers import LOOPS, MOST, raw_connection, run, served, until

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_a_request_that_never_ends_is_ended(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            silent, slow, second = [await port.connect() for _ in range(3)]
            slow.send("GET /hi HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            assert await second.get() == 200
            second.send("GET /hi HT")  # a further request may not take longer than the first
            assert all([await caller.ended() for caller in (silent, slow, second)])
            assert port.refused(Cause.HEADER) == 3
            await until(lambda: port.connections == 0)

    run(new_loop, test)


@LOOPS
def test_what_is_no_request_is_answered_and_fills_no_log(new_loop: NewLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as port:
            for nonsense in (
                "NONSENSE\r\n\r\n",
                "GET /hi HTTP/1.1\r\n" + "X: y\r\n" * 200 + "\r\n",
                "GET /" + "x" * 9999,
            ):
                caller = await port.connect()
                caller.send(nonsense)
                assert await caller.status() == 400
            assert port.refused(Cause.HEADER) == 3
            assert not caplog.records

    run(new_loop, test)


@LOOPS
def test_no_answer_tells_the_versions_of_libraries(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            for request in (
                "GET /hi HTTP/1.1\r\nHost: x\r\n\r\n",
                "GET /none HTTP/1.1\r\nHost: x\r\n\r\n",
                "?\r\n\r\n",
            ):
                caller = await port.connect()
                caller.send(request)
                head = await caller.reader.readuntil(b"\r\n\r\n")
                assert b"Server: ascend-affinity\r\n" in head
                assert b"aiohttp" not in head

    run(new_loop, test)


@LOOPS
def test_an_idle_connection_stays_until_its_own_limit(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served(idle_s=1.0) as port:
            caller = await port.connect()
            assert await caller.get() == 200
            await asyncio.sleep(0.6)  # longer than a request may take
            assert await caller.get() == 200
            assert await caller.ended()

    run(new_loop, test)


@LOOPS
def test_a_request_that_waits_for_others_is_not_ended(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            caller = await port.connect()
            caller.post("/hold", 2, b"{}")
            await until(lambda: len(port.held) == 1)
            await asyncio.sleep(1.0)
            port.go.set()
            assert await caller.status() == 200

    run(new_loop, test)


@LOOPS
def test_an_answer_that_is_not_taken_is_dropped(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            caller = raw_connection(port.port)
            caller.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: port.refused(Cause.WRITE) == 1)
            await until(lambda: port.connections == 0)
            caller.close()

    run(new_loop, test)


@LOOPS
def test_the_connection_that_has_waited_longest_gives_way_to_a_new_one(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served(header_s=60) as port:
            silent = [await port.connect() for _ in range(4)]
            assert await (await port.connect()).get() == 200
            assert await silent[0].ended()
            assert port.refused(Cause.ADDRESS) == 1
            assert port.connections == 4

    run(new_loop, test)


@LOOPS
def test_whoever_has_few_connections_is_served_whatever_others_do(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served(header_s=60) as port:
            flood = [await port.connect(f"127.0.0.{2 + number % 2}") for number in range(8)]
            probe = await port.connect("127.0.0.9")
            assert await probe.get() == 200
            flood += [await port.connect(f"127.0.0.{2 + number % 3}") for number in range(30)]
            assert await probe.get() == 200
            assert port.refused(Cause.ADDRESS) > 0
            assert port.connections <= 10

    run(new_loop, test)


@LOOPS
def test_a_probe_has_a_place_even_if_all_others_are_being_answered(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            for number in range(8):
                caller = await port.connect(f"127.0.0.{2 + number % 2}")
                caller.post("/hold", 2, b"{}")
            await until(lambda: len(port.held) == 8)
            assert await (await port.connect("127.0.0.2")).get() == 0
            assert await (await port.connect("127.0.0.9")).get() == 200
            assert port.refused(Cause.ADDRESS) == 1

    run(new_loop, test)


@LOOPS
def test_a_request_that_is_being_answered_never_gives_way(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            busy = [await port.connect() for _ in range(4)]
            for caller in busy:
                caller.post("/hold", 2, b"{}")
            await until(lambda: len(port.held) == 4)
            assert await (await port.connect()).get() == 0
            port.go.set()
            assert [await caller.status() for caller in busy] == [200] * 4

    run(new_loop, test)


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server, of a client without a certificate, and of one with a certificate."""
    authority = Authority(folder)
    own, known = authority.sign("served", "DNS:localhost", "IP:127.0.0.1"), authority.sign("known", "DNS:known")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.cert, own.key)
    server.load_verify_locations(authority.cert)
    server.verify_mode = ssl.CERT_OPTIONAL
    stranger, verified = [trusting(authority.cert) for _ in range(2)]
    verified.load_cert_chain(known.cert, known.key)
    return server, stranger, verified


@LOOPS
def test_clients_with_a_certificate_do_not_count_among_strangers(new_loop: NewLoop, tmp_path: Path) -> None:
    server, stranger, verified = contexts(tmp_path)

    async def test() -> None:
        async with served(tls=server, verified=20, header_s=60) as port:
            gang = [await port.connect(tls=verified) for _ in range(12)]
            for caller in gang:
                caller.post("/hold", 2, b"{}")
            await until(lambda: len(port.held) == 12)
            assert await (await port.connect(tls=stranger)).get() == 200
            port.go.set()
            assert [await caller.status() for caller in gang] == [200] * 12
            assert port.refused(Cause.ADDRESS) == 0

    run(new_loop, test)


@LOOPS
def test_a_handshake_that_never_ends_is_ended_and_gives_way(new_loop: NewLoop, tmp_path: Path) -> None:
    server, stranger, _ = contexts(tmp_path)

    async def test() -> None:
        async with served(tls=server) as port:
            with ExitStack() as stack:
                for _ in range(30):
                    stack.enter_context(raw_connection(port.port))
                assert await (await port.connect(tls=stranger)).get() == 200
                await until(lambda: port.connections == 1)
                assert port.refused(Cause.HANDSHAKE) + port.refused(Cause.ADDRESS) >= 30
            half = await port.connect()
            half.send(b"\x16\x03\x01 nonsense")
            assert await half.reader.read() is not None
            await until(lambda: port.connections == 1)

    run(new_loop, test)


@LOOPS
def test_a_full_table_of_descriptors_ends_nothing(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served(header_s=60, spare_descriptors=0) as port:
            first = await port.connect()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            held: list[int] = []
            client = raw_connection(port.port)
            await until(lambda: port.connections == 2)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
            try:
                waiting = [raw_connection(port.port)]
                while True:
                    try:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        break
                # The server has no descriptor for it, until those that only wait give theirs.
                waiting[0].setblocking(False)  # noqa: FBT003 - the name says it
                waiting[0].send(b"GET /hi HTTP/1.1\r\nHost: x\r\n\r\n")
                await until(lambda: port.refused(Cause.DESCRIPTORS) > 0)
                answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(waiting[0], 12), 10)
                assert answer == b"HTTP/1.1 200"
            finally:
                for descriptor in held:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await first.ended() or await first.get() == 200
            client.close()
            waiting[0].close()

    run(new_loop, test)


HALF = f"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: {MOST}\r\n\r\n" + "x" * (MOST - 1)
REFUSED = f"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: {MOST + 1}\r\n\r\n" + "x" * MOST
UPGRADE = "GET /hi HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@LOOPS
@pytest.mark.parametrize("sent", [HALF, REFUSED, UPGRADE + "z" * 500_000], ids=["half", "refused", "nonsense"])
def test_a_connection_that_has_ended_leaves_nothing_to_collect(new_loop: NewLoop, tmp_path: Path, sent: str) -> None:
    server, stranger, _ = contexts(tmp_path)

    def left() -> int:
        return sum(isinstance(each, (Connection, HttpProcessingError)) for each in gc.get_objects())

    async def test() -> None:
        async with served(tls=server) as port:
            for _ in range(3):
                caller = await port.connect(tls=stranger)
                caller.send(sent)
                with suppress(ConnectionError):
                    await caller.reader.read(1)
                    caller.close()
            await until(lambda: port.connections == 0)
            await until(lambda: left() == before)

    gc.collect()
    gc.disable()  # garbage of a flood would fill the memory between two collections
    before = left()
    try:
        run(new_loop, test)
    finally:
        gc.enable()
