"""What npuctl web refuses, whoever asks."""

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from npuctl.web.guard import LOOPBACK, MOST_VIEWERS, WebGuard


async def answered(
    headers: Mapping[str, str], *, kind: str = "http", method: str = "GET", path: str = "/", viewers: int = 0
) -> list[Message]:
    """What a browser gets that asks with these headers."""
    sent: list[Message] = []

    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Any = {"type": kind, "method": method, "path": path}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    await WebGuard(inner, LOOPBACK, lambda: viewers)(scope, receive, send)
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:1", "[::1]:8090"])
async def test_a_browser_on_this_machine_is_answered_under_a_strict_policy(host: str) -> None:
    (started,) = await answered({"host": host, "origin": f"http://{host}"})
    assert started["status"] == 200
    policy = dict(started["headers"])[b"content-security-policy"].decode()
    assert "default-src 'self'" in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "evil.example:8090"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
        {"host": "127.0.0.1:8090", "origin": "http://evil.example"},
        {"host": "127.0.0.1:8090", "origin": "http://127.0.0.1:9999"},
        {"host": "127.0.0.1:8090", "origin": "null"},
    ],
    ids=str,
)
async def test_another_host_or_origin_is_refused_also_for_websockets(headers: dict[str, str]) -> None:
    assert (await answered(headers))[0]["status"] == 403
    assert await answered(headers, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_sent_but_by_the_websocket(method: str) -> None:
    assert (await answered({"host": "localhost"}, method=method))[0]["status"] == 405


async def test_more_viewers_than_there_is_room_for_are_told_so() -> None:
    assert (await answered({"host": "localhost"}, viewers=MOST_VIEWERS - 1))[0]["status"] == 200
    assert (await answered({"host": "localhost"}, viewers=MOST_VIEWERS))[0]["status"] == 503
    assert (await answered({"host": "localhost"}, viewers=MOST_VIEWERS, path="/wall.json"))[0]["status"] == 200
