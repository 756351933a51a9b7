"""When a chip counts as hanging, and the CPU time of its processes."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_plugin.hang import Activity, HangWatch, cpu_time_s

STILL = Activity(frozenset({7, 8}), 4.0, 40, 1000, 12.0)


def watch(*readings: Activity | None, rounds: int = 3) -> list[bool]:
    found = HangWatch(rounds)
    hangs = []
    for reading in readings:
        found.read(reading)
        hangs.append(found.hangs)
    return hangs


def test_a_chip_hangs_after_so_many_rounds_without_activity() -> None:
    assert watch(STILL, STILL, STILL, STILL, STILL) == [False, False, False, True, True]


@pytest.mark.parametrize(
    "active",
    [
        replace(STILL, utilization=5.0),
        replace(STILL, memory=41),
        replace(STILL, packets=1100),
        replace(STILL, cpu_s=17.0),
        replace(STILL, processes=frozenset({7})),
        replace(STILL, processes=frozenset()),
    ],
)
def test_any_activity_ends_it(active: Activity) -> None:
    assert watch(STILL, STILL, STILL, STILL, active)[3:] == [True, False]


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        replace(STILL, utilization=None),
        replace(STILL, memory=None),
        replace(STILL, packets=None),
        replace(STILL, cpu_s=None),
        replace(STILL, packets=3),
        replace(STILL, cpu_s=3.0),
    ],
)
def test_a_chip_of_which_something_is_unknown_does_not_hang(unknown: Activity | None) -> None:
    assert watch(STILL, STILL, STILL, STILL, unknown)[3:] == [True, False]
    assert not any(watch(*[unknown] * 3, rounds=3))


def test_less_memory_and_a_little_traffic_are_no_activity() -> None:
    steps = [replace(STILL, memory=40 - step, packets=1000 + 99 * step, cpu_s=12 + 4.9 * step) for step in range(4)]
    assert watch(*steps)[3]


values = st.builds(
    Activity,
    st.sampled_from([frozenset(), frozenset({1}), frozenset({1, 2})]),
    st.sampled_from([None, 0.0, 5.0]),
    st.sampled_from([None, 10, 11]),
    st.sampled_from([None, 0, 50, 200]),
    st.sampled_from([None, 0.0, 1.0, 9.0]),
)


@given(st.lists(st.none() | values, max_size=12), st.integers(1, 4))
def test_a_hanging_chip_was_idle_for_all_rounds(readings: list[Activity | None], rounds: int) -> None:
    for index, hangs in enumerate(watch(*readings, rounds=rounds)):
        if not hangs:
            continue
        last = readings[index - rounds : index + 1]
        assert len(last) == rounds + 1
        assert all(each is not None and each.processes == last[0].processes for each in last)  # type: ignore[union-attr]


def test_cpu_time_is_that_of_all_processes_and_unknown_if_one_is_not_seen(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    for process, name in ((7, "python"), (8, "a) b (c")):
        (tmp_path / str(process)).mkdir()
        fields = " ".join(["S", *["0"] * 10, str(3 * ticks), str(ticks), "0"])
        (tmp_path / str(process) / "stat").write_text(f"{process} ({name}) {fields}\n")
    assert cpu_time_s([7, 8], tmp_path) == 8.0
    assert cpu_time_s([7, 9], tmp_path) is None
    (tmp_path / "8" / "stat").write_text("8 (x) S 1")
    assert cpu_time_s([7, 8], tmp_path) is None


def test_cpu_time_of_a_real_process_grows() -> None:
    before = cpu_time_s([os.getpid()])
    assert before is not None
    used = threading.Event()

    def work() -> None:
        until_s = time.process_time() + 0.05
        while time.process_time() < until_s:
            pass
        used.set()

    threading.Thread(target=work).start()
    assert used.wait(30)
    after = cpu_time_s([os.getpid()])
    assert after is not None
    assert after > before
