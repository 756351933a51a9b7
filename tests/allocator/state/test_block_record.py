"""Where the pods of jobs with blocks were."""

from allocator.rules.job import JobKey
from allocator.state.previous_nodes import BLOCKS_TTL_S, BlockRecord, RankSpot
from ascend.jobs.pod_groups import VOLCANO

A, B, C = (JobKey("default", name, VOLCANO) for name in "abc")


def test_a_job_without_pods_is_forgotten_some_time_after_its_last_change() -> None:
    record = BlockRecord(lambda job: job == B)
    for job in (A, B):
        record.remember(job, 0, RankSpot("n1", 0, "u"), 0.0)
    record.remember(C, 0, RankSpot("n2", 0, "u"), BLOCKS_TTL_S)
    assert record.of(A) == {0: RankSpot("n1", 0, "u")}
    record.remember(C, 1, RankSpot("n3", 0, "u"), BLOCKS_TTL_S + 1)
    assert record.of(A) == {}
    assert record.of(B) == {0: RankSpot("n1", 0, "u")}
    assert record.of(C) == {0: RankSpot("n2", 0, "u"), 1: RankSpot("n3", 0, "u")}


def test_the_last_node_of_a_rank_counts() -> None:
    record = BlockRecord(lambda _job: True)
    record.remember(A, 0, RankSpot("n1", 0, "u"), 0.0)
    record.remember(A, 0, RankSpot("n2", 0, "u"), 1.0)
    assert record.of(A) == {0: RankSpot("n2", 0, "u")}


def test_jobs_that_run_for_long_are_remembered_however_many_there_are() -> None:
    record = BlockRecord(lambda _job: True)
    for job in (A, B, C):
        record.remember(job, 0, RankSpot("n1", 0, "u"), 0.0)
    record.remember(A, 1, RankSpot("n2", 0, "u"), 10 * BLOCKS_TTL_S)
    assert all(record.of(job) for job in (A, B, C))
