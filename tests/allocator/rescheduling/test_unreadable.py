"""What a former leader has stored and this one can't read is not overwritten; only what depends on it is held back."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from allocator.rescheduling.announcer import HELD
from allocator.rescheduling.deletions import RELEASE_AFTER_S
from allocator.rescheduling.memory import Deleted, Memory, Recovery
from allocator.rescheduling.rescheduler import LOAD_AGAIN_S
from allocator.rescheduling.storage import KEY
from ascend.errors import TooLarge
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import Scene, encode, job, lost, scene

HELD_CHIPS = Memory(force_deleted={"u": Deleted("default/gone", "n9", 1.0, [0, 1])})


def edited(memory: Memory, edit: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    stored = json.loads(encode(memory)[KEY])
    edit(stored)
    return {KEY: json.dumps(stored)}


BROKEN = {
    "jobs": edited(HELD_CHIPS, lambda stored: stored.update(jobs=None)),
    "force_deleted": edited(HELD_CHIPS, lambda stored: stored.update(force_deleted=5)),
    "version": edited(HELD_CHIPS, lambda stored: stored.update(version=7)),
    "cut off": {KEY: encode(HELD_CHIPS)[KEY][:-3]},
}


async def taken_over(stored: dict[str, str]) -> Scene:
    """A leader that takes over while one of many nodes is not Ready."""
    stage = scene(job(1))
    stage.world.add(lost("n9"))
    stage.stored = stored
    await stage.succeed()
    return stage


@pytest.mark.parametrize("stored", BROKEN.values(), ids=BROKEN)
async def test_what_can_not_be_read_as_a_whole_stops_rescheduling_and_is_not_overwritten(
    stored: dict[str, str],
) -> None:
    stage = await taken_over(stored)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.look(60.0) == []
    assert stage.stored == stored
    assert (stage.metric("rescheduling_stopped"), stage.metric("rescheduling_unread_entries")) == (1, 1)
    ((reason, note),) = stage.said
    assert reason == HELD
    assert "what is remembered of faults can't be read, repair it or delete its ConfigMap: key memory: " in note


@pytest.mark.parametrize("stored", BROKEN.values(), ids=BROKEN)
async def test_chips_on_nodes_that_are_not_ready_stay_held_if_it_can_not_be_read_who_had_them(
    stored: dict[str, str],
) -> None:
    stage = await taken_over(stored)
    stage.world.add(node("n9"))
    await stage.look()
    await stage.look(RELEASE_AFTER_S - 1.0)
    assert stage.world.vacancy("n9").free == 0
    assert stage.world.vacancy("n8").free == 0xFF
    await stage.look(5.0)
    assert stage.world.vacancy("n9").free == 0xFF
    assert stage.stored == stored


async def test_rescheduling_goes_on_once_what_is_stored_is_repaired() -> None:
    stage = await taken_over(BROKEN["cut off"])
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.look(10.0) == []
    stage.stored = {}
    assert await stage.look(LOAD_AGAIN_S) == ["train-0"]
    assert (stage.metric("rescheduling_stopped"), stage.metric("rescheduling_unread_entries")) == (0, 0)


async def test_a_job_that_can_not_be_read_is_held_back_alone_and_its_entry_stays() -> None:
    stage = scene([*job(1, name="a"), *job(1, name="b", first_node=2)])
    plan = stage.world.cluster.jobs.job_of(next(iter(stage.world.cluster.pods.values()))).key.plan
    unreadable = {"owners": 5, "times_s": [1.0]}
    stage.stored = edited(Memory({"other": Recovery(["u"])}), lambda stored: stored["jobs"].update({plan: unreadable}))
    await stage.succeed()
    stage.world.add(report("n1", unhealthy=[0]), report("n2", unhealthy=[0]))
    assert await stage.settle() == ["b-0"]
    assert json.loads(stage.stored[KEY])["jobs"][plan] == unreadable
    assert stage.metric("rescheduling_unread_entries") == 1
    assert any(
        "what is remembered of job default/a can't be read: key memory: jobs: " in note for _, note in stage.said
    )


@pytest.mark.parametrize(("entry", "held"), [({"node": "n9", "chips": [-1]}, {"n9"}), ("?", {"n9", "n10"})])
async def test_a_pod_that_can_not_be_read_holds_all_chips_of_its_node(entry: object, held: set[str]) -> None:
    stage = scene(job(1))
    stage.world.add(lost("n9"), lost("n10"))
    stage.stored = edited(Memory(), lambda stored: stored["force_deleted"].update(x=entry))
    await stage.succeed()
    stage.world.add(node("n9"), node("n10"), report("n1", unhealthy=[0]))
    assert {name for name in ("n8", "n9", "n10") if not stage.world.vacancy(name).free} == held
    assert await stage.settle() == ["train-0"]
    assert json.loads(stage.stored[KEY])["force_deleted"] == {"x": entry}
    await stage.look(RELEASE_AFTER_S)
    assert stage.world.vacancy("n9").free == stage.world.vacancy("n10").free == 0xFF


async def test_pods_deleted_by_force_that_can_not_be_remembered_stay_and_keep_no_chips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = scene(job(1))

    async def refuse(_memory: Memory) -> None:
        raise TooLarge("pods deleted by force are too many to be remembered: 30000")

    monkeypatch.setattr(stage, "save", refuse)
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(60.0) == []
    assert stage.rescheduler.memory.force_deleted == {}
    monkeypatch.undo()
    assert await stage.look(2.0) == ["train-0"]
    assert list(stage.rescheduler.memory.force_deleted) == ["uid-train-0"]
