"""Events are posted in series and below a rate, on the sandbox's API server and a clock of the test."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from ascend.kube.client import KubeClient
from ascend.kube.events import (
    BURST,
    DROPPED_LOG_S,
    MAX_NOTE_BYTES,
    REFILL_S,
    REPEAT_POST_S,
    REPEAT_S,
    EventRecorder,
    Regarding,
)
from ascend.kube.objects import EVENTS
from tests.device_plugin.api import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = Regarding("Node", "n1", uid="1")


@dataclass
class Recorder:
    """A running recorder, and the Events that it has posted."""

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
        """The notes of the Events on a node, and their counts."""
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
            self.recorder._rate._all.spend(-1)  # a fence is not limited
            self.publish("through", about=fence)
            async with asyncio.timeout(10):
                while not await self.shown(fence.name):
                    pass
        return await self.shown(NODE.name)


@pytest_asyncio.fixture(loop_scope="module")
async def events(client: KubeClient) -> AsyncIterator[Recorder]:
    clock = [0.0]
    recorder = EventRecorder(client, "test", "one", monotonic=lambda: clock[0])
    async with running(recorder.run()):
        yield Recorder(recorder, client, clock)


async def test_a_repeated_event_is_one_series_and_posted_at_once(events: Recorder) -> None:
    events.publish("chip 1", "chip 1")
    assert await events.posted() == {"chip 1": 2}
    events.publish("chip 1", "chip 1")
    assert await events.posted() == {"chip 1": 2}
    events.now_s += REPEAT_POST_S
    assert await events.posted() == {"chip 1": 4}


async def test_a_delayed_repetition_is_posted_when_it_is_due(events: Recorder) -> None:
    events.publish("chip 1", "chip 1")
    assert await events.posted() == {"chip 1": 2}
    events.now_s += REPEAT_POST_S - 0.001
    events.publish("chip 1")
    assert await events.posted() == {"chip 1": 2}
    events.now_s += 0.001
    async with asyncio.timeout(10):
        while await events.shown(NODE.name) != {"chip 1": 3}:
            pass


async def test_a_much_later_repetition_starts_a_new_series(events: Recorder) -> None:
    events.publish("chip 1", "chip 1")
    await events.posted()
    events.now_s += REPEAT_POST_S - 0.001
    events.publish("chip 1")
    assert await events.posted() == {"chip 1": 2}
    events.now_s += REPEAT_S
    assert await events.posted() == {"chip 1": 3}
    events.publish("chip 1")
    await events.posted()
    listed = json.loads(await events.client.request("GET", EVENTS.path()))["items"]
    assert sorted(each.get("series", {}).get("count", 1) for each in listed if each["note"] == "chip 1") == [1, 3]


async def test_an_event_that_cannot_be_posted_is_logged_and_dropped(
    events: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    events.publish("lost", about=Regarding("Pod", "p", namespace="Not A Namespace"))
    events.publish("chip 1")
    assert await events.posted() == {"chip 1": 1}
    assert "can't post an Event" in caplog.text


async def test_dropped_events_are_counted_in_one_line_of_the_log_after_the_other(
    events: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    events.publish(*(f"chip {number}" for number in range(BURST + 100)))
    events.now_s += DROPPED_LOG_S
    events.publish(*(f"chip {number}" for number in range(BURST + 100, BURST + 200)))
    dropped = [vars(each)["events"] for each in caplog.records if each.message == "dropped Events"]
    assert dropped == [1, 100]


async def test_the_deleted_event_of_a_series_is_recreated_with_its_count(events: Recorder) -> None:
    events.publish("chip 1", "chip 1")
    assert await events.posted() == {"chip 1": 2}
    for each in await events.client.list_objects(EVENTS):
        await events.client.delete(EVENTS, each.name, each.metadata.namespace)
    events.now_s += REPEAT_POST_S
    events.publish("chip 1")
    assert await events.posted() == {"chip 1": 3}
    events.now_s += REPEAT_POST_S
    events.publish("chip 1")
    assert await events.posted() == {"chip 1": 4}


@pytest.mark.parametrize(
    ("note", "posted"),
    [
        ("a" * MAX_NOTE_BYTES, "a" * MAX_NOTE_BYTES),
        ("a" * (MAX_NOTE_BYTES + 1), "a" * 1021 + "…"),
        ("≁" * 342, "≁" * 340 + "…"),
        ("a" + "≁" * 342, "a" + "≁" * 340 + "…"),
        ("\N{GRINNING FACE}" * 257, "\N{GRINNING FACE}" * 255 + "…"),
        ("no character: \udc80", r"no character: \udc80"),
    ],
    ids=["longest", "ascii", "three bytes", "odd", "four bytes", "surrogate"],
)
async def test_a_note_is_shortened_to_the_limit_in_whole_characters(note: str, posted: str, events: Recorder) -> None:
    events.publish(note)
    assert await events.posted() == {posted: 1}


async def test_different_events_are_limited_to_a_burst_and_a_rate(events: Recorder) -> None:
    events.publish(*(f"first {number}" for number in range(BURST + 5)))
    assert len(await events.posted()) == BURST
    events.now_s += REFILL_S
    events.publish("second", "third")
    posted = await events.posted()
    assert "second" in posted
    assert "third" not in posted
    events.now_s += REFILL_S * BURST
    events.publish(*(f"fourth {number}" for number in range(BURST + 5)))
    assert len(await events.posted()) == 2 * BURST + 1


async def test_events_on_a_node_with_a_long_name_are_posted(client: KubeClient) -> None:
    name = ".".join(["n" * 63] * 3)
    recorder = EventRecorder(client, "test", name)
    async with running(recorder.run()), asyncio.timeout(10):
        recorder.publish(Regarding("Node", name), "NPUUnhealthy", "chip 1", action="Watch")
        while not (listed := json.loads(await client.request("GET", EVENTS.path()))["items"]):
            pass
    assert name.startswith(listed[0]["reportingInstance"])


async def test_an_event_that_is_posted_once_is_not_posted_again_by_another_process(client: KubeClient) -> None:
    about = Regarding("Pod", ".".join(["p" * 63] * 3) + "-a", "default", uid="7")
    for instance in ("before", "after"):
        recorder = EventRecorder(client, "test", instance)
        async with running(recorder.run()), asyncio.timeout(10):
            for note in ("chip 1", f"the end of {instance}"):
                recorder.publish(about, "NPUFault", note, action="Watch", once=True)
            while f"the end of {instance}" not in [each["note"] for each in await _about(client, about)]:
                pass
    found = await _about(client, about)
    assert sorted((each["note"], each["reportingInstance"]) for each in found) == [
        ("chip 1", "before"),
        ("the end of after", "after"),
        ("the end of before", "before"),
    ]


async def _about(client: KubeClient, about: Regarding) -> list[dict[str, Any]]:
    listed = json.loads(await client.request("GET", EVENTS.path()))["items"]
    return [each for each in listed if each["regarding"].get("uid") == about.uid]


async def test_a_note_has_no_control_characters(events: Recorder) -> None:
    events.publish("job tenant/\x1b]0;owned\x07\x1b[2J\u202e\nforged")
    (note,) = await events.posted()
    assert note == r"job tenant/\x1b]0;owned\x07\x1b[2J\u202e\nforged"


async def test_a_namespace_can_not_take_the_events_of_others(events: Recorder) -> None:
    for number in range(2_000):
        for tenant in ("busy-1", "busy-2", "busy-3", "busy-4", "busy-5", "busy-6"):
            pod = Regarding("Pod", f"p{number}", namespace=tenant)
            events.recorder.publish(pod, "InsufficientChips", "no room", action="Filter")
    quiet = Regarding("Pod", "mine", namespace="default")
    assert events.recorder.publish(quiet, "InsufficientChips", "no room", action="Filter")
    assert events.recorder.publish(NODE, "NPUUnhealthy", "chip 1", action="Watch")
    assert await events.posted() == {"chip 1": 1}
    assert await events.shown("mine") == {"no room": 1}
