"""The answer of ``npuctl simulate``."""

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from npuctl.simulate.jobs import HOUR_S, SimulatedJob
from npuctl.simulate.measures import Measures, Sample, percentile


class Waits(msgspec.Struct, frozen=True):
    """How long jobs waited, in hours.

    Attributes:
        jobs: how many jobs.
        mean: in the mean.
        p50: half of them at most so long.
        p99: 99 % of them at most so long.
        longest: the one that waited longest.
        chips: the number of chips of each of them; 0 for jobs of all sizes.
    """

    jobs: int
    mean: float
    p50: float
    p99: float
    longest: float
    chips: int = 0

    @classmethod
    def of(cls, hours: Collection[float], chips: int = 0) -> "Waits":
        """Return those of some jobs."""
        ordered = sorted(hours)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0, 0.0, chips)
        return cls(
            len(ordered),
            sum(ordered) / len(ordered),
            percentile(ordered, 0.5),
            percentile(ordered, 0.99),
            ordered[-1],
            chips,
        )


class ChipHours(msgspec.Struct, frozen=True):
    """Chip-hours, by their use.

    Attributes:
        used: in use.
        redone: of those in use, for work that was done again after faults.
        broken: broken.
        kept: free, and kept for the waiting job that comes first.
        stranded: free, though a job waited that needs no more chips than were free.
        too_few: free, and every waiting job needs more chips.
        idle: free, and no job waited.
    """

    used: float
    redone: float
    broken: float
    kept: float
    stranded: float
    too_few: float
    idle: float


class SideResult(msgspec.Struct, frozen=True):
    """The result with one of the compared settings.

    Attributes:
        name: what is different about it.
        wait: how long all jobs waited.
        sizes: the same by the number of chips.
        used: the share of the chip-hours in use, until the last job ended.
        stranded: the share of the free chips that are in a ring, mesh, card or server of which others are in use.
        wrong: how many jobs got chips that are not linked as they need.
        linked: for how many jobs it matters which chips they get.
        last_end: when the last job ended, in hours.
        restarts: how often faults made a job start again.
        never_ended: how many jobs did not end.
        chip_hours: what became of the chip-hours.
        samples: the servers at some times.
    """

    name: str
    wait: Waits
    sizes: tuple[Waits, ...]
    used: float
    stranded: float
    wrong: int
    linked: int
    last_end: float
    restarts: int
    never_ended: int
    chip_hours: ChipHours
    samples: tuple[Sample, ...]


class LeftOut(msgspec.Struct, frozen=True):
    """Jobs that were left out, since they would not fit on the idle servers.

    Attributes:
        jobs: how many.
        pods: the number of pods of each.
        chips: the number of chips of each pod.
    """

    jobs: int
    pods: int
    chips: int


class SimulationAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/simulate/v1"):
    """The answer at a time (RFC 3339).

    Attributes:
        time: the time of the objects.
        servers: the number of servers.
        products: their products.
        chips: the number of their chips.
        jobs: the number of jobs.
        hours: how long they arrive.
        left_out: jobs that don't fit.
        settings: the settings that are compared; the first are those that were given.
    """

    time: str
    servers: int
    products: tuple[str, ...]
    chips: int
    jobs: int
    hours: float
    left_out: tuple[LeftOut, ...]
    settings: tuple[SideResult, ...]


def result_of(name: str, measures: Measures) -> SideResult:
    """Return the result of a simulation."""
    outcomes, by_size, spent = measures.after_warm_up(), measures.waited_h(), measures.time
    free_s = spent.idle + spent.kept + spent.stranded + spent.too_few
    return SideResult(
        name,
        Waits.of([hours for waited in by_size.values() for hours in waited]),
        tuple(Waits.of(waited, size) for size, waited in by_size.items()),
        used=measures.share_used(),
        stranded=spent.partly_used / free_s if free_s else 0.0,
        wrong=sum(outcome.is_wrong for outcome in outcomes.values()),
        linked=sum(outcome.needs_links for outcome in outcomes.values()),
        last_end=measures.makespan_s() / HOUR_S,
        restarts=sum(outcome.restarts for outcome in outcomes.values()),
        never_ended=sum(outcome.ended_s is None for outcome in outcomes.values()),
        chip_hours=ChipHours(**{field: getattr(spent, field) / HOUR_S for field in ChipHours.__struct_fields__}),
        samples=tuple(measures.samples),
    )


def left_out(jobs: Iterable[SimulatedJob], kinds: Collection[tuple[int, int]]) -> tuple[LeftOut, ...]:
    """Return the jobs of these numbers of pods and chips."""
    found = Counter((job.pods, job.chips) for job in jobs if (job.pods, job.chips) in kinds)
    return tuple(LeftOut(number, pods, chips) for (pods, chips), number in sorted(found.items()))
