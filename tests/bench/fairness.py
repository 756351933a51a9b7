"""How long gangs wait among a stream of small pods, with and without nodes that are kept for them, on a virtual clock.

The same seeded jobs are given to the allocator's engine twice. All jobs have one priority. After every end all waiting
jobs are tried in the order of their arrival, as kube-scheduler does: a gang is tried before the younger pods, and is
starved nevertheless if nothing is kept for it.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
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
KEPT: Final = "nodes that drain are kept for the oldest waiting gang"
NOT_KEPT: Final = "nothing is kept"
_DAYS: Final = {True: 0.5, False: 4.0}
_WARM_UP_H: Final = 4.0
_SHARE: Final = 0.5


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

    def pods(self) -> list[Pod]:
        """Its pods."""
        if not self.servers:
            return [pod(f"job-{self.number}", self.chips)]
        annotations = {GROUP: f"job-{self.number}", MIN_AVAILABLE: str(self.servers)}
        # Only the order of the times of creation matters.
        since = f"{self.number:08}"
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
        waited_h: how long each job waited, in hours, by the number of its servers; jobs that never started waited until
            the end.
        waiting: the number of jobs that still waited at the end, likewise.
        used: the share of the chips that were used, on average.
    """

    waited_h: dict[int, list[float]] = field(default_factory=lambda: {servers: [] for servers in (0, *SERVERS)})
    waiting: Counter[int] = field(default_factory=Counter)
    used: float = 0.0

    def of_gangs(self) -> list[float]:
        """The waiting times of all gangs."""
        return [hours for servers in SERVERS for hours in self.waited_h[servers]]


class Simulation:
    """A cluster of idle servers, the engine, and a clock.

    Args:
        share: the setting ``gang_earmark_share``.
        nodes: the number of servers.
    """

    def __init__(self, share: float, nodes: int = NODES) -> None:
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
            self._try([job])
        self._end(until_h)
        self._pass(until_h)
        for job in self._waiting:
            self.result.waiting[job.servers] += job.arrives_h >= _WARM_UP_H
            self._record(job)
        self.result.used = self._cluster_chips / (self._nodes * 8 * (until_h - _WARM_UP_H))
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
        self._cluster_chips += self._taken * max(until_h - max(self.now_h, _WARM_UP_H), 0.0)
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

    def _start(self, job: Job) -> None:
        bound: list[Pod] = []
        for each in self._waiting[job]:
            self._engine.gangs.obstacles.asked(each)
        for each in self._waiting[job]:
            held = self._engine.place(each)
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
        if job.arrives_h >= _WARM_UP_H:
            self.result.waited_h.setdefault(job.servers, []).append(self.now_h - job.arrives_h)


async def measure(run: Run) -> Outcome:
    """Compare the waiting times of gangs and pods alone with and without kept nodes."""
    outcome, hours = Outcome(), _DAYS[run.quick] * 24
    jobs = trace(hours, run.seed)
    results: dict[str, Result] = {}
    rules = {KEPT: _SHARE, NOT_KEPT: 0.0}
    for step in run.steps(f"{len(jobs):,} jobs", len(rules)):
        name = list(rules)[step]
        results[name] = Simulation(rules[name]).run(jobs, hours)
    for name, result in results.items():
        shown = table("jobs", "number", "waited, h\nmedian", "\np90", "\np99", "\nlongest", "still\nwaiting")
        for servers, waited in result.waited_h.items():
            what = f"gangs of {servers} servers" if servers else "pods alone"
            numbers = [p50(waited), percentile(waited, 0.9), p99(waited), max(waited)] if waited else []
            shown.add_row(
                what, f"{len(waited):,}", *(f"{each:.2f}" for each in numbers), f"{result.waiting[servers]:,}"
            )
            if waited:
                outcome.raw[f"{name}, {what}, waited, h"] = [round(each, 4) for each in waited]
        outcome.raw[f"{name}, used, share"] = result.used
        outcome.show(
            f"fairness: {name}",
            shown,
            f"chips in use on average: {result.used:.1%}",
        )
    path = run.plots / "waiting-times.svg"
    _plot(path, results)
    outcome.shown += [
        f"fairness: {len(jobs):,} jobs in {hours:.0f} h on {NODES} servers of 8 chips, {LOAD:.0%} load.",
        f"{GANG_SHARE:.0%} of the load are gangs of whole servers, all sizes alike; the rest are single pods.",
        f"The plot of the waiting times: {path}",
    ]
    return outcome


def _plot(path: Path, results: dict[str, Result]) -> None:
    def curve(waited: list[float]) -> list[tuple[float, float]]:
        ordered = sorted(waited) or [0.0]
        return [(share, percentile(ordered, share / 100)) for share in range(1, 101)]

    panels = [
        Panel(
            "Gangs of 4 to 64 servers",
            "% of them waited at most so long",
            "hours",
            {name: curve(result.of_gangs()) for name, result in results.items()},
        ),
        Panel(
            "Pods of 1, 2, 4 and 8 chips",
            "% of them waited at most so long",
            "hours",
            {name: curve(result.waited_h[0]) for name, result in results.items()},
        ),
    ]
    save(path, f"How long jobs wait at {LOAD:.0%} load on {NODES} servers", panels)
