"""Completion of ``kubectl npu …``: kubectl runs ``kubectl_complete-npu`` with the words so far (KEP 2379).

It prints a candidate a line, and last what the shell is to do beside: here never to offer files, except after an option
that takes some.
"""

import sys
from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from npuctl.cli import app

NO_FILES = ":4"
FILES = ":0"

_OF_FILES = frozenset({"-f", "--filename", "--config", "--kubeconfig"})


def complete(words: Sequence[str]) -> list[str]:
    """The lines to print.

    Args:
        words: after ``kubectl npu``; the last one is begun, or empty.
    """
    *before, begun = words or ("",)
    if before and before[-1] in _OF_FILES:
        return [FILES]
    command: Any = get_command(app)
    for word in before:
        command = getattr(command, "commands", {}).get(word, command)
    names = list(getattr(command, "commands", {}))
    if begun.startswith("-"):
        names = [option for each in command.params for option in each.opts if option.startswith("--")]
    elif not names:
        names = _choices(command, before[-1])
    return [*sorted(name for name in names if name.startswith(begun)), NO_FILES]


def _choices(command: Any, option: str) -> list[str]:
    """The values the option before takes, or the first argument of a command."""
    for each in command.params:
        if option in each.opts or (each.param_type_name == "argument" and not option.startswith("-")):
            # None for other types; a typer without it offers nothing.
            choices = getattr(getattr(each, "type_descriptor", None), "choices", None)
            return [str(choice.value) for choice in choices or ()]
    return []


def main() -> None:
    """Print the candidates."""
    sys.stdout.write("\n".join(complete(sys.argv[1:])) + "\n")


if __name__ == "__main__":
    main()
