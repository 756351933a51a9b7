"""Watch streams over HTTP: one line per event, bookmarks, a time limit, and injected failures."""

import asyncio
from dataclasses import dataclass

from aiohttp import web
from msgspec import json

from ascend.daemon.observable import Observable, wait_until
from sandbox.apiserver.resources import ServedResource
from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import StatusError
from sandbox.apiserver.store import Store, Watcher

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The parameters of a watch request.

    Attributes:
        since: resourceVersion to start after; None starts with the current objects.
        initial_events: Whether, without `since`, the current objects are sent.
        bookmarks: Whether the client accepts bookmarks.
        timeout_s: After how many seconds the server ends the stream.
    """

    since: int | None
    initial_events: bool
    bookmarks: bool
    timeout_s: float


class WatchStreams:
    """All open watches.

    Args:
        store: The watched objects.
        bookmark_interval_s: Time between the bookmarks of an idle stream.
    """

    def __init__(self, store: Store, bookmark_interval_s: float) -> None:
        self._store = store
        self._bookmark_interval_s = bookmark_interval_s
        self._open: list[web.Request] = []
        self._not_paused = asyncio.Event()
        self._not_paused.set()
        self._changes: Observable[None] = Observable(None)

    @property
    def count(self) -> int:
        """The number of open watches."""
        return len(self._open)

    async def wait_for_count(self, count: int) -> None:
        """Wait until exactly this many watches are open."""
        await wait_until(lambda: self.count == count, (self._changes,))

    def drop(self) -> None:
        """Abort every watch connection."""
        for request in tuple(self._open):
            if request.transport is not None:
                request.transport.abort()

    def pause(self) -> None:
        """Keep connections open but send nothing, neither bookmarks nor the end: a half-open connection."""
        self._not_paused.clear()

    def resume(self) -> None:
        """Send again, starting with the queued events."""
        self._not_paused.set()

    async def serve(self, request: web.Request, selection: Selection, options: WatchOptions) -> web.StreamResponse:
        """Answer a watch request; return when the watch has ended."""
        response = web.StreamResponse(headers={"Cache-Control": "no-cache, private"})
        response.content_type = "application/json"
        woken = asyncio.Event()

        def wake() -> None:
            woken.set()
            if watcher.overflowed and request.transport is not None:
                request.transport.abort()  # a write that waits for a full socket ends only by this

        try:
            watcher = self._store.watch(selection, options.since, wake, preloaded=options.initial_events)
        except StatusError as error:
            await response.prepare(request)
            await response.write(json.encode({"type": "ERROR", "object": error.document()}) + b"\n")
            return response
        self._open.append(request)
        self._changes.set(None)
        try:
            if options.since is None and options.bookmarks:
                watcher.append(self._bookmark(selection.resource, _INITIAL_EVENTS_END))
            await response.prepare(request)
            await self._deliver(response, watcher, woken, options)
        except ConnectionError:
            pass  # the client disconnected, as most watches end
        finally:
            self._store.unwatch(watcher)
            self._open.remove(request)
            self._changes.set(None)
        return response

    async def _deliver(
        self, response: web.StreamResponse, watcher: Watcher, woken: asyncio.Event, options: WatchOptions
    ) -> None:
        now = asyncio.get_running_loop().time
        ends_at = now() + options.timeout_s
        bookmark_at = now() + self._bookmark_interval_s if options.bookmarks else ends_at
        while not watcher.overflowed:
            await self._not_paused.wait()
            frames = watcher.take()
            if frames:
                await response.write(b"".join(frames))
                continue
            # No change can happen before the next await, so the version of a bookmark covers all that was sent.
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

    def _bookmark(self, resource: ServedResource, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return json.encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"
