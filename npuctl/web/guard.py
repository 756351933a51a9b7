"""Refuses before the page is asked: other hosts and origins, writes, and more viewers than there is room for."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""The names by which a browser on this machine asks; any other one is that of a site that rebinds its name."""

MOST_VIEWERS: Final = 32
"""Pages that are open at once."""

_POLICY: Final = (
    b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
"""All comes from here. NiceGUI compiles its templates in the browser, so scripts and styles may be inline."""

_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class WebGuard:
    """An ASGI application before another one.

    Args:
        app: the other one.
        hosts: the names by which the page may be asked for.
        viewers: how many pages are open.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], viewers: Callable[[], int]) -> None:
        self._app = app
        self._hosts = hosts
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if (refused := self._refusal(scope)) is None:
            return await self._app(scope, receive, _with_headers(send))
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        await send({"type": "http.response.start", "status": refused.value, "headers": [(b"content-length", b"0")]})
        return await send({"type": "http.response.body", "body": b""})

    def _refusal(self, scope: Scope) -> HTTPStatus | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_own(headers):
            return HTTPStatus.FORBIDDEN
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED
        if scope["type"] == "http" and scope["path"] == "/" and self._viewers() >= MOST_VIEWERS:
            return HTTPStatus.SERVICE_UNAVAILABLE
        return None

    def _is_own(self, headers: Mapping[str, str]) -> bool:
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name(f"//{host}") not in self._hosts:
            return False
        return origin is None or urlsplit(origin).netloc == host


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _with_headers(send: Send) -> Send:
    async def sent(message: Mapping[str, object]) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            assert isinstance(headers, list | tuple)  # noqa: S101 - the protocol says so
            message = {**message, "headers": [*headers, *_HEADERS]}
        await send(dict(message))

    return sent
