"""An API client for tests, and minimal objects."""

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response with a decoded body."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])


class Watch:
    """An open watch, whose events are read one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> tuple[str, Json]:
        event = json.loads(await self.response.content.readline())
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        events = [await self.next() for _ in range(count)]
        return [(kind, document["metadata"]["name"]) for kind, document in events]

    async def rest(self) -> list[tuple[str, Json]]:
        """Return all events until the server ends the stream."""
        lines = (await self.response.content.read()).splitlines()
        return [(event["type"], event["object"]) for event in map(json.loads, lines)]


class Client:
    """Requests against one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url
        self._watches: list[Watch] = []

    async def __call__(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Answer:
        data = None if body is None else BytesIO(json.dumps(body).encode())
        headers = {} if body is None else {"Content-Type": kind}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            return Answer(response.status, await response.json(content_type=None), dict(response.headers))

    async def merge(self, path: str, patch: Any) -> Answer:
        return await self("PATCH", path, patch, kind="application/merge-patch+json")

    async def strategic(self, path: str, patch: Any) -> Answer:
        return await self("PATCH", path, patch, kind="application/strategic-merge-patch+json")

    async def json_patch(self, path: str, *operations: Json) -> Answer:
        return await self("PATCH", path, list(operations), kind="application/json-patch+json")

    async def watch(self, path: str) -> Watch:
        joint = "&" if "?" in path else "?"
        self._watches.append(Watch(await self.session.get(f"{self.url}{path}{joint}watch=true")))
        return self._watches[-1]

    def close(self) -> None:
        """Close all watches."""
        for watch in self._watches:
            watch.response.close()


def a_pod(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec}}


def a_configmap(name: str, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}
