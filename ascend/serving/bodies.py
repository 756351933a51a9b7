"""Reads the bodies of requests within a size by path, a time, and a number of bytes over all connections.

If there are too many bytes, the address that has most of them loses a body that is still arriving; a caller that has
few is read. Callers with the certificate of an allowed client come before all others, and have a quarter of the bytes
for themselves.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import StreamReader, web

from ascend.errors import InvalidValue
from ascend.rate_limiters import TokenBucket, loop_time_s
from ascend.serving.counts import Cause
from ascend.serving.limits import BODIES_BYTES

_STRANGERS: Final = 0.75
"""The share of the bytes that callers without the certificate of an allowed client may have."""

LARGE_BYTES: Final = 256 << 10
"""A body is read in chunks of this size; by default, a larger one waits for its turn before it is decoded."""

_PACE_S: Final = 3e-7
"""The time for each byte of a large body until the next one is decoded. The longest time of decoding it is a tenth of
that, or a third on a busy machine; no thread can take it from the event loop, because the decoder keeps the
interpreter's lock."""


class BodyRefused(InvalidValue):
    """The body of a request is not read.

    Args:
        message: why, a sentence.
        cause: why, for metrics.
        status: the HTTP status, where the protocol has no other answer.
    """

    def __init__(self, message: str, cause: Cause, status: HTTPStatus) -> None:
        super().__init__(message, reason="Overloaded" if cause is Cause.BODY_BUDGET else "InvalidValue")
        self.cause = cause
        self.status = status


@dataclass(slots=True, eq=False)
class Body:
    """A body that arrives or has arrived.

    Attributes:
        address: of the caller; empty for all that have the certificate of an allowed client.
        size: the bytes that have arrived.
        deadline: ends the reading; None before it has begun.
        refused: why it was ended; None if it was not.
    """

    address: str
    size: int = 0
    deadline: asyncio.Timeout | None = None
    refused: Cause | None = None

    def end(self, cause: Cause) -> None:
        """End the reading."""
        self.refused = self.refused or cause
        if self.deadline is not None:
            with suppress(RuntimeError):  # it has ended already
                self.deadline.reschedule(asyncio.get_running_loop().time())


class Bodies:
    """All bodies that a process holds.

    Args:
        most: the most bytes of them.
    """

    def __init__(self, most: int = BODIES_BYTES) -> None:
        self._most = most
        self._total = 0
        self._held: Counter[str] = Counter()
        self._arriving: dict[Body, None] = {}
        self._pace = TokenBucket(0, _PACE_S, loop_time_s)

    @property
    def held(self) -> int:
        """The bytes of all bodies now."""
        return self._total

    async def read(self, body: Body, content: StreamReader) -> bytes:
        """Read a body to its end.

        Raises:
            BodyRefused: it does not arrive in time, or there are too many bytes.
        """
        read = bytearray()
        self._arriving[body] = None
        content.set_read_chunk_size(LARGE_BYTES)  # else the connection pauses again and again
        try:
            async with asyncio.timeout(None) as body.deadline:
                while True:
                    self.take(body, len(chunk := await content.readany()))
                    if not chunk:
                        break
                    read += chunk
        except TimeoutError:
            raise refused(body.refused or Cause.BODY_TIME) from None
        finally:
            self._arriving.pop(body, None)
        return bytes(read)

    def take_at_once(self, body: Body, content: StreamReader) -> bytes:
        """Read a body that has arrived.

        Raises:
            BodyRefused: there are too many bytes.
        """
        chunk: bytes = content.read_nowait()
        self.take(body, len(chunk))
        return chunk

    def take(self, body: Body, size: int) -> None:
        """Count bytes that have arrived.

        Raises:
            BodyRefused: there are too many bytes.
        """
        most = self._most if not body.address else self._most * _STRANGERS
        while self._total + size > most:
            victim = self._victim(body, self._held[body.address] + size)
            if victim is None:
                raise refused(Cause.BODY_BUDGET)
            self._arriving.pop(victim)
            self.release(victim)
            victim.end(Cause.BODY_BUDGET)
        body.size += size
        self._total += size
        self._held[body.address] += size

    def release(self, body: Body) -> None:
        """Count a body no longer."""
        self._total -= body.size
        self._held[body.address] -= body.size
        if not self._held[body.address]:
            del self._held[body.address]
        body.size = 0

    async def take_turn(self, size: int) -> None:
        """Wait until a large body may be decoded; large ones leave the event loop to others most of the time."""
        await asyncio.sleep(self._pace.spend(size))

    def _victim(self, body: Body, wanted: int) -> Body | None:
        """The first body that arrives for the address with most bytes; None if that would be unfair."""
        others = (other for other in self._arriving if other.address and other is not body and other.size)
        found = max(others, key=lambda other: self._held[other.address], default=None)
        if found is None or (body.address and self._held[found.address] <= wanted):
            return None
        return found


def refused(cause: Cause, most: int = 0) -> BodyRefused:
    """The error for a body that is refused for this cause."""
    status, sentence = {
        Cause.BODY_SIZE: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request has more than {most:,} bytes"),
        Cause.BODY_VALUES: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request has more than {most:,} values"),
        Cause.BODY_TIME: (HTTPStatus.REQUEST_TIMEOUT, "the body of the request has not arrived in time"),
    }.get(cause, (HTTPStatus.SERVICE_UNAVAILABLE, "too many bytes of requests at a time, try again"))
    return BodyRefused(sentence, cause, status)


def length_required(request: web.Request) -> int:
    """The length of a body as its caller gives it.

    Raises:
        BodyRefused: it is not given; schedulers and the API server give it.
    """
    length = request.content_length
    if length is None and request.can_read_body:
        raise BodyRefused("the request has no Content-Length", Cause.BODY_SIZE, HTTPStatus.LENGTH_REQUIRED)
    return length or 0
