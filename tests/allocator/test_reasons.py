"""docs/reasons.md lists every reason there is, and none that isn't."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ascend.errors
from ascend.errors import AscendError

ROOT = Path(__file__).parents[2]
_WORD = re.compile(r"[A-Z][A-Za-z]+")


def documented() -> set[str]:
    rows = [line for line in (ROOT / "docs" / "reasons.md").read_text().splitlines() if line.startswith("| `")]
    return {reason for row in rows for reason in re.findall(r"`(\w+)`", row.split("|")[1])}


def words(node: ast.AST, assigned: Mapping[str, Sequence[ast.expr]]) -> Iterator[str]:
    """Words in an expression that may be a reason, also by names that are assigned in the module."""
    seen: set[str] = set()
    pending = [node]
    while pending:
        for each in ast.walk(pending.pop()):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and _WORD.fullmatch(each.value):
                yield each.value
            if isinstance(each, ast.Name | ast.Attribute) and (name := ast.unparse(each)) not in seen:
                seen.add(name)
                pending.extend(assigned.get(name, ()))


def refused_with(module: ast.Module) -> Iterator[str]:
    """The reasons of a module's refusals: given as they are, or by a name that is assigned in the module."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                assigned.setdefault(ast.unparse(target), []).append(node.value)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refusal" and node.args:
            yield from words(node.args[0], assigned)


def modules() -> list[Path]:
    return sorted(path for program in ("allocator", "npuctl") for path in (ROOT / program).rglob("*.py"))


def in_code() -> set[str]:
    return {reason for path in modules() for reason in refused_with(ast.parse(path.read_text()))}


def test_every_reason_in_the_code_is_documented() -> None:
    found = in_code()
    assert {"RingTooSmall", "NoNodeFits", "AlreadyPlaced", "NodeUnhealthy"} <= found
    assert found - documented() == set()


def test_every_documented_reason_is_in_the_code() -> None:
    kinds = {
        name for name, kind in vars(ascend.errors).items() if isinstance(kind, type) and issubclass(kind, AscendError)
    }
    # A reason written by a front end stands at the beginning of its text.
    texts = "\n".join(path.read_text() for path in modules())
    elsewhere = {reason for reason in documented() if f'"{reason}: ' in texts}
    assert documented() - in_code() - kinds - elsewhere == set()


def test_every_row_has_a_meaning_and_a_cure() -> None:
    rows = [line for line in (ROOT / "docs" / "reasons.md").read_text().splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3, row
        assert all(cells), row
