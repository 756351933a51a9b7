"""Runs the tools of a release: git, helm, the builder."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.release.errors import ReleaseError


def run(command: Sequence[str], folder: Path, **environment: str) -> str:
    """Run a command without input; return its output.

    Raises:
        ReleaseError: it is not installed or failed, with the end of what it wrote.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the words of the release's own tools, without a shell
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise ReleaseError(f"{command[0]} is not installed") from error
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:3])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout
