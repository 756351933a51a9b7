"""Events are posted once, and not by the thousand, on the sandbox's API server; the clock is the test's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.events import (
    BURST,
    MAX_NOTE_BYTES,
    REFILL_S,
    REPEAT_POST_S,
    REPEAT_S,
    EventRecorder,
    Regarding,
)
from ascend.kube.objects import EVENTS
from tests.device_plugin.api import running

NODE = Regarding("Node", "n1", uid="1")


@dataclass
class Board:
    """A recorder at work."""

    recorder: EventRecorder
    client: KubeClient
    clock: list[float]
    fences: int = 0

    @property
    def now_s(self) -> float:
        return self.clock[0]

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self.clock[0] = now_s

    def publish(self, *notes: str, about: Regarding = NODE) -> None:
        for note in notes:
            self.recorder.publish(about, "NPUUnhealthy", note, action="Watch")

    async def shown(self, about: str) -> dict[str, int]:
        """What is told of a node now, and how often it happened."""
        listed = json.loads(await self.client.request("GET", EVENTS.path()))["items"]
        return {
            event["note"]: event.get("series", {}).get("count", 1)
            for event in listed
            if event["regarding"]["name"] == about
        }

    async def posted(self) -> dict[str, int]:
        """The Events on the node, and their counts, once all that was published is posted."""
        # The second fence: what was due when the first one was posted is posted as well.
        for _ in range(2):
            self.fences += 1
            fence = Regarding("Node", f"fence-{self.fences}")
            self.recorder._tokens += 1  # a fence is not limited
            self.publish("through", about=fence)
            async with asyncio.timeout(10):
                while not await self.shown(fence.name):
                    pass
        return await self.shown(NODE.name)


@pytest.fixture
async def board(client: KubeClient) -> AsyncIterator[Board]:
    clock = [0.0]
    recorder = EventRecorder(client, "test", "one", monotonic=lambda: clock[0])
    async with running(recorder.run()):
        yield Board(recorder, client, clock)


async def test_the_same_event_again_is_one_series_whose_first_repetition_is_posted_at_once(board: Board) -> None:
    board.publish("chip 1", "chip 1")
    assert await board.posted() == {"chip 1": 2}
    board.publish("chip 1", "chip 1")
    assert await board.posted() == {"chip 1": 2}
    board.now_s += REPEAT_POST_S
    assert await board.posted() == {"chip 1": 4}


async def test_a_repetition_held_back_is_posted_when_its_time_comes_though_nothing_more_happens(board: Board) -> None:
    board.publish("chip 1", "chip 1")
    assert await board.posted() == {"chip 1": 2}
    board.now_s += REPEAT_POST_S - 0.001
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 2}
    board.now_s += 0.001
    async with asyncio.timeout(10):
        while await board.shown(NODE.name) != {"chip 1": 3}:
            pass


async def test_the_same_event_much_later_is_another_one_but_what_was_held_back_is_not_lost(board: Board) -> None:
    board.publish("chip 1", "chip 1")
    await board.posted()
    board.now_s += REPEAT_POST_S - 0.001
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 2}
    board.now_s += REPEAT_S
    assert await board.posted() == {"chip 1": 3}
    board.publish("chip 1")
    await board.posted()
    listed = json.loads(await board.client.request("GET", EVENTS.path()))["items"]
    assert sorted(each.get("series", {}).get("count", 1) for each in listed if each["note"] == "chip 1") == [1, 3]


async def test_an_event_that_cannot_be_written_is_told_of_and_the_next_one_is_posted(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    board.publish("lost", about=Regarding("Pod", "p", namespace="Not A Namespace"))
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 1}
    assert "can't post an Event" in caplog.text


async def test_a_series_whose_event_somebody_deleted_is_created_anew_with_its_count(board: Board) -> None:
    board.publish("chip 1", "chip 1")
    assert await board.posted() == {"chip 1": 2}
    for each in await board.client.list_objects(EVENTS):
        await board.client.delete(EVENTS, each.name, each.metadata.namespace)
    board.now_s += REPEAT_POST_S
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 3}
    board.now_s += REPEAT_POST_S
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 4}


@pytest.mark.parametrize(
    ("note", "posted"),
    [
        ("a" * MAX_NOTE_BYTES, "a" * MAX_NOTE_BYTES),
        ("a" * (MAX_NOTE_BYTES + 1), "a" * 1021 + "…"),
        ("≁" * 342, "≁" * 340 + "…"),
        ("a" + "≁" * 342, "a" + "≁" * 340 + "…"),
        ("\N{GRINNING FACE}" * 257, "\N{GRINNING FACE}" * 255 + "…"),
        ("no character: \udc80", "no character: ?"),
    ],
    ids=["longest", "ascii", "three bytes", "odd", "four bytes", "surrogate"],
)
async def test_a_note_is_shortened_to_the_bytes_that_the_api_server_takes_in_whole_characters(
    note: str, posted: str, board: Board
) -> None:
    board.publish(note)
    assert await board.posted() == {posted: 1}


async def test_of_many_events_a_burst_is_posted_and_then_one_per_refill(
    board: Board,
) -> None:
    board.publish(*(f"first {number}" for number in range(BURST + 5)))
    assert len(await board.posted()) == BURST
    board.now_s += REFILL_S
    board.publish("second", "third")
    told = await board.posted()
    assert "second" in told
    assert "third" not in told
    board.now_s += REFILL_S * BURST
    board.publish(*(f"fourth {number}" for number in range(BURST + 5)))
    assert len(await board.posted()) == 2 * BURST + 1


async def test_events_of_a_node_with_a_long_name_are_posted(client: KubeClient) -> None:
    name = ".".join(["n" * 63] * 3)
    recorder = EventRecorder(client, "test", name)
    async with running(recorder.run()), asyncio.timeout(10):
        recorder.publish(Regarding("Node", name), "NPUUnhealthy", "chip 1", action="Watch")
        while not (listed := json.loads(await client.request("GET", EVENTS.path()))["items"]):
            pass
    assert name.startswith(listed[0]["reportingInstance"])
