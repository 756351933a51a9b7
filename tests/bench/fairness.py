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

import csv
import heapq
import itertools
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from rich.console import Console
from rich.table import Table

from allocator.decision.engine import DecisionEngine
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from tests.allocator.builders import GROUP, node, pod
from tests.bench.outcome import Outcome, Run, p50, p99, percentile, table
from tests.bench.plot import Panel, save

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


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """A pod alone, or a gang of whole servers.

    Attributes:
        arrives_h: when it is created, in hours.
        number: in order of arrival.
        servers: the number of pods of a gang, each of which takes a server; 0 for a pod alone.
        chips: the number of chips of each pod.
        lasts_h: how long it runs once it is placed, in hours.
    """

    arrives_h: float
    number: int
    servers: int
    chips: int
    lasts_h: float

    @property
    def size(self) -> int:
        """The number of its chips."""
        return self.chips * (self.servers or 1)

    def pods(self) -> list[Pod]:
        """Its pods."""
        since = f"{self.arrives_h:012.6f} {self.number:08}"  # only the order of the times of creation matters
        if not self.servers:
            return [pod(f"job-{self.number}", self.chips, since=since)]
        annotations = {GROUP: f"job-{self.number}", MIN_AVAILABLE: str(self.servers)}
        return [
            pod(f"job-{self.number}-{rank}", self.chips, annotations=annotations, since=since)
            for rank in range(self.servers)
        ]


def trace(hours: float, seed: int) -> list[Job]:
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
        Job(
            arrives_h,
            number,
            servers,
            8 if servers else rng.choice(REQUESTS),
            rng.expovariate(1 / (GANG_LIFE_H if servers else SINGLE_LIFE_H)),
        )
        for number, (arrives_h, servers) in enumerate(sorted(arrivals))
    ]


@dataclass(slots=True)
class Result:
    """What became of the jobs.

    Attributes:
        waited: each job, and how long it waited, in hours; jobs that never started waited until the end.
        waiting: the number of jobs that still waited at the end, by the number of their servers.
        used: the share of the chips that were used, on average.
    """

    waited: list[tuple[Job, float]] = field(default_factory=list)
    waiting: Counter[int] = field(default_factory=Counter)
    used: float = 0.0

    @property
    def waited_h(self) -> dict[int, list[float]]:
        """The waiting times by the number of servers."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        for job, hours in self.waited:
            found[job.servers].append(hours)
        return dict(found)

    @property
    def by_size(self) -> dict[int, list[float]]:
        """The waiting times by the number of chips."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        for job, hours in self.waited:
            found[job.size].append(hours)
        return dict(sorted(found.items()))

    def of_gangs(self) -> list[float]:
        """The waiting times of all gangs."""
        return [hours for job, hours in self.waited if job.servers]

    @property
    def means_h(self) -> dict[int, float]:
        """The mean waiting times by the number of chips."""
        return {size: sum(waited) / len(waited) for size, waited in self.by_size.items()}

    def mean_h(self) -> float:
        """The mean waiting time of all jobs."""
        return sum(hours for _, hours in self.waited) / max(len(self.waited), 1)


class Simulation:
    """A cluster of idle servers, the engine, and a clock.

    Args:
        share: the setting ``earmark_share``.
        nodes: the number of servers.
        warm_up_h: the time at the beginning that does not count, in hours.
    """

    tries_all: ClassVar = False
    """Whether all waiting jobs are tried when one arrives; else that one."""

    def __init__(self, share: float, nodes: int = NODES, warm_up_h: float | None = None) -> None:
        self._warm_up_h = _WARM_UP_H if warm_up_h is None else warm_up_h
        self.now_h = 0.0
        self.result = Result()
        ledger = Ledger(ttl_s=30.0, monotonic=lambda: self.now_h * 3600)
        self._nodes = nodes
        self._cluster = Cluster(ledger)
        self._engine = DecisionEngine(self._cluster, ledger, earmark_share=share)
        self._cluster_chips = 0.0
        self._running: list[tuple[float, int, list[Pod]]] = []
        self._waiting: dict[Job, list[Pod]] = {}
        self._taken = 0
        for number in range(nodes):
            self._cluster.node_applied(node(f"n{number:04}"))

    def run(self, jobs: Sequence[Job], until_h: float) -> Result:
        """Start and end the jobs."""
        for job in jobs:
            self._end(job.arrives_h)
            self._pass(job.arrives_h)
            pods = self._waiting[job] = job.pods()
            for each in pods:
                self._cluster.pod_applied(each)
            self._try(list(self._waiting) if self.tries_all else [job])
        self._end(until_h)
        self._pass(until_h)
        for job in self._waiting:
            self.result.waiting[job.servers] += job.arrives_h >= self._warm_up_h
            self._record(job)
        self.result.used = self._cluster_chips / (self._nodes * 8 * (until_h - self._warm_up_h))
        return self.result

    def _end(self, until_h: float) -> None:
        while self._running and self._running[0][0] <= until_h:
            ends_h, _, pods = heapq.heappop(self._running)
            self._pass(ends_h)
            for each in pods:
                self._taken -= each.spec.containers[0].chips
                self._cluster.pod_deleted(each)
            self._try(list(self._waiting))

    def _pass(self, until_h: float) -> None:
        self._cluster_chips += self._taken * max(until_h - max(self.now_h, self._warm_up_h), 0.0)
        self.now_h = until_h

    def _try(self, jobs: Iterable[Job]) -> None:
        refused = set[tuple[int, int]]()  # if one job fits nowhere, no other job of the same size does
        for job in jobs:
            if (job.servers, job.chips) in refused:
                continue
            try:
                self._start(job)
            except Refusal:
                refused.add((job.servers, job.chips))

    def _start(self, job: Job, candidates: Collection[str] | None = None) -> None:
        bound: list[Pod] = []
        for each in self._waiting[job]:
            self._engine.gangs.obstacles.on_request(each)
        for each in self._waiting[job]:
            held = self._engine.place(each, candidates)
            running = pod(
                each.name, len(held.take.chips), node=held.node, chips=held.take.chips, phase="Running",
                annotations=each.metadata.annotations, since=each.metadata.creation_timestamp or "",
            )  # fmt: skip
            self._cluster.pod_applied(running)
            self._taken += len(held.take.chips)
            bound.append(running)
        del self._waiting[job]
        self._record(job)
        heapq.heappush(self._running, (self.now_h + job.lasts_h, job.number, bound))

    def _record(self, job: Job) -> None:
        if job.arrives_h >= self._warm_up_h:
            self.result.waited.append((job, self.now_h - job.arrives_h))


class StrictOrder(Simulation):
    """No job starts before an older one."""

    tries_all = True

    def _try(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            try:
                self._start(job)
            except Refusal:
                return


class Easy(StrictOrder):
    """A younger job starts only if the oldest one that waits starts no later for it, by the durations of all jobs."""

    def _try(self, jobs: Iterable[Job]) -> None:
        super()._try(jobs)
        if not self._waiting:
            return
        first, *others = self._waiting
        starts_h, nodes = self._earliest(first)
        rest = [name for name in self._cluster.nodes if name not in nodes]
        refused = set[tuple[int, int, bool]]()
        for job in others:
            is_short = self.now_h + job.lasts_h <= starts_h
            kind = job.servers, job.chips, is_short
            if kind in refused:
                continue
            try:
                self._start(job, None if is_short else rest)
            except Refusal:
                refused.add(kind)

    def _earliest(self, job: Job) -> tuple[float, Collection[str]]:
        """When a job will fit at the earliest, and on which nodes."""
        free = {name: 0xFF & ~record.held for name, record in self._cluster.nodes.items()}
        request = ChipRequest(job.chips)
        fitting = {name for name, chips in free.items() if _fits(chips, request)}
        for ends_h, _, pods in sorted(self._running, key=lambda each: each[:2]):
            for each in pods:
                name = each.spec.node_name
                free[name] |= self._cluster.nodes[name].holdings[each.uid].chips
                if _fits(free[name], request):
                    fitting.add(name)
            if len(fitting) >= (job.servers or 1):
                return ends_h, sorted(fitting)[: job.servers or 1]
        return float("inf"), ()


class Asked(Simulation):
    """kube-scheduler's order among equal priorities: by the last attempt, with those in backoff behind the others.

    Those come in the order in which their backoff ends, without waiting for it: kube-scheduler does so while it has no
    other pods (k/k:pkg/scheduler/backend/queue, SchedulerPopFromBackoffQ).
    """

    def __init__(self, share: float, nodes: int = NODES, warm_up_h: float | None = None) -> None:
        super().__init__(share, nodes, warm_up_h)
        self._attempts: dict[Job, tuple[float, int, int]] = {}
        self._numbers = itertools.count()

    def _try(self, jobs: Iterable[Job]) -> None:
        ordered = sorted(jobs, key=self._turn)
        super()._try(ordered)
        for job in ordered:
            if job in self._waiting:
                _, _, attempts = self._attempts.get(job, (0.0, 0, 0))
                self._attempts[job] = self.now_h, next(self._numbers), attempts + 1
            else:
                self._attempts.pop(job, None)

    def _turn(self, job: Job) -> tuple[bool, float, int]:
        if job not in self._attempts:
            return False, job.arrives_h, job.number
        tried_h, number, attempts = self._attempts[job]
        ready_h = tried_h + min(2 ** (attempts - 1), _LONGEST_BACKOFF_S) / 3600
        return (True, ready_h, number) if ready_h > self.now_h else (False, tried_h, number)


def _fits(chips: ChipSet, request: ChipRequest) -> bool:
    return capacity(Vacancy(ASCEND_910A, 8, chips, chips.bit_count()), request)[0] > 0


def simulations(nodes: int, warm_up_h: float) -> dict[str, Simulation]:
    """One of each rule, by its name."""
    return {
        NOT_KEPT: Simulation(0.0, nodes, warm_up_h),
        KEPT: Simulation(_SHARE, nodes, warm_up_h),
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
        results[name] = rules[name].run(jobs, hours)
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
            f"mean of all jobs: {result.mean_h():.2f} h; still waiting: {result.waiting.total():,}; "
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


def read(path: Path, nodes: int, load: float) -> list[Job]:
    """The jobs of a trace, whose arrivals are stretched to a load of the nodes."""
    with path.open() as lines:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(lines)]
    work_s, last_s = sum(row["duration_s"] * row["chips"] for row in rows), max(row["submit_s"] for row in rows)
    stretch = work_s / (nodes * 8 * load) / last_s
    return [
        Job(
            row["submit_s"] * stretch / 3600,
            number,
            int(row["chips"]) // 8 if row["chips"] > 8 else 0,
            min(int(row["chips"]), 8),
            row["duration_s"] / 3600,
        )
        for number, row in enumerate(sorted(rows, key=lambda row: row["submit_s"]))
    ]


def compared(results: dict[str, Result]) -> Table:
    """The mean waiting times by size under each rule."""
    shown = table("rule", "all, h", "of EASY", "still waiting", *(f"{size} chips" for size in results[EASY].by_size))
    for name, result in results.items():
        ratio = f"{result.mean_h() / results[EASY].mean_h():.2f}"
        cells = (f"{hours:.1f}" for hours in result.means_h.values())
        shown.add_row(name, f"{result.mean_h():.1f}", ratio, f"{result.waiting.total():,}", *cells)
    return shown


def with_easy(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each trace and load: how much longer jobs wait with the allocator than with EASY backfill.

    In the order of arrival and in kube-scheduler's.
    """
    for name, nodes in TRACES.items():
        for load in LOADS:
            jobs = read(folder / f"{name}.csv", nodes, load)
            easy = Easy(0.0, nodes, 0.0).run(jobs, jobs[-1].arrives_h)
            row = [name, f"{nodes}", f"{load}", f"{easy.mean_h():.1f}"]
            for order in (Simulation, Asked):
                ours = order(_SHARE, nodes, 0.0).run(jobs, jobs[-1].arrives_h)
                ratios = {size: _ratio(mean_h, easy.means_h[size]) for size, mean_h in ours.means_h.items()}
                size = max(ratios, key=ratios.__getitem__)
                row += [f"{ours.mean_h():.1f}", f"{_ratio(ours.mean_h(), easy.mean_h()):.2f}"]
                row += [f"{ratios[size]:.2f} ({size} chips)"]
            yield tuple(row)


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
    save(path, title, panels)


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
    until_h = jobs[-1].arrives_h
    rules = simulations(int(nodes), 0.0) | {ASKED: Asked(_SHARE, int(nodes), 0.0)}
    results = {name: each.run(jobs, until_h) for name, each in rules.items()}
    Console(width=140).print(compared(results))
    for plot in plots:
        title = f"How long jobs wait: {Path(trace_file).stem} at {float(load):.0%} load on {nodes} servers"
        _plot(Path(plot), title, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
