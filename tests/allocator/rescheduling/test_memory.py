"""What is remembered of jobs with faults survives in a ConfigMap, and what is written there by hand harms nothing."""

import json

import pytest

from allocator.rescheduling.decision import Stage
from allocator.rescheduling.memory import KEY, MAX_BYTES, Deleted, Memory, Recovery, decode, encode
from allocator.state.block_record import Spot
from ascend.errors import InvalidValue


def test_everything_is_read_back() -> None:
    recovery = Recovery(
        ["u"],
        changed_s=1.5,
        stage=Stage.BLOCKS,
        damaged=[1],
        deleted={"a": Deleted("d/a", "n1", 1.0, [0, 1])},
        chosen=["a"],
        times_s=[1.0],
        retries=2,
        spots={3: Spot("n2", 1, "o")},
    )
    memory = Memory({"StatefulSet d/a": recovery}, {"b": Deleted("d/b", "n1", 1.0)}, [(1.0, 3)])
    assert decode(encode(memory)) == (memory, [])
    assert decode({}) == (Memory(), [])


@pytest.mark.parametrize("text", ["{", "[]", '{"jobs": 5}', '{"recent": [1]}', "\ud800", "[" * 100_000])
def test_what_can_not_be_read_is_named(text: str) -> None:
    with pytest.raises(InvalidValue, match=f"key {KEY}: "):
        decode({KEY: text})


def test_an_entry_that_can_not_be_read_costs_no_other() -> None:
    job, pod = Recovery(["u"], 1.0), Deleted("d/b", "n1", 1.0, [0])
    stored = json.loads(encode(Memory({"a": job}, {"x": pod}))[KEY])
    stored["jobs"] |= {"b": {}, "c": 5}
    stored["force_deleted"] |= {"y": {**stored["force_deleted"]["x"], "chips": [-1]}}
    memory, unreadable = decode({KEY: json.dumps(stored)})
    assert memory == Memory({"a": job}, {"x": pod})
    assert [sentence.partition(": ")[2].partition(":")[0] for sentence in unreadable] == ["job b", "job c", "pod y"]


def test_of_too_many_jobs_those_that_changed_last_are_kept() -> None:
    jobs = {f"StatefulSet d/{n}": Recovery(["u" * 36], float(n), is_open=n % 2 == 0) for n in range(8_000)}
    data = encode(Memory(jobs))
    assert len(data[KEY]) <= MAX_BYTES
    kept = decode(data)[0].jobs
    assert 0 < len(kept) < len(jobs)
    assert all(each.is_open for each in kept.values()) or "StatefulSet d/7999" in kept
    assert "StatefulSet d/7998" in kept
