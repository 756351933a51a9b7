"""Pods per second through the real kube-scheduler: alone, so that it only counts, and with the allocator as its
extender, which nominates nodes in none, one or another of its ways; over HTTP, or over TLS as
deploy/charts/ascend-affinity/kube-scheduler.yaml configures."""

import asyncio
import base64
import random
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.products import ASCEND_910A
from tests.allocator.authority import Authority, Pair
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

STOCK: Final = "stock"
SIDES: Final = (STOCK, "off", "pending", "gated")
_READY_S: Final = 30.0
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_WEBHOOK: Final = "gates"


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    pods: int
    rounds: int
    warm_up: int
    singles: int
    quiet_s: float


_FULL: Final = (
    # The speed of the machine varies: one round may have ratio 0.7 and the next 1.1. Many short rounds are more
    # accurate than few long ones.
    Size(nodes=1_000, pods=700, rounds=8, warm_up=100, singles=10, quiet_s=10.0),
    Size(nodes=5_000, pods=500, rounds=3, warm_up=50, singles=15, quiet_s=10.0),
    Size(nodes=10_000, pods=300, rounds=3, warm_up=30, singles=15, quiet_s=15.0),
)
_FULL_TLS: Final = (
    Size(nodes=1_000, pods=700, rounds=6, warm_up=100, singles=10, quiet_s=10.0),
    Size(nodes=5_000, pods=400, rounds=2, warm_up=30, singles=15, quiet_s=10.0),
    Size(nodes=10_000, pods=250, rounds=2, warm_up=30, singles=15, quiet_s=15.0),
)
_QUICK: Final = (Size(nodes=100, pods=60, rounds=1, warm_up=8, singles=4, quiet_s=5.0),)


@dataclass(slots=True)
class _Side:
    """One run of one side.

    Attributes:
        pods_per_s: bound pods over the time from the first create to the last seen bound.
        waited_s: from create to seen bound, per pod, in the burst.
        alone_s: the same of single pods on the idle cluster.
        cpu_s: of every program in the burst.
        found: the chips of the burst's pods.
    """

    name: str
    pods_per_s: float
    waited_s: list[float]
    cpu_s: dict[str, float]
    found: Audit
    alone_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Program:
    """The allocator of a side."""

    process: Process
    url: str
    probes: str
    pair: Pair | None
    """What kube-scheduler presents; None if nothing is demanded."""

    @property
    def has_tls(self) -> bool:
        return self.url.startswith("https:")


@dataclass(frozen=True, slots=True)
class Bench:
    run: Run
    size: Size
    cluster: Cluster
    client: KubeClient
    watch: PodWatch
    allocators: Mapping[str, Program]
    authority: Authority

    async def side(self, name: str, number: int) -> _Side:
        await self.switch(name)
        plane = self.cluster.control_plane
        processes = {"scheduler": plane.scheduler, "api": plane.apiserver}
        if name in self.allocators:
            processes["allocator"] = self.allocators[name].process
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

    async def switch(self, name: str) -> None:
        """Restart the scheduler for a side. The allocator runs only for the side with the extender, because its watches
        cost CPU."""
        with suppress(NotFound):
            await self.client.request("DELETE", f"{_WEBHOOKS}/{_WEBHOOK}")
        for each in self.allocators.values():
            await asyncio.to_thread(each.process.stop)
        if name == STOCK:
            await asyncio.to_thread(self.cluster.restart_scheduler)
            return
        allocator = self.allocators[name]
        await asyncio.to_thread(allocator.process.start)
        server = Server(allocator.probes)
        await asyncio.to_thread(allocator.process.wait_until, lambda: server.answers("/readyz"), timeout_s=_READY_S)
        verify = {"caFile": str(self.authority.cert)}
        tls: dict[str, Any] = {"enableHTTPS": True, "tlsConfig": verify} if allocator.has_tls else {}
        if (pair := allocator.pair) is not None:
            tls["tlsConfig"] |= {"certFile": str(pair.cert), "keyFile": str(pair.key)}
        ours = extender(f"{allocator.url}/scheduler", **tls)
        await asyncio.to_thread(self.cluster.restart_scheduler, extenders=[ours])
        if name == "gated":
            await self.client.request("POST", _WEBHOOKS, body=self._webhook(allocator.url))

    def _webhook(self, url: str) -> dict[str, Any]:
        """The chart's webhook that gates pods."""
        authority = base64.b64encode(self.authority.cert.read_bytes()).decode()
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": _WEBHOOK},
            "webhooks": [
                {
                    "name": "gates.ascend-affinity.io",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": {"url": f"{url}/webhook/gates", "caBundle": authority},
                    "rules": [
                        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
                    ],
                    "failurePolicy": "Ignore",
                    "sideEffects": "None",
                    "timeoutSeconds": 2,
                }
            ],
        }


async def measure(run: Run) -> Outcome:
    """All sides, over HTTP except where the API server requires TLS."""
    return await _measure(run, SIDES, _FULL, tls=False)


async def measure_over_tls(run: Run) -> Outcome:
    """The sides without webhook, over TLS."""
    return await _measure(run, SIDES[:3], _FULL_TLS, tls=True)


async def _measure(run: Run, names: Sequence[str], full: Sequence[Size], *, tls: bool) -> Outcome:
    if sentences := requirements.missing():
        lines = ("!" * 100, "SCHEDULER NOT MEASURED: the real cluster cannot run here.", *sentences, "!" * 100)
        return Outcome([Text("\n".join(lines), style="bold red")])
    outcome = Outcome()
    for size in _QUICK if run.quick else full:
        async with AsyncExitStack() as stack:
            with run.doing(f"start a real cluster with {size.nodes:,} nodes"):
                bench = await stack.enter_async_context(benched(run, size, names, tls=tls))
            steps = run.steps(f"bursts through kube-scheduler, {size.nodes:,} nodes", size.rounds * len(names))
            # Every second round has the reverse order, so that a machine that becomes slower affects all sides.
            turns = [name for number in range(size.rounds) for name in (names if number % 2 == 0 else names[::-1])]
            sides = [await bench.side(turns[step], step // len(names)) for step in steps]
        _show(outcome, size, sides, names, run.bench)
    return outcome


@asynccontextmanager
async def benched(run: Run, size: Size, names: Sequence[str], *, tls: bool) -> AsyncIterator[Bench]:
    cluster = Cluster(nodes=0)
    await asyncio.to_thread(cluster.start)
    try:
        authority = Authority(cluster.folder)
        pair = authority.sign("allocator", "IP:127.0.0.1")
        allocators = {}
        for name in names[1:]:
            port, probes = free_ports(2)
            flags = {"nominate": name}
            if tls or name == "gated":
                # The API server calls webhooks over TLS only, and both are served at one address.
                flags |= {"tls_cert_file": str(pair.cert), "tls_key_file": str(pair.key)}
            if name == "gated":
                flags["webhooks"] = "gates"
            elif tls:
                flags |= {"client_ca_file": str(authority.cert), "client_names": "kube-scheduler"}
                flags["probe_address"] = f"127.0.0.1:{probes}"
            program = Path(BIN / "ascend-allocator")
            command = allocator_command(
                program, kubeconfig=cluster.kubeconfig_path, address=f"127.0.0.1:{port}", **flags
            )
            scheme = "https" if "tls_cert_file" in flags else "http"
            process = cluster.process(f"ascend-allocator-{name}", command)
            demands = "client_ca_file" in flags
            allocators[name] = Program(
                process,
                f"{scheme}://127.0.0.1:{port}",
                f"{scheme}://127.0.0.1:{probes if demands else port}",
                authority.sign("kube-scheduler", "DNS:kube-scheduler") if demands else None,
            )
        async with (
            await KubeClient.connect(str(cluster.kubeconfig_path)) as client,
            watching_pods(client) as watch,
        ):
            await create_nodes(client, size.nodes)
            yield Bench(run, size, cluster, client, watch, allocators, authority)
    finally:
        await asyncio.to_thread(cluster.stop)


def _show(outcome: Outcome, size: Size, sides: list[_Side], names: Sequence[str], bench: str) -> None:
    shown = table(
        *("run", "pods/s", "bound", "on\nnodes", "wait\np50 s", "\np99 s", "alone\np50 ms", "\np99 ms"),
        *("CPU ms\nsched.", "per pod\nAPI", "\nalloc.", "no chips\nwritten", "ring\nbroken"),
    )
    for side in sides:
        found = side.found
        used = (side.cpu_s.get(which, 0.0) for which in ("scheduler", "api", "allocator"))
        cpu = (f"{each / max(found.bound, 1) * 1e3:.1f}" for each in used)
        shown.add_row(
            *(side.name, f"{side.pods_per_s:.0f}", f"{found.bound:,}", f"{found.nodes:,}"),
            *(f"{p50(side.waited_s):.1f}", f"{p99(side.waited_s):.1f}", ms(p50(side.alone_s)), ms(p99(side.alone_s))),
            *(*cpu, f"{found.without:,}", str(found.violations)),
        )
    outcome.raw[f"{size.nodes} nodes, runs"] = [_raw(side) for side in sides]
    outcome.show(
        f"{bench}: {size.pods:,} pods of 1/2/4/8 chips in turn on {size.nodes:,} fake nodes, real kube-scheduler",
        shown,
        "pods/s: bound pods from the first create to the last seen bound.",
        "wait: a pod's create to bound in that burst; alone: the same on the idle cluster.",
        "stock: kube-scheduler only counts. The others: the allocator is its extender, with this value of nominate.",
        "A round has one of each. gated always serves TLS, because the API server calls webhooks over TLS only.",
        "no chips written: bound without chips in the annotation, so they may be in two rings, or another pod's.",
        "ring broken: chips in two rings although one is required, a wrong number, or another pod's.",
    )
    by_name = {name: [side for side in sides if side.name == name] for name in names}
    for name in names[1:]:
        outcome.shown.insert(-1, Text(_ratios(name, by_name[name], by_name[STOCK]), style="bold"))


def _ratios(name: str, ours: list[_Side], stock: list[_Side]) -> str:
    speed = sorted(one.pods_per_s / other.pods_per_s for one, other in zip(ours, stock, strict=True))
    alone = sorted(p50(one.alone_s) / p50(other.alone_s) for one, other in zip(ours, stock, strict=True))
    return (
        f"  {name} / stock by round: pods/s median {statistics.median(speed):.2f}, {speed[0]:.2f} to {speed[-1]:.2f}; "
        f"alone p50 median {statistics.median(alone):.2f}, {alone[0]:.2f} to {alone[-1]:.2f}; "
        f"rings broken: {sum(side.found.violations + side.found.without for side in ours)}"
    )


def _raw(side: _Side) -> dict[str, Any]:
    return asdict(side)
