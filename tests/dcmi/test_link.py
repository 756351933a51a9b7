"""The link state of a port, from a tool that can be missing, fail, hang or belong to another user."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from device_plugin.driver.dcmi.port_tool import LinkTool

ANSWER = 'echo "link status: UP"'


def tool(folder: Path, script: str, mode: int = 0o755) -> Path:
    path = folder / "hccn_tool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("script", "up"),
    [
        (ANSWER, True),
        ('echo "link status: DOWN"', False),
        ('echo "first"; echo "link status: DOWN"; echo "last"', False),
        ('echo "link status: UP"; exit 1', None),
        ('echo "link status: SLEEPY"', None),
        ("exit 1", None),
        ("printf '\\377\\376'", None),
        ("kill -9 $$", None),
        ("", None),
    ],
)
def test_only_a_known_answer_counts(tmp_path: Path, script: str, up: bool | None) -> None:  # noqa: FBT001 - a parameter
    assert LinkTool(tool(tmp_path, script), wait_s=10).up(0) is up


def test_without_the_tool_the_link_state_is_unknown(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        assert LinkTool(tmp_path / "none").up(0) is None
    assert logs == []


def test_a_tool_others_can_change_is_not_run_and_logged_once(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    links = LinkTool(tool(tmp_path, f"touch {ran}; {ANSWER}", mode=0o777), wait_s=10)
    with structlog.testing.capture_logs() as logs:
        assert [links.up(each) for each in range(8)] == [None] * 8
    assert not ran.exists()
    assert len(logs) == 1
    assert "mode 0777" in logs[0]["error"]


def test_with_a_tool_that_cannot_be_run_the_link_state_is_unknown(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        assert LinkTool(tool(tmp_path, ANSWER, mode=0o644)).up(0) is None
    assert "Permission denied" in logs[0]["error"]


def test_the_link_of_each_chip_is_read_every_five_minutes(tmp_path: Path) -> None:
    calls, clock = tmp_path / "calls", Clock()
    links = LinkTool(tool(tmp_path, f'echo "$*" >> {calls}; {ANSWER}'), wait_s=10, now_s=clock)
    for now_s in (1000.0, 1001.0, 1299.9):
        clock.now_s = now_s
        assert [links.up(3), links.up(4)] == [True, True]
    assert calls.read_text().splitlines() == ["-i 3 -link -g", "-i 4 -link -g"]
    tool(tmp_path, f'echo "$*" >> {calls}; echo "link status: DOWN"')
    clock.now_s = 1300.0
    assert links.up(3) is False
    assert len(calls.read_text().splitlines()) == 3


def test_a_link_that_is_down_is_read_again_soon(tmp_path: Path) -> None:
    clock = Clock()
    links = LinkTool(tool(tmp_path, 'echo "link status: DOWN"'), wait_s=10, now_s=clock)
    assert links.up(3) is False
    tool(tmp_path, ANSWER)
    clock.now_s += 9.9
    assert links.up(3) is False
    clock.now_s += 0.1
    assert links.up(3) is True


def test_a_late_answer_is_picked_up_by_a_later_call(tmp_path: Path) -> None:
    gate, clock = tmp_path / "gate", Clock()
    links = LinkTool(tool(tmp_path, ANSWER), wait_s=10, now_s=clock)
    assert links.up(0) is True
    tool(tmp_path, f'while [ ! -e {gate} ]; do sleep 0.01; done; echo "link status: DOWN"')
    links = LinkTool(tmp_path / "hccn_tool", wait_s=0.01, now_s=clock)
    assert links.up(0) is None
    assert links.up(0) is None
    gate.touch()
    wait_for(lambda: links.up(0) is False)


def test_a_tool_that_hangs_is_killed_and_run_again_after_the_period(tmp_path: Path) -> None:
    started, clock = tmp_path / "started", Clock()
    links = LinkTool(tool(tmp_path, f"echo x >> {started}; exec sleep 1000"), wait_s=0.01, now_s=clock)
    assert links.up(0) is None
    wait_for(started.exists)
    clock.now_s += 10
    wait_for(lambda: links.up(0) is None and links._ports[0].process is None)
    tool(tmp_path, ANSWER)
    assert links.up(0) is None
    clock.now_s += 290
    links.up(0)
    wait_for(lambda: links.up(0) is True)


def test_an_announced_loss_is_checked_soon_and_until_the_link_has_been_up_for_a_while(tmp_path: Path) -> None:
    calls, clock = tmp_path / "calls", Clock()
    links = LinkTool(tool(tmp_path, f"echo x >> {calls}; {ANSWER}"), wait_s=10, now_s=clock)
    runs = []
    for second in range(100):
        clock.now_s = 1000.0 + second
        if second == 30:
            links.suspect(3)
        before = calls.stat().st_size if calls.exists() else 0
        assert links.up(3)
        if calls.stat().st_size > before:
            runs.append(second)
    assert runs == [0, 30, 40]


def test_the_answer_has_the_time_at_which_the_tool_was_started(tmp_path: Path) -> None:
    clock = Clock()
    links = LinkTool(tool(tmp_path, ANSWER), wait_s=10, now_s=clock)
    assert links.answer(3) == (True, 1000.0)
    clock.now_s = 1100.0
    assert links.answer(3) == (True, 1000.0)
    tool(tmp_path, "exit 1")
    clock.now_s = 1300.0
    assert links.answer(3) == (None, None)
