"""Calls in a dedicated thread."""

import asyncio
import threading

import pytest

from ascend.errors import DriverError, Refusal
from ascend.reasons import Reason
from device_plugin.chips.call_thread import CallThread


async def test_calls_run_in_order_in_one_thread_other_than_the_loops() -> None:
    worker = CallThread("one")
    calls = [worker.call(lambda number=number: (number, threading.get_ident())) for number in range(5)]  # type: ignore[misc]  # a default keeps the number
    answers = await asyncio.gather(*calls)
    assert [number for number, _ in answers] == list(range(5))
    assert len({thread for _, thread in answers} | {threading.get_ident()}) == 2
    worker.close()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (Refusal(Reason.NOT_READY, "not yet"), Refusal, "not yet"),
        (OSError(5, "broken"), DriverError, "broken"),
    ],
)
async def test_an_error_is_raised_by_the_call(error: Exception, kind: type[Exception], message: str) -> None:
    def fail() -> None:
        raise error

    worker = CallThread("one")
    with pytest.raises(kind, match=message):
        await worker.call(fail)
    assert await worker.call(lambda: 1) == 1
    worker.close()


async def test_a_cancelled_caller_gets_no_result() -> None:
    free = threading.Event()
    worker = CallThread("one")
    abandoned = worker.call(lambda: free.wait(30.0))
    abandoned.cancel()
    free.set()
    assert await worker.call(lambda: 1) == 1
    worker.close()


async def test_a_closed_thread_ends() -> None:
    worker = CallThread("ends soon")
    await worker.call(lambda: None)
    (thread,) = [each for each in threading.enumerate() if each.name == "ends soon"]
    worker.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert thread.daemon
