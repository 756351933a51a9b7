"""Events on pods that are refused: what they say, and that they stay few."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.binding import PodRef
from allocator.observe.refusal_events import REMIND_S, RefusalEvents
from ascend.errors import Refusal
from ascend.kube.events import Regarding
from ascend.reasons import Reason
from sandbox.apiserver import ApiServer
from tests.allocator.harness import running, told


class Desk:
    """Refusal events that are recorded, on a clock that is moved by hand."""

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
        self.events.refused(PodRef("default", uid, uid), Refusal(reason, "why"), action="Filter")


def test_a_reason_that_stays_is_told_once_and_again_after_a_while() -> None:
    desk = Desk()
    for _ in range(3):
        desk.refuse("a")
    desk.now_s = REMIND_S - 1
    desk.refuse("a")
    assert desk.posted == [("a", "RingTooSmall")]
    desk.now_s = REMIND_S
    desk.refuse("a")
    assert desk.posted == [("a", "RingTooSmall")] * 2


def test_another_reason_is_told_at_once() -> None:
    desk = Desk()
    desk.refuse("a")
    desk.refuse("a", Reason.NODE_NOT_READY)
    assert desk.posted == [("a", "RingTooSmall"), ("a", "NodeNotReady")]


def test_a_pod_whose_reason_has_changed_keeps_nobody_else_from_being_told_again() -> None:
    desk = Desk()
    desk.refuse("a")
    desk.refuse("b")
    desk.now_s = REMIND_S - 1
    desk.refuse("a", Reason.NODE_NOT_READY)
    desk.now_s = REMIND_S
    desk.refuse("b")
    assert desk.posted[-1] == ("b", "RingTooSmall")
    assert len(desk.posted) == 4


def test_a_pod_whose_event_was_dropped_gets_one_when_it_is_refused_again() -> None:
    desk = Desk()
    desk.accepted = 2
    uids = ["a", "b", "c"]
    for uid in uids:
        desk.refuse(uid)
    assert [uid for uid, _ in desk.posted] == ["a", "b"]
    desk.accepted = 10
    for uid in uids:
        desk.refuse(uid)
    assert [uid for uid, _ in desk.posted] == ["a", "b", "c"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400), st.integers(0, 30), st.sampled_from([Reason.RING_TOO_SMALL, Reason.NO_NODE_FITS])
        ),
        max_size=200,
    )
)
def test_no_pod_is_remembered_after_the_reminder_is_due(steps: list[tuple[int, int, Reason]]) -> None:
    desk = Desk()
    for wait_s, pod, reason in steps:
        desk.now_s += wait_s
        desk.refuse(str(pod), reason)
    desk.now_s += REMIND_S
    desk.refuse("last")
    assert len(desk.events) == 1


async def test_a_pod_that_fits_nowhere_is_told_why_in_an_event(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("plain", npu=False)
        await allocator.schedule(await allocator.pod("a", 8), ["n1"])
        waiting = await allocator.pod("b", 1)
        for _ in range(3):
            await allocator.filter(waiting, ["n1", "plain"])
        (event,) = await told(allocator)
        assert (event["reason"], event["type"], event["action"]) == ("NotEnoughChips", "Warning", "Filter")
        assert event["regarding"]["uid"] == waiting["metadata"]["uid"]
        assert event["note"] == ("pod default/b: 1 chips fit on none of 2 nodes: 1 NotAnNpuNode, 1 NotEnoughChips")


async def test_a_binding_that_is_refused_is_told_with_the_nodes_own_sentence(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.schedule(await allocator.pod("a", 8), ["n1"])
        assert await allocator.bind(await allocator.pod("b", 1), "n1") != ""
        (event,) = await told(allocator)
        assert (event["reason"], event["action"]) == ("NotEnoughChips", "Bind")
        assert event["note"] == "1 chips asked for, 0 free of 8 healthy"


async def test_unusable_nodes_are_counted_by_reason(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for name in ("plain-1", "plain-2"):
            await allocator.node(name, npu=False)
        _, page = await allocator.get("/metrics")
        assert 'ascend_allocator_unusable_nodes{reason="NotAnNpuNode"} 2.0' in page
