"""Starts a process of tests/fuzz/worker.py for a target, and reads what it has found."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
_EXECUTIONS: Final = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_MOST_BYTES: Final = 16_384
# A body of that size is read in milliseconds; the machine may run other things.
_SLOW_S: Final = 10
_MEMORY_MB: Final = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What fuzzing a target has found.

    Attributes:
        executions: how many inputs were tried.
        crash: the input of a crash, and the end of its output; empty if there was none.
    """

    executions: int
    crash: bytes
    output: str


def fuzz(name: str, seconds: int) -> Outcome:
    """Fuzz a target for a time, beginning with its corpus, which stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        found.mkdir()
        options = [f"-max_total_time={seconds}", f"-timeout={_SLOW_S}", f"-rss_limit_mb={_MEMORY_MB}"]
        options += [f"-max_len={_MOST_BYTES}", "-print_final_stats=1", f"-artifact_prefix={folder}/"]
        command = [sys.executable, "-m", "tests.fuzz.worker", name, *options, str(found), str(CORPUS / name)]
        done = subprocess.run(command, capture_output=True, check=False)
        crashes = [path.read_bytes() for path in Path(folder).iterdir() if path.is_file()]
    output = (done.stdout + done.stderr).decode(errors="replace")
    executions = _EXECUTIONS.search(output)
    crash = crashes[0] if crashes else b""
    return Outcome(int(executions[1]) if executions else 0, crash, output[-4000:] if done.returncode else "")
