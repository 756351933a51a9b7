"""The simulation of waiting times: what it measures, and that gangs are not starved while nodes are kept for them."""

from pathlib import Path

import pytest

from npuctl.simulate.jobs import HOUR_S, SimulatedJob
from tests.bench.fairness import CHIPS, GANG_SHARE, LOAD, LOADS, TRACES, Asked, ByArrival, trace, with_easy


def job(arrives_h: float, number: int, pods: int, chips: int, lasts_h: float) -> SimulatedJob:
    return SimulatedJob(arrives_h * HOUR_S, number, chips, lasts_h * HOUR_S, pods)


def test_the_jobs_would_use_the_stated_share_of_the_chips() -> None:
    jobs, hours = trace(500.0, 1), 500.0
    gangs = sum(job.lasts_s / HOUR_S * job.size for job in jobs if job.pods > 1)
    alone = sum(job.lasts_s / HOUR_S * job.chips for job in jobs if job.pods == 1)
    assert (gangs + alone) / (CHIPS * hours) == pytest.approx(LOAD, rel=0.1)
    assert gangs / (gangs + alone) == pytest.approx(GANG_SHARE, rel=0.2)


@pytest.mark.parametrize(("share", "starts_h"), [(0.5, 13.0), (0.0, None)])
def test_a_gang_among_pods_of_whole_servers_starts_only_if_nodes_are_kept(share: float, starts_h: float | None) -> None:
    # Each of 4 servers is taken by a pod for 4 h, the next one ends 1 h later, and another pod waits already.
    stream = [job(float(hour), hour, 1, 8, 4.0) for hour in range(40)]
    gang = job(5.5, 100, 2, 8, 1.0)
    jobs = sorted(
        [*stream, gang, *(job(5.6, 101 + number, 1, 8, 4.0) for number in range(8))], key=lambda each: each.arrives_s
    )
    result = ByArrival(share, nodes=4).result(jobs, 30.0)
    assert gang in result.waiting if starts_h is None else result.of_gangs() == [pytest.approx(starts_h - 5.5)]


@pytest.mark.parametrize(
    ("order", "ends_s", "is_first_served"), [(ByArrival, 1.5, True), (Asked, 1.5, False), (Asked, 3.0, True)]
)
def test_kube_scheduler_asks_for_a_job_in_backoff_behind_a_younger_one(
    order: type[ByArrival], ends_s: float, *, is_first_served: bool
) -> None:
    second_h = 1 / 3600
    running = [job(0.0, 0, 1, 4, 1.0), job(0.0, 1, 1, 4, 1.0 + ends_s * second_h)]
    older, younger = job(0.5, 2, 1, 8, 1.0), job(1.0 + 0.2 * second_h, 3, 1, 8, 1.0)
    waited_h = dict(order(0.0, nodes=1, warm_up_h=0.0).result([*running, older, younger], 4.0).waited)
    assert (waited_h[older] < waited_h[younger] + 0.5) is is_first_served


def test_each_trace_is_compared_with_easy_backfill_at_each_load(tmp_path: Path) -> None:
    for name in TRACES:
        rows = [f"{second},7200,{chips}" for second in range(3) for chips in (1, 8, 16)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["submit_s,duration_s,chips", *rows]))
    rows_of = list(with_easy(tmp_path))
    assert [row[:3] for row in rows_of] == [(name, f"{TRACES[name]}", f"{load}") for name in TRACES for load in LOADS]
