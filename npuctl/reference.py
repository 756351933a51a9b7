"""Writes what commands print into the documents: a block that begins with ``$ npuctl …`` shows what that prints.

``python -m npuctl.reference`` runs every such command and writes its output, with ``--check`` it only says whether
what is written is current. The commands are run in the repository.
"""

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

from npuctl.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "npuctl.md")

_BLOCK = re.compile(r"(```console\n\$ npuctl (?P<arguments>[^\n]*)\n).*?(?P<end>```\n)", re.DOTALL)
_WIDTH = "110"


def render(text: str) -> str:
    """The document with what its commands print now; a line says so where the exit status is not 0."""

    def run(block: re.Match[str]) -> str:
        status, out = _output(shlex.split(block["arguments"], comments=True))
        told = f"(exit status {status})\n" if status else ""
        return f"{block[1]}{out}{told}{block['end']}"

    return _BLOCK.sub(run, text)


def _output(arguments: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            app(arguments, prog_name="npuctl")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return status, "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def main() -> None:
    """Write the documents, or check them."""
    os.chdir(ROOT)
    os.environ["COLUMNS"] = _WIDTH
    stale = [path for path in DOCUMENTS if render(path.read_text()) != path.read_text()]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"{names}: what commands print is not current; run `make docs`")
        return
    for path in stale:
        path.write_text(render(path.read_text()))


if __name__ == "__main__":
    main()
