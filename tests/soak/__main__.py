"""Thousands of restarts and races: `python -m tests.soak [--seed N] [--restarts N] [--races N]`.

The seed decides which program is disturbed in which way and order; the timing of the programs differs from run to run.
Every mismatch is printed with a command that repeats its node's part.
"""

import argparse
import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

RESTARTS: Final = 1_000
RACES: Final = 100_000
SEED: Final = 910
LANES: Final = 6
"""Nodes per process: a node mostly waits, for timers and for other programs."""
_REPORT_PERIOD_S: Final = 10.0


@dataclass(slots=True)
class Results:
    """The sum of all workers' results."""

    done: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    races: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def add(self, message: dict[str, Any]) -> None:
        """Add a message of a worker."""
        if "wrong" in message:
            self.wrong.append(message)
        elif "done" in message:
            for total, part in ((self.restarts, message["done"]["restarts"]), (self.races, message["done"]["races"])):
                for name, value in part.items():
                    total.update(
                        {name: value} if isinstance(value, int) else {f"{name}: {k}": n for k, n in value.items()}
                    )
        else:
            self.done.update(message)


def main() -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of all random choices (default: {SEED})")
    parser.add_argument(
        "--restarts", type=int, default=RESTARTS, help=f"restarts of the kubelet (default: {RESTARTS:,})"
    )
    parser.add_argument("--races", type=int, default=RACES, help=f"contested admissions (default: {RACES:,})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"nodes per process (default: {LANES})")
    arguments = parser.parse_args()
    out = Console(width=None if sys.stdout.isatty() else 118, highlight=False)
    lanes = arguments.workers * arguments.lanes
    each = math.ceil(arguments.restarts / lanes), math.ceil(arguments.races / lanes)
    out.print(
        f"seed {arguments.seed} · {arguments.restarts:,} kubelet restarts, {arguments.races:,} races · "
        f"{arguments.workers} processes with {arguments.lanes} nodes each"
    )
    logs = Path(tempfile.mkdtemp(prefix="soak-logs-"))
    started_s = time.monotonic()
    found = asyncio.run(_soak(arguments, each, logs, out))
    took_s = time.monotonic() - started_s
    out.print(_table(found, took_s))
    for wrong in found.wrong:
        out.print(f"[bold red]MISMATCH[/] on the node with seed {wrong['seed']}: ", end="")
        out.print(wrong["wrong"], markup=False)
        command = (
            f"python -m tests.soak --seed {wrong['seed']} --workers 1 --lanes 1 --restarts {each[0]} --races {each[1]}"
        )
        out.print(f"  its plugin's log: {wrong['log']}\n  to repeat it: {command}", markup=False)
    if not found.wrong:
        shutil.rmtree(logs)
    return 1 if found.wrong else 0


async def _soak(arguments: argparse.Namespace, each: tuple[int, int], logs: Path, out: Console) -> Results:
    found = Results()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    lanes = arguments.workers * arguments.lanes
    bars = {
        name: progress.add_task(name, total=count * lanes)
        for name, count in zip(("restarts", "races"), each, strict=True)
        if count
    }

    def receive(message: dict[str, Any]) -> None:
        found.add(message)
        for name in bars.keys() & message.keys():
            progress.advance(bars[name], message[name])

    with progress:
        reporting = asyncio.create_task(_report_progress(found, out)) if progress.disable else None
        seeds = [arguments.seed + number for number in range(lanes)]
        shares = [seeds[number :: arguments.workers] for number in range(arguments.workers)]
        async with asyncio.TaskGroup() as workers:
            for share in shares:
                workers.create_task(_worker(share, each, logs, receive))
        if reporting is not None:
            reporting.cancel()
    return found


async def _report_progress(found: Results, out: Console) -> None:
    """Print the progress as lines, if standard error is not a terminal."""
    started_s = time.monotonic()
    while True:
        await asyncio.sleep(_REPORT_PERIOD_S)
        seconds = time.monotonic() - started_s
        out.print(f"{seconds:5.0f} s  {found.done['restarts']:,} restarts  {found.done['races']:,} races")


async def _worker(
    seeds: list[int], each: tuple[int, int], logs: Path, receive: Callable[[dict[str, Any]], None]
) -> None:
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
    with (logs / f"worker-{seeds[0]}.log").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.soak.worker", "--seeds", *map(str, seeds)),
            *("--restarts", str(each[0]), "--races", str(each[1]), "--logs", str(logs)),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
    assert process.stdout is not None
    ended = False
    try:
        async for line in process.stdout:
            message = json.loads(line)
            ended = ended or "done" in message or "wrong" in message
            receive(message)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not ended:
        receive({"wrong": f"the process ended with {process.returncode}", "seed": seeds[0], "log": str(logs)})


def _table(found: Results, took_s: float) -> Table:
    shown = Table(title=f"soak: {took_s:.0f} s", box=None, title_justify="left", title_style="bold")
    shown.add_column("what")
    shown.add_column("count", justify="right")
    restarts, races = found.restarts, found.races
    refused = "  pods refused because kubelet or plugin was killed"
    rows = [
        ("kubelet restarts", restarts["kubelets"]),
        ("  kills of the plugin", restarts["plugins"]),
        ("  running pods that kept their chips", restarts["kept"]),
        (refused, restarts["refused"]),
        *((f"  {name.removeprefix('killed_at: ')}", n) for name, n in sorted(restarts.items()) if "killed_at" in name),
        ("races (admissions while other pods of the same size were pending)", races["races"]),
        ("  admissions without other pending pods, checked as well", races["alone"]),
        (refused, races["refused"]),
        *(
            (f"  batches: {name.removeprefix('batches: ')}", n)
            for name, n in sorted(races.items())
            if "batches" in name
        ),
        ("admissions without the kubelet's list of pods, counted separately", races["apart"]),
        ("  of these with other chips in the kubelet's ledger", races["swapped"]),
        ("mismatches", len(found.wrong)),
    ]
    for what, count in rows:
        shown.add_row(what, f"{count:,}")
    return shown


if __name__ == "__main__":
    sys.exit(main())
