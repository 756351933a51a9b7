"""Policies of placement on jobs of real clusters: ``python -m tests.bench.traces FOLDER PLOT [TRACE[/PRODUCT]…]``.

The folder has files of jobs (docs/simulate.md) with these names; the same jobs are given to the allocator and to other
policies, on servers with rings, without, and with cards of two dies, at several loads, until all of them have ended. A
policy that decides at random between equal servers runs with three seeds, of which the mean counts.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from rich.console import Console
from rich.table import Table

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from npuctl.reading.objects import ClusterObjects
from npuctl.simulate.answer import SideResult, result_of
from npuctl.simulate.chart import Panel
from npuctl.simulate.jobs import SimulatedJob, read_jobs
from npuctl.simulate.servers import described_nodes
from npuctl.simulate.sides import ALLOCATOR, Side
from tests.bench.outcome import save_chart, table

TRACES: Final = {"philly-1": 18, "philly-2": 48, "philly-4": 16, "openb": 16}
"""The number of servers of 8 chips for the jobs of each; half as many of 16."""
PRODUCTS: Final = {"910A-8": 1.0, "910B-8": 1.0, "A3-16": 0.5}
LOADS: Final = (0.8, 0.95, 1.05)
SIDES: Final = {
    "allocator": "policy=allocator",
    "allocator, nothing kept": "earmark_share=0",
    "tables": "policy=tables",
    "fgd": "policy=fgd",
    "spread": "policy=spread",
    "packed": "policy=packed",
}
TABLES: Final = "tables"
UNKEPT: Final = "allocator, nothing kept"
WRONG: Final = "wrong"
FIGURES: Final[dict[str, Callable[[SideResult], float]]] = {
    "mean": lambda result: result.wait.mean,
    "p99": lambda result: result.wait.p99,
    "largest p99": lambda result: result.sizes[-1].p99,
    "last end": lambda result: result.last_end,
    "stranded": lambda result: result.chip_hours.stranded + result.chip_hours.too_few,
    WRONG: lambda result: result.wrong / max(result.linked, 1),
}
"""Waits and ends in hours, chip-hours, and the share of the jobs for which links matter that have wrong chips."""
_SEEDS: Final = 3
_NOW_NS: Final = 1_767_225_600 * 10**9


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of all policies for a trace on some servers, at a load."""

    trace: str
    servers: str
    load: float
    figures: dict[str, dict[str, float]]


def rows(folder: Path, chosen: Sequence[str] = ()) -> Iterator[Row]:
    """The figures of each policy for each trace, product and load.

    Args:
        folder: has the files of jobs.
        chosen: traces, or ``TRACE/PRODUCT``; all if there are none.
    """
    for name in chosen or TRACES:
        trace, _, only = name.partition("/")
        for product, share in PRODUCTS.items():
            if only and only != product:
                continue
            servers = f"{round(TRACES[trace] * share)}x{product}"
            objects = ClusterObjects.of(described_nodes(servers))
            base = Side("", objects, fixed_settings(Settings, None, {}), _NOW_NS)
            jobs = read_jobs(folder / f"{trace}.csv", 8 if share == 1 else 16, lambda _sentence: None)
            for load in LOADS:
                figures = {side: _figures(base.with_changes(changes), load, jobs) for side, changes in SIDES.items()}
                yield Row(trace, servers, load, figures)


def _figures(side: Side, load: float, jobs: Sequence[SimulatedJob]) -> dict[str, float]:
    seeds = range(1 if side.policy == ALLOCATOR else _SEEDS)
    results = [result_of("", replace(side, load=load, seed=seed).run(jobs)) for seed in seeds]
    return {what: mean(figure(result) for result in results) for what, figure in FIGURES.items()}


def table_of(row: Row) -> Table:
    """The figures of one trace on one product at one load, in hours; those of the tables alone are 100 %."""
    shown = table(f"{row.trace} on {row.servers}, load {row.load:g}", *FIGURES)
    for side, figures in row.figures.items():
        cells = (
            f"{value:.1%}" if what == WRONG else f"{value:,.1f} ({value / base:.0%})" if base else f"{value:,.1f}"
            for (what, value), base in zip(figures.items(), row.figures[TABLES].values(), strict=True)
        )
        shown.add_row(side, *cells)
    return shown


def worse(row: Row) -> Iterator[str]:
    """Where another policy that keeps the rules is better by more than 2 % than the same allocator, keeping nothing."""
    ours = row.figures[UNKEPT]
    for side in (TABLES, "fgd"):
        for what in ("mean", "p99", "last end"):
            if ours[what] > 1.02 * row.figures[side][what] + 0.05:
                ratio = ours[what] / max(row.figures[side][what], 0.01)
                yield f"{row.trace} on {row.servers}, load {row.load:g}: {what} {ratio:.2f} times that of {side}"


def picture(path: Path, found: Sequence[Row]) -> None:
    """Draw the figures of the first trace and product by the load."""
    first = [row for row in found if (row.trace, row.servers) == (found[0].trace, found[0].servers)]
    panels = [
        Panel(
            title,
            "load, % of the chips",
            unit,
            {
                side: [(row.load * 100, factor * row.figures[side][what]) for row in first]
                for side in SIDES
                if what != WRONG or side in {"allocator", "spread", "packed"}
            },
        )
        for what, title, unit, factor in (
            ("last end", "Until all jobs have ended", "hours", 1),
            ("largest p99", "Wait of the largest jobs, p99", "hours", 1),
            ("mean", "Wait of all jobs, mean", "hours", 1),
        )
    ]
    save_chart(path, f"Policies of placement on {found[0].trace}, {found[0].servers}", panels)


def main(folder: str, plot: str, *chosen: str) -> None:
    """Print a table for each row as it is ready, then where others are better, and draw the picture."""
    console, found = Console(width=150), list[Row]()
    for row in rows(Path(folder), chosen):
        found.append(row)
        console.print(table_of(row))
    for sentence in [sentence for row in found for sentence in worse(row)] or ["none is better by more than 2 %"]:
        console.print(sentence)
    picture(Path(plot), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
