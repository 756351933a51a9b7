"""Every citation of a documentation page, in code and in documents, points to a file and to a heading in it."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_NO_TEXT = {"uv.lock", "go.sum", "LICENSE"}
"""Files that the project does not write."""
_SKIPPED = {"__pycache__", "build", "dist"}
"""Folders of tools, besides the hidden ones."""

_CITATION = re.compile(r"(?<![\w./-])(docs/[\w./-]+?\.md)(?:#([\w-]+))?")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_OLD = re.compile(r"(?<!docs/)(?<!\]\()\bspec/[a-z-]+\.md|\b[Ss]eed 00\d|§\s?\d")
"""Former citations of notes that are not in the repository; links between pages do not match."""


def test_every_citation_leads_to_a_heading() -> None:
    wrong = [
        f"{where}: {target} {problem}"
        for path in _texts()
        for where, target, page, anchor in _citations(path)
        if (problem := _problem(page, anchor))
    ]
    assert wrong == []


def test_nothing_outside_the_repository_is_cited() -> None:
    found = [
        f"{_where(path, number)}: {match[0]}"
        for path in _texts()
        for number, line in _lines(path)
        for match in _OLD.finditer(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("headings", "anchors"),
    [
        pytest.param(["910A servers"], ["910a-servers"], id="lower case and spaces"),
        pytest.param(["The life of a pod: `bind`, *now*"], ["the-life-of-a-pod-bind-now"], id="punctuation and markup"),
        pytest.param(["With [a link](page.md#x)"], ["with-a-link"], id="the text of a link"),
        pytest.param(["ListAndWatch & `kltDev_1`"], ["listandwatch--kltdev_1"], id="spaces around dropped characters"),
        pytest.param(["Same", "Same", "Same"], ["same", "same-1", "same-2"], id="numbers for repeated headings"),
    ],
)
def test_anchors_follow_the_rules_of_github(headings: list[str], anchors: list[str]) -> None:
    assert list(_anchors(f"## {heading}" for heading in headings)) == anchors


def test_headings_in_code_blocks_are_none() -> None:
    assert list(_anchors(["# One", "```sh", "# a comment", "```", "# Two"])) == ["one", "two"]


def _citations(path: Path) -> Iterator[tuple[str, str, Path, str]]:
    """Yield each citation in a file: its place, its text, the page, and the anchor or an empty string."""
    links = path.suffix == ".md"
    in_code = False
    for number, line in _lines(path):
        where = _where(path, number)
        for match in _CITATION.finditer(line):
            yield where, match[0], ROOT / match[1], match[2] or ""
        in_code ^= links and _FENCE.match(line) is not None
        for match in _LINK.finditer(line) if links and not in_code else ():
            target, _, anchor = match[1].partition("#")
            if ":" not in target:  # a scheme, as in https:
                yield where, match[1], path.parent / target if target else path, anchor


def _problem(page: Path, anchor: str) -> str:
    if not page.exists():
        return "does not exist"
    if anchor and page.suffix == ".md" and anchor not in _anchors_of(page):
        return "has no such heading"
    return ""


@cache
def _anchors_of(page: Path) -> frozenset[str]:
    return frozenset(_anchors(page.read_text().splitlines()))


def _anchors(lines: Iterator[str] | list[str]) -> Iterator[str]:
    """Yield GitHub's anchors of the headings in a document's lines, in order."""
    seen: dict[str, int] = {}
    in_code = False
    for line in lines:
        in_code ^= _FENCE.match(line) is not None
        heading = None if in_code else _HEADING.match(line)
        if heading is None:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        anchor = re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-")
        times = seen.get(anchor, 0)
        seen[anchor] = times + 1
        yield f"{anchor}-{times}" if times else anchor


@cache
def _texts() -> tuple[Path, ...]:
    """Return all text files of the repository."""
    paths = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        paths += [Path(folder, name) for name in sorted(names) if name not in _NO_TEXT]
    return tuple(path for path in paths if _text(path) is not None)


@cache
def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate((_text(path) or "").splitlines(), 1)


def _where(path: Path, number: int) -> str:
    return f"{path.relative_to(ROOT)}:{number}"
