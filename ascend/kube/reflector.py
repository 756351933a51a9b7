"""A local copy of a collection of the API server that stays true: list, then watch, for ever.

One task per reflector. It lists (in pages), hands every object to its handler, and watches from the list's
resourceVersion. The watch ends often and for many reasons, each with its own answer:

* the server's time limit, or a broken connection: watch again from the last resourceVersion seen (bookmarks keep it
  fresh on a quiet collection);
* nothing arrives for ``idle_timeout_s``, not even a bookmark: a half-open connection looks like that, so it is given
  up and the watch resumed;
* 410 Expired, as HTTP status or as ERROR event: list again. What disappeared meanwhile is handed over as deleted, and
  an object of the same name with another uid as deleted and then applied;
* anything else: wait (exponentially, with jitter; as long as the server asks for) and try again;
* somebody needs a copy as new as the server (``refresh``): break the watch off, or the wait, and list again.

The handler is called on the event loop, in the order of the server's history, and must neither block nor raise.
It never sees an object twice in the same version.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from ascend.errors import UNREADABLE, ApiError, Expired, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient, error_of
from ascend.kube.objects import KubeObject, Resource, T

log = logging.getLogger(__name__)

T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)

PAGE_SIZE = 500
WATCH_TIMEOUT_S = (240, 480)
"""The server is asked to end each watch after a random time within these bounds, so that watches spread out."""
IDLE_TIMEOUT_S = 150.0
"""Bookmarks come about every minute; after two and a half the connection is considered dead."""


class Handler(Protocol[T_contra]):
    """What a reflector tells about."""

    def applied(self, obj: T_contra) -> None:
        """The object is new or has changed."""

    def deleted(self, obj: T_contra) -> None:
        """The object is gone; ``obj`` is its last known state."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""
    reason: str = ""


class Reflector(Generic[T]):
    """Keeps a local copy of the objects of one kind and tells a handler of every change.

    Args:
        client: the API server.
        resource: the kind.
        handler: told of every change; None where only the copy is wanted.
        namespace: only objects of this namespace.
        label_selector: only objects it matches.
        field_selector: only objects it matches.
        idle_timeout_s: how long a silent watch is believed to be alive.
        monotonic: the clock for ``age_s``.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        handler: Handler[T] | None = None,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._resource = resource
        self._handler = handler
        self._path = resource.path(namespace=namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {key: value for key, value in selectors.items() if value}
        self._idle_timeout_s = idle_timeout_s
        self._monotonic = monotonic
        self._objects: dict[str, T] = {}
        self._version: str | None = None
        self._contact_s: float | None = None
        self._refreshes: list[asyncio.Event] = []
        self._pause: asyncio.Timeout | None = None  # the watch or the wait that a refresh breaks off
        self.synced = asyncio.Event()
        """Set once the copy is complete; never cleared: afterwards ``age_s`` tells how fresh it is."""

    @property
    def objects(self) -> Mapping[str, T]:
        """The copy, by ``namespace/name`` (by name where the kind has no namespaces)."""
        return self._objects

    @property
    def age_s(self) -> float | None:
        """Seconds since the server was last heard of; None before the first time."""
        return None if self._contact_s is None else self._monotonic() - self._contact_s

    async def refresh(self) -> None:
        """Wait until the copy is at least as new as what the server had at the moment of the call.

        A watch may be behind without anybody knowing; a list that begins after the call is not.
        """
        done = asyncio.Event()
        self._refreshes.append(done)
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(asyncio.get_running_loop().time())
        await done.wait()

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = Backoff()
        while True:
            try:
                while self._version is None or self._refreshes:
                    await self._list_for_all()
                progressed = await self._watch(self._version)
            except Expired:
                log.info("listing again", extra={"resource": self._resource.plural, "cause": "history expired"})
                self._version = None
                progressed = False
            except (ApiError, Unreachable) as error:
                wait_s = backoff.next_s()
                if isinstance(error, ApiError) and error.retry_after_s is not None:
                    wait_s = max(wait_s, error.retry_after_s)
                log.warning(
                    "lost the API server",
                    extra={"resource": self._resource.plural, "error": str(error), "retry_s": round(wait_s, 2)},
                )
                await self._wait(wait_s)
                continue
            if progressed:
                backoff.reset()
            else:
                await self._wait(backoff.next_s())

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s) as self._pause:
                await asyncio.Event().wait()
        except TimeoutError:
            pass  # over, or broken off by a refresh
        finally:
            self._pause = None

    async def _list_for_all(self) -> None:
        asked = self._refreshes.copy()  # who asks while it is under way may be told too little
        await self._list()
        del self._refreshes[: len(asked)]
        for done in asked:
            done.set()

    async def _list(self) -> None:
        found: dict[str, T] = {}
        version = token = ""
        while True:
            query = {**self._selectors, "limit": str(PAGE_SIZE)}
            if token:
                query["continue"] = token
            page = _decode(await self._client.request("GET", self._path, query=query, timeout_s=60.0), _List)
            self._heard()
            for obj in self._decode_items(page.items or ()):
                found[obj.key] = obj
            version, token = page.metadata.resource_version, page.metadata.continue_
            if not token:
                break
        self._replace(found)
        self._version = version
        self.synced.set()

    def _replace(self, found: Mapping[str, T]) -> None:
        for key, old in list(self._objects.items()):
            new = found.get(key)
            if new is None or new.uid != old.uid:
                self._delete(old)
        # In the order they were created: what came earlier on the watch comes earlier from a list too.
        for new in sorted(found.values(), key=lambda obj: obj.metadata.creation_timestamp or ""):
            self._apply(new)

    async def _watch(self, version: str) -> bool:
        """Follow one watch to its end; whether it brought anything or lasted as long as asked."""
        started_s = self._monotonic()
        limit_s = random.randint(*WATCH_TIMEOUT_S)  # noqa: S311 - spreads load, no secret
        query = {
            **self._selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(limit_s),
        }
        brought = False
        try:
            async with (
                asyncio.timeout(None) as self._pause,
                self._client.stream(self._path, query=query, idle_timeout_s=self._idle_timeout_s) as lines,
            ):
                self._heard()
                async for line in lines:
                    self._heard()
                    self._follow(_decode(line, _WatchEvent))
                    brought = True
        except TimeoutError:
            return True  # broken off by a refresh
        except Unreachable as error:
            log.info("watch broke off", extra={"resource": self._resource.plural, "error": str(error)})
            if not brought and self._monotonic() - started_s < 1.0:
                raise
        finally:
            self._pause = None
        return brought or self._monotonic() - started_s >= 1.0

    def _follow(self, event: _WatchEvent) -> None:
        if event.type == "ERROR":
            status = _decode(bytes(event.object), _Status)
            raise error_of(status.code, status.message, status.reason)
        if event.type == "BOOKMARK":
            self._version = _decode(bytes(event.object), KubeObject).metadata.resource_version
            return
        for obj in self._decode_items((event.object,)):
            if event.type == "DELETED":
                # The uid tells a late DELETED of an earlier object from one of the present object.
                self._delete(obj)
            else:
                old = self._objects.get(obj.key)
                if old is not None and old.uid != obj.uid:
                    self._delete(old)
                self._apply(obj)
            self._version = obj.metadata.resource_version

    def _apply(self, obj: T) -> None:
        old = self._objects.get(obj.key)
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        self._objects[obj.key] = obj
        if self._handler is not None:
            self._handler.applied(obj)

    def _delete(self, obj: T) -> None:
        old = self._objects.get(obj.key)
        if old is None or old.uid != obj.uid:
            return
        del self._objects[obj.key]
        if self._handler is not None:
            self._handler.deleted(obj)

    def _decode_items(self, items: tuple[msgspec.Raw, ...] | list[msgspec.Raw]) -> Iterator[T]:
        for raw in items:
            try:
                yield msgspec.json.decode(raw, type=self._resource.type)
            except UNREADABLE as error:
                # One object we can't read must not hide the others.
                log.error(  # noqa: TRY400 - the traceback of a decoder tells nothing
                    "ignoring an object",
                    extra={"resource": self._resource.plural, "error": str(error), "object": bytes(raw)[:200]},
                )

    def _heard(self) -> None:
        self._contact_s = self._monotonic()


_D = TypeVar("_D")


def _decode(raw: bytes, kind: type[_D]) -> _D:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        raise Unreachable(f"the API server's answer is not understood: {error}") from error
