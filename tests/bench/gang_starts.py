"""How long a large gang takes from its creation until all of its pods are bound, through the real kube-scheduler over
TLS: beside a scheduler that only counts, and beside pods without a gang for which nodes are nominated."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from ascend.annotations import MIN_AVAILABLE
from ascend.products import ASCEND_910A
from tests.allocator.builders import GROUP
from tests.bench.fake_cluster import create_pods, delete_pods
from tests.bench.outcome import Outcome, Run, table
from tests.bench.scheduler import STOCK, Bench, Size, benched
from tests.bench.usage import cpu_of, peak_mib
from tests.cluster import requirements

_QUIET_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Side:
    """Pods that are created at once.

    Attributes:
        title: what they are.
        allocator: the allocator's way to nominate; ``stock`` for a scheduler that only counts.
        gangs: how many gangs they are; 0 if they are none.
    """

    title: str
    allocator: str
    gangs: int


_SIDES: Final = (
    _Side("scheduler that only counts", STOCK, 0),
    _Side("no gang, pending", "pending", 0),
    _Side("one gang, off", "off", 1),
    _Side("one gang, pending", "pending", 1),
    _Side("ten gangs, pending", "pending", 10),
)


async def measure(run: Run) -> Outcome:
    """One round of each side, for each number of nodes; with 5,000 or more without those that take minutes."""
    outcome = Outcome()
    if sentences := requirements.missing():
        return Outcome([Text("\n".join(("GANG STARTS NOT MEASURED: the real cluster cannot run here.", *sentences)))])
    sizes = run.sizes or ((30,) if run.quick else (1_000, 5_000))
    for nodes in sizes:
        sides = [side for side in _SIDES if nodes < 5_000 or side.allocator == "pending"]
        size = Size(nodes=nodes, pods=nodes, rounds=1, warm_up=0, singles=0, quiet_s=_QUIET_S)
        shown = table(
            *("pods", "created\nin s", "first\nbound s", "all bound\ns", "bound", "CPU s\nsched.", "\nAPI", "\nalloc."),
            "allocator\nMiB",
        )
        async with AsyncExitStack() as stack:
            with run.doing(f"start a real cluster with {nodes:,} nodes"):
                names = (STOCK, *dict.fromkeys(side.allocator for side in sides if side.allocator != STOCK))
                bench = await stack.enter_async_context(benched(run, size, names, tls=True))
            for number in run.steps(f"{nodes:,} pods on {nodes:,} nodes", len(sides)):
                side = sides[number]
                found = await _start(bench, side, nodes)
                outcome.raw |= {f"{nodes} nodes, {side.title}, {name}": value for name, value in found.items()}
                shown.add_row(side.title, *(f"{value:,.4g}" for value in found.values()))
        outcome.show(
            f"gang_starts: {nodes:,} pods of {ASCEND_910A.chips} chips created at once on {nodes:,} nodes",
            shown,
            "Times are from the first pod's creation.",
        )
    return outcome


async def _start(bench: Bench, side: _Side, pods: int) -> dict[str, float]:
    await bench.switch(side.allocator)
    plane, process = bench.cluster.control_plane, None
    processes = {"scheduler": plane.scheduler, "api": plane.apiserver}
    if side.allocator != STOCK:
        process = processes["allocator"] = bench.allocators[side.allocator].process
    before = cpu_of(processes)
    started_s = time.perf_counter()

    def annotations(number: int) -> dict[str, str]:
        if not side.gangs:
            return {}
        return {GROUP: f"gang-{number % side.gangs}", MIN_AVAILABLE: str(pods // side.gangs)}

    await create_pods(bench.client, "pod", (ASCEND_910A.chips for _ in range(pods)), annotations)
    created_s = time.perf_counter() - started_s
    await bench.watch.bound(pods, quiet_s=_QUIET_S)
    used = {name: after - before[name] for name, after in cpu_of(processes).items()}
    bound_s = [each - started_s for each in bench.watch.bound_s.values()]
    memory = peak_mib(process.pid) if process is not None else 0.0
    await delete_pods(bench.client, bench.watch)
    return {
        "created, s": created_s,
        "first bound, s": min(bound_s, default=0.0),
        "last bound, s": max(bound_s, default=0.0),
        "bound": len(bound_s),
        "CPU of the scheduler, s": used["scheduler"],
        "CPU of the API server, s": used["api"],
        "CPU of the allocator, s": used.get("allocator", 0.0),
        "peak memory of the allocator, MiB": memory,
    }
