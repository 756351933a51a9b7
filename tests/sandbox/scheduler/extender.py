"""A minimal scheduler extender: the test sets its responses, and it records the requests."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject


class FakeExtender:
    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.calls: list[tuple[str, JsonObject]] = []
        self.refused: dict[str, str] = {}
        self.unresolvable: dict[str, str] = {}
        self.error = ""
        self.status = 200
        self.bind_error = ""
        self.before_bind: Callable[[JsonObject], Awaitable[object]] | None = None
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.binding = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/scheduler"

    def verbs(self, pod: str = "") -> list[str]:
        return [verb for verb, body in self.calls if not pod or pod in {_name(body), body.get("PodName")}]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self) -> None:
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/scheduler/filter", self._filter)
        app.router.add_post("/scheduler/bind", self._bind)
        return app

    async def _filter(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("filter", body))
        refused = {**self.refused, **self.unresolvable}
        answer: dict[str, Any] = {
            "NodeNames": [each for each in body["NodeNames"] if each not in refused],
            "FailedNodes": self.refused,
            "FailedAndUnresolvableNodes": self.unresolvable,
            "Error": self.error,
        }
        return web.json_response(answer, status=self.status)

    async def _bind(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("bind", body))
        self.binding.set()
        if self.before_bind is not None:
            await self.before_bind(body)
        if not self.bind_error:
            await self.client.bind(
                namespace=body["PodNamespace"],
                name=body["PodName"],
                uid=body["PodUID"],
                node=body["Node"],
                annotations={"bound-by": "extender"},
            )
        return web.json_response({"Error": self.bind_error})


def _name(body: JsonObject) -> str:
    return str(body.get("Pod", {}).get("metadata", {}).get("name", ""))
