"""The arguments and results of a bench: every sample is kept, and tables are made from them."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from npuctl.simulate.chart import Panel, drawn
from npuctl.simulate.measures import percentile

LINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one bench. It reports on standard error what the bench does and how far it is.

    Attributes:
        bench: the name of the bench.
        quick: only show that everything works; the numbers mean little.
        seed: of every random choice.
        progress: shows bars if standard error is a terminal.
        plots: the folder that plots are saved in.
        sizes: the numbers of nodes, for the benches that take them; empty for their own.
    """

    bench: str
    quick: bool
    seed: int
    progress: Progress
    plots: Path
    sizes: tuple[int, ...] = ()

    def steps(self, what: str, count: int) -> Iterator[int]:
        """Yield 0 … count-1 and report each: as a bar on a terminal, otherwise as a line every ``LINE_S``."""
        if self.progress.console.is_terminal:
            yield from self.progress.track(range(count), description=f"{self.bench}: {what}")
            return
        printed_s = -math.inf
        for number in range(count):
            if (now_s := time.monotonic()) - printed_s >= LINE_S:
                self._print_line(f"{what}: {number} of {count}")
                printed_s = now_s
            yield number

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Report something that has no steps while it is done."""
        if not self.progress.console.is_terminal:
            self._print_line(what)
            yield
            return
        task = self.progress.add_task(f"{self.bench}: {what}", total=None)
        try:
            yield
        finally:
            self.progress.remove_task(task)

    def _print_line(self, text: str) -> None:
        self.progress.console.print(f"{self.bench}: {text}", highlight=False, markup=False, soft_wrap=True)


@dataclass(slots=True)
class Outcome:
    """The results of a bench.

    Attributes:
        shown: tables and sentences, in order.
        raw: every sample, for the file of `--json`; keys carry the unit.
    """

    shown: list[RenderableType] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def show(self, title: str, table: Table, *notes: str) -> None:
        """Add a table with a title and notes."""
        self.shown += [Text(title, style="bold"), table, *(Text(f"  {note}", style="dim") for note in notes), Text()]


def save_chart(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write a line chart; create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawn(title, panels))


def p50(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    return percentile(samples, 0.99)


def ms(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def us(seconds: float) -> str:
    """Microseconds."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(*columns: str) -> Table:
    """A table with text in the first column and numbers in the others."""
    made = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=True)
    return made
