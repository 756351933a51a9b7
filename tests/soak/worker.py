"""A process of a soak: several lanes at once, because a lane mostly waits; it reports its progress on standard output.

Every line is a JSON object: ``{"restarts": n, "races": n}`` since the last line, and at the end ``{"done": …}`` with
the counts or ``{"wrong": …, "seed": …, "log": …}``.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.soak.lane import Mismatch, lane
from tests.soak.races import RaceTally, race_many
from tests.soak.restarts import Tally, restart_many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.worker", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="seeds, one lane each")
    parser.add_argument("--restarts", type=int, required=True, help="restarts of the kubelet per lane")
    parser.add_argument("--races", type=int, required=True, help="races per lane")
    parser.add_argument("--logs", type=Path, required=True, help="the folder of the plugins' logs")
    arguments = parser.parse_args()
    # The sandbox logs every failure it injects, and there are many of them here.
    logging.disable(logging.CRITICAL)
    return asyncio.run(_soak(arguments.seeds, arguments.restarts, arguments.races, arguments.logs))


async def _soak(seeds: list[int], restarts: int, races: int, logs: Path) -> int:
    killed, raced = Tally(), RaceTally()

    async def one(seed: int) -> None:
        async with lane(seed, _log(logs, seed)) as made:
            if restarts:
                await restart_many(made, restarts, killed, lambda count: _send(restarts=count))
            if races:
                await made.delete(*made.granted)
                await race_many(made, races, raced, lambda count: _send(races=count))

    tasks = {asyncio.create_task(one(seed)): seed for seed in seeds}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        if (error := task.exception()) is not None:
            text = str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
            _send(wrong=text, seed=tasks[task], log=str(_log(logs, tasks[task])))
            return 1
    _send(done={"restarts": _plain(killed), "races": _plain(raced)})
    return 0


def _log(logs: Path, seed: int) -> Path:
    return logs / f"plugin-{seed}.log"


def _plain(tally: Tally | RaceTally) -> dict[str, Any]:
    """Return the counts with keys that are valid in JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Counter):
            return {key if isinstance(key, str) else ", ".join(key): count for key, count in value.items()}
        return value

    return {each.name: plain(getattr(tally, each.name)) for each in fields(tally)}


def _send(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
