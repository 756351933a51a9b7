"""The command line of the measurements."""

import argparse
import asyncio
import json
import logging
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from ascend.observe.logs import configure_logs
from tests.bench import (
    allocate,
    decisions,
    fairness,
    fragmentation,
    freed,
    gang_starts,
    gangs,
    growth,
    plugin,
    rescheduling,
    scheduler,
    slices,
    startup,
    super_pods,
    switches,
    telemetry,
    verbs,
    volcano,
    waiting,
    web,
)
from tests.bench.outcome import Outcome, Run

BENCHES: Final[dict[str, Callable[[Run], Awaitable[Outcome]]]] = {
    "decisions": decisions.measure,
    "gangs": gangs.measure,
    "super_pods": super_pods.measure,
    "switches": switches.measure,
    "volcano": volcano.measure,
    "rescheduling": rescheduling.measure,
    "fragmentation": fragmentation.measure,
    "slices": slices.measure,
    "fairness": fairness.measure,
    "allocate": allocate.measure,
    "plugin": plugin.measure,
    "scheduler": scheduler.measure,
    "scheduler-tls": scheduler.measure_over_tls,
    "gang_starts": gang_starts.measure,
    "waiting": waiting.measure,
    "freed": freed.measure,
    "startup": startup.measure,
    "growth": growth.measure,
    "telemetry": telemetry.measure,
    "verbs": verbs.measure,
    "web": web.measure,
}
SEED: Final = 910
PLOTS: Final = Path("build/bench")
_WIDTH: Final = 118


def main() -> int:
    """Run the named benches, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"a bench: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="runs all in a minute; the numbers mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", default=PLOTS, help=f"the folder for plots ({PLOTS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"the seed of all random choices (default: {SEED})")
    sized = "the numbers of nodes of gang_starts (with as many pods) and waiting, in place of their own"
    parser.add_argument("--nodes", type=int, nargs="+", default=(), metavar="N", help=sized)
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    configure_logs("bench", level="WARNING", stream=sys.stderr)
    logging.getLogger("sandbox").setLevel(logging.ERROR)
    out = Console(width=None if sys.stdout.isatty() else _WIDTH)
    kept = {"conditions": _conditions(arguments.seed, quick=arguments.quick)}
    out.print(" · ".join(f"{key} {value}" for key, value in kept["conditions"].items()), highlight=False)
    for name in names:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            run = Run(name, arguments.quick, arguments.seed, progress, arguments.plots, tuple(arguments.nodes))
            outcome = asyncio.run(_measured(run))
        out.print()
        for each in outcome.shown:
            out.print(each, highlight=False)
        kept[name] = outcome.raw
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(kept, indent=1))
    return 0


async def _measured(run: Run) -> Outcome:
    return await BENCHES[run.bench](run)


def _conditions(seed: int, *, quick: bool) -> dict[str, str]:
    return {
        "seed": str(seed),
        "mode": "quick" if quick else "full",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": f"{platform.python_version()} in {sys.base_prefix}",
    }


if __name__ == "__main__":
    sys.exit(main())
