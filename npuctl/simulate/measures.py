"""What happened in a simulation: how long jobs waited, how chips were used, and to what chip-hours were lost."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ascend.products import Family
from npuctl.simulate.jobs import HOUR_S, SimulatedJob
from npuctl.simulate.servers import Fleet, PodPlace, is_linked

_SAMPLES: Final = 4_096


@dataclass(slots=True)
class JobOutcome:
    """What became of a job.

    Attributes:
        since_s: since when it waits, or when it started last.
        waited_s: how long it has waited before that.
        started_s: when it started for the first time; None if it never did.
        ended_s: when it ended; None if it never did.
        restarts: how often a fault made it start again.
        needs_links: whether some chips of the servers that it got would not be linked as it needs.
        is_wrong: whether a pod of it got such chips.
    """

    since_s: float
    waited_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    restarts: int = 0
    needs_links: bool = False
    is_wrong: bool = False


class Sample(msgspec.Struct, frozen=True):
    """The servers at one time.

    Attributes:
        at_s: the time.
        used: the share of the chips in use.
        stranded: the share of the free chips that are in a ring, mesh, card or server of which others are in use.
        waiting: the number of jobs that wait.
    """

    at_s: float
    used: float
    stranded: float
    waiting: int


@dataclass(slots=True)
class ChipTime:
    """Chip-seconds, by what became of them.

    Attributes:
        used: in use.
        broken: broken.
        idle: free, and no job waited.
        kept: free, and kept for the waiting job that comes first.
        stranded: free, though a job waited that needs no more chips than were free: they are on the wrong servers.
        too_few: free, and every waiting job needs more chips.
        redone: of those in use, for work that was done again after faults.
        partly_used: of the free ones, those in a ring, mesh, card or server of which others are not free.
    """

    used: float = 0.0
    broken: float = 0.0
    idle: float = 0.0
    kept: float = 0.0
    stranded: float = 0.0
    too_few: float = 0.0
    redone: float = 0.0
    partly_used: float = 0.0


@dataclass(slots=True)
class Measures:
    """Counts what happens.

    Args:
        servers: the servers.
        from_s: the time before which nothing counts.

    Attributes:
        outcomes: what became of each job.
        time: the chip-seconds.
        samples: the servers at some times.
        until_s: the end.
    """

    servers: Fleet
    from_s: float = 0.0
    outcomes: dict[SimulatedJob, JobOutcome] = field(default_factory=dict)
    time: ChipTime = field(default_factory=ChipTime)
    samples: list[Sample] = field(default_factory=list)
    until_s: float = 0.0
    _step_s: float = 0.0
    _sizes: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def submit(self, job: SimulatedJob, now_s: float) -> None:
        """A job waits, for the first time or again."""
        self._sizes[job.size] += 1
        outcome = self.outcomes.setdefault(job, JobOutcome(now_s))
        outcome.since_s = now_s

    def start(self, job: SimulatedJob, now_s: float, places: Sequence[PodPlace], *, keeps: bool) -> None:
        """A job starts."""
        self._sizes[job.size] -= 1
        if not self._sizes[job.size]:
            del self._sizes[job.size]
        outcome = self.outcomes[job]
        outcome.waited_s += now_s - outcome.since_s
        outcome.started_s = now_s if outcome.started_s is None else outcome.started_s
        for place in places:
            product = self.servers.product(place.node)
            outcome.needs_links |= product.family is not Family.POOL and 1 < len(place.chips) < product.chips
            if not is_linked(product, place.chips):
                if keeps:
                    raise ValueError(f"chips {place.chips} of {place.node} are not linked as the pod needs")
                outcome.is_wrong = True

    def end(self, job: SimulatedJob, now_s: float) -> None:
        """A job has ended."""
        self.outcomes[job].ended_s = now_s

    def interrupt(self, job: SimulatedJob, lost_s: float) -> None:
        """A fault ends a job, and so much of its work is lost."""
        self.outcomes[job].restarts += 1
        self.time.redone += lost_s * job.size

    def pass_time(self, now_s: float, until_s: float, waiting: Collection[SimulatedJob], kept: int) -> None:
        """Count the chips for a time in which nothing changes."""
        servers, seconds = self.servers, until_s - max(now_s, self.from_s)
        if seconds <= 0:
            return
        free = servers.free
        self.time.broken += servers.broken * seconds
        self.time.used += (servers.chips - servers.broken - free) * seconds
        self.time.kept += kept * seconds
        self.time.partly_used += servers.stranded * seconds
        rest = free - kept
        if not waiting:
            self.time.idle += rest * seconds
        elif min(self._sizes) <= rest:
            self.time.stranded += rest * seconds
        else:
            self.time.too_few += rest * seconds
        if not self.samples or now_s >= self.samples[-1].at_s + self._step_s:
            used = 1 - (free + servers.broken) / servers.chips
            self.samples.append(Sample(now_s, used, servers.stranded / free if free else 0.0, len(waiting)))
            if len(self.samples) >= _SAMPLES:
                del self.samples[1::2]
                self._step_s = (now_s - self.samples[0].at_s) / len(self.samples)

    def finish(self, now_s: float, waiting: Collection[SimulatedJob]) -> None:
        """The simulation ends; what waits has waited until now."""
        self.until_s = now_s
        for job in waiting:
            outcome = self.outcomes[job]
            outcome.waited_s += now_s - outcome.since_s
            outcome.since_s = now_s

    def after_warm_up(self) -> dict[SimulatedJob, JobOutcome]:
        """What became of the jobs that count."""
        return {job: outcome for job, outcome in self.outcomes.items() if job.arrives_s >= self.from_s}

    def waited_h(self) -> dict[int, list[float]]:
        """How long jobs waited in hours, by the number of their chips."""
        found = defaultdict[int, list[float]](list)
        for job, outcome in self.after_warm_up().items():
            found[job.size].append(outcome.waited_s / HOUR_S)
        return dict(sorted(found.items()))

    def share_used(self) -> float:
        """The share of the chip-hours in use."""
        time = self.time
        total = time.used + time.broken + time.idle + time.kept + time.stranded + time.too_few
        return time.used / total if total else 0.0

    def makespan_s(self) -> float:
        """When the last job ended."""
        return max((outcome.ended_s or 0.0 for outcome in self.outcomes.values()), default=0.0)


def percentile(samples: Sequence[float], share: float) -> float:
    """The percentile by nearest rank; ``share`` is between 0 and 1."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
