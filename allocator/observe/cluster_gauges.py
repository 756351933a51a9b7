"""The gauges of waiting pods and free chips, also for pods that no scheduler has called for.

They are measured in the background and not at a scrape, which would keep the event loop for as long as there are pods
and nodes. A measurement lets other tasks run, and the pause after it grows with its duration.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allocator.decision.backlog import Backlog, BacklogReader, WaitingFor
from allocator.decision.engine import DecisionEngine
from allocator.state.node import Server
from allocator.state.supply import Supply, SupplyReader
from ascend.kube.objects import Pod, kept_length, unix_seconds
from ascend.turn import Turn

PERIOD_S: Final = 5.0
WAITS_S: Final = (1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
"""The buckets of waits: from the next call of a scheduler to a week."""
_NAMESPACES: Final = 10
_LEAST_BYTES: Final = 1 << 20
_REST: Final = 19
"""The pause after a measurement, as a multiple of its duration: at most 5 % of a core."""


class ClusterGauges(Collector):
    """Measures, and yields the last measurement.

    Args:
        engine: reads what pods request.
        now_s: wall clock, Unix seconds.
        monotonic: the clock for pauses.
        sharing_products: names of products whose servers may take several pods of one job.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        now_s: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        sharing_products: Container[str] = (),
    ) -> None:
        self._backlog_reader = BacklogReader(engine.cluster, engine.ledger, engine)
        self._supply_reader = SupplyReader(engine.cluster.index, sharing_products)
        self._now_s = now_s
        self._monotonic = monotonic
        self._backlog = Backlog()
        self._supply = Supply()
        self._cluster = engine.cluster
        self._earmarks = engine.earmarks
        self._disputed = 0
        self._used: Mapping[tuple[str, str], int] = {}
        self._waits_s = Histogram(
            "ascend_allocator_wait_duration_seconds",
            "How long pods with chips have waited, from their creation until they were bound",
            registry=None,
            buckets=WAITS_S,
        )
        engine.cluster.waiting.subscribe_bound(
            lambda pod: self._waits_s.observe(self._age_s(pod.metadata.creation_timestamp))
        )
        self._kept_bytes: Mapping[str, int] = {}

    def _on_bound(self, pod: Pod) -> None:
        self._waits_s.observe(self._age_s(pod.metadata.creation_timestamp))

    async def run(self, registry: CollectorRegistry, synced: Callable[[], Awaitable[None]]) -> None:
        """Serve the gauges, and measure until cancelled.

        Args:
            registry: where they are served.
            synced: waits until the state is complete.
        """
        registry.register(self)
        await synced()
        while True:
            started_s = self._monotonic()
            await self.measure()
            await asyncio.sleep(max(PERIOD_S, _REST * (self._monotonic() - started_s)))

    async def measure(self) -> None:
        """Measure once."""
        self._supply = await self._supply_reader.read()
        self._disputed, self._used = await self._count_held()
        self._earmarks.measure()
        self._kept_bytes = await self._measure_kept()
        self._backlog = await self._backlog_reader.read()

    async def _count_held(self) -> tuple[int, Mapping[tuple[str, str], int]]:
        """Count the chips held beyond the requests of pods, and the chips held by namespace and product."""
        turn, disputed, used = Turn(), 0, Counter[tuple[str, str]]()
        for record in list(self._cluster.nodes.values()):
            await turn.share()
            disputed += record.disputed
            product = record.server.product.name if isinstance(record.server, Server) else ""
            for holding in record.holdings.values():
                used[holding.pod.partition("/")[0], product] += holding.occupied.bit_count()
        return disputed, used

    async def _measure_kept(self) -> Mapping[str, int]:
        """The length of the text of the pods of each namespace, of those with the most."""
        turn, kept = Turn(), Counter[str]()
        for pod in list(self._cluster.pods.values()):
            await turn.share()
            kept[pod.metadata.namespace] += kept_length(pod)
        return {name: length for name, length in kept.most_common(_NAMESPACES) if length >= _LEAST_BYTES}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        backlog, supply = self._backlog, self._supply
        yield _waiting("waiting_pods", "Pods that wait", backlog.pods)
        yield _waiting("waiting_chips", "Whole chips that waiting pods request, also as AI cores", backlog.chips)
        ages_s = {key: self._age_s(created) for key, created in backlog.oldest.items()}
        yield _waiting("oldest_waiting_pod_seconds", "Age of the oldest pod that waits", ages_s)
        yield _by_product("free_chips", "Free chips on usable nodes, by product", supply.chips)
        yield _by_product("healthy_chips", "Healthy chips on usable nodes, free or not, by product", supply.healthy)
        yield _gauge(
            "used_chips",
            "Chips that pods hold, also in parts, by namespace and product",
            ["namespace", "product"],
            self._used,
        )
        yield _by_product("free_servers", "Servers all of whose chips are free, by product", supply.servers)
        yield _by_product("free_rings", "Rings, meshes or cards all of whose chips are free, by product", supply.rings)
        yield _gauge("free_vnpus", "Free vNPUs on usable nodes, by size", ["size"], supply.vnpus)
        yield _by_product("free_cores", "Free AI cores on usable nodes that offer them, by product", supply.cores)
        yield GaugeMetricFamily(
            "ascend_allocator_disputed_chips",
            "Chips that count as held beyond what pods request, since AscendReal and the chips written on a pod differ",
            value=self._disputed,
        )
        yield _gauge(
            "largest_gang",
            "The most pods of a job of several pods that would fit at once, by product and chips of each pod",
            ["product", "chips"],
            supply.largest_gang,
        )
        yield _gauge(
            "kept_bytes",
            "Text that is kept of the pods of a namespace, of the 10 namespaces with the most, and above 1 MiB",
            ["namespace"],
            self._kept_bytes,
        )
        earmarked = CounterMetricFamily(
            "ascend_allocator_earmarked_chip_seconds_total",
            "For how long free chips were kept for waiting jobs of a namespace, in chip-seconds",
            labels=["namespace"],
        )
        for namespace, chip_s in self._earmarks.kept_chip_s.items():
            earmarked.add_metric([namespace], chip_s)
        yield earmarked
        yield from self._waits_s.collect()

    def _age_s(self, created: str | None) -> float:
        since_s = unix_seconds(created)
        return max(self._now_s() - since_s, 0.0) if since_s is not None else 0.0  # none waits


def _waiting(name: str, meaning: str, measured: Mapping[tuple[str, WaitingFor], float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        f"ascend_allocator_{name}",
        f"{meaning}, by namespace and what they wait for: binding (they fit now), chips (of other pods), nodes (that "
        "can be used), pods (of their gang), scheduler (which refuses them for other reasons than chips), change (of "
        "their invalid request); without pods that have gates of others",
        labels=["namespace", "waits_for"],
    )
    for namespace in sorted({namespace for namespace, _ in measured}):
        for waits_for in WaitingFor:
            gauge.add_metric([namespace, waits_for], measured.get((namespace, waits_for), 0))
    return gauge


def _by_product(name: str, meaning: str, numbers: Mapping[str, int]) -> GaugeMetricFamily:
    return _gauge(name, meaning, ["product"], numbers)


def _gauge(
    name: str,
    meaning: str,
    labels: Sequence[str],
    numbers: Mapping[Any, int],
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"ascend_allocator_{name}", meaning, labels=labels)
    for key, number in sorted(numbers.items()):
        gauge.add_metric([key] if isinstance(key, str) else [*map(str, key)], number)
    return gauge
