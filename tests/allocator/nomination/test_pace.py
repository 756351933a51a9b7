"""Answers to filter wait for nominations, but no longer than the scheduler takes to filter a pod on all nodes."""

import asyncio

import pytest

from allocator.nomination.ahead import LONGEST_S, Pace


class _Scheduler:
    """Calls of a scheduler on a clock that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pace = Pace(lambda: self.now_s)

    def call(self, after_s: float, *, all_nodes: bool, has_next: bool) -> None:
        self.now_s += after_s
        self.pace.on_filter(all_nodes=all_nodes)
        self.pace.on_filter_answered(has_next=has_next)


def test_the_time_for_all_nodes_is_measured_while_pods_wait() -> None:
    scheduler = _Scheduler()
    scheduler.call(5.0, all_nodes=True, has_next=True)
    assert scheduler.pace.all_nodes_s == 0
    for _ in range(40):
        scheduler.call(0.04, all_nodes=True, has_next=True)
        scheduler.call(0.002, all_nodes=False, has_next=True)  # a nominated pod
    assert scheduler.pace.all_nodes_s == pytest.approx(0.04, rel=0.01)


def test_idle_time_is_not_the_time_for_all_nodes() -> None:
    scheduler = _Scheduler()
    for _ in range(10):
        scheduler.call(3.0, all_nodes=True, has_next=False)
    assert scheduler.pace.all_nodes_s == 0
    scheduler.call(0.0, all_nodes=True, has_next=True)
    for _ in range(40):  # pods of other kinds may have been scheduled meanwhile
        scheduler.call(3.0, all_nodes=True, has_next=True)
    assert scheduler.pace.all_nodes_s <= LONGEST_S


async def test_an_answer_waits_for_progress_until_nominations_are_ahead() -> None:
    scheduler = _Scheduler()
    scheduler.pace.all_nodes_s = 60.0
    behind = 2
    waiting = asyncio.create_task(scheduler.pace.wait(lambda: behind > 0))
    while behind:
        await asyncio.sleep(0)
        assert not waiting.done()
        behind -= 1
        scheduler.pace.on_progress()
    await waiting


async def test_an_answer_does_not_wait_longer_than_a_nomination_saves() -> None:
    scheduler = _Scheduler()
    for limit_s in (0.0, 0.01):
        scheduler.pace.all_nodes_s = limit_s
        await scheduler.pace.wait(lambda: True)
    assert await scheduler.pace.wait(lambda: False) == 0
