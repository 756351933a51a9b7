"""What the verbs of npuctl cost on a large cluster from a file: CPU time and memory of each, side by side."""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ascend.annotations import MIN_AVAILABLE, REAL
from ascend.chips import chip_name
from tests.bench.outcome import Outcome, Run, table
from tests.npuctl.manifests import as_list, node, pod, report

_NOW: Final = "2026-01-01T00:00:30Z"
_FULL: Final = ((300, 150), (3_000, 1_600), (10_000, 5_000))
_QUICK: Final = ((30, 20),)
"""Nodes, and pods that wait."""

_BUSY: Final = 0.8
_GANGS: Final = (4, 8, 16, 32)
_SIZES: Final = (1, 2, 4, 8)
_KIND: Final = "module-910b-8"


class _Cost(NamedTuple):
    cpu_s: float
    wall_s: float
    peak_mib: float
    output_bytes: int


async def measure(run: Run) -> Outcome:
    """Run every verb once on each cluster."""
    outcome, shown = Outcome(), table("nodes, waiting pods", "verb", "CPU s", "wall s", "peak MiB", "output KB")
    with tempfile.TemporaryDirectory() as folder:
        for nodes, waiting in _QUICK if run.quick else _FULL:
            path = Path(folder) / f"{nodes}.json"
            objects = list(cluster(nodes, waiting, random.Random(run.seed)))
            path.write_text(json.dumps(as_list(*objects)))
            verbs = _verbs(objects[-1]["metadata"]["name"])
            for number in run.steps(f"verbs on {nodes} nodes", len(verbs)):
                cost = await asyncio.to_thread(_run, path, verbs[number])
                name = " ".join(verbs[number])
                cells = (
                    f"{cost.cpu_s:.2f}",
                    f"{cost.wall_s:.2f}",
                    f"{cost.peak_mib:.0f}",
                    f"{cost.output_bytes / 1e3:.0f}",
                )
                shown.add_row(f"{nodes:,}, {waiting:,}", name, *cells)
                outcome.raw[f"{nodes}, {name}, CPU s"] = [cost.cpu_s]
                outcome.raw[f"{nodes}, {name}, peak MiB"] = [cost.peak_mib]
    outcome.show("verbs: what npuctl needs for a cluster in a file", shown, "each verb is a process of its own")
    return outcome


def _verbs(last: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("topo",),
        ("usage",),
        ("capacity",),
        ("doctor", "--cluster"),
        ("explain", last),
        ("queue",),
        ("whatif", "--drain", "npu-00001"),
        ("defragment", "--servers", "20"),
        ("plan",),
        ("plan", "-o", "json"),
    )


def cluster(nodes: int, waiting: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Servers of 8 chips, of which most have a pod, and pods that wait, most of them in gangs."""
    for number in range(nodes):
        name = f"npu-{number:05d}"
        yield node(name, kind=_KIND, cordoned=not number % 60)
        yield report(name)
        if rng.random() < _BUSY:
            chips = rng.choice(_SIZES)
            real = {REAL: ",".join(map(chip_name, range(chips)))}
            runs = pod(f"runs-{number}", chips, node=name, chips=range(chips), uid=f"runs-{number}", annotations=real)
            runs["metadata"]["ownerReferences"] = [_owner("apps/v1", "ReplicaSet", f"runs-{number}")]
            yield runs
    left = waiting
    while left > 0:
        size = min(rng.choice(_GANGS), left) if rng.random() < _BUSY else 1
        for rank in range(size):
            yield _waiting(f"waits-{left}-{rank}", f"waits-{left}", size, rng.choice(_SIZES) if size == 1 else 8)
        left -= size


def _waiting(name: str, job: str, size: int, chips: int) -> dict[str, Any]:
    owner = _owner("batch/v1", "Job", job)
    made = pod(name, chips, uid=name, ownerReferences=[owner], creationTimestamp="2026-01-01T00:00:00Z")
    made["metadata"]["annotations"] = {MIN_AVAILABLE: str(size)} if size > 1 else {}
    return made


def _owner(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"owner-{name}", "controller": True}


def _run(path: Path, verb: tuple[str, ...]) -> _Cost:
    command = [sys.executable, "-m", "npuctl.cli", *verb, "-f", str(path), "--now", _NOW]
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s, size = time.monotonic() - started_s, out.seek(0, os.SEEK_END)
    return _Cost(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss / 1024, size)
