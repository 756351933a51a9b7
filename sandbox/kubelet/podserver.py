"""``GET /pods`` of the kubelet: its own list of pods over HTTP, and the ways in which that can go wrong."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from ascend.kube.objects import JsonObject
from sandbox.kubelet.podbook import PodBook


@dataclass(slots=True)
class PodsAnswer:
    """How ``GET /pods`` is answered; a test sets what it needs.

    Attributes:
        token: the bearer token that is required; none where empty.
        forbidden: answer 403, as without the right to ``nodes/proxy``.
        rewrite: changes the list before it is sent: a kubelet that lies.
        status_overlay: answer with what the kubelet has come to; the real one answers with what the API server last
            said, so a pod it has just rejected still looks pending for a moment (kubelet.go GetPods).
        requests: how many requests came.
    """

    token: str = ""
    forbidden: bool = False
    rewrite: Callable[[list[JsonObject]], list[JsonObject]] | None = None
    status_overlay: bool = False
    requests: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    def hold(self) -> None:
        """Be slow: requests wait from now on."""
        self._open.clear()

    def release(self) -> None:
        """Answer what waits, and from now on at once."""
        self._open.set()

    async def wait(self) -> None:
        """Return when an answer may be given."""
        await self._open.wait()


class PodServer:
    """Serves ``/pods`` on 127.0.0.1.

    Args:
        book: the list of pods.
        answer: how to answer.
        rng: the real list comes out of a Go map, in any order.
        changed: called after every request has come in.
    """

    def __init__(self, book: PodBook, answer: PodsAnswer, rng: random.Random, *, changed: Callable[[], None]) -> None:
        self._book = book
        self._answer = answer
        self._rng = rng
        self._changed = changed
        app = web.Application()
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/pods/", self._pods)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)

    async def start(self, port: int) -> int:
        """Listen; answers the port, chosen by the system where ``port`` is 0."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _pods(self, request: web.Request) -> web.Response:
        answer = self._answer
        answer.requests += 1
        self._changed()
        if answer.token and request.headers.get("Authorization") != f"Bearer {answer.token}":
            return web.Response(status=401, text="Unauthorized")
        if answer.forbidden:
            return web.Response(
                status=403, text="Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[proxy])"
            )
        await answer.wait()
        pods = list(self._book.pods.values())
        self._rng.shuffle(pods)
        items = [each.as_json(self._book.status(each.uid) if answer.status_overlay else None) for each in pods]
        if answer.rewrite is not None:
            items = answer.rewrite(items)
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
