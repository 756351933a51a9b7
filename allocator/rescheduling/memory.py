"""What is remembered of jobs with faults, also by the next leader: in a ConfigMap, as JSON, compressed if it is large.

Names of nodes and uids are in it several times, and each list of chips once for each pod: compressed they cost little
of the 1 MiB that a ConfigMap may have. A job that does not fit even so costs only itself, and so does an entry that
can't be read: it is stored again as it is.
"""

import base64
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec.structs import replace

from allocator.rescheduling.budget import UNKNOWN
from allocator.rescheduling.decision import Stage
from allocator.state.block_record import Spot
from allocator.state.holding import Holding
from ascend.chips import MAX_CHIP_ID, chip_set
from ascend.cores import CUT_PATTERN, parse_cut
from ascend.errors import UNREADABLE, TooLarge
from ascend.vnpus import VNPU_PATTERN, parse_vnpu

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


class Deleted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that was deleted, and is not gone yet.

    Attributes:
        pod: ``namespace/name``.
        node: its node.
        at_s: when it was deleted, Unix seconds.
        chips: the chips it held.
        at_once: whether it was deleted without its grace period.
        ends_s: until then its kubelet may give its containers to end, Unix seconds; 0 if it was not terminating.
        vnpus: the names of its vNPUs.
        cuts: the names of its vNPUs that were cut for it.
        cores: the AI cores that it requested; 0 for chips.
    """

    pod: str
    node: str
    at_s: float
    chips: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_CHIP_ID)]] = []
    at_once: bool = False
    ends_s: float = 0.0
    vnpus: list[Annotated[str, msgspec.Meta(pattern=VNPU_PATTERN)]] = []

    cuts: list[Annotated[str, msgspec.Meta(pattern=CUT_PATTERN)]] = []
    cores: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def holding(self) -> Holding:
        """What it holds."""
        vnpus = tuple(map(parse_vnpu, self.vnpus))
        counted = Counter(each.suffix for each in vnpus)
        return Holding(
            self.pod,
            chip_set(self.chips),
            0 if self.cores else len(self.chips),
            vnpus=vnpus,
            counted_vnpus=dict(counted),
            cuts=tuple(map(parse_cut, self.cuts)),
            counted_cores=self.cores,
        )


class Recovery(msgspec.Struct, omit_defaults=True):
    """A job from the first deletion until all of its pods are placed again; afterwards its counts.

    Attributes:
        owners: the uids of the controllers of its pods: a job of the name with none of them starts anew.
        changed_s: when it was changed last, Unix seconds.
        is_open: whether pods of it are still to be placed.
        waits_since_s: since when a successor waits for chips, Unix seconds; None while none does.
        stage: how far the deletion has reached.
        damaged: the blocks in which pods were faulty.
        deleted: the pods that are not gone yet, by uid.
        chosen: the uids of the pods that were to be deleted last.
        goes_together: whether those that are left go as well when some of them have gone, whatever their own faults.
        retry_at_s: not before this time pods are deleted that could not be, Unix seconds.
        times_s: when pods were deleted, Unix seconds, as many times as may be within an hour.
        retries: how often pods were deleted because one had failed.
        spots: where the pods of its ranks were, if it has blocks.
        faulty_nodes: the nodes of its faulty pods.
        some_stayed: whether some of its pods were not deleted.
        restarts: whether the processes of these start again once all pods are placed.
        is_leaving: whether its processes were told to save their state and end.
        is_switch: whether its pods were deleted only because their backups take over: nothing waits for successors.
    """

    owners: list[str]
    changed_s: float = 0.0
    is_open: bool = True
    waits_since_s: float | None = None
    stage: Stage = Stage.PODS
    damaged: list[int] = []
    deleted: dict[str, Deleted] = {}
    chosen: list[str] = []
    goes_together: bool = False
    retry_at_s: float = 0.0
    times_s: list[float] = []
    retries: int = 0
    spots: dict[int, Spot] = {}
    faulty_nodes: list[str] = []
    some_stayed: bool = False
    restarts: bool = False
    is_leaving: bool = False
    is_switch: bool = False

    def has_left(self) -> None:
        """Note that no pod of the job is left: none of those that come is deleted because others of them wait."""
        self.stage, self.waits_since_s = Stage.JOB, None


class Unread(msgspec.Struct, frozen=True):
    """An entry that can't be read.

    Attributes:
        raw: the JSON, which is stored again as it is.
        why: why, a sentence.
    """

    raw: bytes
    why: str

    @property
    def node(self) -> str:
        """The node that it names; empty if that can't be read either."""
        try:
            return msgspec.json.decode(self.raw, type=_OnNode).node
        except UNREADABLE:
            return ""


class _OnNode(msgspec.Struct):
    node: str = ""


class Memory(msgspec.Struct):
    """What is remembered of all jobs with faults.

    Attributes:
        jobs: the jobs, by the names of their plans.
        force_deleted: pods that were deleted without their kubelet, by uid: they hold their chips, since their
            containers may still run.
        recent: when pods were deleted within the last minute, Unix seconds, and how many.
        unread_jobs: jobs of which what is remembered can't be read: they are not rescheduled.
        unread_pods: the same of pods that were deleted without their kubelet.
        broken: why it can't be read as a whole, a sentence: then nothing is stored over it; empty if it can.
        doubtful: what is held on nodes because of ``unread_pods`` and ``broken``, by a name; not stored.
    """

    jobs: dict[str, Recovery] = {}
    force_deleted: dict[str, Deleted] = {}
    recent: list[tuple[float, int]] = []
    unread_jobs: dict[str, Unread] = {}
    unread_pods: dict[str, Unread] = {}
    broken: str = ""
    doubtful: dict[str, Deleted] = {}


class _Stored(msgspec.Struct, omit_defaults=True):
    version: int
    jobs: dict[str, msgspec.Raw]
    force_deleted: dict[str, msgspec.Raw]
    recent: list[tuple[float, int]] = []


class Packing:
    """A memory as it is now, to be packed into a ConfigMap, which may be done in another thread.

    Args:
        memory: it.

    Attributes:
        shortened: the jobs of which not all is packed: those that take most have only their counts, and those that
            changed longest ago are left out.
    """

    def __init__(self, memory: Memory) -> None:
        ordered = sorted(memory.jobs.items(), key=lambda each: (not each[1].is_open, -each[1].changed_s))
        self._jobs = {name: _raw(each) for name, each in ordered}
        self._counts = {name: _raw(_counts(each)) for name, each in ordered}
        self._unread = {name: msgspec.Raw(each.raw) for name, each in memory.unread_jobs.items()}
        pods = {uid: msgspec.Raw(each.raw) for uid, each in memory.unread_pods.items()}
        pods |= {uid: _raw(each) for uid, each in memory.force_deleted.items()}
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


def encode(memory: Memory) -> dict[str, str]:
    """Return a memory as the data of a ConfigMap.

    Raises:
        TooLarge: the pods deleted without their kubelets are too many.
    """
    return Packing(memory).pack()


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
        recovery.times_s = [min(each, now_s) for each in recovery.times_s]
        recovery.deleted = {uid: _until(each, now_s) for uid, each in recovery.deleted.items()}
        recovery.waits_since_s = None  # the clock of the former leader may have been another one
    memory.force_deleted = {uid: _until(each, now_s) for uid, each in memory.force_deleted.items()}
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
            at_s, number = (
                msgspec.json.decode(each, type=float) for each in msgspec.json.decode(entry, type=_PAIR)[:2]
            )
            yield min(at_s, now_s), max(math.ceil(number), 0)
        except (OverflowError, *UNREADABLE) as error:
            said.append(f"key {KEY}: recent: {error}")
            yield latest_s, UNKNOWN


def _until(deleted: Deleted, now_s: float) -> Deleted:
    return deleted if deleted.at_s <= now_s else replace(deleted, at_s=now_s)
