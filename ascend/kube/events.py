"""Posts Kubernetes Events, as shown by ``kubectl describe``.

Events are posted in the background: one that can't be written is logged and dropped. The same Event again within
``REPEAT_S`` becomes one series: its first repetition is posted at once, later ones together ``REPEAT_POST_S`` after it,
and so on; a series whose Event was deleted is created again. The rate of different Events is limited, of all and of
those about objects of one namespace: the Events of others are not dropped for it.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.fair import FairRate
from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, JsonObject
from ascend.printable import printable

log = logging.getLogger(__name__)

REPEAT_S = 600.0
REPEAT_POST_S = 30.0
BURST = 50
"""Enough for all chips of a server, and all their ports, to fail at once."""
REFILL_S = 5.0
"""Time between different Events once the burst is used up, unless the program sets it."""
DROPPED_LOG_S = 10.0
"""Time between lines of the log about Events that were dropped; a caller may try again at any rate."""
QUEUE_LENGTH = 256
MAX_NOTE_BYTES = 1024
"""The longest note the API server accepts, in UTF-8."""
MAX_INSTANCE = 128
"""The longest instance it accepts; a node's name may be longer."""
_MAX_NAME = 236
"""How much of an object's name the name of an Event can have beside a digest; 253 characters are valid."""
_MORE = "…".encode()


class Regarding(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The object an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


@dataclass(slots=True)
class _Series:
    name: str
    body: JsonObject
    """The Event as it was created."""
    first_s: float
    due_s: float
    """When its repetitions may be posted."""
    count: int = 1
    unposted: str = ""
    """The time of the last repetition, if that is not posted yet."""


class EventRecorder:
    """Posts the Events of one program.

    Args:
        client: the API server.
        component: the program, written as ``reportingController``.
        instance: its process, written as ``reportingInstance``.
        refill_s: seconds in which one more Event may be posted, after a burst of ``BURST``; a namespace has half.
        monotonic: clock for series and rates.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        instance: str,
        *,
        refill_s: float = REFILL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance[:MAX_INSTANCE]
        self._monotonic = monotonic
        self._queue: asyncio.Queue[tuple[tuple[str, ...], JsonObject]] = asyncio.Queue(QUEUE_LENGTH)
        self._series: dict[tuple[str, ...], _Series] = {}
        self._rate = FairRate(BURST, refill_s, monotonic)
        self._dropped = 0
        self._logged_s = -DROPPED_LOG_S

    def publish(
        self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = True, once: bool = False
    ) -> bool:
        """Post an Event soon; returns at once.

        Args:
            regarding: the object it is about.
            reason: why, a stable CamelCase word.
            note: what happened, a sentence.
            action: what was being done, a CamelCase word.
            warning: Warning rather than Normal.
            once: whether one that a program posted before, and that still exists, is enough: its name follows from what
                it says.

        Returns:
            Whether it will be posted; False if there were too many.
        """
        key = (regarding.kind, regarding.namespace, regarding.name, regarding.uid, reason, note)
        named = {"name": _name_of(key)} if once else None
        body = self._body(regarding, reason, note, action=action, warning=warning, named=named)
        if self._queue.full() or (key not in self._series and not self._rate.take(regarding.namespace)):
            self._log_dropped(reason, regarding.name)
            return False
        self._queue.put_nowait((key, body))
        return True

    async def post(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = True) -> None:
        """Post an Event now, whatever was posted before; the arguments are those of ``publish``.

        Raises:
            ApiError: the API server refused.
            Unreachable: it did not answer.
        """
        await self._create(self._body(regarding, reason, note, action=action, warning=warning))

    def _body(
        self,
        regarding: Regarding,
        reason: str,
        note: str,
        *,
        action: str,
        warning: bool,
        named: JsonObject | None = None,
    ) -> JsonObject:
        # The trailing dash is valid here, although a name may not end with one: the server appends a suffix.
        name = named or {"generateName": f"{regarding.name}-"}
        return {
            "metadata": name | {"namespace": regarding.namespace or "default"},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "regarding": {"apiVersion": "v1", **msgspec.to_builtins(regarding)},
            "reason": reason,
            "action": action,
            "note": _shortened(note),
            "type": "Warning" if warning else "Normal",
        }

    async def run(self) -> None:
        """Post what was published, until cancelled."""
        while True:
            published = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_due()):
                    published = await self._queue.get()
            if published is not None:
                key, body = published
                with _logged(key):
                    await self._post(key, body)
            await self._post_repeated()

    async def _post(self, key: tuple[str, ...], body: JsonObject) -> None:
        now_s = self._monotonic()
        known = self._series.items()
        self._series = {seen: series for seen, series in known if series.unposted or now_s - series.first_s < REPEAT_S}
        series = self._series.get(key)
        if series is not None:
            series.count += 1
            series.unposted = body["eventTime"]
            return
        self._series[key] = _Series(await self._create(body), body, first_s=now_s, due_s=now_s)

    async def _post_repeated(self) -> None:
        """Post the repetitions that are due."""
        now_s = self._monotonic()
        for key, series in self._series.items():
            if series.unposted and series.due_s <= now_s:
                repeated = {"series": {"count": series.count, "lastObservedTime": series.unposted}}
                series.unposted, series.due_s = "", now_s + REPEAT_POST_S
                namespace = series.body["metadata"]["namespace"]
                with _logged(key):
                    try:
                        await self._client.patch(EVENTS, series.name, repeated, namespace=namespace)
                    except NotFound:  # deleted by hand; client-go handles this as well
                        series.name = await self._create(series.body | repeated)

    async def _create(self, body: JsonObject) -> str:
        """Create an Event; returns its name."""
        try:
            return (await self._client.create(EVENTS, body, body["metadata"]["namespace"])).name
        except Conflict:
            if "name" not in body["metadata"]:
                raise
            return str(body["metadata"]["name"])

    def _until_due(self) -> float | None:
        """Seconds until repetitions are due; None if there are none."""
        due_s = min((series.due_s for series in self._series.values() if series.unposted), default=None)
        return None if due_s is None else max(due_s - self._monotonic(), 0.0)

    def _log_dropped(self, reason: str, name: str) -> None:
        self._dropped += 1
        now_s = self._monotonic()
        if now_s >= self._logged_s + DROPPED_LOG_S:
            log.warning("dropped Events", extra={"events": self._dropped, "reason": reason, "object": name})
            self._dropped, self._logged_s = 0, now_s


def _name_of(key: tuple[str, ...]) -> str:
    """The name of an Event that is posted once: the object's name, shortened to be valid, and a digest."""
    digest = hashlib.sha256("\n".join(key).encode(errors="replace")).hexdigest()[:16]
    return f"{key[2][:_MAX_NAME].rstrip('-.')}.{digest}"


def _shortened(note: str) -> str:
    """As much of a note as the API server accepts, in whole characters; without control characters."""
    written = printable(note).encode(errors="replace")
    if len(written) > MAX_NOTE_BYTES:
        written = written[: MAX_NOTE_BYTES - len(_MORE)]
        return (written + _MORE).decode(errors="ignore")
    return written.decode()


@contextlib.contextmanager
def _logged(key: tuple[str, ...]) -> Iterator[None]:
    """Log errors in posting."""
    try:
        yield
    except (ApiError, Unreachable) as error:
        log.warning("can't post an Event", extra={"reason": key[-2], "error": str(error)})
