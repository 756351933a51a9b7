"""Time without contact never counts: a stale view, a frozen process or server, and a new leader delete nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.rescheduling.announcer import DELETED, HELD
from allocator.rescheduling.decision import BLOCKS_AFTER_S
from allocator.rescheduling.deletions import RELEASE_AFTER_S
from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.sightings import GAP_S, Sightings
from allocator.state.node import NodeRecord
from ascend.kube.objects import Pod
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import Scene, job, lost, scene, waiting

NOT_READY_S = 30.0


async def test_pods_stay_on_a_node_that_is_ready_although_the_watch_does_not_show_it() -> None:
    stage = scene(job(2))
    stage.world.add(lost("n1"))
    await stage.look()
    await stage.look(5.0)
    stage.server.now["n1"] = node("n1")
    assert await stage.look(600.0) == []
    assert stage.said == [(HELD, "nothing is deleted: the API server does not confirm that node n1 is not Ready")]
    del stage.server.now["n1"]
    await stage.look(1.0)
    assert await stage.look(NOT_READY_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0", "train-1"]


async def test_pods_stay_when_a_report_says_meanwhile_that_their_chips_are_healthy() -> None:
    stage = scene(job(2))
    stage.world.add(report("n1", unhealthy=[0]))
    stage.server.now["report n1"] = report("n1")
    assert await stage.look(60.0) == []
    assert "does not confirm that node n1 reports a fault of its chips" in stage.said[0][1]
    stage.server.now["report n1"] = report("n1", unhealthy=[0])
    assert await stage.look(1.0) == ["train-0", "train-1"]


async def outage(stage: Scene, how: str) -> None:
    """Let 45 s pass without contact."""
    match how:
        case "server":
            stage.server.silent = True
            await stage.look(45.0)
            stage.server.silent = False
        case "process":
            stage.world.now_s += 45.0
        case _:
            stage.world.now_s += 45.0
            await stage.succeed()


OUTAGES = pytest.mark.parametrize("how", ["server", "process", "leader"])


@OUTAGES
async def test_a_node_may_be_not_ready_for_as_long_again_after_a_time_without_contact(how: str) -> None:
    stage = scene(job(2))
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(25.0) == []
    await outage(stage, how)
    assert await stage.look() == []
    assert await stage.look(NOT_READY_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0", "train-1"]


@OUTAGES
async def test_a_node_that_returns_after_a_time_without_contact_keeps_its_pods(how: str) -> None:
    stage = scene(job(2))
    stage.world.add(lost("n1"))
    await stage.look()
    await outage(stage, how)
    assert await stage.look(10.0) == []
    stage.world.add(node("n1"))
    assert await stage.look(600.0) == []


@OUTAGES
async def test_a_fault_of_a_chip_has_to_last_after_a_time_without_contact(how: str) -> None:
    stage = scene(job(2))
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.look()
    await outage(stage, how)
    assert await stage.look() == []
    assert await stage.look(CONFIRM_S - 0.5) == []
    assert await stage.look(0.5) == ["train-0", "train-1"]


@OUTAGES
async def test_a_successor_waits_anew_after_a_time_without_contact(how: str) -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    stage.world.add(waiting(pods[3]))
    await stage.look(1.0)
    await outage(stage, how)
    assert await stage.look() == []
    assert await stage.look(BLOCKS_AFTER_S - 1.0) == []
    assert await stage.look(1.0) == ["train-2"]


async def test_a_block_stays_whose_successor_is_bound_although_the_watch_does_not_show_it() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    new = waiting(pods[3])
    stage.world.add(new)
    stage.server.now["train-3"] = replace(new, spec=replace(new.spec, node_name="n9"))
    assert await stage.look(60.0) == []
    assert "nothing is deleted: no pod of job default/train waits for chips" in [note for _, note in stage.said]


@OUTAGES
async def test_time_without_contact_is_no_time_for_a_graceful_end(how: str) -> None:
    stage = scene(job(1, fault_scheduling="grace"), reschedule_grace_s=100.0)
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert await stage.look(99.0) == []
    await outage(stage, how)
    assert await stage.look(RELEASE_AFTER_S - 1.0) == []
    assert await stage.look(30.0) == (["train-0"] if how != "leader" else [])


async def test_pods_of_a_ready_node_stay_when_the_one_that_looked_faulty_has_gone_meanwhile() -> None:
    stage = scene(job(2))
    stage.world.add(lost("n1"))
    await stage.look()
    await stage.look(NOT_READY_S - 1.0)
    stage.server.now |= {"n1": node("n1"), "train-0": None}
    assert await stage.look(60.0) == []


async def test_what_was_proved_is_read_again_if_storing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = scene(job(2))
    save = stage.save

    async def slowly(memory: Memory) -> None:
        await save(memory)
        stage.world.now_s += 12.0
        stage.server.now["n1"] = node("n1")

    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(NOT_READY_S - 1.0) == []
    monkeypatch.setattr(stage, "save", slowly)
    assert await stage.look(1.0) == []
    monkeypatch.undo()
    assert any("can't be deleted yet: the API server does not confirm" in note for _, note in stage.said)
    assert [sum(number for _, number in stage.rescheduler.memory.recent)] == [0]
    assert await stage.look(120.0) == []


async def test_a_long_deletion_of_one_job_is_a_gap_for_others_and_no_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = scene([*job(1, name="a"), *job(1, name="b", first_node=2)])
    stage.world.add(lost("n1"), lost("n2"))
    delete = stage.delete_by_force

    async def slowly(pod: Pod) -> None:
        await delete(pod)
        stage.world.now_s += 20.0

    monkeypatch.setattr(stage, "delete_by_force", slowly)
    await stage.look()
    assert await stage.look(NOT_READY_S) == ["a-0"]
    await stage.look()
    assert await stage.look(NOT_READY_S) == ["b-0"]
    assert stage.reasons() == [DELETED]


async def test_pods_are_not_marked_for_another_program_on_a_stale_view() -> None:
    stage = scene(job(1, fault_scheduling="external-force"))
    stage.world.add(lost("n1"))
    stage.server.now["n1"] = node("n1")
    await stage.look(60.0)
    assert stage.marked == {}
    del stage.server.now["n1"]
    await stage.look()
    await stage.look(NOT_READY_S)
    assert stage.marked == {"train-0": "Unhealthy-NodeUnhealthy"}


@pytest.mark.parametrize(("answers_after_s", "goes"), [(0.5, True), (3.0, False)])
async def test_a_server_that_is_too_slow_to_be_followed_deletes_nothing(answers_after_s: float, *, goes: bool) -> None:
    stage = scene(job(1))
    stage.world.add(lost("n1"))
    stage.server.answers_after_s = answers_after_s
    went = []
    for _ in range(100):
        went += await stage.look(1.0)
    assert bool(went) is goes


async def test_chips_stay_held_until_a_read_says_that_the_node_is_ready() -> None:
    stage = scene(job(1))
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(NOT_READY_S) == ["train-0"]
    stage.world.add(node("n1"))
    stage.server.now["n1"] = lost("n1")
    await stage.look(10 * RELEASE_AFTER_S)
    assert stage.world.vacancy("n1").free == 0
    del stage.server.now["n1"]
    await stage.look(RELEASE_AFTER_S + 5.0)
    assert stage.world.vacancy("n1").free == 0xFF


async def test_only_nodes_are_read_whose_pods_would_go() -> None:
    stage = scene([*job(1, fault_scheduling="off"), *job(1, name="other", first_node=2)])
    stage.world.add(lost("n1"), lost("n3"))
    await stage.look(60.0)
    assert stage.server.seen == []
    stage.world.add(lost("n2"))
    await stage.look(NOT_READY_S - 5.0)
    assert {name for _, name, _ in stage.server.seen} == {"n2"}


async def test_a_node_that_was_ready_unseen_by_the_watch_may_be_not_ready_for_as_long_again() -> None:
    stage = scene(job(1))
    stage.world.add(lost("n1"))
    await stage.look()
    stage.server.now["n1"] = node("n1")
    await stage.look(20.0)
    stage.server.now["n1"] = lost("n1")
    await stage.look()
    assert await stage.look(NOT_READY_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0"]


async def test_one_read_that_shows_a_node_not_ready_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = scene(job(1))
    stage.world.add(lost("n1"))
    stage.server.now["n1"] = node("n1")
    record = stage.server.record

    async def as_it_is_a_moment_later(name: str) -> NodeRecord:
        stage.server.now["n1"] = lost("n1")
        found = await record(name)
        stage.server.now["n1"] = node("n1")
        return found

    monkeypatch.setattr(stage.server, "record", as_it_is_a_moment_later)
    assert await stage.look(120.0) == []


@given(st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 7.0), st.booleans()), min_size=1, max_size=20))
def test_a_node_is_lost_since_the_first_answer_of_an_unbroken_series(reads: list[tuple[float, float, bool]]) -> None:
    sightings, now_s, since_s, before_s = Sightings(), 0.0, None, -100.0
    for answer_s, pause_s, is_ready in reads:
        sent_s, now_s = now_s + pause_s, now_s + pause_s + answer_s
        sightings.saw("n", node("n", ready=is_ready), sent_s, now_s)
        if is_ready:
            since_s = None
        elif since_s is None or now_s - before_s > GAP_S:
            since_s = now_s
        before_s = sent_s
        assert sightings.lost_for_s("n", now_s) == (-1.0 if since_s is None else max(sent_s - since_s, 0.0))
    assert sightings.lost_for_s("n", before_s + GAP_S + 0.1) < 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.sampled_from([0.3, 1.0, 2.0, 4.0, 5.0, 20.0, 31.0])),
        st.tuples(st.just("freeze"), st.sampled_from([6.0, 31.0, 100.0])),
        st.tuples(st.just("ready"), st.booleans()),
        st.tuples(st.just("watch"), st.booleans()),
        st.tuples(st.just("server"), st.booleans()),
        st.tuples(st.just("leader"), st.just(0)),
    ),
    max_size=40,
)


@given(_STEPS)
async def test_nothing_goes_unless_its_node_was_seen_not_ready_without_a_gap_and_is_so_now(
    steps: list[tuple[str, Any]],
) -> None:
    stage, watches, leads_since = scene(job(1)), True, 0
    stage.server.now["n1"] = node("n1")
    for what, value in steps:
        match what:
            case "look":
                await stage.look(value)
            case "freeze":
                stage.world.now_s += value
            case "ready":
                stage.server.now["n1"] = node("n1", ready=value)
            case "watch":
                watches = value
            case "server":
                stage.server.silent = not value
            case _:
                await stage.succeed()
                leads_since = len(stage.server.seen)
        if stage.deleted:
            assert lost_for_s(stage.server.seen[leads_since:]) >= NOT_READY_S
            return
        if watches and not stage.server.silent:
            stage.world.add(stage.server.now["n1"] or node("n1"))


def lost_for_s(seen: list[tuple[float, str, bool]]) -> float:
    """For how long the last reads of a node have shown it not Ready, each within the gap of the next; -1 if it is."""
    since_s = last_s = seen[-1][0]
    for at_s, _, is_ready in reversed(seen):
        if is_ready or since_s - at_s > GAP_S:
            break
        since_s = at_s
    return -1.0 if seen[-1][2] else last_s - since_s
