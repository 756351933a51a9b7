"""Reads a history, also while it is recorded."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ascend.errors import UNREADABLE, AscendError
from npuctl.history.intervals import Interval, IntervalKind, Key, KeyState
from npuctl.history.store import GAP_S, is_history

MOST_INTERVALS: Final = 20_000
"""Intervals of a job that are read: the newest ones."""

_COLUMNS: Final = "kind, job, node, name, state, detail, began, ended"
_PATIENCE_S: Final = 5.0


class HistoryUnreadable(AscendError):
    """A history can't be read."""


class Recording(NamedTuple):
    """A time in which changes were recorded, Unix seconds."""

    began: int
    seen: int


class HistoryReader:
    """Answers questions about a history.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Decode entries within the block.

        Raises:
            HistoryUnreadable: one of them was written by something else.
        """
        try:
            yield
        except UNREADABLE as error:
            raise HistoryUnreadable(f"history {self._path} has an entry that can't be read: {error}") from error

    def recordings(self) -> list[Recording]:
        """When changes were recorded, with the gaps between; none if never."""
        found: list[Recording] = []
        for began, seen in self._rows("SELECT began, seen FROM recorded ORDER BY began"):
            if found and began - found[-1].seen < GAP_S:
                found[-1] = Recording(found[-1].began, max(seen, found[-1].seen))
            else:
                found.append(Recording(began, seen))
        return found

    def jobs_named(self, name: str, namespace: str | None) -> list[str]:
        """The jobs (``namespace/name``) with a name, or with a pod of that name, in a namespace or in all."""
        if namespace is not None:
            where, wanted = "= ?", f"{namespace}/{name}"
        else:
            where, wanted = "LIKE ? ESCAPE '\\'", f"%/{_as_pattern(name)}"
        jobs = self._rows(f"SELECT DISTINCT job FROM intervals WHERE job {where} ORDER BY job", [wanted])  # noqa: S608
        of_pods = f"SELECT DISTINCT job FROM intervals WHERE kind = 'runs' AND name {where} ORDER BY job"  # noqa: S608
        return [job for (job,) in jobs or self._rows(of_pods, [wanted])]

    def of_job(self, job: str, since_s: int) -> list[Interval]:
        """The intervals of a job since a time, in the order of their beginnings, with faults of its chips."""
        query = f"SELECT {_COLUMNS} FROM intervals WHERE job = ? AND ended >= ? ORDER BY began DESC LIMIT ?"  # noqa: S608
        found = list(_intervals(self._rows(query, [job, since_s, MOST_INTERVALS])))
        return sorted([*found, *self._faults(found)], key=lambda interval: (interval.began, interval.key))

    def _faults(self, found: Iterable[Interval]) -> Iterator[Interval]:
        runs: dict[tuple[str, str], list[Interval]] = {}
        for run in found:
            if run.key.kind is IntervalKind.RUNS:
                for chip in run.state.state.split(","):
                    runs.setdefault((run.key.node, chip), []).append(run)
        if not runs:
            return
        query = f"SELECT {_COLUMNS} FROM intervals WHERE kind = 'fault' AND ended >= ?"  # noqa: S608
        first = min(run.began for some in runs.values() for run in some)
        for fault in _intervals(self._rows(query, [first])):
            there = runs.get((fault.key.node, fault.key.name), ())
            if any(fault.began <= run.ended and run.began <= fault.ended for run in there):
                yield fault

    def at(self, time_s: int) -> list[Interval]:
        """What was true at a time."""
        query = f"SELECT {_COLUMNS} FROM intervals WHERE ended > ? AND began <= ? AND kind <> 'limit'"  # noqa: S608
        return list(_intervals(self._rows(query, [time_s, time_s])))

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._connect() as database:
            return database.execute(query, values).fetchall()

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        if not self._path.exists():
            raise HistoryUnreadable(f"history {self._path} is not there")
        if not is_history(self._path):
            raise HistoryUnreadable(f"{self._path} is no history")
        try:
            address = f"file:{quote(str(self._path.absolute()))}?mode=ro"
            with closing(sqlite3.connect(address, _PATIENCE_S, uri=True)) as database:
                yield database
        except sqlite3.Error as error:
            raise HistoryUnreadable(f"history {self._path} can't be read: {error}") from error


def _intervals(rows: Iterable[Any]) -> Iterator[Interval]:
    for kind, job, node, name, state, detail, began, ended in rows:
        yield Interval(Key(IntervalKind(kind), job, node, name), KeyState(state, detail), began, ended)


def _as_pattern(name: str) -> str:
    return name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
