"""Stores what is remembered in a ConfigMap, as JSON, compressed if it is large.

Names of nodes and uids are in it several times, and each list of chips once for each pod: compressed they cost little
of the 1 MiB that a ConfigMap may have. A job that does not fit even so costs only itself, and so does an entry that
can't be read: it is stored again as it is.
"""

import base64
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from allocator.rescheduling.limits import UNKNOWN
from allocator.rescheduling.memory import Deleted, Memory, Recovery, Unread
from ascend.errors import UNREADABLE, TooLarge

_E = TypeVar("_E")

KEY: Final = "memory"
VERSION: Final = 1
"""Of the format. What a later one has written is neither changed nor acted on."""
MAX_BYTES: Final = 900 * 1024
"""A ConfigMap has at most 1 MiB."""
_PAIR: Final = list[msgspec.Raw]
_COMPRESSED: Final = "zlib:"
"""Before the base64 of a text that would be too long."""
_MOST_READ: Final = 64 << 20
_LARGE: Final = 20
"""A job that takes more than this part of all is the first to be shortened."""


class _Stored(msgspec.Struct, omit_defaults=True):
    version: int
    jobs: dict[str, msgspec.Raw]
    force_deleted: dict[str, msgspec.Raw]
    recent: list[tuple[float, int]] = []


class MemoryPacking:
    """A memory as it is now, to be packed into a ConfigMap, which may be done in another thread.

    Args:
        memory: it.

    Attributes:
        shortened: the jobs of which not all is packed: those that take most have only their counts, and those that
            changed longest ago are left out.
    """

    def __init__(self, memory: Memory) -> None:
        ordered = sorted(memory.jobs.items(), key=lambda item: (not item[1].is_open, -item[1].changed_s))
        self._jobs = {name: _raw(recovery) for name, recovery in ordered}
        self._counts = {name: _raw(_counts(recovery)) for name, recovery in ordered}
        self._unread = {name: msgspec.Raw(entry.raw) for name, entry in memory.unread_jobs.items()}
        pods = {uid: msgspec.Raw(entry.raw) for uid, entry in memory.unread_pods.items()}
        pods |= {uid: _raw(deleted) for uid, deleted in memory.force_deleted.items()}
        self._stored = _Stored(VERSION, {}, pods, list(memory.recent))
        self.shortened: list[str] = []

    def pack(self) -> dict[str, str]:
        """Return the data of the ConfigMap.

        Raises:
            TooLarge: the pods deleted without their kubelets are too many.
        """
        kept, shortened = dict(self._jobs), dict[str, None]()
        while True:
            self._stored.jobs = kept | self._unread
            text = _text(self._stored)
            if len(text) <= MAX_BYTES:
                self.shortened = list(shortened)
                return {KEY: text}
            if not kept:
                raise TooLarge(
                    f"pods deleted by force are too many to be remembered: {len(self._stored.force_deleted)}"
                )
            largest = max(kept, key=lambda name: len(kept[name]))
            if _LARGE * len(kept[largest]) > sum(map(len, kept.values())) and kept[largest] != self._counts[largest]:
                kept[largest] = self._counts[largest]
                shortened[largest] = None
                continue
            for name in list(kept)[len(kept) - max(1, len(kept) // 10) :]:
                del kept[name]
                shortened[name] = None


def _counts(recovery: Recovery) -> Recovery:
    return replace(recovery, deleted={}, chosen=[], spots={}, faulty_nodes=[], owners=recovery.owners[:_LARGE])


def _raw(entry: Recovery | Deleted) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(entry))


def _text(stored: _Stored) -> str:
    plain = msgspec.json.encode(stored)
    if len(plain) <= MAX_BYTES:
        return plain.decode()
    return _COMPRESSED + base64.b64encode(zlib.compress(plain, 1)).decode()  # small enough, and four times as fast


def _plain(text: str) -> str | bytes:
    """The JSON of a text.

    Raises:
        ValueError: it is not compressed as it says, or too long.
    """
    if not text.startswith(_COMPRESSED):
        return text
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(base64.b64decode(text.removeprefix(_COMPRESSED), validate=True), _MOST_READ)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflate.eof:
        raise ValueError("the compressed text does not end, or is too long")
    return plain


def decode(data: Mapping[str, str], now_s: float = math.inf) -> tuple[Memory, list[str]]:
    """Read the data of a ConfigMap.

    Args:
        data: the data.
        now_s: the present, Unix seconds; later times count as now, as after a clock was set back.

    Returns:
        The memory, and a sentence on each part of it that can't be read.
    """
    memory, said = Memory(), list[str]()
    try:
        stored = msgspec.json.decode(_plain(data.get(KEY) or "{}"), type=dict[str, msgspec.Raw])
        version = msgspec.json.decode(stored.get("version", b"1"), type=int)
    except UNREADABLE as error:
        memory.broken = f"key {KEY}: {error}"
        return memory, [memory.broken]
    if version > VERSION:
        memory.broken = f"key {KEY}: a later version has written it, in format {version}"
        said.append(memory.broken)
    memory.jobs, memory.unread_jobs = _entries("jobs", stored, Recovery, memory, said)
    memory.force_deleted, memory.unread_pods = _entries("force_deleted", stored, Deleted, memory, said)
    memory.recent = list(_recent(stored.get("recent", msgspec.Raw(b"[]")), now_s, said))
    for recovery in memory.jobs.values():
        recovery.changed_s, recovery.retry_at_s = min(recovery.changed_s, now_s), min(recovery.retry_at_s, now_s)
        recovery.times_s = [min(time_s, now_s) for time_s in recovery.times_s]
        recovery.deleted = {uid: _until(deleted, now_s) for uid, deleted in recovery.deleted.items()}
        recovery.waits_since_s = None  # the clock of the former leader may have been another one
    memory.force_deleted = {uid: _until(deleted, now_s) for uid, deleted in memory.force_deleted.items()}
    return memory, said


def _entries(
    key: str, stored: Mapping[str, msgspec.Raw], kind: type[_E], memory: Memory, said: list[str]
) -> tuple[dict[str, _E], dict[str, Unread]]:
    """Read the entries of a key of the JSON: those that can be read, and the others."""
    read, unread = dict[str, _E](), dict[str, Unread]()
    try:
        entries = msgspec.json.decode(stored.get(key, b"{}"), type=dict[str, msgspec.Raw])
    except UNREADABLE as error:
        memory.broken = f"key {KEY}: {key}: {error}"
        said.append(memory.broken)
        return read, unread
    for name, raw in entries.items():
        try:
            read[name] = msgspec.json.decode(raw, type=kind)
        except UNREADABLE as error:
            unread[name] = Unread(bytes(raw), f"key {KEY}: {key}: {name}: {error}")
            said.append(unread[name].why)
    return read, unread


def _recent(raw: msgspec.Raw, now_s: float, said: list[str]) -> Iterator[tuple[float, int]]:
    """Read when pods were deleted, and how many; what can't be read may have been any number, a moment ago."""
    latest_s = now_s if math.isfinite(now_s) else 0.0
    try:
        entries = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except UNREADABLE as error:
        said.append(f"key {KEY}: recent: {error}")
        entries = []
        yield latest_s, UNKNOWN
    for entry in entries:
        try:
            # More than two fields are those of a later version.
            at_s, number = (msgspec.json.decode(raw, type=float) for raw in msgspec.json.decode(entry, type=_PAIR)[:2])
            yield min(at_s, now_s), max(math.ceil(number), 0)
        except (OverflowError, *UNREADABLE) as error:
            said.append(f"key {KEY}: recent: {error}")
            yield latest_s, UNKNOWN


def _until(deleted: Deleted, now_s: float) -> Deleted:
    return deleted if deleted.at_s <= now_s else replace(deleted, at_s=now_s)
