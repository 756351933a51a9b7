"""The store of the history: an SQLite file with one writer, bounded in days and bytes.

What is true now is compared with what the file says, and the difference is written, in one transaction. So after a
failure or a restart the next comparison mends the file: nothing is written twice, and what was missed is a gap.
"""

import fcntl
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

from ascend.errors import AscendError
from npuctl.history.intervals import OPEN, IntervalKind, Key, KeyState, Observed

DAY_S: Final = 86_400

MOST_ROWS: Final = 20_000
"""New intervals of a job or node on one day."""

GAP_S: Final = 60
"""A pause from which on nothing is known of the time between."""

CALM_S: Final = 60
"""The first reason of a wait may change at once, the second one after so long, the third one after twice that, …"""
_CALMEST_S: Final = 3_600

_MAGIC: Final = b"SQLite format 3\0"
_APPLICATION: Final = 0x4E505548
"""What says that a database is a history: the four bytes ``_AT``."""
_AT: Final = slice(68, 72)
_VERSION: Final = 1
_TABLES: Final = (
    """CREATE TABLE intervals (id INTEGER PRIMARY KEY, kind TEXT, job TEXT, node TEXT, name TEXT, state TEXT,
        detail TEXT, began INTEGER, ended INTEGER)""",
    "CREATE INDEX by_job ON intervals (job, ended)",
    "CREATE INDEX by_end ON intervals (ended)",
    "CREATE TABLE recorded (id INTEGER PRIMARY KEY, began INTEGER, seen INTEGER)",
    f"PRAGMA user_version = {_VERSION}",
    f"PRAGMA application_id = {_APPLICATION}",
)
_PAGE: Final = 4_096
_FEWEST_PAGES: Final = 64
_MOST_REMOVED: Final = 5_000
"""Old intervals that are removed at once."""
_PATIENCE_S: Final = 5.0

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class NotRecorded(AscendError):
    """The history can't be written."""


class Bounds(NamedTuple):
    """How much is kept: the days, and the bytes of the file."""

    days: int = 30
    size: int = 256 << 20


@dataclass(slots=True)
class _Row:
    """An interval that goes on; ``changes`` counts changes before, without a pause."""

    id: int
    state: str
    began_s: int
    changes: int = 0


@dataclass(slots=True)
class _Difference:
    """What has ended, and what has begun."""

    ended: list[int] = field(default_factory=list)
    began: list[tuple[int, Key, KeyState]] = field(default_factory=list)


class HistoryStore:
    """Writes a history; one call at a time.

    Args:
        path: the file, which is made if it is not there.
        bounds: how much is kept.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, bounds: Bounds | None = None) -> None:
        self.path = path
        self._bounds = bounds or Bounds()
        self._lock: IO[bytes] | None = None
        self._database: sqlite3.Connection | None = None
        self._rows: dict[str, dict[Key, _Row]] = {}
        self._next = self._recording = 0
        self._now_s = self._seen_s = self._day = 0
        self._added: Counter[str] = Counter()

    def goes_on(self, now_s: int) -> bool:
        """Whether what has changed is enough, without what has not."""
        return self._database is not None and abs(now_s - self._now_s) < GAP_S

    def record(self, now_s: int, observed: Observed) -> None:
        """Record what is true now.

        Args:
            now_s: the time, Unix seconds.
            observed: of nodes that have changed, and of what waits if that has, all that is true; unless ``goes_on``,
                of everything: what is not in it has ended.

        Raises:
            NotRecorded: the file can't be written.
        """
        try:
            if resumed := not self.goes_on(now_s):
                self.close()
            database = self._database or self._open(now_s)
            self._write(database, max(now_s, self._now_s), observed, complete=resumed)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self.close()
            raise NotRecorded(f"history {self.path}: {self._said_of(error)}") from error

    def close(self) -> None:
        """Close the file; another process may write it then."""
        if self._database is not None:
            self._database.close()
        if self._lock is not None:
            self._lock.close()
        self._database = self._lock = None

    def _said_of(self, error: Exception) -> str:
        """What an error says. A damaged history is set aside, and another one begins."""
        is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED or isinstance(
            error, ValueError | TypeError
        )
        if is_damage and is_history(self.path):
            aside = self.path.with_name(f"{self.path.name}.damaged")
            with suppress(OSError):
                self.path.replace(aside)
                return f"it is damaged, and kept as {aside.name}; another one begins"
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)

    def _open(self, now_s: int) -> sqlite3.Connection:
        """Open the file, and read what goes on in it."""
        self._lock = self.path.with_name(f"{self.path.name}.lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(0, "another process records in it") from None
        if self.path.exists() and self.path.stat().st_size and not is_history(self.path):
            raise OSError(0, "the file is something else")
        self._database = sqlite3.connect(self.path, _PATIENCE_S, isolation_level=None, check_same_thread=False)
        execute = self._database.execute
        execute("PRAGMA temp_store = MEMORY")
        execute(f"PRAGMA max_page_count = {max(self._bounds.size // _PAGE, _FEWEST_PAGES)}")
        with _transaction(self._database):
            if not execute("PRAGMA application_id").fetchone()[0]:
                for statement in _TABLES:
                    execute(statement)
            if (version := execute("PRAGMA user_version").fetchone()[0]) != _VERSION:
                raise OSError(0, f"it has version {version}, not {_VERSION}")
            self._resume(self._database, now_s)
        return self._database

    def _resume(self, database: sqlite3.Connection, now_s: int) -> None:
        # What lies in the future was recorded by a clock that has been set back.
        for statement in (
            "DELETE FROM intervals WHERE began > :now",
            "UPDATE intervals SET ended = :now WHERE ended > :now AND ended < :open",
            "DELETE FROM recorded WHERE began > :now",
            "UPDATE recorded SET seen = :now WHERE seen > :now",
        ):
            database.execute(statement, {"now": now_s, "open": OPEN})
        self._seen_s = _one(database, "SELECT max(seen) FROM recorded") or now_s
        self._recording = 1 + _one(database, "SELECT max(id) FROM recorded")
        self._next = 1 + _one(database, "SELECT max(id) FROM intervals")
        database.execute("INSERT INTO recorded VALUES (?, ?, ?)", [self._recording, now_s, now_s])
        self._rows = {}
        goes_on = "SELECT kind, job, node, name, id, state, began FROM intervals WHERE ended = ?"
        for kind, job, node, name, *row in database.execute(goes_on, [OPEN]):
            self._rows.setdefault(node, {})[Key(IntervalKind(kind), job, node, name)] = _Row(*row)
        self._now_s = now_s

    def _write(self, database: sqlite3.Connection, now_s: int, observed: Observed, *, complete: bool) -> None:
        if self._day != (day := now_s // DAY_S):
            self._added.clear()
        self._now_s, self._day = now_s, day
        difference = _Difference()
        for scope in {**observed, **(self._rows if complete else {})}:
            rows = self._rows.pop(scope, {})
            self._compare(rows, observed.get(scope, {}), difference)
            if rows:
                self._rows[scope] = rows
        # What ended while nothing was recorded was still true when recording did.
        ended_s = self._seen_s + 1 if now_s - self._seen_s >= GAP_S else now_s
        began = (
            (row_id, *key, *state, now_s, now_s if key.kind is IntervalKind.LIMIT else OPEN)
            for row_id, key, state in difference.began
        )
        with _transaction(database):
            ended = [(ended_s, row_id) for row_id in difference.ended]
            database.executemany("UPDATE intervals SET ended = max(began, ?) WHERE id = ?", ended)
            database.executemany("INSERT INTO intervals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", began)
            database.execute("UPDATE recorded SET seen = ? WHERE id = ?", [now_s, self._recording])
            self._remove_old(database)
        self._seen_s = now_s

    def _compare(self, rows: dict[Key, _Row], now: Mapping[Key, KeyState], difference: _Difference) -> None:
        """Find the difference between a node's rows and what is true now; the rows are then as they will be."""
        for key in rows.keys() - now.keys():
            difference.ended.append(rows.pop(key).id)
        for key, state in now.items():
            row, changes = rows.get(key), 0
            if row is not None:
                if row.state == state.state or not self._may_change(key, row):
                    continue
                difference.ended.append(row.id)
                changes = row.changes + 1
                del rows[key]
            owner = key.job or key.node
            self._added[owner] += 1
            if self._added[owner] > MOST_ROWS + 1:
                continue
            if self._added[owner] <= MOST_ROWS:
                rows[key] = _Row(self._next, state.state, self._now_s, changes)
                difference.began.append((self._next, key, state))
            else:
                difference.began.append((self._next, Key(IntervalKind.LIMIT, key.job, key.node), KeyState("")))
            self._next += 1

    def _may_change(self, key: Key, row: _Row) -> bool:
        """Whether another state of something is recorded yet: counters of reasons change with every pod."""
        return key.kind is not IntervalKind.WAITS or self._now_s - row.began_s >= min(CALM_S * row.changes, _CALMEST_S)

    def _remove_old(self, database: sqlite3.Connection) -> None:
        used = _one(database, "PRAGMA page_count") - _one(database, "PRAGMA freelist_count")
        is_full = used > _one(database, "PRAGMA max_page_count") * 9 // 10
        in_turn = "SELECT ended FROM intervals WHERE ended < ? ORDER BY ended LIMIT 1 OFFSET ?"
        some_s = _one(database, in_turn, OPEN, _MOST_REMOVED)
        before_s = self._now_s - self._bounds.days * DAY_S
        if is_full:
            before_s = some_s or self._now_s
        elif some_s:
            before_s = min(before_s, some_s)
        database.execute("DELETE FROM intervals WHERE ended < ?", [before_s])
        database.execute("DELETE FROM recorded WHERE seen < ?", [before_s])
        database.execute("UPDATE recorded SET began = ? WHERE began < ?", [before_s, before_s])


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _one(database: sqlite3.Connection, query: str, *values: int) -> int:
    """The number in the first row of an answer; 0 if there is none."""
    found = database.execute(query, values).fetchone()
    return (found[0] or 0) if found is not None else 0


def is_history(path: Path) -> bool:
    """Whether a file is a history, by its first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return head.startswith(_MAGIC) and head[_AT] == _APPLICATION.to_bytes(4, "big")
