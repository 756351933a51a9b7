"""Events on refused pods: what they say, and that there are few of them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.binding import PodRef
from allocator.observe.refusal_events import REMIND_S, REMIND_UNASKED_S, RefusalEvents
from ascend.errors import Refusal
from ascend.kube.events import Regarding
from ascend.reasons import Reason
from sandbox.apiserver import ApiServer
from tests.allocator.harness import events_of, running


class Recorder:
    """Records the Events that are published, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.posted: list[tuple[str, str]] = []
        self.accepted = 1000
        self.events = RefusalEvents(self._publish, lambda: self.now_s)

    def _publish(self, regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        assert (regarding.kind, action) == ("Pod", "Filter")
        assert note
        if len(self.posted) >= self.accepted:
            return False
        self.posted.append((regarding.uid, reason))
        return True

    def refuse(self, uid: str, reason: Reason = Reason.RING_TOO_SMALL) -> None:
        self.events.on_refusal(PodRef("default", uid, uid), Refusal(reason, "why"), action="Filter")


def test_an_unchanged_reason_is_repeated_only_as_a_reminder() -> None:
    recorder = Recorder()
    for _ in range(3):
        recorder.refuse("a")
    recorder.now_s = REMIND_S - 1
    recorder.refuse("a")
    assert recorder.posted == [("a", Reason.RING_TOO_SMALL)]
    recorder.now_s = REMIND_S
    recorder.refuse("a")
    assert recorder.posted == [("a", Reason.RING_TOO_SMALL)] * 2


def test_a_new_reason_is_posted_at_once() -> None:
    recorder = Recorder()
    recorder.refuse("a")
    recorder.refuse("a", Reason.NODE_NOT_READY)
    assert recorder.posted == [("a", Reason.RING_TOO_SMALL), ("a", Reason.NODE_NOT_READY)]


def test_a_changed_reason_does_not_delay_the_reminders_of_others() -> None:
    recorder = Recorder()
    recorder.refuse("a")
    recorder.refuse("b")
    recorder.now_s = REMIND_S - 1
    recorder.refuse("a", Reason.NODE_NOT_READY)
    recorder.now_s = REMIND_S
    recorder.refuse("b")
    assert recorder.posted[-1] == ("b", Reason.RING_TOO_SMALL)
    assert len(recorder.posted) == 4


def test_a_dropped_event_is_posted_when_the_pod_is_refused_again() -> None:
    recorder = Recorder()
    recorder.accepted = 2
    uids = ["a", "b", "c"]
    for uid in uids:
        recorder.refuse(uid)
    assert [uid for uid, _ in recorder.posted] == ["a", "b"]
    recorder.accepted = 10
    for uid in uids:
        recorder.refuse(uid)
    assert [uid for uid, _ in recorder.posted] == ["a", "b", "c"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2400), st.integers(0, 30), st.sampled_from([Reason.RING_TOO_SMALL, Reason.NO_NODE_FITS])
        ),
        max_size=200,
    )
)
def test_no_pod_is_remembered_after_its_reminder_is_due(steps: list[tuple[int, int, Reason]]) -> None:
    recorder = Recorder()
    for wait_s, pod, reason in steps:
        recorder.now_s += wait_s
        recorder.refuse(str(pod), reason)
    recorder.now_s += REMIND_UNASKED_S
    recorder.refuse("last")
    assert len(recorder.events._posted) == 1


async def test_a_pod_that_fits_on_no_node_gets_an_event(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("plain", npu=False)
        await allocator.schedule(await allocator.pod("a", 8), ["n1"])
        waiting = await allocator.pod("b", 1)
        for _ in range(3):
            await allocator.filter(waiting, ["n1", "plain"])
        (event,) = await events_of(allocator)
        assert (event["reason"], event["type"], event["action"]) == (Reason.NOT_ENOUGH_CHIPS, "Warning", "Filter")
        assert event["regarding"]["uid"] == waiting["metadata"]["uid"]
        for words in ("pod default/b", "2 nodes", "1 NotAnNpuNode", "1 NotEnoughChips"):
            assert words in event["note"]


async def test_a_refused_binding_gets_an_event_with_the_nodes_sentence(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.schedule(await allocator.pod("a", 8), ["n1"])
        assert await allocator.bind(await allocator.pod("b", 1), "n1") != ""
        (event,) = await events_of(allocator)
        assert (event["reason"], event["action"]) == (Reason.NOT_ENOUGH_CHIPS, "Bind")
        assert "0 free of 8 healthy" in event["note"]
