"""How much of a cluster stays of use while jobs come and go: the allocator against rules that need no thought."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table

from tests.bench.books import Books, Sight
from tests.bench.outcome import Outcome, Run, p99, table
from tests.bench.placers import Place, Placer, placers
from tests.bench.plot import Panel, save
from tests.bench.trace import MEAN_LIFE_H, Job, in_turn, trace

NODES: Final = 100
CHIPS: Final = NODES * 8
PODS_IN_TURN: Final = 200
_DEMANDS: Final = (0.7, 0.9)
_JOBS: Final = (10_000, 800)
_WARM_UP_H: Final = 3 * MEAN_LIFE_H
_STEP: Final = 5
_SEEN_ENOUGH: Final = 0.01
_QUOTED: Final = "200 of 200 on 94 nodes; the stock kube-scheduler, counting alone: 175"


@dataclass(slots=True)
class Tally:
    """What became of a trace, after the cluster has filled.

    Attributes:
        books: what was placed.
        hours: what was seen, and for how long.
        waited_h: from arrival to placement, of every job placed.
        waiting: jobs that still waited at the end.
    """

    books: Books
    hours: list[tuple[float, Sight]] = field(default_factory=list)
    waited_h: list[float] = field(default_factory=list)
    waiting: int = 0

    def mean(self, what: str) -> float:
        """The mean over time."""
        total_h = sum(hours for hours, _ in self.hours)
        return sum(hours * float(getattr(sight, what)) for hours, sight in self.hours) / total_h

    def by_use(self, what: str) -> list[tuple[float, float]]:
        """The mean over time, by how full the cluster was, in percent; only where it was so for long enough."""
        bins: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for hours, sight in self.hours:
            found = bins[round(sight.taken / CHIPS * 100 / _STEP) * _STEP]
            found[0] += hours
            found[1] += hours * float(getattr(sight, what))
        enough_h = _SEEN_ENOUGH * sum(hours for hours, _ in bins.values())
        return [(float(use), value / hours) for use, (hours, value) in sorted(bins.items()) if hours >= enough_h]


async def measure(run: Run) -> Outcome:
    outcome = Outcome()
    rules = placers(run.seed)
    _show_in_turn(outcome, {name: replay(make(NODES), in_turn(PODS_IN_TURN), NODES) for name, make in rules.items()})
    count = _JOBS[run.quick]
    seen: dict[str, list[tuple[float, Sight]]] = {name: [] for name in rules}
    shown = table(
        *("rule", "demand\n%", "in use\n%", "placed", "ring\nbroken", "largest\njob", "stranded\nchips"),
        *("nodes\nused", "waited\nmean min", "\np99 min", "waits\nstill"),
    )
    names = list(rules)
    for step in run.steps(f"{count:,} jobs by {len(rules)} rules", len(_DEMANDS) * len(names)):
        demand, name = _DEMANDS[step // len(names)], names[step % len(names)]
        jobs = trace(count, chips=CHIPS, demand=demand, seed=run.seed)
        tally = replay(rules[name](NODES), jobs, NODES, from_h=_WARM_UP_H)
        seen[name] += tally.hours
        _add_row(shown, name, demand, tally)
        outcome.raw[f"{name}, demand {demand}, waited, h"] = tally.waited_h
        outcome.raw[f"{name}, demand {demand}, states: h, taken, nodes, stranded, largest"] = [
            (round(hours, 6), each.taken, each.nodes, each.stranded, each.largest) for hours, each in tally.hours
        ]
    path = run.plots / "fragmentation.svg"
    _plot(path, seen)
    outcome.show(
        f"fragmentation: {count:,} jobs of 1/2/4/8 chips come to {NODES} servers of 8 and go, the same for every rule",
        shown,
        "demand: chips the jobs would hold on average if none had to wait. Who finds no place waits; others may pass.",
        "ring broken: placements across rings where one would do, by a check of its own. Such a job can't work.",
        "largest job: chips of the largest one that could be placed; one of several pods takes whole servers.",
        "stranded: free chips beside taken ones of their ring; no pod of 4 or 8 can have them. Means over time.",
        "in rings: by the same demands as the allocator's; by number: as a scheduler that only counts.",
        f"The plot of both against how full the cluster is: {path}",
    )
    return outcome


def replay(placer: Placer, jobs: Sequence[Job], nodes: int, *, from_h: float = 0.0) -> Tally:
    """Let jobs come and go; one that finds no place waits, and is tried again whenever another one ends.

    Args:
        placer: the rule.
        jobs: in order of arrival.
        nodes: how many the rule was made for.
        from_h: what was before is not looked at.
    """
    return _Replay(placer, Tally(Books(nodes)), from_h).of(jobs)


@dataclass(slots=True)
class _Replay:
    placer: Placer
    tally: Tally
    from_h: float
    now_h: float = 0.0
    running: list[tuple[float, int, Job, Place]] = field(default_factory=list)
    waiting: dict[int, Job] = field(default_factory=dict)

    def of(self, jobs: Sequence[Job]) -> Tally:
        for job in jobs:
            while self.running and self.running[0][0] <= job.arrives_h:
                self._end_next()
            self._pass(job.arrives_h)
            self._start_or_wait([job])
        self.tally.waiting = len(self.waiting)
        return self.tally

    def _pass(self, until_h: float) -> None:
        seen_h = until_h - max(self.now_h, self.from_h)
        if seen_h > 0:
            self.tally.hours.append((seen_h, self.tally.books.sight()))
        self.now_h = until_h

    def _end_next(self) -> None:
        ends_h, _, job, place = heapq.heappop(self.running)
        self._pass(ends_h)
        self.placer.end(job)
        self.tally.books.give_back(*place)
        self._start_or_wait(list(self.waiting.values()))

    def _start_or_wait(self, jobs: list[Job]) -> None:
        # Where one job finds no place, none of the same size does.
        hopeless = set[int]()
        for job in jobs:
            place = self.placer.place(job) if job.chips not in hopeless else None
            if place is None:
                hopeless.add(job.chips)
                self.waiting[job.number] = job
                continue
            self.waiting.pop(job.number, None)
            self.tally.books.take(*place, job.chips)
            heapq.heappush(self.running, (self.now_h + job.lasts_h, job.number, job, place))
            if job.arrives_h >= self.from_h:
                self.tally.waited_h.append(self.now_h - job.arrives_h)


def _add_row(shown: Table, name: str, demand: float, tally: Tally) -> None:
    waited_min = [hours * 60 for hours in tally.waited_h]
    shown.add_row(
        *(name, f"{demand * 100:.0f}", f"{tally.mean('taken') / CHIPS * 100:.1f}"),
        *(f"{tally.books.placed:,}", f"{tally.books.broken:,}"),
        *(f"{tally.mean(each):.1f}" for each in ("largest", "stranded", "nodes")),
        *(f"{sum(waited_min) / len(waited_min):.2f}", f"{p99(waited_min):.1f}", f"{tally.waiting:,}"),
    )


def _show_in_turn(outcome: Outcome, tallies: dict[str, Tally]) -> None:
    shown = table("rule", "pods placed", "ring broken", "nodes used", "largest job left")
    for name, tally in tallies.items():
        sight = tally.books.sight()
        shown.add_row(name, str(tally.books.placed), str(tally.books.broken), str(sight.nodes), str(sight.largest))
        outcome.raw[f"{name}, in turn: placed, broken, nodes, largest"] = [
            *(tally.books.placed, tally.books.broken, sight.nodes, sight.largest)
        ]
    wanted = sum(job.chips for job in in_turn(PODS_IN_TURN))
    outcome.show(
        f"fragmentation: {PODS_IN_TURN} pods of 1/2/4/8 chips in turn, {wanted} of {CHIPS} chips of {NODES} servers",
        shown,
        f"The reference, quoted, not raced (docs/spec/measurements.md#throughput): {_QUOTED}.",
    )


def _plot(path: Path, seen: dict[str, list[tuple[float, Sight]]]) -> None:
    tallies = {name: Tally(Books(NODES), hours) for name, hours in seen.items()}
    stranded = {name: tally.by_use("stranded") for name, tally in tallies.items()}
    largest = {name: tally.by_use("largest") for name, tally in tallies.items()}
    panels = [
        Panel("Free chips stranded in rings that are partly taken", "chips in use, %", "chips", stranded),
        Panel("Largest job that could still be placed", "chips in use, %", "chips", largest),
    ]
    save(path, f"What is left of {NODES} servers of 8 chips, by the rule that places the jobs", panels)
