"""Kubernetes Events: what people see under ``kubectl describe``.

Posted in the background and never waited for: an Event that can't be written is told of in the log and forgotten.
The same Event again within ``REPEAT_S`` becomes one series: its first repetition is posted at once, later ones together
``REPEAT_POST_S`` after it, and so on; a series whose Event somebody has deleted is created anew. Of different Events
about one object ``BURST`` are posted at once, then one every ``REFILL_S``, as client-go's spam filter does it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, JsonObject

log = logging.getLogger(__name__)

REPEAT_S = 600.0
REPEAT_POST_S = 30.0
BURST = 50
"""Enough for all chips of a server, and all their ports, to fail at once."""
REFILL_S = 30.0
QUEUE_LENGTH = 256
MAX_NOTE_BYTES = 1024
"""Longest note the API server takes, in UTF-8; what is longer is refused."""
MAX_INSTANCE = 128
"""Longest name of a process it takes; a node's may be longer."""
_MORE = "…".encode()


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def reference(self) -> JsonObject:
        """As the API has it."""
        pairs = {"apiVersion": "v1", "kind": self.kind, "name": self.name, "namespace": self.namespace, "uid": self.uid}
        return {key: value for key, value in pairs.items() if value}


@dataclass(slots=True)
class _Series:
    name: str
    body: JsonObject
    """Its Event as it was created."""
    first_s: float
    due_s: float
    """When its repetitions may be posted."""
    count: int = 1
    unposted: str = ""
    """When it was last repeated, if that is not posted yet."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at_s: float

    def grown(self, now_s: float) -> float:
        return min(BURST, self.left + (now_s - self.at_s) / REFILL_S)


@dataclass(frozen=True, slots=True)
class _Posting:
    regarding: Regarding
    key: tuple[str, ...]
    body: JsonObject = field(hash=False)


class EventRecorder:
    """Posts Events of one program.

    Args:
        client: the API server.
        component: the program, as ``reportingController``.
        instance: which of its processes, as ``reportingInstance``.
        monotonic: clock for series and rates.
        now: wall clock for timestamps.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        instance: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance[:MAX_INSTANCE]
        self._monotonic = monotonic
        self._now = now
        self._queue: asyncio.Queue[_Posting] = asyncio.Queue(QUEUE_LENGTH)
        self._series: dict[tuple[str, ...], _Series] = {}
        self._allowances: dict[Regarding, _Allowance] = {}

    def publish(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = True) -> None:
        """Post an Event soon; returns at once.

        Args:
            regarding: the object it is about.
            reason: why, a stable CamelCase word.
            note: what happened, a sentence.
            action: what was being done, a CamelCase word.
            warning: Warning rather than Normal.
        """
        key = (regarding.kind, regarding.namespace, regarding.name, regarding.uid, reason, note)
        stamp = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        body: JsonObject = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # A dash at the end is the one end the API server takes that is none of a name.
            "metadata": {"generateName": f"{regarding.name}-", "namespace": regarding.namespace or "default"},
            "eventTime": stamp,
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "regarding": regarding.reference(),
            "reason": reason,
            "action": action,
            "note": _shortened(note),
            "type": "Warning" if warning else "Normal",
        }
        try:
            self._queue.put_nowait(_Posting(regarding, key, body))
        except asyncio.QueueFull:
            log.warning("dropped an event", extra={"reason": reason, "object": regarding.name})

    async def run(self) -> None:
        """Post what was published, until cancelled."""
        while True:
            posting = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_due()):
                    posting = await self._queue.get()
            if posting is not None:
                with _told(posting.key):
                    await self._post(posting)
            await self._post_repeated()

    async def _post(self, posting: _Posting) -> None:
        now_s = self._monotonic()
        known = self._series.items()
        self._series = {key: each for key, each in known if each.unposted or now_s - each.first_s < REPEAT_S}
        series = self._series.get(posting.key)
        if series is not None:
            series.count += 1
            series.unposted = posting.body["eventTime"]
            return
        if not self._may_post(posting.regarding, now_s):
            log.warning("dropped an event", extra={"reason": posting.key[-2], "object": posting.regarding.name})
            return
        name = await self._create(posting.body)
        self._series[posting.key] = _Series(name, posting.body, first_s=now_s, due_s=now_s)

    async def _post_repeated(self) -> None:
        """Post the repetitions whose time has come."""
        now_s = self._monotonic()
        for key, series in self._series.items():
            if series.unposted and series.due_s <= now_s:
                repeated = {"series": {"count": series.count, "lastObservedTime": series.unposted}}
                series.unposted, series.due_s = "", now_s + REPEAT_POST_S
                with _told(key):
                    await self._repeat(series, repeated)

    async def _repeat(self, series: _Series, repeated: JsonObject) -> None:
        namespace = series.body["metadata"]["namespace"]
        try:
            await self._client.patch(EVENTS, series.name, repeated, namespace=namespace)
        except NotFound:  # deleted by hand, as client-go reckons with, too
            series.name = await self._create(series.body | repeated)

    async def _create(self, body: JsonObject) -> str:
        """Create an Event; the answer is its name."""
        return (await self._client.create(EVENTS, body, body["metadata"]["namespace"])).name

    def _until_due(self) -> float | None:
        """Seconds until repetitions are to be posted; None if there are none."""
        due_s = min((each.due_s for each in self._series.values() if each.unposted), default=None)
        return None if due_s is None else max(due_s - self._monotonic(), 0.0)

    def _may_post(self, regarding: Regarding, now_s: float) -> bool:
        """Whether one more Event about an object may be posted, which is counted; what is whole again is forgotten."""
        self._allowances = {key: each for key, each in self._allowances.items() if each.grown(now_s) < BURST}
        known = self._allowances.get(regarding)
        left = known.grown(now_s) if known is not None else float(BURST)
        if left < 1:
            return False
        self._allowances[regarding] = _Allowance(left - 1, now_s)
        return True


def _shortened(note: str) -> str:
    """As much of a note as the API server takes, in whole characters."""
    written = note.encode(errors="replace")
    if len(written) > MAX_NOTE_BYTES:
        written = written[: MAX_NOTE_BYTES - len(_MORE)]
        return (written + _MORE).decode(errors="ignore")
    return written.decode()


@contextlib.contextmanager
def _told(key: tuple[str, ...]) -> Iterator[None]:
    """What goes wrong in posting is told of in the log."""
    try:
        yield
    except (ApiError, Unreachable) as error:
        log.warning("could not post an event", extra={"reason": key[-2], "error": str(error)})
