"""Events are posted once, and not by the thousand, on the sandbox's API server; the clock is the test's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.events import BURST, REFILL_S, REPEAT_POST_S, EventRecorder, Regarding
from ascend.kube.objects import EVENTS
from tests.device_plugin.api import running

NODE = Regarding("Node", "n1", uid="1")


@dataclass
class Board:
    """A recorder at work."""

    recorder: EventRecorder
    client: KubeClient
    now_s: float = 0.0
    fences: int = 0

    def publish(self, *notes: str, about: Regarding = NODE) -> None:
        for note in notes:
            self.recorder.publish(about, "NPUUnhealthy", note, action="Watch")

    async def posted(self) -> dict[str, int]:
        """What is told of the node, and how often it happened, once all that was published is through."""
        self.fences += 1
        fence = Regarding("Node", f"fence-{self.fences}")
        self.publish("through", about=fence)
        async with asyncio.timeout(10):
            while True:
                listed = json.loads(await self.client.request("GET", EVENTS.path()))["items"]
                if any(event["regarding"]["name"] == fence.name for event in listed):
                    break
        return {
            event["note"]: event.get("series", {}).get("count", 1)
            for event in listed
            if event["regarding"]["name"] == NODE.name
        }


@pytest.fixture
async def board(client: KubeClient) -> AsyncIterator[Board]:
    recorder = EventRecorder(client, "test", "one", monotonic=lambda: made.now_s)
    made = Board(recorder, client)
    async with running(recorder.run()):
        yield made


async def test_the_same_event_again_is_one_series(board: Board) -> None:
    board.publish("chip 1", "chip 1", "chip 1")
    assert await board.posted() == {"chip 1": 1}
    board.now_s += REPEAT_POST_S
    board.publish("chip 1")
    assert await board.posted() == {"chip 1": 4}


async def test_of_many_different_events_about_one_object_a_burst_is_posted_and_then_one_now_and_then(
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
