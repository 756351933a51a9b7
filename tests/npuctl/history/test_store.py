"""What the store of the history keeps, through restarts, damage and limits."""

import resource
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from npuctl.history import store as store_module
from npuctl.history.intervals import OPEN, WAITING, Interval, IntervalKind, Key, KeyState
from npuctl.history.reader import HistoryReader, HistoryUnreadable, Recording
from npuctl.history.store import CALM_S, DAY_S, GAP_S, Bounds, HistoryStore, NotRecorded

NOW = 1_800_000_000
RUN = Key(IntervalKind.RUNS, "a/train", "n1", "a/train-0")
WAIT = Key(IntervalKind.WAITS, "a/train")
CHIPS = KeyState("0,1,2,3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    opened = HistoryStore(path)
    yield opened
    opened.close()


def of_train(path: Path) -> list[tuple[str, int, int]]:
    """What is known of the job: the kind and, since ``NOW``, begin and end (-1: it goes on)."""
    found = HistoryReader(path).of_job("a/train", 0)
    return [(each.key.kind.value, each.began - NOW, -1 if each.ended == OPEN else each.ended - NOW) for each in found]


def test_an_interval_lasts_while_nothing_changes(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}, WAITING: {WAIT: KeyState("r", "4 nodes")}})
    store.record(NOW + 10, {"n1": {RUN: CHIPS}, WAITING: {WAIT: KeyState("r", "5 nodes")}})
    store.record(NOW + 20, {"n2": {}, WAITING: {}})
    assert of_train(path) == [("runs", 0, -1), ("waits", 0, 20)]
    store.record(NOW + 30, {"n1": {}})
    assert of_train(path) == [("runs", 0, 30), ("waits", 0, 20)]


def test_other_chips_of_the_same_pod_are_another_interval(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.record(NOW + 10, {"n1": {RUN: KeyState("4,5")}})
    assert of_train(path) == [("runs", 0, 10), ("runs", 10, -1)]


def test_a_reason_that_flaps_all_the_time_makes_few_rows(store: HistoryStore, path: Path) -> None:
    for second in range(0, 7_200, 20):
        store.record(NOW + second, {WAITING: {WAIT: KeyState(f"r{second // 20 % 2}")}})
    lasted = [ended - began for _, began, ended in of_train(path)[:-1]]
    assert 5 < len(lasted) < 20
    assert lasted[0] == 20  # the first change is recorded at once: who comes starts at once, as far as is known
    assert lasted[1:] == sorted(lasted[1:])
    assert min(lasted[1:]) >= CALM_S


def test_after_a_restart_intervals_go_on(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}, WAITING: {WAIT: KeyState("r")}})
    store.close()
    again = HistoryStore(path)
    again.record(NOW + GAP_S - 1, {"n1": {RUN: CHIPS}, WAITING: {}})
    assert of_train(path) == [("runs", 0, -1), ("waits", 0, GAP_S - 1)]
    assert HistoryReader(path).recordings() == [Recording(NOW, NOW + GAP_S - 1)]
    again.close()


def test_a_pause_is_a_gap_and_what_ended_in_it_ended_when_it_began(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}, "n2": {RUN._replace(node="n2"): CHIPS}})
    store.record(NOW + 10, {})
    assert not store.goes_on(NOW + 1_000)
    store.record(NOW + 1_000, {"n1": {RUN: CHIPS}})
    assert of_train(path) == [("runs", 0, -1), ("runs", 0, 11)]
    assert HistoryReader(path).recordings() == [Recording(NOW, NOW + 10), Recording(NOW + 1_000, NOW + 1_000)]


def test_a_damaged_history_is_set_aside_and_another_one_begins(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(NotRecorded, match=r"history .*history.db: it is damaged, and kept as history.db.damaged"):
        store.record(NOW + 10, {"n1": {RUN: CHIPS}})
    store.record(NOW + 20, {"n1": {RUN: CHIPS}})
    assert of_train(path) == [("runs", 20, -1)]
    assert path.with_name("history.db.damaged").stat().st_size == len(whole)


def test_rows_that_no_version_has_written_are_damage_too(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE intervals SET kind = 'odd'")
    with pytest.raises(NotRecorded, match="damaged"):
        store.record(NOW + 10, {"n1": {RUN: CHIPS}})
    with pytest.raises(HistoryUnreadable, match="is not there"):
        HistoryReader(path).recordings()


@pytest.mark.parametrize("content", [b"apiVersion: v1\n", b"SQLite format 3\0" + bytes(4080)], ids=["text", "database"])
def test_a_file_that_is_something_else_is_not_touched(content: bytes, store: HistoryStore, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(NotRecorded, match="the file is something else"):
        store.record(NOW, {})
    assert path.read_bytes() == content
    with pytest.raises(HistoryUnreadable, match="is no history"):
        HistoryReader(path).recordings()


def test_a_history_of_a_later_version_is_not_touched(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(NotRecorded, match="version 2, not 1"):
        store.record(NOW + 1, {})
    assert of_train(path) == [("runs", 0, -1)]


def test_one_process_records_and_another_takes_over_when_it_ends(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    other = HistoryStore(path)
    with pytest.raises(NotRecorded, match="another process records in it"):
        other.record(NOW + 1, {"n1": {RUN: CHIPS}})
    store.close()
    other.record(NOW + 2, {"n1": {RUN: CHIPS}})
    assert of_train(path) == [("runs", 0, -1)]
    other.close()


def test_a_locked_history_is_recorded_again_once_it_is_free(
    store: HistoryStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PATIENCE_S", 0.0)
    store.record(NOW, {"n1": {RUN: CHIPS}})
    with sqlite3.connect(path) as reader:
        reader.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotRecorded, match="locked"):
            store.record(NOW + 10, {"n1": {}})
    assert not store.goes_on(NOW + 11)
    store.record(NOW + 12, {})
    assert of_train(path) == [("runs", 0, 12)]


def test_a_full_disk_loses_what_came_then_and_no_more(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    many = {RUN._replace(name=f"a/train-{number}"): KeyState("0", "x" * 400) for number in range(1_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4_096, limits[1]))
    try:
        with pytest.raises(NotRecorded, match=r"full|I/O"):
            store.record(NOW + 10, {"n1": many})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert of_train(path) == [("runs", 0, -1)]
    store.record(NOW + 20, {"n1": many})
    # The pod of the first record is one of the many, with other chips.
    assert Counter(of_train(path)) == {("runs", 0, 20): 1, ("runs", 20, -1): 1_000}


def test_the_oldest_go_before_the_file_is_larger_than_it_may_be(path: Path) -> None:
    size = 4 << 20
    store = HistoryStore(path, Bounds(30, size))
    for batch in range(200):
        pods = (RUN._replace(job=f"a/train-{batch}", name=f"a/train-{batch}-{pod}") for pod in range(200))
        store.record(NOW + 30 * batch, {"n1": dict.fromkeys(pods, KeyState("0", "x" * 100))})
        assert path.stat().st_size <= size
    with sqlite3.connect(path) as database:
        kept, first, last = database.execute("SELECT count(*), min(ended), max(began) FROM intervals").fetchone()
    assert kept > 5_000
    assert (first > NOW + 30, last) == (True, NOW + 30 * 199)
    # Of the time before the oldest one nothing is known.
    (recorded,) = HistoryReader(path).recordings()
    assert NOW < recorded.began <= first
    store.close()


def test_days_end(path: Path) -> None:
    store = HistoryStore(path, Bounds(days=2))
    store.record(NOW, {"n1": {RUN: CHIPS}, WAITING: {WAIT: KeyState("r")}})
    store.record(NOW + 10, {WAITING: {}})
    store.record(NOW + 2 * DAY_S, {"n1": {RUN: CHIPS}})
    assert of_train(path) == [("runs", 0, -1), ("waits", 0, 10)]
    store.record(NOW + 2 * DAY_S + 20, {})
    assert of_train(path) == [("runs", 0, -1)]
    store.close()


def test_a_job_has_a_limit_a_day_and_says_so(store: HistoryStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_ROWS", 5)
    day = NOW // DAY_S * DAY_S
    for second in range(0, 200, 20):
        store.record(day + second, {"n1": {RUN._replace(name=f"a/train-{second}"): CHIPS}})
    store.record(day + 220, {"n1": {RUN._replace(job="a/other", name="a/other-0"): CHIPS}})
    assert Counter(kind for kind, _, _ in of_train(path)) == {"runs": 5, "limit": 1}
    assert len(HistoryReader(path).of_job("a/other", 0)) == 1
    store.record(day + DAY_S, {"n1": {RUN: CHIPS}})
    assert Counter(kind for kind, _, _ in of_train(path)) == {"runs": 6, "limit": 1}


def test_a_clock_that_is_set_back_leaves_nothing_in_the_future(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.record(NOW + 50, {WAITING: {WAIT: KeyState("r")}})
    assert not store.goes_on(NOW - 1_000)
    store.record(NOW - 1_000, {"n1": {RUN: CHIPS}, WAITING: {WAIT: KeyState("r")}})
    assert of_train(path) == [("runs", -1_000, -1), ("waits", -1_000, -1)]
    store.record(NOW - 1_010, {"n1": {}})  # a clock that is corrected by seconds goes on
    assert of_train(path) == [("runs", -1_000, -1_000), ("waits", -1_000, -1)]


def test_faults_of_the_chips_of_a_job_are_its_history_too(store: HistoryStore, path: Path) -> None:
    fault = Key(IntervalKind.FAULT, node="n1", name="2")
    store.record(NOW, {"n1": {RUN: CHIPS, fault._replace(name="7"): KeyState("unhealthy")}})
    store.record(NOW + 10, {"n1": {RUN: CHIPS, fault: KeyState("unhealthy: 80E18402")}})
    store.record(NOW + 20, {"n1": {}, "n2": {fault._replace(node="n2"): KeyState("unhealthy")}})
    assert of_train(path) == [("runs", 0, 20), ("fault", 10, 20)]


def test_a_name_is_found_whatever_it_contains(store: HistoryStore, path: Path) -> None:
    odd = RUN._replace(job="a/100%_\\'; DROP", name="a/x")
    store.record(NOW, {"n1": {odd: CHIPS, RUN._replace(job="a/100zz"): CHIPS}})
    reader = HistoryReader(path)
    assert reader.jobs_named("100%_\\'; DROP", None) == [odd.job]
    assert reader.jobs_named("100%", None) == []
    assert reader.jobs_named("x", "a") == [odd.job]
    assert reader.jobs_named("x", "b") == []


def test_what_was_true_at_a_time_is_found(store: HistoryStore, path: Path) -> None:
    store.record(NOW, {"n1": {RUN: CHIPS}})
    store.record(NOW + 10, {"n1": {}})
    reader = HistoryReader(path)
    assert reader.at(NOW - 1) == reader.at(NOW + 10) == []
    assert reader.at(NOW) == reader.at(NOW + 9) == [Interval(RUN, CHIPS, NOW, NOW + 10)]
