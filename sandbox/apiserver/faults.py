"""Failures on demand: what a test makes the server do wrong."""

import asyncio
import re
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from sandbox.apiserver.status import injected


@dataclass(slots=True)
class _Failure:
    method: str
    path: re.Pattern[str]
    status: int | None
    times: int
    retry_after_s: int

    def takes(self, request: web.Request) -> bool:
        """Whether this request is to fail; counts it."""
        hit = self.times > 0 and self.method in {"*", request.method} and bool(self.path.search(request.path_qs))
        self.times -= hit
        return hit


class Faults:
    """The failures waiting for their requests; patterns are searched in path and query string."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []
        self._lost_answers: list[_Failure] = []
        self._delays: dict[str, float] = {}

    def fail_next(self, method: str, path_regex: str, status: int, times: int = 1, retry_after_s: int = 1) -> None:
        """Answer the next `times` matching requests with an error; 429 and 503 carry Retry-After."""
        pause_s = retry_after_s if status in {429, 503} else 0
        self._failures.append(_Failure(method, re.compile(path_regex), status, times, pause_s))

    def lose_answer(self, method: str, path_regex: str, times: int = 1) -> None:
        """Carry out the next `times` matching requests, then break the connection instead of answering."""
        self._lost_answers.append(_Failure(method, re.compile(path_regex), None, times, 0))

    def delay(self, path_regex: str, seconds: float) -> None:
        """Hold up every matching request before it is looked at; 0 ends it."""
        self._delays[path_regex] = seconds

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Apply what is waiting for this request."""
        held_up_s = max((s for regex, s in self._delays.items() if re.search(regex, request.path_qs)), default=0.0)
        if held_up_s:
            await asyncio.sleep(held_up_s)
        for failure in self._failures:
            if failure.status is not None and failure.takes(request):
                raise injected(failure.status, failure.retry_after_s)
        loses_answer = any(failure.takes(request) for failure in self._lost_answers)
        response = await handler(request)
        if loses_answer and request.transport is not None:
            request.transport.abort()
        return response
