"""What is remembered of jobs with faults survives in a ConfigMap, and what is written there by hand harms nothing."""

import json
from random import random
from typing import Any
from uuid import uuid4

import pytest

from allocator.rescheduling.decision import Depth
from allocator.rescheduling.limits import UNKNOWN, DeletionLimits
from allocator.rescheduling.memory import Deleted, Memory, Recovery
from allocator.rescheduling.storage import KEY, MAX_BYTES, VERSION, MemoryPacking, decode
from allocator.state.previous_nodes import RankSpot
from ascend.errors import TooLarge
from tests.allocator.builders import World
from tests.allocator.rescheduling.scene import encode


def test_everything_is_read_back() -> None:
    recovery = Recovery(
        ["u"],
        changed_s=1.5,
        stage=Depth.BLOCKS,
        damaged=[1],
        deleted={"a": Deleted("d/a", "n1", 1.0, [0, 1])},
        chosen=["a"],
        times_s=[1.0],
        retries=2,
        spots={3: RankSpot("n2", 1, "o")},
    )
    memory = Memory({"StatefulSet d/a": recovery}, {"b": Deleted("d/b", "n1", 1.0)}, [(1.0, 3)])
    assert decode(encode(memory)) == (memory, [])
    assert decode({}) == (Memory(), [])


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"jobs": 5}', '{"jobs": null}', '{"force_deleted": []}', '{"version": "x"}', '{"version": 2}'),
        *("\ud800", "[" * 100_000, "zlib:", "zlib:!", "zlib:eJw="),
    ],
)
def test_what_can_not_be_read_as_a_whole_is_named(text: str) -> None:
    memory, said = decode({KEY: text})
    assert memory.broken.startswith(f"key {KEY}: ")
    assert said == [memory.broken]


def test_what_a_later_version_has_written_is_read_as_far_as_possible() -> None:
    pod = Deleted("d/b", "n1", 1.0, [0])
    stored = json.loads(encode(Memory({}, {"x": pod}, [(5.0, 2)]))[KEY])
    stored |= {"version": VERSION + 1, "new": {"a": 1}, "recent": [[5.0, 2, "x"]]}
    memory, _ = decode({KEY: json.dumps(stored)})
    assert "a later version has written it" in memory.broken
    assert (memory.force_deleted, memory.recent) == ({"x": pod}, [(5.0, 2)])


def test_an_entry_that_can_not_be_read_costs_no_other_and_is_stored_as_it_is() -> None:
    job, pod = Recovery(["u"], 1.0), Deleted("d/b", "n1", 1.0, [0])
    stored = json.loads(encode(Memory({"a": job}, {"x": pod}))[KEY])
    stored["jobs"] |= {"b": {}, "c": 5}
    stored["force_deleted"] |= {"y": {**stored["force_deleted"]["x"], "chips": [-1]}, "z": None}
    memory, said = decode({KEY: json.dumps(stored)})
    assert (memory.jobs, memory.force_deleted, memory.broken) == ({"a": job}, {"x": pod}, "")
    assert (set(memory.unread_jobs), {uid: each.node for uid, each in memory.unread_pods.items()}) == (
        {"b", "c"},
        {"y": "n1", "z": ""},
    )
    assert len(said) == 4
    assert json.loads(encode(memory)[KEY]) == stored


@pytest.mark.parametrize(
    ("recent", "read"),
    [
        (None, [(9.0, UNKNOWN)]),
        ([["x", 1]], [(9.0, UNKNOWN)]),
        ([1], [(9.0, UNKNOWN)]),
        ([[]], [(9.0, UNKNOWN)]),
        ([[1.0, 1.5]], [(1.0, 2)]),
        ([[1.0, 1, "more"]], [(1.0, 1)]),
        ([[1.0, 1], [None, 1], [2.0, 3]], [(1.0, 1), (9.0, UNKNOWN), (2.0, 3)]),
    ],
)
def test_a_number_of_deletions_that_can_not_be_read_costs_nothing_else(
    recent: Any, read: list[tuple[float, int]]
) -> None:
    memory = Memory({"a": Recovery(["u"], 1.0)}, {"x": Deleted("d/b", "n1", 1.0, [0])})
    stored = json.loads(encode(memory)[KEY]) | {"recent": recent}
    found, _ = decode({KEY: json.dumps(stored)}, 9.0)
    assert (found.jobs, found.force_deleted, found.recent) == (memory.jobs, memory.force_deleted, read)


def test_a_number_of_deletions_that_can_not_be_read_holds_others_back_for_a_minute() -> None:
    limits = DeletionLimits(World().cluster, 200, 6)
    assert limits.why_too_many(1, [(9.0, UNKNOWN)], [], 9.0) == (
        "how many pods were deleted within the last minute can't be read"
    )
    assert limits.why_too_many(1, [(9.0, UNKNOWN)], [], 69.0) is None


def recovery(pods: int, changed_s: float = 5.0, *, is_open: bool = True) -> Recovery:
    """A job of so many pods in blocks, all of which were deleted."""
    uids = [str(uuid4()) for _ in range(pods)]
    return Recovery(
        [str(uuid4())],
        changed_s,
        is_open,
        deleted={uid: forced(number) for number, uid in enumerate(uids)},
        chosen=uids,
        times_s=[changed_s],
        spots={number: RankSpot(f"node-pool-a-{number:05}", number // 8, "0" * 36) for number in range(pods)},
        faulty_nodes=[f"node-pool-a-{number:05}" for number in range(pods)],
    )


def forced(number: int) -> Deleted:
    name, node = f"team-training/llm-pretrain-worker-{number}", f"node-pool-a-{number:05}"
    return Deleted(name, node, 1.7e9 + random(), list(range(8)), at_once=True)


@pytest.mark.parametrize("pods", [3_000, 5_000])
def test_a_job_of_thousands_of_pods_and_a_small_one_are_read_back_whole(pods: int) -> None:
    memory = Memory({"big": recovery(pods), "small": recovery(1)})
    packing = MemoryPacking(memory)
    data = packing.pack()
    assert (decode(data, 2e9), packing.shortened) == ((memory, []), [])


def test_thousands_of_pods_deleted_by_force_are_read_back_beside_a_large_job() -> None:
    memory = Memory({"big": recovery(3_000)}, {str(uuid4()): forced(number) for number in range(5_000)})
    data = encode(memory)
    assert len(data[KEY]) <= MAX_BYTES
    assert decode(data, 2e9) == (memory, [])


def test_a_job_that_does_not_fit_keeps_its_counts_and_costs_no_other() -> None:
    memory = Memory({"huge": recovery(20_000, 9.0), "small": recovery(3, 5.0), "old": recovery(3, 1.0, is_open=False)})
    packing = MemoryPacking(memory)
    kept = decode(packing.pack(), 2e9)[0].jobs
    assert packing.shortened == ["huge"]
    assert (kept["small"], kept["old"]) == (memory.jobs["small"], memory.jobs["old"])
    huge = memory.jobs["huge"]
    assert (kept["huge"].times_s, kept["huge"].owners, kept["huge"].is_open) == (huge.times_s, huge.owners, True)


def test_of_too_many_jobs_those_that_changed_last_are_kept() -> None:
    jobs = {f"StatefulSet d/{n}": recovery(1, float(n), is_open=n % 2 == 0) for n in range(14_000)}
    packing = MemoryPacking(Memory(jobs))
    data = packing.pack()
    assert len(data[KEY]) <= MAX_BYTES
    kept = decode(data)[0].jobs
    assert 0 < len(kept) == len(jobs) - len(packing.shortened)
    assert all(each.is_open for each in kept.values()) or "StatefulSet d/13999" in kept
    assert "StatefulSet d/13998" in kept


def test_pods_deleted_by_force_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TooLarge, match="pods deleted by force are too many to be remembered: 30000"):
        encode(Memory({}, {str(uuid4()): forced(number) for number in range(30_000)}))
