"""What is remembered of jobs with faults, also by the next leader: in a ConfigMap, as JSON."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec.structs import replace

from allocator.rescheduling.decision import Stage
from allocator.state.block_record import Spot
from allocator.state.holding import Holding
from ascend.chips import MAX_CHIP_ID, chip_set
from ascend.cores import CUT_PATTERN, parse_cut
from ascend.errors import UNREADABLE, InvalidValue
from ascend.vnpus import VNPU_PATTERN, parse_vnpu

_E = TypeVar("_E")

KEY: Final = "memory"
MAX_BYTES: Final = 900 * 1024
"""A ConfigMap has at most 1 MiB."""


class Deleted(msgspec.Struct, frozen=True):
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


class Recovery(msgspec.Struct):
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


class Memory(msgspec.Struct):
    """What is remembered of all jobs with faults.

    Attributes:
        jobs: the jobs, by the names of their plans.
        force_deleted: pods that were deleted without their kubelet, by uid: they hold their chips, since their
            containers may still run.
        recent: when pods were deleted within the last minute, Unix seconds, and how many.
    """

    jobs: dict[str, Recovery] = {}
    force_deleted: dict[str, Deleted] = {}
    recent: list[tuple[float, int]] = []


def encode(memory: Memory) -> dict[str, str]:
    """Return a memory as the data of a ConfigMap; jobs that changed longest ago are left out if it is too large."""
    kept = dict(sorted(memory.jobs.items(), key=lambda each: (not each[1].is_open, -each[1].changed_s)))
    while True:
        text = msgspec.json.encode(Memory(kept, memory.force_deleted, memory.recent))
        if len(text) <= MAX_BYTES or not kept:
            return {KEY: text.decode()}
        for name in list(kept)[len(kept) - max(1, len(kept) // 10) :]:
            del kept[name]


class _Stored(msgspec.Struct, frozen=True):
    jobs: dict[str, msgspec.Raw] = {}
    force_deleted: dict[str, msgspec.Raw] = {}
    recent: list[tuple[float, int]] = []


def decode(data: Mapping[str, str], now_s: float = math.inf) -> tuple[Memory, list[str]]:
    """Read the data of a ConfigMap.

    Args:
        data: the data.
        now_s: the present, Unix seconds; later times count as now, as after a clock was set back.

    Returns:
        The memory, and a sentence on each job and each pod whose entry is malformed and was left out.

    Raises:
        InvalidValue: it is malformed as a whole.
    """
    try:
        stored = msgspec.json.decode(data.get(KEY) or "{}", type=_Stored)
    except UNREADABLE as error:
        raise InvalidValue(f"key {KEY}: {error}") from error
    unreadable: list[str] = []
    memory = Memory(
        dict(_readable("job", stored.jobs, Recovery, unreadable)),
        dict(_readable("pod", stored.force_deleted, Deleted, unreadable)),
        stored.recent,
    )
    for recovery in memory.jobs.values():
        recovery.changed_s, recovery.retry_at_s = min(recovery.changed_s, now_s), min(recovery.retry_at_s, now_s)
        recovery.times_s = [min(each, now_s) for each in recovery.times_s]
        recovery.deleted = {uid: _until(each, now_s) for uid, each in recovery.deleted.items()}
        if recovery.waits_since_s is not None:
            recovery.waits_since_s = None  # the clock of the former leader may have been another one
    memory.force_deleted = {uid: _until(each, now_s) for uid, each in memory.force_deleted.items()}
    memory.recent = [(min(at_s, now_s), number) for at_s, number in memory.recent]
    return memory, unreadable


def _readable(
    what: str, entries: Mapping[str, msgspec.Raw], kind: type[_E], said: list[str]
) -> Iterator[tuple[str, _E]]:
    for name, raw in entries.items():
        try:
            yield name, msgspec.json.decode(raw, type=kind)
        except UNREADABLE as error:
            said.append(f"key {KEY}: {what} {name}: {error}")


def _until(deleted: Deleted, now_s: float) -> Deleted:
    return deleted if deleted.at_s <= now_s else replace(deleted, at_s=now_s)
