"""Watch streams over HTTP: one line per event, bookmarks, a time limit, and the failures a client has to survive."""

import asyncio
from dataclasses import dataclass

from aiohttp import web
from msgspec import json

from sandbox.apiserver.resources import Resource
from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import StatusError
from sandbox.apiserver.store import Store, Watcher

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch request asks for.

    Attributes:
        since: resourceVersion to start after; None to be told the present state first.
        initial_events: Whether, without `since`, the present state is told.
        bookmarks: Whether bookmarks are welcome.
        timeout_s: When the server ends the stream.
    """

    since: int | None
    initial_events: bool
    bookmarks: bool
    timeout_s: float


class WatchStreams:
    """All open watches.

    Args:
        store: What is watched.
        bookmark_interval_s: Time between bookmarks of an idle stream.
    """

    def __init__(self, store: Store, bookmark_interval_s: float) -> None:
        self._store = store
        self._bookmark_interval_s = bookmark_interval_s
        self._open: list[web.Request] = []
        self._flow = asyncio.Event()
        self._flow.set()
        self._changed = asyncio.Event()  # set when the number of open watches changes, and then replaced

    @property
    def count(self) -> int:
        """How many watches are open."""
        return len(self._open)

    async def wait_for_count(self, count: int) -> None:
        """Return as soon as exactly so many watches are open."""
        while self.count != count:
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def drop(self) -> None:
        """Break every watch connection, without a goodbye."""
        for request in tuple(self._open):
            if request.transport is not None:
                request.transport.abort()

    def pause(self) -> None:
        """Deliver nothing, bookmarks and ends included, on connections that stay: a half-open network path."""
        self._flow.clear()

    def resume(self) -> None:
        """Deliver again, beginning with what has gathered."""
        self._flow.set()

    async def serve(self, request: web.Request, selection: Selection, options: WatchOptions) -> web.StreamResponse:
        """Answer a watch request; returns when the watch is over."""
        response = web.StreamResponse(headers={"Cache-Control": "no-cache, private"})
        response.content_type = "application/json"
        woken = asyncio.Event()

        def wake() -> None:
            woken.set()
            if watcher.overflowed and request.transport is not None:
                request.transport.abort()  # the writer may be stuck in a full socket: only this ends it

        try:
            watcher = self._store.watch(selection, options.since, wake, preloaded=options.initial_events)
        except StatusError as error:
            await response.prepare(request)
            await response.write(json.encode({"type": "ERROR", "object": error.document()}) + b"\n")
            return response
        self._open.append(request)
        self._note_change()
        try:
            if options.since is None and options.bookmarks:
                watcher.append(self._bookmark(selection.resource, _INITIAL_EVENTS_END))
            await response.prepare(request)
            await self._deliver(response, watcher, woken, options)
        except ConnectionError:
            pass  # the client has gone, which is how most watches end
        finally:
            self._store.unwatch(watcher)
            self._open.remove(request)
            self._note_change()
        return response

    async def _deliver(
        self, response: web.StreamResponse, watcher: Watcher, woken: asyncio.Event, options: WatchOptions
    ) -> None:
        now = asyncio.get_running_loop().time
        ends_at = now() + options.timeout_s
        bookmark_at = now() + self._bookmark_interval_s if options.bookmarks else ends_at
        while not watcher.overflowed:
            await self._flow.wait()
            frames = watcher.take()
            if frames:
                await response.write(b"".join(frames))
                continue
            # From here to the next await nothing can happen, so a bookmark's version covers all that was delivered.
            moment = now()
            if options.bookmarks and moment >= min(bookmark_at, ends_at):
                bookmark_at = moment + self._bookmark_interval_s
                await response.write(self._bookmark(watcher.selection.resource))
            if moment >= ends_at:
                return
            woken.clear()
            try:
                async with asyncio.timeout_at(min(bookmark_at, ends_at)):
                    await woken.wait()
            except TimeoutError:
                continue

    def _bookmark(self, resource: Resource, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return json.encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"
