"""How long jobs wait by their size, with and without chips that are kept for the oldest one, on a virtual clock.

The same jobs are given to the allocator's engine under several rules. All jobs have one priority. After every end all
waiting jobs are tried in the order of their arrival, or as kube-scheduler asks for them: a large one is tried before
the younger ones, and is starved nevertheless if nothing is kept for it. Two rules of the literature are the references:
strict first come, first served, and EASY backfill (Lifka 1995), which is told how long each job will run; the allocator
is not.

``python -m tests.bench.fairness TRACE NODES LOAD [PLOT]`` compares them on jobs of a file with the columns submit_s,
duration_s and chips, whose arrivals are stretched to the load; ``python -m tests.bench.fairness FOLDER`` compares the
allocator in both orders with EASY backfill on each trace of Microsoft's Philly cluster in a folder, at several loads.
"""

import itertools
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.settings import Settings
from ascend.chips import ChipSet, chip_set
from ascend.daemon.settings import fixed_settings
from ascend.products import ASCEND_910A
from npuctl.reading.objects import ClusterObjects
from npuctl.simulate.chart import Panel
from npuctl.simulate.jobs import HOUR_S, SimulatedJob, at_load, read_jobs
from npuctl.simulate.measures import Measures, percentile
from npuctl.simulate.servers import described_nodes
from npuctl.simulate.sides import Side
from npuctl.simulate.simulation import Simulation
from tests.bench.outcome import Outcome, Run, p50, p99, save_chart, table

NODES: Final = 160
CHIPS: Final = NODES * 8
LOAD: Final = 0.95
GANG_SHARE: Final = 0.25
"""The share of the load that is of gangs."""
SERVERS: Final = (4, 8, 16, 32, 64)
"""The sizes of gangs; as many chips are requested by those of each size."""
REQUESTS: Final = (1, 2, 4, 8)
SINGLE_LIFE_H: Final = 0.5
GANG_LIFE_H: Final = 2.0
KEPT: Final = "kept for the oldest waiting job"
ASKED: Final = f"{KEPT}, in kube-scheduler's order"
NOT_KEPT: Final = "nothing is kept"
FCFS: Final = "strict first come, first served"
EASY: Final = "EASY backfill, told all durations"
TRACES: Final = {"philly-1": 18, "philly-2": 48, "philly-4": 16}
"""Traces, and the number of servers for the jobs of each."""
LOADS: Final = (0.8, 0.9, 1.0)
_LITTLE_H: Final = 0.01
"""Added to waiting times that are compared: one of them may be 0."""
_DAYS: Final = {True: 0.5, False: 1.0}
_WARM_UP_H: Final = 4.0
_SHARE: Final = 0.5
_LONGEST_BACKOFF_S: Final = 10
_NOW_NS: Final = 1_767_225_600 * 10**9


def trace(hours: float, seed: int) -> list[SimulatedJob]:
    """Random arrivals and durations of gangs and pods alone, which together would use ``LOAD`` of the chips."""
    rng = random.Random(seed)
    per_hour = {0: (1 - GANG_SHARE) * LOAD * CHIPS / (sum(REQUESTS) / len(REQUESTS) * SINGLE_LIFE_H)}
    for servers in SERVERS:
        per_hour[servers] = GANG_SHARE / len(SERVERS) * LOAD * CHIPS / (servers * 8 * GANG_LIFE_H)
    arrivals: list[tuple[float, int]] = []
    for servers, rate in per_hour.items():
        now_h = rng.expovariate(rate)
        while now_h < hours:
            arrivals.append((now_h, servers))
            now_h += rng.expovariate(rate)
    return [
        SimulatedJob(
            arrives_h * HOUR_S,
            number,
            8 if servers else rng.choice(REQUESTS),
            rng.expovariate(1 / (GANG_LIFE_H if servers else SINGLE_LIFE_H)) * HOUR_S,
            servers or 1,
        )
        for number, (arrives_h, servers) in enumerate(sorted(arrivals))
    ]


class Result:
    """What became of the jobs, which wait until the end if they never start.

    Attributes:
        waited: each job, and how long it waited, in hours.
        waiting: the jobs that still waited at the end.
        by_size: the waiting times by the number of chips.
        used: the share of the chips that were used, on average.
    """

    def __init__(self, measures: Measures) -> None:
        outcomes = measures.after_warm_up()
        self.waited = [(job, outcome.waited_s / HOUR_S) for job, outcome in outcomes.items()]
        self.waiting = [job for job, outcome in outcomes.items() if outcome.started_s is None]
        self.by_size = measures.waited_h()
        self.used = measures.share_used()

    def of_gangs(self) -> list[float]:
        """The waiting times of all gangs."""
        return [hours for job, hours in self.waited if job.pods > 1]

    @property
    def means_h(self) -> dict[int, float]:
        """The mean waiting times by the number of chips."""
        return {size: sum(waited) / len(waited) for size, waited in self.by_size.items()}

    def mean_h(self) -> float:
        """The mean waiting time of all jobs."""
        return sum(hours for _, hours in self.waited) / max(len(self.waited), 1)


class ByArrival(Simulation):
    """Idle 910A servers, and the allocator's engine with its default settings.

    Args:
        share: the setting ``earmark_share``.
        nodes: the number of servers.
        warm_up_h: the time at the beginning that does not count, in hours.
    """

    def __init__(self, share: float, nodes: int = NODES, warm_up_h: float = _WARM_UP_H) -> None:
        objects = ClusterObjects.of(described_nodes(f"{nodes}x910A-8"))
        side = Side("", objects, fixed_settings(Settings, None, {"earmark_share": share}), _NOW_NS)
        fleet = side.servers()
        super().__init__(fleet, side.schedule(()), measures=Measures(fleet, warm_up_h * HOUR_S))

    def result(self, jobs: Sequence[SimulatedJob], until_h: float) -> Result:
        """Start and end the jobs that arrive until a time."""
        return Result(self.run([job for job in jobs if job.arrives_s <= until_h * HOUR_S], until_h * HOUR_S))


class StrictOrder(ByArrival):
    """No job starts before an older one."""

    tries_all = True

    def _try(self, jobs: Iterable[SimulatedJob]) -> None:
        for job in jobs:
            if not self.start(job):
                return


class Easy(StrictOrder):
    """A younger job starts only if the oldest one that waits starts no later for it, by the durations of all jobs."""

    def _try(self, jobs: Iterable[SimulatedJob]) -> None:
        super()._try(jobs)
        if not self.waiting:
            return
        first, *others = self._in_turn(self.waiting)
        starts_s, nodes = self._earliest(first)
        rest = [name for name in self.servers if name not in nodes]
        refused = set[tuple[int, int, bool]]()
        for job in others:
            is_short = self.now_s + job.lasts_s <= starts_s
            kind = job.pods, job.chips, is_short
            if kind not in refused and not self.start(job, None if is_short else rest):
                refused.add(kind)

    def _earliest(self, job: SimulatedJob) -> tuple[float, Collection[str]]:
        """When a job will fit at the earliest, and on which nodes."""
        free = {name: self.servers.state(name).free for name in self.servers}
        request = ChipRequest(job.chips)
        fitting = {name for name, chips in free.items() if _fits(chips, request)}
        for _, ends_s, places in sorted(self.running.values(), key=lambda run: run[1]):
            for place in places:
                free[place.node] |= chip_set(place.chips)
                if _fits(free[place.node], request):
                    fitting.add(place.node)
            if len(fitting) >= job.pods:
                return ends_s, sorted(fitting)[: job.pods]
        return float("inf"), ()


class Asked(ByArrival):
    """kube-scheduler's order among equal priorities: by the last attempt, with those in backoff behind the others.

    Those come in the order in which their backoff ends, without waiting for it: kube-scheduler does so while it has no
    other pods (k/k:pkg/scheduler/backend/queue, SchedulerPopFromBackoffQ).
    """

    def __init__(self, share: float, nodes: int = NODES, warm_up_h: float = _WARM_UP_H) -> None:
        self._attempts: dict[SimulatedJob, tuple[float, int, int]] = {}
        self._numbers = itertools.count()
        super().__init__(share, nodes, warm_up_h)

    def _try(self, jobs: Iterable[SimulatedJob]) -> None:
        tried = list(jobs)
        super()._try(tried)
        for job in tried:
            if job in self.waiting:
                _, _, attempts = self._attempts.get(job, (0.0, 0, 0))
                self._attempts[job] = self.now_s, next(self._numbers), attempts + 1
            else:
                self._attempts.pop(job, None)

    def _in_turn(self, jobs: Iterable[SimulatedJob]) -> list[SimulatedJob]:
        return sorted(jobs, key=self._turn)

    def _turn(self, job: SimulatedJob) -> tuple[bool, float, int]:
        if job not in self._attempts:
            return False, job.arrives_s, job.number
        tried_s, number, attempts = self._attempts[job]
        ready_s = tried_s + min(2 ** (attempts - 1), _LONGEST_BACKOFF_S)
        return (True, ready_s, number) if ready_s > self.now_s else (False, tried_s, number)


def _fits(chips: ChipSet, request: ChipRequest) -> bool:
    return capacity(Vacancy(ASCEND_910A, 8, chips, chips.bit_count()), request)[0] > 0


def simulations(nodes: int, warm_up_h: float) -> dict[str, ByArrival]:
    """One of each rule, by its name."""
    return {
        NOT_KEPT: ByArrival(0.0, nodes, warm_up_h),
        KEPT: ByArrival(_SHARE, nodes, warm_up_h),
        FCFS: StrictOrder(0.0, nodes, warm_up_h),
        EASY: Easy(0.0, nodes, warm_up_h),
    }


async def measure(run: Run) -> Outcome:
    """Compare the waiting times by size under each rule."""
    outcome, hours = Outcome(), _DAYS[run.quick] * 24
    jobs = trace(hours, run.seed)
    results: dict[str, Result] = {}
    rules = simulations(NODES, _WARM_UP_H)
    for step in run.steps(f"{len(jobs):,} jobs", len(rules)):
        name = list(rules)[step]
        results[name] = rules[name].result(jobs, hours)
    for name, result in results.items():
        shown = table("chips", "jobs", "waited, h\nmean", "\nmedian", "\np90", "\np99", "\nlongest")
        for size, waited in result.by_size.items():
            numbers = [sum(waited) / len(waited), p50(waited), percentile(waited, 0.9), p99(waited), max(waited)]
            shown.add_row(f"{size:,}", f"{len(waited):,}", *(f"{each:.2f}" for each in numbers))
            outcome.raw[f"{name}, {size} chips, waited, h"] = [round(each, 4) for each in waited]
        outcome.raw[f"{name}, used, share"] = result.used
        outcome.show(
            f"fairness: {name}",
            shown,
            f"mean of all jobs: {result.mean_h():.2f} h; still waiting: {len(result.waiting):,}; "
            f"chips in use on average: {result.used:.1%}",
        )
    path = run.plots / "waiting-times.svg"
    _plot(path, f"How long jobs wait at {LOAD:.0%} load on {NODES} servers", results)
    outcome.shown += [
        f"fairness: {len(jobs):,} jobs in {hours:.0f} h on {NODES} servers of 8 chips, {LOAD:.0%} load.",
        f"{GANG_SHARE:.0%} of the load are gangs of whole servers, all sizes alike; the rest are single pods.",
        f"The plot of the waiting times: {path}",
    ]
    return outcome


def read(path: Path, nodes: int, load: float) -> list[SimulatedJob]:
    """The jobs of a trace, whose arrivals are stretched to a load of the nodes."""
    return at_load(read_jobs(path, 8, lambda _sentence: None), nodes * 8, load)


def compared(results: dict[str, Result]) -> Table:
    """The mean waiting times by size under each rule."""
    shown = table("rule", "all, h", "of EASY", "still waiting", *(f"{size} chips" for size in results[EASY].by_size))
    for name, result in results.items():
        ratio = f"{result.mean_h() / results[EASY].mean_h():.2f}"
        cells = (f"{hours:.1f}" for hours in result.means_h.values())
        shown.add_row(name, f"{result.mean_h():.1f}", ratio, f"{len(result.waiting):,}", *cells)
    return shown


def with_easy(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each trace and load: how much longer jobs wait with the allocator than with EASY backfill.

    In the order of arrival and in kube-scheduler's.
    """
    for name, nodes in TRACES.items():
        for load in LOADS:
            jobs = read(folder / f"{name}.csv", nodes, load)
            easy = Easy(0.0, nodes, 0.0).result(jobs, _last_h(jobs))
            row = [name, f"{nodes}", f"{load}", f"{easy.mean_h():.1f}"]
            for order in (ByArrival, Asked):
                ours = order(_SHARE, nodes, 0.0).result(jobs, _last_h(jobs))
                ratios = {size: _ratio(mean_h, easy.means_h[size]) for size, mean_h in ours.means_h.items()}
                size = max(ratios, key=ratios.__getitem__)
                row += [f"{ours.mean_h():.1f}", f"{_ratio(ours.mean_h(), easy.mean_h()):.2f}"]
                row += [f"{ratios[size]:.2f} ({size} chips)"]
            yield tuple(row)


def _last_h(jobs: Sequence[SimulatedJob]) -> float:
    return jobs[-1].arrives_s / HOUR_S


def _ratio(hours: float, of_h: float) -> float:
    return (hours + _LITTLE_H) / (of_h + _LITTLE_H)


def _plot(path: Path, title: str, results: dict[str, Result]) -> None:
    def curve(waited: list[float]) -> list[tuple[float, float]]:
        ordered = sorted(waited) or [0.0]
        return [(share, percentile(ordered, share / 100)) for share in range(1, 101)]

    panels = [
        Panel(
            what,
            "% of them waited at most so long",
            "hours",
            {
                name: curve([hours for job, hours in result.waited if least <= job.size <= most])
                for name, result in results.items()
            },
        )
        for what, least, most in (("Less than a server", 1, 7), ("One server", 8, 8), ("Gangs of servers", 9, CHIPS))
    ]
    save_chart(path, title, panels)


def main(trace_file: str, nodes: str = "", load: str = "", *plots: str) -> None:
    """Compare the rules on a trace, until its last arrival, or two of them on all traces of a folder."""
    if not nodes:
        ours = "all, h", "of EASY", "the worst size"
        orders = (f"{order}\n{column}" for order in ("by arrival:", "as asked:") for column in ours)
        shown = table("trace", "servers", "load", "EASY, h", *orders)
        for row in with_easy(Path(trace_file)):
            shown.add_row(*row)
        Console(width=140).print(shown)
        return
    jobs = read(Path(trace_file), int(nodes), float(load))
    rules = simulations(int(nodes), 0.0) | {ASKED: Asked(_SHARE, int(nodes), 0.0)}
    results = {name: each.result(jobs, _last_h(jobs)) for name, each in rules.items()}
    Console(width=140).print(compared(results))
    for plot in plots:
        title = f"How long jobs wait: {Path(trace_file).stem} at {float(load):.0%} load on {nodes} servers"
        _plot(Path(plot), title, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
