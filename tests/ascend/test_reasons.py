"""Every reason is documented and used, and every refusal has one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ascend.errors
from ascend.reasons import Actor, Category, Reason

ROOT = Path(__file__).parents[2]
PROGRAMS = ("allocator", "ascend", "device_plugin", "npuctl")


@pytest.fixture(scope="module")
def modules() -> dict[Path, str]:
    """The code of all modules but the one that defines the reasons."""
    paths = [path for program in PROGRAMS for path in sorted((ROOT / program).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text() for path in paths if path.name != "reasons.py"}


def refusals(code: str) -> Iterator[tuple[int, ast.expr]]:
    """The line of every refusal that is made, and its reason."""
    for each in ast.walk(ast.parse(code)):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "Refusal":
            for reason in (*each.args[:1], *(keyword.value for keyword in each.keywords if keyword.arg == "reason")):
                yield each.lineno, reason


def test_every_reason_has_a_meaning_and_a_cure() -> None:
    for reason in Reason:
        assert reason.meaning, reason
        assert reason.cure, reason
        assert isinstance(reason.category, Category)
        assert isinstance(reason.actor, Actor)


def test_the_words_are_unique_and_in_camel_case() -> None:
    assert len(Reason.__members__) == len(set(Reason))  # a repeated word would be an alias
    # Volcano's plugin looks for these two words (docs/spec/vnpu.md#dynamic-vnpus-in-allocate).
    own = [reason for reason in Reason if reason not in {Reason.SEGMENT_FAILED, Reason.NO_RESOURCE}]
    assert [reason for reason in own if not re.fullmatch("([A-Z][a-z]+)+", reason)] == []
    assert [reason for reason in own if reason.name != re.sub("(?<=[a-z])(?=[A-Z])", "_", reason).upper()] == []


def test_every_reason_is_used(modules: dict[Path, str]) -> None:
    """By its member or its word, or because it is the name of an error's class."""
    members = {name for code in modules.values() for name in re.findall(r"\bReason\.(\w+)", code)}
    words = {word for code in modules.values() for word in re.findall(r'"([A-Z][A-Za-z]+)"', code)}
    errors = {name for name, kind in vars(ascend.errors).items() if isinstance(kind, type)}
    assert [reason for reason in Reason if reason.name not in members and reason not in words | errors] == []


def test_every_refusal_has_a_reason(modules: dict[Path, str]) -> None:
    found = [
        (f"{path}:{line}", reason)
        for path, code in modules.items()
        if "Refusal(" in code
        for line, reason in refusals(code)
    ]
    assert len(found) > 50
    assert [place for place, reason in found if isinstance(reason, ast.Constant | ast.JoinedStr)] == []
