"""The cluster as it was at a time, from the history: tiles, the queue, and the pods on chips."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ascend.grammar import count
from npuctl.history.command import follows, history_of, render
from npuctl.history.intervals import Interval, IntervalKind, WaitDetail, WaitReason
from npuctl.history.reader import HistoryReader
from npuctl.queue.command import age
from npuctl.queue.entries import Next
from npuctl.reading.source import rfc3339
from npuctl.web.answers import in_words
from npuctl.web.live import ChipMark, Tile
from npuctl.web.recorder import LIMITED

_BACK_S: Final = 86_400
"""How far back the history of a job goes before the time that is shown."""


@dataclass(frozen=True)
class PastCluster:
    """A cluster at a time.

    Attributes:
        time_s: the time, Unix seconds.
        tiles: the nodes by name.
        waits: the rows of the queue.
        nodes: by node, what was the case there.
        is_recorded: whether anything is known of that time.
        reader: the history.
    """

    time_s: int
    tiles: Mapping[str, Tile]
    waits: list[dict[str, Any]]
    nodes: Mapping[str, list[Interval]]
    is_recorded: bool
    reader: HistoryReader

    @classmethod
    def read(cls, reader: HistoryReader, time_s: int) -> "PastCluster":
        """Read a history.

        Raises:
            HistoryUnreadable: it can't be read.
        """
        with reader.decoding():
            is_recorded = any(began <= time_s <= seen for began, seen in reader.recordings())
            intervals = reader.at(time_s) if is_recorded else []
            nodes: dict[str, list[Interval]] = {}
            for interval in intervals:
                nodes.setdefault(interval.key.node, []).append(interval)
            waits = [_row(wait, time_s) for wait in nodes.pop("", [])]
            waits.sort(key=lambda row: (row["position"], row["job"]))
            tiles = {node: tile for node, some in nodes.items() if (tile := _tile(some)) is not None}
        return cls(time_s, tiles, waits, nodes, is_recorded, reader)

    def __str__(self) -> str:
        at = rfc3339(self.time_s * 10**9)
        return f"as it was at {at}" if self.is_recorded else f"nothing was recorded at {at}"

    @property
    def totals(self) -> str:
        """Sums, as in the first line of the page."""
        chips = [code for tile in self.tiles.values() for code in tile[-1]]
        free = sum(code == 0 for code in chips)
        nodes, jobs = count(len(self.tiles), "node"), count(len(self.waits), "job")
        return f"past: {nodes}, {free} of {count(len(chips), 'chip')} free · {jobs} in the queue"

    def job_at(self, node: str, chip: object) -> str:
        """The job that had a chip; empty if none had."""
        tile = self.tiles.get(node)
        if tile is None or not isinstance(chip, int) or not 0 <= chip < len(tile[-1]):
            return ""
        job: int = tile[-1][chip] // 64
        return str(tile[-2][job - 1]) if job else ""

    def about(self, node: str) -> str:
        """What was the case on a node, a line for each pod and fault."""
        lines = []
        for key, state, *_ in sorted(self.nodes.get(node, ()), key=lambda interval: interval.key):
            match key.kind:
                case IntervalKind.RUNS:
                    lines.append(f"chips {state.state}: pod {key.name}, job {key.job}")
                case IntervalKind.FAULT:
                    lines.append(f"chip {key.name}: {state.state}")
        return "\n".join(lines) or "no pod had chips of it"

    def history(self, job: str) -> str:
        """The history of a job on the day before that time, in words."""
        return in_words(render(history_of(self.reader, job, self.time_s - _BACK_S, self.time_s)))


def _row(wait: Interval, time_s: int) -> dict[str, Any]:
    reason = msgspec.json.decode(wait.state.state, type=WaitReason)
    told = msgspec.json.decode(wait.state.detail, type=WaitDetail)
    starts = reason.next in {Next.STARTS, Next.PREEMPTS}
    return {
        "id": wait.key.job,
        "position": told.position,
        "job": wait.key.job,
        "requests": told.requests,
        "next": follows(reason.next, reason.behind),
        "style": "good" if starts else "bad" if reason.next == Next.NEVER else "",
        "age": age(told.since, time_s * 10**9),
        "why": told.message,
        "behind": reason.behind,
    }


def _tile(of_node: Iterable[Interval]) -> Tile | None:
    """The tile of a node; None if it was none."""
    head: list[Any] | None = None
    jobs: dict[str, int] = {}
    codes: dict[int, int] = {}
    for key, state, *_ in of_node:
        match key.kind:
            case IntervalKind.NODE:
                head = msgspec.json.decode(state.state)
            case IntervalKind.RUNS:
                number = jobs.setdefault(key.job, len(jobs) + 1)
                for chip in map(int, state.state.split(",")):
                    codes[chip] = codes.get(chip, 0) % 64 + number * 64
            case IntervalKind.FAULT:
                mark = ChipMark.NETWORK if state.detail == LIMITED else ChipMark.BROKEN
                codes[int(key.name)] = codes.get(int(key.name), 0) | mark
    if head is None:
        return None
    *head, numbers = head
    return [*head, list(jobs), [codes.get(number, 0) for number in numbers]]
