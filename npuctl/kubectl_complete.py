"""Completion of ``kubectl npu …``: kubectl runs ``kubectl_complete-npu`` with the words so far (KEP 2379).

It prints a candidate a line, and last what the shell is to do beside: here never to offer files, except after an option
that takes some.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from npuctl.cli import app
from npuctl.completing import end_in_time

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
    while before and (chosen := getattr(command, "commands", {}).get(before[0])) is not None:
        command = chosen
        del before[0]
    if begun.startswith("-"):
        names = [option for each in command.params for option in each.opts if option.startswith("--")]
    else:
        names = list(getattr(command, "commands", {})) or _values(command, before, begun)
    return [*sorted(name for name in names if name.startswith(begun)), NO_FILES]


def _values(command: Any, before: list[str], begun: str) -> list[str]:
    """The values of the option before, or of the argument that is due."""
    context = command.make_context(command.name, list(before), resilient_parsing=True)
    arguments = [
        each for each in command.params if each.param_type_name == "argument" and not context.params[each.name]
    ]
    options = [each for each in command.params if before and before[-1] in each.opts and not each.is_flag]
    return [item.value for each in (*options, *arguments)[:1] for item in each.shell_complete(context, begun)]


def main() -> None:
    """Print the candidates."""
    logging.getLogger().addHandler(logging.NullHandler())
    limit = end_in_time(f"{NO_FILES}\n")
    text = "\n".join(complete(sys.argv[1:]))
    limit.cancel()
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
