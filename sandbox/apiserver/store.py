"""The objects, their history and their watchers, in memory; no HTTP, no await.

Every change increments one counter, the resourceVersion. The store keeps objects without `kind` and `apiVersion`, never
changes them in place, and encodes them once per API version, so that a thousand watchers share the same bytes.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sandbox.apiserver.resources import Json, ServedResource
from sandbox.apiserver.selectors import Selection
from sandbox.apiserver.status import expired

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
_KEPT_SNAPSHOTS = 64

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, eq=False)
class StoredObject:
    """A version of an object; `document` must not be modified."""

    storage: str
    namespace: str
    name: str
    document: Json
    version: int
    _encoded: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str:
        """Its position in lists, which is the order of etcd keys."""
        return f"{self.namespace}/{self.name}"

    def copy(self) -> Json:
        """Return a copy of the document, which may be modified."""
        return _decode(self.item_json(None))

    def item_json(self, resource: ServedResource | None) -> bytes:
        """Return the JSON of a list item: without kind and apiVersion."""
        conversion = resource.conversion if resource else None
        key = (resource.api_version if resource and conversion else "", "")
        if key not in self._encoded:
            self._encoded[key] = _encode(conversion.from_stored(self.document) if conversion else self.document)
        return self._encoded[key]

    def object_json(self, resource: ServedResource) -> bytes:
        """Return the JSON of an object: with kind and apiVersion."""
        item = self.item_json(resource)
        head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}"'.encode()
        return head + b"," + item[1:] if len(item) > len(b"{}") else head + b"}"

    def frame(self, event: str, resource: ServedResource) -> bytes:
        """Return the line of a watch stream for an event with this version."""
        key = (resource.api_version, event)
        if key not in self._encoded:
            self._encoded[key] = b'{"type":"' + event.encode() + b'","object":' + self.object_json(resource) + b"}\n"
        return self._encoded[key]


@dataclass(slots=True, eq=False)
class Change:
    """A change: an object before and after it; `after` of a removal is the object's last version."""

    version: int
    before: StoredObject | None
    after: StoredObject
    removed: bool
    _left: StoredObject | None = None

    def as_deleted(self) -> StoredObject:
        """Return the object before the change, at the resourceVersion of the change.

        This is the object of the DELETED event for a watcher whose selectors no longer match.
        """
        if self._left is None:
            before = self.before or self.after
            document = {
                **before.document,
                "metadata": {**before.document["metadata"], "resourceVersion": str(self.version)},
            }
            self._left = StoredObject(before.storage, before.namespace, before.name, document, self.version)
        return self._left

    def frame_for(self, selection: Selection) -> bytes | None:
        """Return the event for a watcher, or None. Starting to match is ADDED, ceasing to match is DELETED."""
        matched = self.before is not None and selection.matches(self.before.document)
        if self.removed:
            return self.after.frame(DELETED, selection.resource) if matched else None
        if selection.matches(self.after.document):
            return self.after.frame(MODIFIED if matched else ADDED, selection.resource)
        return self.as_deleted().frame(DELETED, selection.resource) if matched else None


class Watcher:
    """The undelivered events of a watch.

    Args:
        selection: The watched objects.
        limit: How many events may wait before the watcher counts as too slow.
        wake: Called when there is an event to deliver.
    """

    def __init__(self, selection: Selection, limit: int, wake: Callable[[], None]) -> None:
        self.selection = selection
        self.overflowed = False
        self._limit = limit
        self._wake = wake
        self._frames: list[bytes] = []

    def offer(self, change: Change) -> None:
        """Queue the event of a change; a full queue ends the watch."""
        frame = change.frame_for(self.selection)
        if frame is None or self.overflowed:
            return
        self.overflowed = len(self._frames) >= self._limit
        if not self.overflowed:
            self._frames.append(frame)
        self._wake()

    def append(self, frame: bytes) -> None:
        """Queue an event that is no change, such as a bookmark."""
        self._frames.append(frame)

    def preload(self, frames: Iterable[bytes]) -> None:
        """Queue the events that precede the first change; they do not count towards the limit."""
        self._frames.extend(frames)
        self._limit += len(self._frames)

    def take(self) -> list[bytes]:
        """Remove and return all queued events, oldest first."""
        frames, self._frames = self._frames, []
        return frames


class Store:
    """All objects of the cluster.

    Args:
        history_limit: How many changes are kept for watches that start in the past.
        watcher_limit: How many undelivered events a watcher may have.
    """

    def __init__(self, *, history_limit: int = 20_000, watcher_limit: int = 10_000) -> None:
        self.version = 1
        self._objects: defaultdict[str, dict[str, StoredObject]] = defaultdict(dict)
        self._history: deque[Change] = deque()
        self._history_limit = history_limit
        self._watcher_limit = watcher_limit
        self._compacted = 0
        # By kind, then by the only node that can match (None for any), as in the watch cache of the real server.
        self._watchers: defaultdict[str, defaultdict[str | None, list[Watcher]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._snapshots: OrderedDict[tuple[Selection, int], list[StoredObject]] = OrderedDict()

    def get(self, resource: ServedResource, namespace: str, name: str) -> StoredObject | None:
        """Return the latest version of an object; None if it does not exist."""
        return self._objects[resource.storage].get(f"{namespace}/{name}")

    def select(self, selection: Selection) -> list[StoredObject]:
        """Return the latest versions of all selected objects, in list order."""
        objects = self._objects[selection.resource.storage].values()
        return sorted((entry for entry in objects if selection.matches(entry.document)), key=lambda entry: entry.key)

    def objects_in(self, namespace: str) -> list[StoredObject]:
        """Return the objects of every kind in a namespace."""
        return [
            entry for objects in self._objects.values() for entry in objects.values() if entry.namespace == namespace
        ]

    def put(self, resource: ServedResource, document: Json) -> StoredObject:
        """Add or replace an object; a document equal to the stored one is no change.

        Args:
            resource: Its kind.
            document: The object without kind and apiVersion. The store keeps it; the caller must not modify it.

        Returns:
            The new version, or the existing one if nothing changed.
        """
        metadata = document["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        before = self.get(resource, namespace, name)
        if before is not None:
            metadata["resourceVersion"] = before.document["metadata"]["resourceVersion"]
            if before.document == document:
                return before
        metadata["resourceVersion"] = str(self.version + 1)
        after = StoredObject(resource.storage, namespace, name, document, self.version + 1)
        self._objects[resource.storage][after.key] = after
        self._record(before, after, removed=False)
        return after

    def remove(self, entry: StoredObject) -> StoredObject:
        """Remove an object; return its last version, which has the resourceVersion of the removal."""
        del self._objects[entry.storage][entry.key]
        document = {
            **entry.document,
            "metadata": {**entry.document["metadata"], "resourceVersion": str(self.version + 1)},
        }
        after = StoredObject(entry.storage, entry.namespace, entry.name, document, self.version + 1)
        self._record(entry, after, removed=True)
        return after

    def _record(self, before: StoredObject | None, after: StoredObject, *, removed: bool) -> None:
        self.version = after.version
        change = Change(after.version, before, after, removed)
        self._history.append(change)
        if len(self._history) > self._history_limit:
            self._compacted = self._history.popleft().version
        watchers = self._watchers[after.storage]
        for node in {None, _node_name(before), _node_name(after)}:
            for watcher in tuple(watchers.get(node, ())):
                watcher.offer(change)

    def watch(
        self, selection: Selection, since: int | None, wake: Callable[[], None], *, preloaded: bool = True
    ) -> Watcher:
        """Start a watch.

        Args:
            selection: The objects to watch.
            since: The resourceVersion after which to start; None starts with the current objects.
            wake: Called when there are events to take.
            preloaded: Whether, without `since`, the current objects come first.

        Raises:
            StatusError: 410 if the history does not contain that resourceVersion.
        """
        watcher = Watcher(selection, self._watcher_limit, wake)
        if since is not None:
            if since < self._compacted:
                raise expired(f"too old resource version: {since} ({self._compacted})")
            watcher.preload(self._frames_since(selection, since))
        elif preloaded:
            watcher.preload(entry.frame(ADDED, selection.resource) for entry in self.select(selection))
        self._watchers[selection.resource.storage][selection.node_name].append(watcher)
        return watcher

    def _frames_since(self, selection: Selection, since: int) -> list[bytes]:
        missed: list[Change] = []
        for change in reversed(self._history):
            if change.version <= since:
                break
            if change.after.storage == selection.resource.storage:
                missed.append(change)
        frames = (change.frame_for(selection) for change in reversed(missed))
        return [frame for frame in frames if frame is not None]

    def unwatch(self, watcher: Watcher) -> None:
        """End a watch."""
        self._watchers[watcher.selection.resource.storage][watcher.selection.node_name].remove(watcher)

    def compact(self) -> None:
        """Discard the history: resourceVersions before the current one expire for watches and list pages."""
        self._compacted = self.version
        self._history.clear()
        self._snapshots.clear()

    def remember(self, selection: Selection, version: int, entries: list[StoredObject]) -> None:
        """Keep the list of a resourceVersion for its next pages."""
        self._snapshots[selection, version] = entries
        while len(self._snapshots) > _KEPT_SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def recall(self, selection: Selection, version: int) -> list[StoredObject] | None:
        """Return the list of a resourceVersion; None if it is no longer kept."""
        return self._snapshots.get((selection, version))


def _node_name(entry: StoredObject | None) -> str:
    spec = entry.document.get("spec") if entry else None
    return str(spec.get("nodeName") or "") if isinstance(spec, dict) else ""
