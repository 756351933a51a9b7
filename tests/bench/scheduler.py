"""Measure pods per second of the real kube-scheduler, with the allocator as extender and without."""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from ascend.kube.client import KubeClient
from ascend.products import ASCEND_910A
from tests.bench.audit import Audit, audit
from tests.bench.fake_cluster import PodWatch, create_nodes, create_pods, delete_pods, watching_pods
from tests.bench.outcome import Outcome, Run, ms, p50, p99, table
from tests.bench.usage import cpu_of
from tests.cluster import requirements
from tests.cluster.api import Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import extender
from tests.cluster.processes import Process
from tests.e2e.programs import BIN, allocator_command

SIDES: Final = ("stock", "ours")
_READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: int
    pods: int
    rounds: int
    warm_up: int
    singles: int
    quiet_s: float


_FULL: Final = (
    # The ratio varies with the machine's load, from 0.7 to 1.1 between rounds; many short rounds average better
    # than few long ones.
    _Size(nodes=1_000, pods=700, rounds=12, warm_up=100, singles=10, quiet_s=10.0),
    _Size(nodes=5_000, pods=500, rounds=4, warm_up=50, singles=15, quiet_s=10.0),
)
_QUICK: Final = (_Size(nodes=100, pods=60, rounds=1, warm_up=8, singles=4, quiet_s=5.0),)


@dataclass(slots=True)
class _Side:
    """One run of one side.

    Attributes:
        pods_per_s: bound pods over the time from the first create to the last seen bound.
        waited_s: from create to seen bound, per pod, in the burst.
        alone_s: the same for single pods on the idle cluster.
        cpu_s: CPU time of every program in the burst.
        found: the check of the burst's chips.
    """

    name: str
    pods_per_s: float
    waited_s: list[float]
    cpu_s: dict[str, float]
    found: Audit
    alone_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Bench:
    run: Run
    size: _Size
    cluster: Cluster
    client: KubeClient
    watch: PodWatch
    allocator: Process
    url: str

    async def side(self, name: str, number: int) -> _Side:
        await self._switch(name)
        plane = self.cluster.control_plane
        processes = {"allocator": self.allocator, "scheduler": plane.scheduler, "api": plane.apiserver}
        await self._burst("warm", self.size.warm_up)
        await delete_pods(self.client, self.watch)
        before = cpu_of(processes)
        sent_s = await self._burst(f"{name}-{number}", self.size.pods)
        used = {which: after - before[which] for which, after in cpu_of(processes).items()}
        bound_s = dict(self.watch.bound_s)
        side = _Side(
            name=name,
            pods_per_s=len(bound_s) / (max(bound_s.values()) - min(sent_s.values())),
            waited_s=[bound_s[pod] - sent_s[pod] for pod in bound_s],
            cpu_s=used,
            found=audit(self.watch.pods.values()),
        )
        await delete_pods(self.client, self.watch)
        side.alone_s = await self._alone(number)
        return side

    async def _burst(self, prefix: str, count: int) -> dict[str, float]:
        requests = ASCEND_910A.requests
        sent_s = await create_pods(self.client, prefix, (requests[number % len(requests)] for number in range(count)))
        await self.watch.bound(count, quiet_s=self.size.quiet_s)
        return sent_s

    async def _alone(self, number: int) -> list[float]:
        rng = random.Random(self.run.seed + number)
        waited = []
        for which in range(self.size.singles):
            await asyncio.sleep(rng.uniform(0, 0.1))
            request = ASCEND_910A.requests[which % len(ASCEND_910A.requests)]
            sent_s = await create_pods(self.client, f"alone-{which}", (request,))
            await self.watch.bound(1, quiet_s=self.size.quiet_s)
            waited += [self.watch.bound_s[pod] - sent_s[pod] for pod in sent_s]
            await delete_pods(self.client, self.watch)
        return waited

    async def _switch(self, name: str) -> None:
        """Restart the scheduler for a side. The allocator runs only on ours, since its watches cost CPU time."""
        await asyncio.to_thread(self.allocator.stop)
        if name == "stock":
            await asyncio.to_thread(self.cluster.restart_scheduler)
            return
        await asyncio.to_thread(self.allocator.start)
        server = Server(self.url)
        await asyncio.to_thread(self.allocator.wait_until, lambda: server.answers("/readyz"), timeout_s=_READY_S)
        ours = extender(f"{self.url}/scheduler")
        await asyncio.to_thread(self.cluster.restart_scheduler, extenders=[ours])


async def measure(run: Run) -> Outcome:
    if sentences := requirements.missing():
        lines = ("!" * 100, "SCHEDULER NOT MEASURED: the real cluster can't run here.", *sentences, "!" * 100)
        return Outcome([Text("\n".join(lines), style="bold red")])
    outcome = Outcome()
    for size in _QUICK if run.quick else _FULL:
        async with AsyncExitStack() as stack:
            with run.doing(f"start a real cluster with {size.nodes:,} nodes"):
                bench = await stack.enter_async_context(_bench(run, size))
            steps = run.steps(f"bursts through kube-scheduler, {size.nodes:,} nodes", size.rounds * len(SIDES))
            # Every second round begins with the other side, so that a slower machine affects both.
            turns = [name for number in range(size.rounds) for name in (SIDES if number % 2 == 0 else SIDES[::-1])]
            sides = [await bench.side(turns[step], step // len(SIDES)) for step in steps]
        _show(outcome, size, sides)
    return outcome


@asynccontextmanager
async def _bench(run: Run, size: _Size) -> AsyncIterator[_Bench]:
    (port,) = free_ports(1)
    cluster = Cluster(nodes=0)
    await asyncio.to_thread(cluster.start)
    try:
        command = allocator_command(
            Path(BIN / "ascend-allocator"), kubeconfig=cluster.kubeconfig_path, address=f"127.0.0.1:{port}"
        )
        allocator = cluster.process("ascend-allocator", command)
        async with (
            await KubeClient.connect(str(cluster.kubeconfig_path)) as client,
            watching_pods(client) as watch,
        ):
            await create_nodes(client, size.nodes)
            yield _Bench(run, size, cluster, client, watch, allocator, f"http://127.0.0.1:{port}")
    finally:
        await asyncio.to_thread(cluster.stop)


def _show(outcome: Outcome, size: _Size, sides: list[_Side]) -> None:
    shown = table(
        *("run", "pods/s", "bound", "on\nnodes", "wait\np50 s", "\np99 s", "alone\np50 ms", "\np99 ms"),
        *("CPU ms\nsched.", "per pod\nAPI", "\nalloc.", "no chips\nwritten", "ring\nbroken"),
    )
    for side in sides:
        found = side.found
        cpu = (f"{side.cpu_s[which] / max(found.bound, 1) * 1e3:.1f}" for which in ("scheduler", "api", "allocator"))
        shown.add_row(
            *(side.name, f"{side.pods_per_s:.0f}", f"{found.bound:,}", f"{found.nodes:,}"),
            *(f"{p50(side.waited_s):.1f}", f"{p99(side.waited_s):.1f}", ms(p50(side.alone_s)), ms(p99(side.alone_s))),
            *(*cpu, f"{found.without:,}", str(found.violations)),
        )
    stock, ours = ([side for side in sides if side.name == name] for name in SIDES)
    ours_per_s, stock_per_s = (statistics.median(side.pods_per_s for side in each) for each in (ours, stock))
    ratios = sorted(one.pods_per_s / other.pods_per_s for one, other in zip(ours, stock, strict=True))
    outcome.raw[f"{size.nodes} nodes, runs"] = [_raw(side) for side in sides]
    outcome.show(
        f"scheduler: {size.pods:,} pods of 1/2/4/8 chips in turn on {size.nodes:,} fake nodes, real kube-scheduler",
        shown,
        "pods/s: bound pods from the first create to the last seen bound.",
        "wait: a pod's create to bound in that burst; alone: a single pod on the idle cluster.",
        "stock: kube-scheduler only counts chips, no allocator runs. ours: the allocator is its extender and binds.",
        "no chips written: bound without chips in the annotations: the ring rule is not applied.",
        "ring broken: chips of two rings although one suffices, a wrong number of chips, or chips of another pod.",
    )
    outcome.shown.insert(
        -1,
        Text(
            f"  median pods/s: ours {ours_per_s:.0f}, stock {stock_per_s:.0f}; ratio by round: median "
            f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}; "
            f"ring violations of ours: {sum(side.found.violations + side.found.without for side in ours)}",
            style="bold",
        ),
    )


def _raw(side: _Side) -> dict[str, Any]:
    return asdict(side)
