"""The rows of the pages of failures, and the line of ``npuctl doctor --cluster`` that each of them names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "docs" / "failures.md", ROOT / "docs" / "failures-programs.md")
TESTS: Final = ROOT / "tests" / "failure_tests.md"

_LINE: Final = re.compile(r"([✗!]) ([\w ]+): `([^`]+)`")
_LINKED: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEAD: Final = "| what breaks |"


class Line(NamedTuple):
    """A line of doctor: whether it is a problem or a warning, its check, and words of its sentence."""

    severity: str
    check: str
    says: str


class Row(NamedTuple):
    """A row; ``line`` is None for what doctor does not tell, and ``cells`` has why in the place of the line.

    ``tests`` names the tests of the row.
    """

    what: str
    cells: tuple[str, ...]
    line: Line | None
    tests: str


def rows() -> tuple[Row, ...]:
    """All rows of the pages."""
    tests = dict(shown_by())
    return tuple(_row(cells, tests.get(_LINKED.sub(r"\1", cells[0]), "")) for page in PAGES for cells in _cells(page))


def shown_by() -> tuple[tuple[str, str], ...]:
    """What breaks, and the tests of it, in the order of the file."""
    return tuple((what, tests) for what, tests in _cells(TESTS))


def row_of(what: str) -> Row:
    """The row that has these words, or is the only one that begins with them."""
    (row,) = [row for row in rows() if row.what == what] or [row for row in rows() if row.what.startswith(what)]
    return row


def line_of(what: str) -> Line:
    """The line of a row."""
    row = row_of(what)
    assert row.line is not None, f"doctor does not tell of {row.what!r}"
    return row.line


def _cells(page: Path) -> Iterator[tuple[str, ...]]:
    for line in page.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(_HEAD):
            yield tuple(cell.strip() for cell in line.strip("|").split(" | "))


def _row(cells: tuple[str, ...], tests: str) -> Row:
    found = _LINE.fullmatch(cells[2])
    severity = {"✗": "problem", "!": "warning"}
    return Row(cells[0], cells, Line(severity[found[1]], found[2], found[3]) if found is not None else None, tests)
