"""What a bench is given and what it gives back: samples, from which tables are made, and nothing is thrown away."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command line, as a bench sees it.

    Attributes:
        quick: only show that everything works; the numbers mean little.
        seed: of every random choice.
        progress: shows how far it is.
        plots: the folder that plots are saved in.
    """

    quick: bool
    seed: int
    progress: Progress
    plots: Path

    def steps(self, what: str, count: int) -> Iterable[int]:
        """0 … count-1, with a bar."""
        return self.progress.track(range(count), description=what)


@dataclass(slots=True)
class Outcome:
    """What a bench has found.

    Attributes:
        shown: tables and sentences, in order.
        raw: every sample, for the file of `--json`; keys carry the unit.
    """

    shown: list[RenderableType] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def show(self, title: str, table: Table, *notes: str) -> None:
        """Add a table with what is above and below it."""
        self.shown += [Text(title, style="bold"), table, *(Text(f"  {note}", style="dim") for note in notes), Text()]


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that so large a share of them does not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def p50(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    return percentile(samples, 0.99)


def ms(seconds: float) -> str:
    """Milliseconds with three digits that count."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def us(seconds: float) -> str:
    """Microseconds."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(*columns: str) -> Table:
    """A table whose first column is words and whose others are numbers."""
    made = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=True)
    return made
