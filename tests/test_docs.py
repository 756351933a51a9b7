"""The documents agree with the code."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.products import PRODUCTS
from ascend.reasons import Reason
from ascend.templates import divisible_kinds
from ascend.vnpus import SUFFIXES
from device_plugin.publish.node_conditions import Lack
from docs.generate.pages import PAGES, render
from docs.generate.pictures import PICTURES
from docs.generate.site import indented
from docs.generate.support import functions_table, marks
from npuctl.doctor.told import ADVICE
from tests.e2e import breaks_of_cores
from tests.e2e.test_doctor_breaks import BREAKS
from tests.failure_rows import row_of, rows, shown_by

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "tests/failure_tests.md", *(ROOT / "docs").glob("*.md"))
)

_DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_OF_ALLOCATOR = {"expires at"}
"""What doctor repeats of the allocator's Events."""
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
    assert len(rows()) > 100
    assert len(shown_by()) == len(rows())
    for row in rows():
        assert len(row.cells) == 5, row
        assert all(row.cells), row
        assert _NAMED.search(row.tests), row


def test_every_row_of_the_failure_table_has_doctors_line_or_says_why_there_is_none() -> None:
    sources = [*(ROOT / "npuctl" / "doctor").glob("*.py"), ROOT / "npuctl" / "chips.py"]
    text = "\n".join(path.read_text() for path in sources)
    checks = set(re.findall(r'named\("([\w ]+)"', text))
    words = {*map(str, Reason), *map(str, Lack), *ADVICE, *re.findall(r'= "(\w+)"', text)}
    for row in rows():
        if row.line is None:
            assert re.fullmatch(r"– [^`]*\w+ [^`]*\w+ [^`]*\w+", row.cells[2]), row
        else:
            assert row.line.check in checks, row
            assert row.line.says in words or row.line.says in text or row.line.says in _OF_ALLOCATOR, row


def test_every_line_of_the_failure_table_is_asserted_by_a_break_on_the_real_cluster() -> None:
    told = [row for row in rows() if row.line is not None]
    assert {row.what for row in told} == {row_of(first).what for first in (*BREAKS, *breaks_of_cores.BREAKS)}
    test = "`test_a_break_has_the_line_of_its_row_until_it_is_mended`"
    assert [row.what for row in told if test not in row.tests] == []


def test_the_table_of_events_has_every_event_of_the_device_plugin() -> None:
    sources = (path.read_text() for path in (ROOT / "device_plugin").rglob("*.py"))
    posted = {reason for source in sources for reason in re.findall(r'"(NPU[A-Z][A-Za-z]+)"', source)}
    assert len(posted) > 15
    page = (ROOT / "docs" / "device-plugin-reference.md").read_text()
    page = page.partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`NPU\w+`(?:, )?)+) [|(]", page, re.MULTILINE)
    assert sorted(reason for row in rows for reason in re.findall(r"NPU\w+", row)) == sorted(posted)


def test_the_changelog_has_entries_of_one_line_under_versions_with_a_date() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    unreleased, *released = [line for line in lines if line.startswith("## ")]
    assert unreleased == "## [Unreleased]"
    assert released
    assert [line for line in released if not re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line)] == []
    assert [
        line for line in lines if line.startswith((" ", "* "))
    ] == []  # an entry is one line, which `make lint` measures


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 9216


def test_lists_of_the_site_have_four_spaces_for_each_level() -> None:
    page = ["1. a", "   b", "", "   * c", "     d", "", "   ```sh", "   e", "", "     f", "   ```", "2. g", "h"]
    site = [
        "1. a",
        "    b",
        "",
        "    * c",
        "        d",
        "",
        "    ```sh",
        "    e",
        "",
        "      f",
        "    ```",
        "",
        "2. g",
        "h",
    ]
    assert list(indented(page)) == site


def test_an_item_of_the_site_begins_after_the_paragraphs_of_the_item_before_it() -> None:
    page = ["1. a", "2. b", "", "   c", "3. d", "   * e", "4. f"]
    assert list(indented(page)) == ["1. a", "2. b", "", "    c", "", "3. d", "    * e", "4. f"]


def modules_named() -> Iterator[str]:
    """The paths in docs/architecture.md; in the tables of rooms, a row without a room belongs to the room above."""
    program = room = ""
    for line in (ROOT / "docs/architecture.md").read_text().splitlines():
        if line.startswith("## "):
            program = {"## The allocator": "allocator", "## The device plugin": "device_plugin"}.get(line, "")
        yield from re.findall(r"`((?:allocator|device_plugin|ascend|sandbox)/[\w/.]*)`", line)
        if program and line.startswith("| "):
            first, second, *_ = (
                line.strip("| ").split(" | ") if not line.startswith("| |") else ("", *line[3:].split(" | "))
            )
            named = re.fullmatch(r"`([\w.]+/?)`", first)
            room = named[1] if named else room
            if named:
                yield f"{program}/{room}"
            yield from (f"{program}/{room}{name}" for name in re.findall(r"`(\w+\.py)`", second))


def test_every_module_the_architecture_names_exists() -> None:
    named = list(modules_named())
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_generated_part_is_current(page: Path) -> None:
    assert render(page) == page.read_text()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_every_picture_is_current(picture: Path) -> None:
    assert PICTURES[picture]() == picture.read_text()


def test_every_product_is_in_the_table_of_the_spec() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| (?:up to )?(\d+) \|", (ROOT / "docs/spec/products.md").read_text(), re.MULTILINE
    )
    assert {(product.name, str(product.chips)) for product in PRODUCTS.values()} <= set(rows)


def test_marks_name_only_products_that_their_tests_run_with() -> None:
    parametrized = [mark for mark in marks() if len(mark.products) > 2]
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:randomly", "-m", ""]
    files = sorted({mark.file for mark in parametrized})
    collected = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for mark in parametrized:
        # The sandbox and the real cluster are parameters too.
        kind = {"sandbox": "sandbox", "kubelet": "real"}.get(mark.how, "")
        start = f"{mark.file}::{mark.test}["
        ids = [line for line in collected.splitlines() if line.startswith(start) and kind in line]
        for product in mark.products:
            assert any(re.search(rf"[-\[]{re.escape(product)}[-\]]", each) for each in ids), (mark, product)


def test_the_table_of_functions_says_what_each_product_has() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in functions_table()][2:]
    found = {row[0].strip("`"): row[1:] for row in rows}
    assert found.keys() == PRODUCTS.keys()
    resets = {name: cells[0] for name, cells in found.items()}
    assert resets["910A"] == "4 chips, one by one"
    assert (resets["910B-8"], resets["910B-16"]) == ("all chips", "all chips")
    assert (resets["A3-8"], resets["A3-16"]) == ("2 chips", "4 chips")
    assert found["910A"][1:] == ["no", "no", "13 of 15 values", "yes", "yes", "yes", "beforehand"]
    both = "beforehand, or when a pod starts"
    assert found["A3-16"][1:] == ["yes", "yes", "15 of 15 values", "yes", "yes", "yes", both]


def test_the_table_of_parts_has_every_template_and_every_number_of_cores() -> None:
    page = (ROOT / "docs" / "vnpus.md").read_text().partition("\n## Which chips can be cut\n")[2].partition("\n##")[0]
    rows = {cells[0]: cells for cells in re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)}
    assert {name for row in rows.values() for name in re.findall(r"`(vir\w+)`", row[1])} == set(SUFFIXES)
    for kind in divisible_kinds():
        shown = [re.search(rf"([\d or]+) of [\d or]*{kind.cores}", row[2]) for row in rows.values()]
        numbers = {tuple(map(int, re.findall(r"\d+", found[1]))) for found in shown if found}
        assert numbers == {kind.parts}, kind
