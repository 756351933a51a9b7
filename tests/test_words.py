"""Counts of what makes the product code hard to read: each may only fall, and the limit falls with it.

CONTRIBUTING.md (Words) says what stands in place of each.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("allocator", "ascend", "device_plugin", "npuctl", "sandbox")
SLACK: Final = 10
"""How far a count may be below its limit: so that changes made at the same time don't all change this file."""

_PRONOUNS: Final = re.compile(r"\b(it|its|that|those|which|these|what|one|they|there|other)\b", re.IGNORECASE)
_PARTICIPLE: Final = re.compile(
    r"_?([a-z]+ed|begun|chosen|found|given|gone|held|kept|known|left|lost|made|seen|taken|written)"
)
_MOST_LINES: Final = 300


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of the product by path; without generated stubs, which are in ``protos``."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            yield path, node


def first_lines_of_pronouns() -> list[str]:
    """First lines of docstrings with three pronouns or more."""
    found = []
    for path, node in nodes():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(_PRONOUNS.findall(line)) >= 3:
                found.append(f"{path}: {line}")
    return found


def loops_over_each() -> list[str]:
    """Loops, comprehensions and lambdas whose variable is ``each``."""
    found = []
    for path, node in nodes():
        match node:
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                names = {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
            case ast.Lambda(args=arguments):
                names = {argument.arg for argument in arguments.args}
            case _:
                continue
        if "each" in names:
            found.append(f"{path}: {ast.unparse(node)[:80]}")
    return found


def class_names_of_several_modules() -> list[str]:
    """Public names of classes that several modules define."""
    found = Counter(
        node.name for _, node in nodes() if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return [name for name, count in found.items() if count > 1]


def long_files() -> list[str]:
    """Modules of more than 300 lines."""
    return [path for path in modules() if len((ROOT / path).read_text().splitlines()) > _MOST_LINES]


def methods_named_by_a_participle() -> list[str]:
    """Methods, properties left out, whose name is a participle alone."""
    found = []
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _PARTICIPLE.fullmatch(method.name):
                    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
                    if not decorators & {"property", "cached_property"}:
                        found.append(f"{path}: {node.name}.{method.name}")
    return found


@pytest.mark.parametrize(
    ("counted", "limit"),
    [
        (first_lines_of_pronouns, 33),
        (loops_over_each, 1),
        (class_names_of_several_modules, 7),
        (long_files, 25),
        (methods_named_by_a_participle, 13),
    ],
)
def test_what_is_hard_to_read_becomes_less(counted: Callable[[], list[str]], limit: int) -> None:
    found = counted()
    assert len(found) <= limit, f"{counted.__doc__} {len(found)} of at most {limit}:\n" + "\n".join(found)
    assert len(found) > limit - SLACK, f"{counted.__doc__} There are {len(found)} now: lower the limit to that."
