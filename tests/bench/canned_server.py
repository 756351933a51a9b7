"""An API server whose objects are numbered copies of templates: 100,000 pods without the memory of 100,000 pods."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

NUMBER: Final = "@@@@@@"
"""Replaced in a template by the number of the object, with six digits; a text that is nothing else becomes a number."""

_VERSION: Final = "1000"


class Objects:
    """The objects of a kind: consecutive copies of each template.

    Args:
        templates: a manifest, and how many copies of it there are.
    """

    def __init__(self, templates: Iterable[tuple[dict[str, Any], int]]) -> None:
        self._copies: list[tuple[bytes, int]] = []
        for manifest, count in templates:
            self.add(manifest, count)

    def add(self, manifest: dict[str, Any], count: int) -> None:
        """Add copies of another template."""
        self._copies.append((_encoded(manifest, len(self._copies)), count))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.items(0, len(self)))

    def __len__(self) -> int:
        return sum(count for _, count in self._copies)

    def items(self, start: int, end: int) -> Iterator[bytes]:
        """The objects with these numbers, as JSON."""
        first = 0
        for raw, count in self._copies:
            for number in range(max(start, first), min(end, first + count)):
                whole = raw.replace(b'"%b"' % NUMBER.encode(), b"%d" % (number - first))
                yield whole.replace(NUMBER.encode(), b"%06d" % (number - first))
            first += count


class CannedServer:
    """Serves lists page by page, watches in which nothing happens by itself, and accepts every write.

    Args:
        objects: by path of the collection.
    """

    def __init__(self, objects: Mapping[str, Objects]) -> None:
        self._objects = objects
        self._watches: dict[str, list[asyncio.Queue[bytes]]] = {}
        self.url = ""
        self.single: dict[str, dict[str, Any]] = {}
        """Objects that no list has, by their paths."""
        self.lists: dict[str, int] = {}
        """How often the first page of each collection was read."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["CannedServer"]:
        """Serve within the block."""
        runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            for path in self._watches:
                self.send(path, b"")
            await runner.cleanup()

    def send(self, path: str, *events: bytes) -> None:
        """Send events to every watch of a collection, at once; an empty one ends the watch."""
        for queue in self._watches.get(path, ()):
            queue.put_nowait(b"".join(event + b"\n" for event in events if event))
            if not all(events):
                queue.put_nowait(b"")

    def is_watched(self, path: str) -> bool:
        """Whether any client watches a collection."""
        return bool(self._watches.get(path))

    def modify(self, path: str, numbers: range, change: Callable[[dict[str, Any]], None]) -> None:
        """Send an event for each of these objects after a change."""
        events: list[bytes] = []
        for number, raw in zip(numbers, self._objects[path].items(numbers.start, numbers.stop), strict=True):
            manifest = json.loads(raw)
            manifest["metadata"]["resourceVersion"] = f"{_VERSION}{number}"
            change(manifest)
            events.append(json.dumps({"type": "MODIFIED", "object": manifest}).encode())
        self.send(path, *events)

    def expire(self, path: str) -> None:
        """End every watch of a collection, so that it is listed again."""
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self.send(path, json.dumps({"type": "ERROR", "object": gone}).encode(), b"")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            await request.read()
            return web.json_response({}, status=201 if request.method == "POST" else 200)
        if (single := self.single.get(request.path)) is not None:
            return web.json_response(single)
        objects = self._objects.get(request.path)
        if objects is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.query.get("watch"):
            return await self._watch(request)
        return self._list(request, objects)

    def _list(self, request: web.BaseRequest, objects: Objects) -> web.Response:
        start = int(request.query.get("continue", 0))
        end = min(start + int(request.query.get("limit", len(objects))), len(objects))
        if not start:
            self.lists[request.path] = self.lists.get(request.path, 0) + 1
        head = {"resourceVersion": _VERSION, "continue": str(end) if end < len(objects) else ""}
        body = b'{"metadata":%b,"items":[%b]}' % (json.dumps(head).encode(), b",".join(objects.items(start, end)))
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        watches = self._watches.setdefault(request.path, [])
        watches.append(queue)
        try:
            while events := await queue.get():
                await response.write(events)
        finally:
            watches.remove(queue)
        return response


def _encoded(manifest: dict[str, Any], kind: int) -> bytes:
    metadata = {
        "uid": f"{kind:08}-0000-4000-8000-000000{NUMBER}",
        "resourceVersion": _VERSION,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **manifest["metadata"],
    }
    return json.dumps({**manifest, "metadata": metadata}, separators=(",", ":")).encode()
