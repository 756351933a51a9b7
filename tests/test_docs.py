"""The documents agree with the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate.pages import PAGES, render

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))

_DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_NAMED = re.compile(r"`(test_\w+)(…?)`")


@pytest.fixture(scope="module")
def tests() -> set[str]:
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(path.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_is_named_exists(document: str, tests: set[str]) -> None:
    named = _NAMED.findall((ROOT / document).read_text())
    missing = [
        name for name, cut in named if not (any(each.startswith(name) for each in tests) if cut else name in tests)
    ]
    assert missing == []


def test_every_row_of_the_failure_table_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "failures.md").read_text().splitlines() if line.startswith("| ")]
    table = [row for row in rows if not row.startswith("| what breaks")]
    assert len(table) > 40
    for row in table:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 5, row
        assert all(cells), row
        assert _NAMED.search(cells[4]), row


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_linked_exists(document: str) -> None:
    path = ROOT / document
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in linked if not (path.parent / target).exists()] == []


def modules_named() -> Iterator[str]:
    """Yield the paths in docs/architecture.md; in its tables, a row without a package belongs to the package above."""
    program = package = ""
    for line in (ROOT / "docs/architecture.md").read_text().splitlines():
        if line.startswith("## "):
            program = {"## The allocator": "allocator", "## The device plugin": "device_plugin"}.get(line, "")
        yield from re.findall(r"`((?:allocator|device_plugin|ascend|sandbox)/[\w/.]*)`", line)
        if program and line.startswith("| "):
            first, second, *_ = (
                line.strip("| ").split(" | ") if not line.startswith("| |") else ("", *line[3:].split(" | "))
            )
            named = re.fullmatch(r"`([\w.]+/?)`", first)
            package = named[1] if named else package
            if named:
                yield f"{program}/{package}"
            yield from (f"{program}/{package}{name}" for name in re.findall(r"`(\w+\.py)`", second))


def test_every_module_the_architecture_names_exists() -> None:
    named = list(modules_named())
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_generated_part_is_current(page: Path) -> None:
    assert render(page) == page.read_text()
