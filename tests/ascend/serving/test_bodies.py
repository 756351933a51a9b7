"""The bodies of requests: their size, time, and the bytes of all of them."""

import asyncio
from collections.abc import Callable

from ascend.serving.bodies import Bodies
from ascend.serving.counts import Cause
from tests.ascend.serving.callers import LOOPS, MOST, run, served, until

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_a_body_that_does_not_arrive_in_time_is_refused(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            caller = await port.connect()
            caller.post("/read", MOST, bytes(MOST - 1))
            assert await caller.status() == 408
            assert port.refused(Cause.BODY_TIME) == 1
            await until(lambda: port.bodies.held == 0)

    run(new_loop, test)


@LOOPS
def test_a_body_is_refused_by_its_length_before_it_is_read(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            caller = await port.connect()
            caller.post("/read", MOST + 1)
            assert await caller.status() == 413
            chunked = await port.connect()
            chunked.send("POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
            assert await chunked.status() == 411
            assert port.refused(Cause.BODY_SIZE) == 2

    run(new_loop, test)


@LOOPS
def test_bodies_of_any_size_arrive_whole_on_one_connection(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            caller = await port.connect()
            for size in (0, 1, 100, 70_000, 300_000, MOST):
                caller.post("/read", size, bytes(size))
                assert await caller.status() == 200
            assert port.bodies.held == 0

    run(new_loop, test)


@LOOPS
def test_who_sends_most_gives_way_when_there_are_too_many_bytes(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served(bodies=Bodies(4 << 20), body_s=60) as port:
            hoarders = [await port.connect(f"127.0.0.{2 + number % 2}") for number in range(6)]
            for caller in hoarders:
                caller.post("/read", MOST, bytes(MOST - 1))
            await until(lambda: port.refused(Cause.BODY_BUDGET) >= 3)
            honest = await port.connect("127.0.0.9")
            honest.post("/read", MOST, bytes(MOST))
            assert await honest.status() == 200
            assert port.bodies.held <= 3 << 20
            for caller in hoarders:
                caller.send(b"x")
            assert 503 in [await caller.status() for caller in hoarders]

    run(new_loop, test)


@LOOPS
def test_a_body_counts_until_its_request_is_answered_or_lost(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with served() as port:
            held, lost = await port.connect(), await port.connect()
            held.post("/hold", 1000, bytes(1000))
            await until(lambda: port.bodies.held == 1000)
            lost.post("/read", MOST, bytes(1000))
            await until(lambda: port.bodies.held == 2000)
            lost.close()
            await until(lambda: port.bodies.held == 1000)
            port.go.set()
            assert await held.status() == 200
            assert port.bodies.held == 0

    run(new_loop, test)
