"""How usable the free chips of a cluster are while jobs start and end: the allocator compared with simple rules."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table

from npuctl.simulate.chart import Panel
from tests.bench.occupancy import Occupancy, Sample
from tests.bench.outcome import Outcome, Run, p99, save_chart, table
from tests.bench.placers import Place, Placer, placers
from tests.bench.trace import MEAN_LIFE_H, Job, in_turn, trace

NODES: Final = 100
CHIPS: Final = NODES * 8
PODS_IN_TURN: Final = 200
_DEMANDS: Final = (0.7, 0.9)
_JOBS: Final = (10_000, 800)
_WARM_UP_H: Final = 3 * MEAN_LIFE_H
_STEP: Final = 5
_MIN_SHARE: Final = 0.01
_QUOTED: Final = "200 of 200 on 94 nodes; the stock kube-scheduler, which only counts: 175"


@dataclass(slots=True)
class Result:
    """The result of replaying a trace, without the warm-up.

    Attributes:
        occupancy: all placements.
        hours: each state of the cluster with the hours it lasted.
        waited_h: hours from arrival to placement, for every placed job.
        waiting: jobs that still waited at the end.
    """

    occupancy: Occupancy
    hours: list[tuple[float, Sample]] = field(default_factory=list)
    waited_h: list[float] = field(default_factory=list)
    waiting: int = 0

    def mean(self, what: str) -> float:
        """Return the mean of an attribute of the states over time."""
        total_h = sum(hours for hours, _ in self.hours)
        return sum(hours * float(getattr(sample, what)) for hours, sample in self.hours) / total_h

    def by_use(self, what: str) -> list[tuple[float, float]]:
        """Return that mean by the share of used chips in percent, for shares that lasted long enough."""
        bins: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for hours, sample in self.hours:
            found = bins[round(sample.taken / CHIPS * 100 / _STEP) * _STEP]
            found[0] += hours
            found[1] += hours * float(getattr(sample, what))
        enough_h = _MIN_SHARE * sum(hours for hours, _ in bins.values())
        return [(float(use), value / hours) for use, (hours, value) in sorted(bins.items()) if hours >= enough_h]


async def measure(run: Run) -> Outcome:
    outcome = Outcome()
    rules = placers(run.seed)
    _show_in_turn(outcome, {name: replay(make(NODES), in_turn(PODS_IN_TURN), NODES) for name, make in rules.items()})
    count = _JOBS[run.quick]
    seen: dict[str, list[tuple[float, Sample]]] = {name: [] for name in rules}
    shown = table(
        *("rule", "demand\n%", "in use\n%", "placed", "ring\nbroken", "largest\njob", "stranded\nchips"),
        *("nodes\nused", "waited\nmean min", "\np99 min", "still\nwaiting"),
    )
    names = list(rules)
    for step in run.steps(f"{count:,} jobs by {len(rules)} rules", len(_DEMANDS) * len(names)):
        demand, name = _DEMANDS[step // len(names)], names[step % len(names)]
        jobs = trace(count, chips=CHIPS, demand=demand, seed=run.seed)
        result = replay(rules[name](NODES), jobs, NODES, from_h=_WARM_UP_H)
        seen[name] += result.hours
        _add_row(shown, name, demand, result)
        outcome.raw[f"{name}, demand {demand}, waited, h"] = result.waited_h
        outcome.raw[f"{name}, demand {demand}, states: h, taken, nodes, stranded, largest"] = [
            (round(hours, 6), each.taken, each.nodes, each.stranded, each.largest) for hours, each in result.hours
        ]
    path = run.plots / "fragmentation.svg"
    _plot(path, seen)
    outcome.show(
        f"fragmentation: {count:,} jobs of 1/2/4/8 chips on {NODES} servers of 8, the same jobs for every rule",
        shown,
        "demand: chips the jobs would use on average if none had to wait. Jobs that fit nowhere wait.",
        "ring broken: placements with chips of two rings that should be in one, by an independent check. It can't run.",
        "largest job: chips of the largest job that could be placed; a job of several pods takes whole servers.",
        "stranded: free chips of rings with used chips; a pod of 4 or 8 chips can't use them. Means over time.",
        "in rings: with the allocator's ring rule; by number: like a scheduler that only counts.",
        f"The plot of both by the share of used chips: {path}",
    )
    return outcome


def replay(placer: Placer, jobs: Sequence[Job], nodes: int, *, from_h: float = 0.0) -> Result:
    """Start and end jobs; a job that fits nowhere waits, and is tried again whenever another one ends.

    Args:
        placer: the rule.
        jobs: in order of arrival.
        nodes: the number of servers of the placer.
        from_h: the end of the warm-up, which is not recorded.
    """
    return _Replay(placer, Result(Occupancy(nodes)), from_h).run(jobs)


@dataclass(slots=True)
class _Replay:
    placer: Placer
    result: Result
    from_h: float
    now_h: float = 0.0
    running: list[tuple[float, int, Job, Place]] = field(default_factory=list)
    waiting: dict[int, Job] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job]) -> Result:
        for job in jobs:
            while self.running and self.running[0][0] <= job.arrives_h:
                self._end_next()
            self._advance(job.arrives_h)
            self._start_or_wait([job])
        self.result.waiting = len(self.waiting)
        return self.result

    def _advance(self, until_h: float) -> None:
        seen_h = until_h - max(self.now_h, self.from_h)
        if seen_h > 0:
            self.result.hours.append((seen_h, self.result.occupancy.sample()))
        self.now_h = until_h

    def _end_next(self) -> None:
        ends_h, _, job, place = heapq.heappop(self.running)
        self._advance(ends_h)
        self.placer.end(job)
        self.result.occupancy.remove(*place)
        self._start_or_wait(list(self.waiting.values()))

    def _start_or_wait(self, jobs: list[Job]) -> None:
        # If one job fits nowhere, no other job of the same size does.
        unplaceable = set[int]()
        for job in jobs:
            place = self.placer.place(job) if job.chips not in unplaceable else None
            if place is None:
                unplaceable.add(job.chips)
                self.waiting[job.number] = job
                continue
            self.waiting.pop(job.number, None)
            self.result.occupancy.add(*place, job.chips)
            heapq.heappush(self.running, (self.now_h + job.lasts_h, job.number, job, place))
            if job.arrives_h >= self.from_h:
                self.result.waited_h.append(self.now_h - job.arrives_h)


def _add_row(shown: Table, name: str, demand: float, result: Result) -> None:
    waited_min = [hours * 60 for hours in result.waited_h]
    shown.add_row(
        *(name, f"{demand * 100:.0f}", f"{result.mean('taken') / CHIPS * 100:.1f}"),
        *(f"{result.occupancy.placed:,}", f"{result.occupancy.broken:,}"),
        *(f"{result.mean(each):.1f}" for each in ("largest", "stranded", "nodes")),
        *(f"{sum(waited_min) / len(waited_min):.2f}", f"{p99(waited_min):.1f}", f"{result.waiting:,}"),
    )


def _show_in_turn(outcome: Outcome, results: dict[str, Result]) -> None:
    shown = table("rule", "pods placed", "ring broken", "nodes used", "largest job left")
    for name, result in results.items():
        sample = result.occupancy.sample()
        shown.add_row(
            name, str(result.occupancy.placed), str(result.occupancy.broken), str(sample.nodes), str(sample.largest)
        )
        outcome.raw[f"{name}, in turn: placed, broken, nodes, largest"] = [
            *(result.occupancy.placed, result.occupancy.broken, sample.nodes, sample.largest)
        ]
    wanted = sum(job.chips for job in in_turn(PODS_IN_TURN))
    outcome.show(
        f"fragmentation: {PODS_IN_TURN} pods of 1/2/4/8 chips in turn, {wanted} of {CHIPS} chips of {NODES} servers",
        shown,
        f"The reference, quoted, not measured here (docs/spec/measurements.md#throughput): {_QUOTED}.",
    )


def _plot(path: Path, seen: dict[str, list[tuple[float, Sample]]]) -> None:
    results = {name: Result(Occupancy(NODES), hours) for name, hours in seen.items()}
    stranded = {name: result.by_use("stranded") for name, result in results.items()}
    largest = {name: result.by_use("largest") for name, result in results.items()}
    panels = [
        Panel("Free chips stranded in rings that are partly used", "chips in use, %", "chips", stranded),
        Panel("Largest job that could still be placed", "chips in use, %", "chips", largest),
    ]
    save_chart(path, f"What is free on {NODES} servers of 8 chips, by placement rule", panels)
