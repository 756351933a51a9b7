"""Long work shares the event loop in pieces."""

import asyncio
from collections import Counter

import pytest

from ascend import turn
from ascend.turn import Turn


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._loop.call_soon(self._next)


async def test_of_all_long_tasks_one_runs_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LIMIT_S", -1.0)
    turns, pieces = Turns(), Counter[int]()

    async def work() -> None:
        mine = Turn()
        for _ in range(20):
            await mine.share()
            pieces[turns.number] += 1

    await asyncio.gather(*(work() for _ in range(4)))
    assert set(pieces.values()) == {1}
    assert turns.number < 4 * 20 + 10  # no turn is lost


async def test_a_cancelled_task_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LIMIT_S", -1.0)
    done: list[str] = []

    async def work(name: str) -> None:
        mine = Turn()
        for _ in range(3):
            await mine.share()
        done.append(name)

    first, second = asyncio.create_task(work("first")), asyncio.create_task(work("second"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await work("third")
    assert done == ["second", "third"]


async def test_short_work_is_not_interrupted() -> None:
    turns = Turns()
    before = turns.number
    mine = Turn()
    await mine.share()
    assert turns.number == before


async def test_tasks_that_begin_in_one_turn_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, steps = Turns(), Counter[int]()
    step_s, limit_s, now_s = 0.001, 0.003, 0.0
    monkeypatch.setattr(turn, "LIMIT_S", limit_s)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)

    async def work() -> None:
        nonlocal now_s
        mine = Turn()
        for _ in range(12):
            now_s += step_s
            steps[turns.number] += 1
            await mine.share()

    await asyncio.gather(*(work() for _ in range(8)))
    assert steps.total() == 8 * 12
    assert max(steps.values()) * step_s <= limit_s + 8 * step_s  # each of those that begin does one step


async def test_a_task_that_waits_for_a_turn_shares_it_with_none_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LIMIT_S", -1.0)
    turns, pieces, alone = Turns(), Counter[int](), list[int]()

    async def work() -> None:
        mine = Turn()
        for _ in range(20):
            await mine.share()
            pieces[turns.number] += 1

    async def wait() -> None:
        for _ in range(5):
            await Turn().wait()
            alone.append(turns.number)

    await asyncio.gather(work(), wait(), work())
    assert len(alone) == 5
    assert not pieces.keys() & set(alone)
