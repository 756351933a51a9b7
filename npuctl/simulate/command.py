"""Carries out ``npuctl simulate`` and lays out its answer."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.progress import track
from rich.text import Text

from ascend.errors import InvalidValue
from ascend.grammar import count
from npuctl.output import FittingTable, Output, SafeConsole, show, warn
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import Source, rfc3339
from npuctl.simulate.answer import LeftOut, SimulationAnswer, left_out, result_of
from npuctl.simulate.jobs import HOUR_S, SimulatedJob, random_jobs, read_jobs
from npuctl.simulate.page import page
from npuctl.simulate.servers import described_nodes
from npuctl.simulate.sides import ALLOCATOR, Side, read_load

_LINE_S: Final = 10.0
_MOST_HOURS: Final = 1e6
_MOST_FAULTS: Final = 100_000
_DEFAULT_COMPARED: Final = ("policy=spread",)


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What is simulated, as it was typed.

    Attributes:
        servers: the servers of a cluster that is described, as in ``300x910B-8``; empty to read one.
        jobs: the CSV file with jobs.
        rates: rates at which jobs arrive.
        hours: how long they arrive by rates.
        load: the share of the chips that the jobs would use; empty to leave their arrivals as they are.
        compare: further sides.
        faults: faults of 1,000 chips in a day.
        repair: how long a repair takes, in hours.
        checkpoint: how often jobs save their work, in hours.
        running: how long the pods of the cluster still run, in hours; None for ever.
        seed: of all random choices.
        html: the file to write the answer to as a page; None for none.
    """

    servers: str = ""
    jobs: Path | None = None
    rates: Sequence[str] = ()
    hours: float = 24.0
    load: str = ""
    compare: Sequence[str] = ()
    faults: float = 0.0
    repair: float = 24.0
    checkpoint: float = 1.0
    running: float | None = None
    seed: int = 0
    html: Path | None = None

    def base(self, objects: ClusterObjects, source: Source) -> Side:
        """Return the side with what was given.

        Raises:
            InvalidValue: a number is out of range.
        """
        for name, number in (("hours", self.hours), ("repair", self.repair), ("running", self.running)):
            if number is not None and not 0 < number < _MOST_HOURS:
                raise InvalidValue(f"--{name}: {number:g} is not a number of hours above 0")
        if not 0 <= self.checkpoint < _MOST_HOURS or not 0 <= self.faults <= _MOST_FAULTS:
            raise InvalidValue(f"--checkpoint and --faults are not negative, and faults at most {_MOST_FAULTS:,}")
        return Side(
            ALLOCATOR,
            objects.without(lambda pod: not pod.spec.node_name),
            source.settings,
            source.now_ns,
            load=read_load("--load", self.load) if self.load else None,
            faults=self.faults,
            repair_s=self.repair * HOUR_S,
            checkpoint_s=self.checkpoint * HOUR_S,
            running_s=None if self.running is None else self.running * HOUR_S,
            seed=self.seed,
        )


async def run_simulate(source: Source, options: SimulateOptions, output: Output) -> int:
    """Print how long jobs would wait, how chips would be used, and what is lost.

    Raises:
        InvalidValue: an option, a file or a row of it is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    objects = ClusterObjects.of(described_nodes(options.servers)) if options.servers else await source.read()
    base = options.base(objects, source)
    sides = [base, *(base.with_changes(text) for text in options.compare or _DEFAULT_COMPARED)]
    answer = simulate(sides, options, rfc3339(source.now_ns))
    if options.html is not None:
        try:
            options.html.write_text(page(answer), encoding="utf-8")
        except OSError as error:
            raise InvalidValue(f"--html: {error}") from error
    show(answer, output, lambda: render(answer))
    return 0


def simulate(sides: Sequence[Side], options: SimulateOptions, at: str) -> SimulationAnswer:
    """Return the results of all sides on the same jobs.

    Raises:
        InvalidValue: there are no servers, or no jobs that fit.
    """
    servers = sides[0].servers()
    if not servers.chips:
        raise InvalidValue("no server has chips that can be used; --servers 300x910B-8 describes some")
    if (options.jobs is None) == (not options.rates):
        raise InvalidValue("the jobs are missing: --jobs FILE.csv, or --rate 1=40 (40 jobs an hour, of one chip)")
    largest = max(servers.product(name).chips for name in servers)
    jobs = (
        read_jobs(options.jobs, largest, warn)
        if options.jobs is not None
        else random_jobs(options.rates, options.hours * HOUR_S, options.seed)
    )
    without = set[tuple[int, int]]().union(*(side.never(jobs) for side in sides))
    fitting = [job for job in jobs if (job.pods, job.chips) not in without]
    if not fitting:
        raise InvalidValue("none of the jobs fits on the servers, even if they are idle")
    results = [result_of(side.name, side.run(fitting, _progress(side.name))) for side in sides]
    products = dict.fromkeys(servers.product(name).name for name in servers)
    return SimulationAnswer(
        time=at,
        servers=sum(1 for _ in servers),
        products=tuple(products),
        chips=servers.chips,
        jobs=len(fitting),
        hours=sides[0].arriving(fitting, servers)[-1].arrives_s / HOUR_S,
        left_out=left_out(jobs, without),
        settings=tuple(results),
    )


def _progress(name: str) -> Callable[[Sequence[SimulatedJob]], Iterable[SimulatedJob]]:
    """What shows on standard error how many jobs have arrived: a bar on a terminal, else a line every ten seconds."""

    def passed(jobs: Sequence[SimulatedJob]) -> Iterator[SimulatedJob]:
        if sys.stderr.isatty():
            yield from track(jobs, description=name, console=SafeConsole(stderr=True), transient=True)
            return
        told_s = time.monotonic()
        for number, job in enumerate(jobs):
            if time.monotonic() - told_s >= _LINE_S:
                told_s = time.monotonic()
                warn(f"{name}: {number:,} of {len(jobs):,} jobs")
            yield job

    return passed


def render(answer: SimulationAnswer) -> RenderableType:
    """Lay out the answer."""
    what = f"{count(answer.servers, 'server')} ({', '.join(answer.products)}), {answer.chips:,} chips"
    head = f"{what}; {answer.jobs:,} jobs arrive in {answer.hours:,.1f} h"
    parts: list[RenderableType] = [Text(head, style="bold"), *map(_left_out, answer.left_out), Text("")]
    numbers = ("WAIT MEAN", "P50", "P99", "USED", "STRANDED", "WRONG", "LAST END", "RESTARTS", "NEVER")
    table = FittingTable(("SETTING", *numbers), numeric=numbers, drop=("NEVER", "RESTARTS", "P50"))
    for side in answer.settings:
        wait = side.wait
        table.add_row(
            side.name,
            *(f"{hours:,.2f} h" for hours in (wait.mean, wait.p50, wait.p99)),
            *(f"{share:.1%}" for share in (side.used, side.stranded)),
            Text(f"{side.wrong:,} of {side.linked:,}", style="red" if side.wrong else ""),
            f"{side.last_end:,.1f} h",
            f"{side.restarts:,}",
            f"{side.never_ended:,}",
        )
    parts += [table, Text(""), _by_size(answer), Text(""), _chip_hours(answer), Text("")]
    legend = (
        "STRANDED: of the free chips, those in a ring, mesh, card or server of which others are in use, in the mean; "
        "WRONG: jobs with chips that are not linked as they need, of those for which it matters: such a job fails or "
        "is slow, here it runs; NEVER: jobs that did not end. Nobody is preempted; CPU, memory, taints and affinity "
        "are not considered"
    )
    return Stack(*parts, Text(legend, style="dim"))


def _left_out(group: LeftOut) -> Text:
    pods = f"{count(group.pods, 'pod')} of " if group.pods > 1 else ""
    return Text(f"{count(group.jobs, 'job')} left out: {pods}{count(group.chips, 'chip')} never fit", style="yellow")


def _by_size(answer: SimulationAnswer) -> RenderableType:
    numbers = ("CHIPS", "JOBS", "WAIT MEAN", "P50", "P99", "LONGEST")
    table = FittingTable(("CHIPS", "JOBS", "SETTING", *numbers[2:]), numeric=numbers)
    for rows in zip(*(side.sizes for side in answer.settings), strict=True):
        for side, row in zip(answer.settings, rows, strict=True):
            is_first = side is answer.settings[0]
            table.add_row(
                f"{row.chips:,}" if is_first else "",
                f"{row.jobs:,}" if is_first else "",
                side.name,
                *(f"{hours:,.2f} h" for hours in (row.mean, row.p50, row.p99, row.longest)),
            )
    return table


def _chip_hours(answer: SimulationAnswer) -> RenderableType:
    titles = ("USED", "REDONE", "BROKEN", "KEPT", "STRANDED", "TOO FEW", "IDLE")
    table = FittingTable(("CHIP-HOURS", *titles), numeric=titles, drop=("IDLE",))
    for side in answer.settings:
        hours = side.chip_hours
        table.add_row(
            side.name,
            *(f"{number:,.0f}" for number in (hours.used, hours.redone, hours.broken, hours.kept, hours.stranded)),
            f"{hours.too_few:,.0f}",
            f"{hours.idle:,.0f}",
        )
    legend = (
        "REDONE: of the used ones, work that faults made jobs do again; KEPT: free, for the job that comes first; "
        "STRANDED: free while a job waits that needs no more; TOO FEW: every waiting job needs more; IDLE: none waits"
    )
    return Stack(table, Text(legend, style="dim"))
