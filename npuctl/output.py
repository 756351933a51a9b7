"""Prints answers: tables for people, JSON and YAML for programs."""

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

import msgspec
import yaml
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ascend.daemon.exits import EXIT_FAILURE
from ascend.errors import AscendError
from ascend.printable import escaped_json, printable, printable_lines

EXIT_NO_PLACE: Final = 3
"""The exit status if a pod has no place."""

PIPE_WIDTH: Final = 140
"""Columns that are filled side by side if standard output is not a terminal, and $COLUMNS is not set."""

_MOST_COLUMNS: Final = 10_000
"""Columns of a line that is not broken."""


_STAND_INS: Final = str.maketrans("✓✗⊘⊖↻≁·→…", "+xo-@~.>.")
"""What a terminal shows whose encoding lacks these characters; any other character becomes a question mark."""


class Output(StrEnum):
    """The format of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class OutputFailed(AscendError):
    """Standard output can't be written to, for example because the disk is full."""

    @classmethod
    def by(cls, error: OSError) -> "OutputFailed":
        """By an error of the operating system."""
        return cls(f"standard output can't be written to: {error.strerror}")


def show(answer: object, output: Output, table: Callable[[], RenderableType]) -> None:
    """Print an answer on standard output, or the ``table`` that people see instead."""
    if output is Output.TABLE:
        print_table(make_console(), table())
        return
    if output is Output.JSON:
        print_utf8(escaped_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n")
    else:
        text = yaml.dump(
            msgspec.to_builtins(answer), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=PIPE_WIDTH
        )
        print_utf8(escaped_json(text))


def print_utf8(text: str) -> None:
    """Print a text for programs, which expect UTF-8 whatever the locale is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)


def print_table(console: Console, table: RenderableType) -> None:
    """Print a table, in a pipe without blanks at the ends of lines."""
    if console.is_terminal:
        console.print(table, crop=False)
        return
    with console.capture() as captured:
        console.print(table, crop=False)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def warn(sentence: str) -> None:
    """Print a sentence on standard error."""
    sys.stderr.write(f"npuctl: {printable(sentence)}\n")


class SafeConsole(Console):
    """A console without markup, highlighting and emoji codes; control characters are printed escaped.

    Its styles are rich's own, so on a terminal only rich writes control characters.

    Args:
        stderr: print on standard error.
        width: columns; None for those of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr, width=width)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string before it is measured and laid out."""
        return super().render_str(printable_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape what any renderable yields, nested ones included."""
        if isinstance(renderable, Text) and not (plain := renderable.plain).isprintable():
            renderable = renderable.copy()
            renderable.plain = printable_lines(plain)
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


class _Dumper(yaml.SafeDumper):
    """Quotes strings with control characters, so that these can be escaped."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.replace("\n", "").isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent)


def make_console() -> Console:
    """Return a console on standard output that prints names unchanged, in the characters of its encoding.

    Sentences are broken on a terminal, and where $COLUMNS says how wide it is; in a pipe they never are.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("npuctl", _stand_in)
        sys.stdout.reconfigure(errors="npuctl")
    return SafeConsole(width=None if sys.stdout.isatty() or _columns() is not None else _MOST_COLUMNS)


def use_ascii() -> None:
    """Print tables in ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="ascii")


def use_locale() -> None:
    """Print tables in ASCII in the C locale, in which Python prints UTF-8 unless PYTHONIOENCODING says otherwise."""
    if os.environ.get("LC_ALL") in {"C", "POSIX"} and not os.environ.get("PYTHONIOENCODING"):
        use_ascii()


def _columns() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else None


def filled(console: Console) -> int:
    """Return the columns of a layout that fills lines from side to side: in a pipe ``PIPE_WIDTH``."""
    return PIPE_WIDTH if console.width == _MOST_COLUMNS else console.width


def breaks_lines(console: Console) -> bool:
    """Whether lines have an end: on a terminal, and where $COLUMNS says so."""
    return console.width != _MOST_COLUMNS


class Filling:
    """What fills lines from side to side."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, filled(console))
        yield from console.render(self._content, options.update(width=width, max_width=width))


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = error.object[error.start : error.end].translate(_STAND_INS)
    return shown.encode("ascii", "replace").decode(), error.end


@contextmanager
def written_out() -> Iterator[None]:
    """Write standard output out at the end of the block.

    Raises:
        OutputFailed: it can't be written to.
        SystemExit: nobody reads the pipe any more.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # Else Python would try to write the rest at its exit, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_FAILURE)
        raise OutputFailed.by(error) from error


def full_width(console: Console, options: ConsoleOptions, table: Table) -> int:
    """Return the columns that a table takes if its lines are not broken."""
    return Measurement.get(console, options.update(max_width=_MOST_COLUMNS), table).maximum


class FittingTable:
    """A table that drops columns until the lines fit. Longer lines are not broken, as with kubectl.

    Args:
        titles: the titles of the columns.
        numeric: the columns that are aligned to the right.
        drop: the columns that may be dropped, in this order.
    """

    def __init__(self, titles: Sequence[str], *, numeric: Sequence[str] = (), drop: Sequence[str] = ()) -> None:
        self._titles = titles
        self._numeric = numeric
        self._drop = drop
        self._rows: list[tuple[Sequence[RenderableType], str]] = []
        self._below: dict[int, RenderableType] = {}

    def add_row(self, *cells: RenderableType, style: str = "", below: RenderableType | None = None) -> None:
        """Add a row with a cell for each title, and what is below all of them."""
        self._rows.append((cells, style))
        if below is not None:
            self._below[len(self._rows)] = below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for dropped in range(len(self._drop) + 1):
            table = self._table(self._drop[:dropped])
            width = full_width(console, options, table)
            if width <= options.max_width:
                break
        for at, line in enumerate(console.render_lines(table, options.update(width=width, max_width=width), pad=False)):
            yield from line
            yield Segment.line()
            if at in self._below:
                yield from console.render(self._below[at], options)

    def _table(self, dropped: Sequence[str]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        kept = [position for position, title in enumerate(self._titles) if title not in dropped]
        for position in kept:
            title = self._titles[position]
            table.add_column(title, no_wrap=True, justify="right" if title in self._numeric else "left")
        for cells, style in self._rows:
            table.add_row(*(cells[position] for position in kept), style=style)
        return table
