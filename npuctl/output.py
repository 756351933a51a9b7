"""How answers are printed: tables for people, JSON and YAML for programs."""

import codecs
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec
import yaml
from rich.console import Console, RenderableType

from ascend.errors import Refusal

_PIPE_WIDTH = 140
"""Columns where no terminal says how many there are."""

_NAMES = 3

_STAND_INS = str.maketrans("✓✗⊘⊖↻≁·→…", "+xo-@~.>.")
"""What people see where their terminal can't show a mark of ours; of all else a question mark."""


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def show(answer: object, output: Output, table: Callable[[], RenderableType]) -> None:
    """Print an answer on standard output.

    Args:
        answer: as programs get it.
        output: how.
        table: makes what people see.
    """
    if output is not Output.TABLE and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as programs expect, whatever people's terminals show
    if output is Output.JSON:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")
    elif output is Output.YAML:
        text = yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False, allow_unicode=True, width=_PIPE_WIDTH)
        sys.stdout.write(text)
    else:
        console().print(table())


def warn(sentence: str) -> None:
    """Tell people something beside the answer, on standard error."""
    sys.stderr.write(f"npuctl: {sentence}\n")


def console() -> Console:
    """Where people read: as wide as their terminal, with what it can show; names are printed as they are."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("npuctl", _stand_in)
        sys.stdout.reconfigure(errors="npuctl")
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = error.object[error.start : error.end].translate(_STAND_INS)
    return shown.encode("ascii", "replace").decode(), error.end


class Group(msgspec.Struct, frozen=True):
    """Nodes that say no for one reason; the sentence is that of the first of them."""

    reason: str
    message: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        return f"{self.reason}: {self.message}"

    def names(self) -> str:
        """The first few nodes by name, and how many more there are."""
        return some(self.nodes)


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def group(refusals: Mapping[str, Refusal]) -> tuple[Group, ...]:
    """The nodes by the reason they give, the most frequent first."""
    by_reason: dict[str, list[str]] = {}
    for node, refusal in sorted(refusals.items()):
        by_reason.setdefault(refusal.reason, []).append(node)
    ordered = sorted(by_reason.items(), key=lambda each: (-len(each[1]), each[0]))
    return tuple(Group(reason, refusals[nodes[0]].message, tuple(nodes)) for reason, nodes in ordered)
