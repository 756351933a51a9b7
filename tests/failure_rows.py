"""The rows of docs/failures.md, and the line of ``npuctl doctor --cluster`` that each of them names."""

import re
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parents[1] / "docs" / "failures.md"

_LINE: Final = re.compile(r"([✗!]) ([\w ]+): `([^`]+)`")
_HEAD: Final = "| what breaks |"


class Line(NamedTuple):
    """A line of doctor: whether it is a problem or a warning, its check, and words of its sentence."""

    severity: str
    check: str
    says: str


class Row(NamedTuple):
    """A row; ``line`` is None for what doctor does not tell, and ``cells`` has why in the place of the line."""

    what: str
    cells: tuple[str, ...]
    line: Line | None


def rows() -> tuple[Row, ...]:
    """All rows of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith(_HEAD)]
    return tuple(_row(tuple(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines)


def row_of(what: str) -> Row:
    """The row that has these words, or is the only one that begins with them."""
    (row,) = [row for row in rows() if row.what == what] or [row for row in rows() if row.what.startswith(what)]
    return row


def line_of(what: str) -> Line:
    """The line of a row."""
    row = row_of(what)
    assert row.line is not None, f"doctor does not tell of {row.what!r}"
    return row.line


def _row(cells: tuple[str, ...]) -> Row:
    found = _LINE.fullmatch(cells[2])
    severity = {"✗": "problem", "!": "warning"}
    return Row(cells[0], cells, Line(severity[found[1]], found[2], found[3]) if found is not None else None)
