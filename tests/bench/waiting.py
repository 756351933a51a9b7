"""What pods that fit nowhere cost while others come and go: the scheduler's CPU, and how long a pod that fits waits.

Each pod that ends makes kube-scheduler try all pods again that an extender has refused.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import product
from typing import Final

from rich.text import Text

from ascend.annotations import Grant
from ascend.kube.objects import PODS
from tests.bench.fake_cluster import NAMESPACE, create_pods, delete_pods, fake_name, in_order
from tests.bench.outcome import Outcome, Run, ms, p50, table
from tests.bench.scheduler import STOCK, Bench, Size, benched
from tests.bench.usage import cpu_of
from tests.cluster import requirements
from tests.cluster.manifests import pod

_SIDES: Final = ("pending", "gated")
_USED: Final = (0, 1, 4, 5)
"""Two chips are free in each ring: a pod with four fits on no node, one with two on each."""
_RUNNING: Final = 3
_PAUSE_S: Final = 2.0
_PATIENCE_S: Final = 60.0


async def measure(run: Run) -> Outcome:
    """Both sides, one after the other."""
    outcome = Outcome()
    if sentences := requirements.missing():
        return Outcome([Text("\n".join(("WAITING NOT MEASURED: the real cluster cannot run here.", *sentences)))])
    large = product(run.sizes or (1_000, 5_000), (500, 5_000))
    for nodes, waiting in [(20, 10)] if run.quick else large:
        size = Size(nodes=nodes, pods=0, rounds=1, warm_up=0, singles=0, quiet_s=_PATIENCE_S)
        shown = table("nominate", "pods that\nfit", "wait\np50 ms", "\nmax ms", "CPU %\nsched.", "\nAPI", "\nalloc.")
        async with AsyncExitStack() as stack:
            with run.doing(f"start a real cluster with {nodes:,} nodes"):
                bench = await stack.enter_async_context(benched(run, size, (STOCK, *_SIDES), tls=True))
            for number in run.steps(f"{waiting:,} pods wait on {nodes:,} nodes", len(_SIDES)):
                name = _SIDES[number]
                waited_s, used = await _newcomers(bench, name, nodes, waiting, for_s=5.0 if run.quick else 40.0)
                outcome.raw[f"{nodes} nodes, {waiting} waiting, {name}, waited, s"] = waited_s
                outcome.raw |= {f"{nodes} nodes, {waiting} waiting, {name}, CPU of {of}": each for of, each in used}
                shown.add_row(
                    *(name, str(len(waited_s)), ms(p50(waited_s)), ms(max(waited_s))),
                    *(f"{share:.0%}" for _, share in used),
                )
        outcome.show(
            f"waiting: {waiting:,} pods with 4 chips that fit on none of {nodes:,} nodes; pods with 2 come and go",
            shown,
            f"CPU of a core. A pod comes {_PAUSE_S:g} s after the last one was bound; {_RUNNING} of them run at once.",
        )
    return outcome


async def _newcomers(
    bench: Bench, name: str, nodes: int, waiting: int, *, for_s: float
) -> tuple[list[float], list[tuple[str, float]]]:
    """How long the pods that fit have waited, and the CPU that each program took, as a share of a core."""
    await bench.switch(name)
    plane = bench.cluster.control_plane
    processes = {
        "scheduler": plane.scheduler,
        "the API server": plane.apiserver,
        "the allocator": bench.allocators[name].process,
    }
    grant = Grant(_USED, 1).annotations()
    running = (
        pod(f"running-{number:05}", len(_USED), node=fake_name(number), annotations=grant) for number in range(nodes)
    )
    await in_order(bench.client.create(PODS, manifest, NAMESPACE) for manifest in running)
    await create_pods(bench.client, "waiting", (4 for _ in range(waiting)))
    while True:  # until all of them were refused, or have their gates
        before = cpu_of(processes)
        await asyncio.sleep(_PAUSE_S)
        if cpu_of(processes)["scheduler"] - before["scheduler"] < _PAUSE_S / 10:
            break
    before, started_s = cpu_of(processes), time.perf_counter()
    waited_s: list[float] = []
    alive: list[str] = []
    while time.perf_counter() - started_s < for_s:
        sent_s = await create_pods(bench.client, f"new-{len(waited_s)}", (2,))
        ((newcomer, since_s),) = sent_s.items()
        await bench.watch.bound_within(newcomer, _PATIENCE_S)
        waited_s.append(bench.watch.bound_s.get(newcomer, time.perf_counter()) - since_s)
        alive.append(newcomer)
        if len(alive) > _RUNNING:
            await bench.client.delete(PODS, alive.pop(0), NAMESPACE)
        await asyncio.sleep(_PAUSE_S)
    took_s = time.perf_counter() - started_s
    used = [(of, (after - before[of]) / took_s) for of, after in cpu_of(processes).items()]
    await delete_pods(bench.client, bench.watch)
    return waited_s, used
