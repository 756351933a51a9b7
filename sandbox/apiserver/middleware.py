"""The middlewares of the HTTP server: errors as Status objects, bearer tokens, and failures that tests inject."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from sandbox.apiserver.status import StatusError, injected, too_large, unauthorized

MAX_BODY_BYTES = 3_145_728
PROBES = frozenset({"/healthz", "/livez", "/readyz"})
"""Paths that are served without authentication."""
USER = web.RequestKey("user", str)
"""The user of an authenticated request."""


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return a response with encoded JSON."""
    headers = {"Cache-Control": "no-cache, private"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a StatusError, and a body over the limit, with a Status object."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        refusal = too_large(MAX_BODY_BYTES)
    except StatusError as error:
        refusal = error
    response = json_response(msgspec.json.encode(refusal.document()), refusal.code)
    if refusal.retry_after_s:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    return response


class Authentication:
    """Authenticates requests by bearer token.

    Args:
        tokens: User names by token; None accepts every request.
    """

    def __init__(self, tokens: Mapping[str, str] | None) -> None:
        self._tokens = tokens

    @web.middleware
    async def authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 401 unless the token is known, and note the user."""
        if self._tokens is not None and request.path not in PROBES:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or token not in self._tokens:
                raise unauthorized()
            request[USER] = self._tokens[token]
        return await handler(request)


@dataclass(slots=True)
class _Fault:
    method: str
    path: re.Pattern[str]
    times: int
    status: int = 0
    retry_after_s: int = 0
    message: str = ""

    def hits(self, request: web.Request) -> bool:
        """Whether the fault applies to the request; counts the requests it applied to."""
        hit = self.times > 0 and self.method in {"*", request.method} and bool(self.path.search(request.path_qs))
        self.times -= hit
        return hit


class FaultInjection:
    """Failures on demand: the base class of the API server with the methods that inject them."""

    def __init__(self) -> None:
        self._failures: list[_Fault] = []
        self._lost_answers: list[_Fault] = []
        self._delays: dict[str, float] = {}

    def fail_next(
        self, method: str, path_regex: str, status: int, times: int = 1, retry_after_s: int = 1, *, message: str = ""
    ) -> None:
        """Answer the next matching requests with an error.

        Args:
            method: HTTP method, `*` for any.
            path_regex: Searched in path and query string.
            status: The HTTP status to answer.
            times: How many requests fail.
            retry_after_s: Retry-After of 429 and 503.
            message: What the answer says; by default that the failure is injected.
        """
        pause_s = retry_after_s if status in {429, 503} else 0
        self._failures.append(_Fault(method, re.compile(path_regex), times, status, pause_s, message))

    def lose_answer(self, method: str, path_regex: str, times: int = 1) -> None:
        """Execute the next matching requests, but close the connection instead of answering."""
        self._lost_answers.append(_Fault(method, re.compile(path_regex), times))

    def delay(self, path_regex: str, seconds: float) -> None:
        """Delay every matching request before it is executed; 0 seconds ends the delay."""
        self._delays[path_regex] = seconds

    @web.middleware
    async def inject_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Apply the delays and failures that match the request."""
        delay_s = max((s for regex, s in self._delays.items() if re.search(regex, request.path_qs)), default=0.0)
        if delay_s:
            await asyncio.sleep(delay_s)
        for failure in self._failures:
            if failure.hits(request):
                raise injected(failure.status, failure.retry_after_s, failure.message)
        loses_answer = any(fault.hits(request) for fault in self._lost_answers)
        response = await handler(request)
        if loses_answer and request.transport is not None:
            request.transport.abort()
        return response
