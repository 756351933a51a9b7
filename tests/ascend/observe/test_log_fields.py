"""Every field of a log line of the programs is in the one list of fields, and has a use."""

import ast
from collections.abc import Iterator
from pathlib import Path

import allocator
import ascend
import device_plugin
from docs.generate.log_fields import LOG_FIELDS

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
OF_EVERY_LINE = {"component", "event", "exception", "level", "timestamp"}
DICTS = {
    "shown": {"pod", "pod_uid", "node", "duration_s"},
    "left_out": {"left_out"},
    "why": {"reason", "error"},
    "_chips(assignment.grant)": {"request", "vnpu", "chips"},
    "_chips(result.grant)": {"request", "vnpu", "chips"},
}
"""The fields of what is unpacked in a call."""
NAMED_BY_OTHERS = {"app.addresses", "{name: str(getattr(fresh, name)) for name in applicable}"}
"""Names of ports and of settings."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """The calls that write a line, or bind fields of one, with their files."""
    for package in (ascend, allocator, device_plugin):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    logger, method = ast.unparse(node.func.value), node.func.attr
                    if logger in {"log", "line"} and method in {*LEVELS, "bind"}:
                        yield str(path), node


def used() -> Iterator[tuple[str, str]]:
    """The fields of these calls, with their files."""
    for path, call in calls():
        for keyword in call.keywords:
            text = ast.unparse(keyword.value)
            if keyword.arg == "extra":  # of the standard library
                if isinstance(keyword.value, ast.Dict):
                    yield from ((path, str(ast.literal_eval(key))) for key in keyword.value.keys if key is not None)
            elif keyword.arg not in {None, "exc_info"}:
                yield path, str(keyword.arg)
            elif keyword.arg is None and text not in NAMED_BY_OTHERS:
                assert text in DICTS, f"{path}: **{text}"
                yield from ((path, field) for field in DICTS[text])


def test_every_field_of_a_line_is_listed_and_every_listed_field_is_used() -> None:
    found = list(used())
    assert len(found) > 300
    unlisted = [f"{path}: {field}" for path, field in found if field not in LOG_FIELDS]
    assert not unlisted, unlisted
    unused = LOG_FIELDS.keys() - {field for _, field in found} - OF_EVERY_LINE
    assert not unused, unused
