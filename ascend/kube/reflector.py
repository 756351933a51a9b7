"""Keeps a local copy of a collection of the API server current: list, then watch.

One task per reflector. It lists (in pages, smaller ones of large objects), passes every object to its handler, and
watches from the list's resourceVersion. A watch can end for many reasons:

* the server's time limit, or a broken connection: watch again from the last resourceVersion seen, or bookmarked;
* nothing arrives for ``idle_timeout_s``, as on a half-open connection: close the connection and resume the watch;
* 410 Expired, as HTTP status or as ERROR event: list again. Objects that are missing are passed on as deleted, and an
  object of the same name with another uid as deleted and then applied;
* any other error: wait (exponential backoff with jitter, at least as long as Retry-After) and try again;
* a caller needs a copy as recent as the server's state (``refresh``): abort the watch, or the wait, and list again.

The handler is called on the event loop, in the order of the server's history, and must neither block nor raise.
It never gets an object twice in the same version, except one that is not kept (``ascend.kube.handler.Unkept``). After
a list other tasks run between the changes; deleted objects come last, so that what they hold is not free too early.
"""

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Generic

import msgspec

from ascend.errors import ApiError, Expired, Unreachable
from ascend.kube.answers import Head, List, Status, WatchEvent, decode, decode_head, decode_item, error_of
from ascend.kube.client import KubeClient
from ascend.kube.handler import Handler, Unkept
from ascend.kube.objects import KubeObject, Resource, T
from ascend.rate_limiters import Backoff
from ascend.turn import Turn, drained

log = logging.getLogger(__name__)

WATCH_TIMEOUT_S = (240, 480)
"""The server ends each watch after a random time within these bounds, which spreads the load."""
IDLE_TIMEOUT_S = 150.0
"""Bookmarks come about every minute; after two and a half the connection is considered dead."""


class Reflector(Generic[T]):
    """Keeps a local copy of the objects of one kind and calls a handler with every change.

    Args:
        client: the API server.
        resource: the kind.
        handler: called with every change; None if only the copy is needed.
        namespace, label_selector, field_selector: only objects of this namespace, or that these match.
        unkept: the objects of which no copy is kept; None to keep all.
        unreadable: called with an object that can't be decoded, and why, after its last state that could be was passed
            on as deleted; with an empty sentence once it is deleted. None: until then the last state counts.
        idle_timeout_s: how long a watch may be silent before its connection counts as broken.
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
        unkept: Unkept[T] | None = None,
        unreadable: Callable[[KubeObject, str], None] | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._resource = resource
        self._handler = handler
        self._path = resource.path(namespace=namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {key: value for key, value in selectors.items() if value}
        self._unkept = unkept
        self._unreadable = unreadable
        self._idle_timeout_s = idle_timeout_s
        self._monotonic = monotonic
        self._objects: dict[str, T] = {}
        self._version: str | None = None
        self._contact_s: float | None = None
        self._refreshes: list[asyncio.Event] = []
        self._pause: asyncio.Timeout | None = None  # the watch or the wait that a refresh aborts
        self.synced = asyncio.Event()
        """Set once the copy is complete; never cleared: after that ``age_s`` is the measure of its freshness."""

    @property
    def objects(self) -> Mapping[str, T]:
        """The copy, by ``namespace/name`` (by name if the kind is cluster-scoped), without the unkept objects."""
        return self._objects

    @property
    def age_s(self) -> float | None:
        """Seconds since the last contact with the server; None before the first one."""
        return None if self._contact_s is None else self._monotonic() - self._contact_s

    async def refresh(self) -> None:
        """Wait until the copy is at least as recent as the server's state at the time of the call.

        A watch may lag behind without notice; a list that begins after the call does not.
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
                log.info("listing again", extra={"resource": self._resource.plural, "error": "history expired"})
                self._version = None
                progressed = False
            except (ApiError, Unreachable) as error:
                wait_s = backoff.after(error)
                log.warning(
                    "can't list or watch",
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
            pass  # the time is over, or a refresh aborted the wait
        finally:
            self._pause = None

    async def _list_for_all(self) -> None:
        waiting = self._refreshes.copy()  # for later callers this list may be too old
        await self._list()
        del self._refreshes[: len(waiting)]
        for done in waiting:
            done.set()

    async def _list(self) -> None:
        missing = self._objects.copy()  # at once, in 3 ms for 131,000 objects; it is nearly empty when it is released
        changed: list[list[T]] = []
        version = token = ""
        size = 0
        turn = Turn()
        if self._unkept is not None:
            self._unkept.list_started()
        while True:
            body, size = await self._client.read_page(self._path, self._selectors, token, size)
            self._on_contact()
            await turn.share()
            page, new = decode(body, List, "answer"), list[T]()
            for raw in page.items or ():
                key = self._key_of_unchanged(raw)
                if key is not None:
                    missing.pop(key, None)
                elif isinstance(obj := decode_item(raw, self._resource), str):
                    self._on_unreadable(raw, obj)
                else:
                    missing.pop(obj.key, None)
                    if self._is_unkept(obj):
                        self._apply(obj)
                    else:
                        new.append(obj)
                await turn.share()
            changed.append(sorted(new, key=_created)[::-1])
            version, token = page.metadata.resource_version, page.metadata.continue_
            if not token:
                break
        await self._replace(missing, changed, turn)
        if self._unkept is not None:
            self._unkept.list_ended()
        self._version = version
        self.synced.set()

    async def _replace(self, gone: Mapping[str, T], changed: list[list[T]], turn: Turn) -> None:
        # In the order of their creation, as on a watch.
        for new in heapq.merge(*map(drained, changed), key=_created):
            self._apply(new)
            await turn.share()
        for old in gone.values():
            self._delete(old)
            await turn.share()

    async def _watch(self, version: str) -> bool:
        """Follow a watch to its end; return whether it made progress: by an event, or by lasting for a second."""
        started_s = self._monotonic()
        limit_s = random.randint(*WATCH_TIMEOUT_S)  # noqa: S311 - spreads load, no secret
        query = {
            **self._selectors,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(limit_s),
        }
        progressed = False
        try:
            async with (
                asyncio.timeout(None) as self._pause,
                self._client.stream(self._path, query=query, idle_timeout_s=self._idle_timeout_s) as lines,
            ):
                self._on_contact()
                turn = Turn()
                async for line in lines:
                    self._on_contact()
                    self._follow(decode(line, WatchEvent, "answer"))
                    progressed = True
                    await turn.share()
        except TimeoutError:
            return True  # aborted by a refresh
        except Unreachable as error:
            log.info("a watch was interrupted", extra={"resource": self._resource.plural, "error": str(error)})
            if not progressed and self._monotonic() - started_s < 1.0:
                raise
        finally:
            self._pause = None
        return progressed or self._monotonic() - started_s >= 1.0

    def _follow(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            status = decode(event.object, Status, "answer")
            raise error_of(status.code, status.message, status.reason)
        if event.type == "BOOKMARK":
            self._version = decode(event.object, KubeObject, "answer").metadata.resource_version
            return
        if isinstance(obj := decode_item(event.object, self._resource), str):
            self._on_unreadable(event.object, "" if event.type == "DELETED" else obj)
            return
        if event.type == "DELETED":
            # The uid distinguishes a late DELETED of an earlier object from one of the current object.
            self._delete(obj)
        else:
            self._apply(obj)
        self._version = obj.metadata.resource_version

    def _apply(self, obj: T) -> None:
        key = obj.key
        if (old := self._objects.get(key)) is not None:
            # A version is unique among all objects of a kind.
            if old.metadata.resource_version == obj.metadata.resource_version:
                return
            if old.uid != obj.uid:
                self._delete(old)
        if self._is_unkept(obj):
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if self._handler is not None:
            self._handler.on_apply(obj)

    def _delete(self, obj: T) -> None:
        old = self._objects.get(obj.key)
        if old is not None and old.uid == obj.uid:
            del self._objects[obj.key]
        elif not self._is_unkept(obj):
            return
        if self._handler is not None:
            self._handler.on_delete(obj)

    def _on_unreadable(self, raw: msgspec.Raw, why: str) -> None:
        if (head := decode_head(raw, KubeObject)) is None:
            return
        old = self._objects.get(head.key)
        if old is not None and (old.uid == head.uid if not why else self._unreadable is not None):
            self._delete(old)
        if self._unreadable is not None:
            self._unreadable(head, why)

    def _key_of_unchanged(self, raw: msgspec.Raw) -> str | None:
        """The key of an object that the copy has in the same version; None for any other object."""
        if not self._objects:
            return None
        if (head := decode_head(raw, Head)) is None:
            return None
        old = self._objects.get(head.key)
        is_unchanged = old is not None and old.metadata.resource_version == head.metadata.resource_version
        return head.key if is_unchanged else None

    def _is_unkept(self, obj: T) -> bool:
        return self._unkept is not None and self._unkept.unkept(obj)

    def _on_contact(self) -> None:
        self._contact_s = self._monotonic()


def _created(obj: KubeObject) -> str:
    return obj.metadata.creation_timestamp or ""
