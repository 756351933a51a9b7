"""`python -m tests.fuzz [--seconds N] [TARGET …]` fuzzes the targets in turn, and prints executions and crashes."""

import argparse
import sys

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.targets import TARGETS

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all if none is given")
parser.add_argument("--seconds", type=int, default=60, help="for each target")
arguments = parser.parse_args()
failed = False
for name in arguments.targets or TARGETS:
    outcome = fuzz(name, arguments.seconds)
    print(  # noqa: T201 - a command
        f"{name:20} {outcome.executions:9,} executions", flush=True
    )
    if outcome.output:
        failed = True
        print(f"CRASH: {outcome.crash!r}\n{outcome.output}", flush=True)  # noqa: T201 - a command
sys.exit(failed)
