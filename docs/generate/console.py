"""Runs the npuctl commands that a page shows, in the root of the repository."""

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from npuctl.cli import app

_BLOCK = re.compile(r"(?P<start>```console\n\$ npuctl (?P<arguments>[^\n]*)\n).*?(?P<end>```\n)", re.DOTALL)
_ROOT = Path(__file__).parents[2]
_COLUMNS = "110"


def with_output(text: str) -> str:
    """Return the page with the current output of its commands; a last line shows the exit status unless it is 0."""

    def run(block: re.Match[str]) -> str:
        status, out = _run(shlex.split(block["arguments"], comments=True))
        exit_line = f"(exit status {status})\n" if status else ""
        return f"{block['start']}{out}{exit_line}{block['end']}"

    with _at_root():
        return _BLOCK.sub(run, text)


def _run(arguments: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            app(arguments, prog_name="npuctl")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return status, "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@contextlib.contextmanager
def _at_root() -> Iterator[None]:
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        with contextlib.chdir(_ROOT):
            yield
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
