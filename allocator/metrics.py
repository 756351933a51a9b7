"""The allocator's metrics, under the names of spec/field.md §6."""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from allocator.state.index import NodeIndex
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage

# From half a millisecond (a decision in memory) to the patience of a scheduler (a Binding through a slow API server).
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class AllocatorMetrics:
    """All metrics of one allocator, on a registry of their own.

    Args:
        ledger: counted at each scrape.
        age_s: how long ago the API server was last heard of; None before the view is complete.
        index: its nodes that can't be used are counted at each scrape.
        leads: whether this allocator is the one that works.
    """

    def __init__(
        self,
        ledger: Ledger,
        age_s: Callable[[], float | None],
        index: NodeIndex,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.registry = CollectorRegistry()
        self.duration_s = Histogram(
            "ascend_allocator_decision_duration_seconds",
            "Time to answer a scheduler, by kind of question",
            ["kind"],
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self.decisions = Counter(
            "ascend_allocator_decisions_total",
            "Pods decided on: bound, reserved, refused (with the reason), failed, or answered again",
            ["outcome", "reason"],
            registry=self.registry,
        )
        self.reconsidered = Counter(
            "ascend_allocator_reconsidered_total",
            "Times a refused pod was touched so that its scheduler looks again",
            registry=self.registry,
        )
        self.differences = Gauge(
            "ascend_allocator_state_differences",
            "In how many points the state was not what the API server's objects give, when it was compared last",
            registry=self.registry,
        )
        self.registry.register(_Seen(ledger, age_s, index, leads))


class _Seen(Collector):
    """What is read from the state when somebody looks."""

    def __init__(
        self, ledger: Ledger, age_s: Callable[[], float | None], index: NodeIndex, leads: Callable[[], bool]
    ) -> None:
        self._ledger = ledger
        self._age_s = age_s
        self._index = index
        self._leads = leads

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        reservations = GaugeMetricFamily("ascend_allocator_reservations", "Pods with reserved chips", labels=["state"])
        for stage in Stage:
            reservations.add_metric([stage.value], self._ledger.count(stage))
        yield reservations
        yield CounterMetricFamily(
            "ascend_allocator_expired_reservations_total",
            "Reservations given up because nobody used them in time",
            value=self._ledger.expired_total,
        )
        age_s = self._age_s()
        if age_s is not None:
            yield GaugeMetricFamily(
                "ascend_allocator_snapshot_age_seconds",
                "Time since the API server was last heard of, on the quietest watch",
                value=age_s,
            )
        unusable = GaugeMetricFamily(
            "ascend_allocator_unusable_nodes",
            "Nodes that no pod with chips may be placed on, by why",
            labels=["reason"],
        )
        for reason, count in sorted(self._index.refusals().items()):
            unusable.add_metric([reason], count)
        yield unusable
        yield GaugeMetricFamily(
            "ascend_allocator_leader", "1 where this allocator is the one that works", value=int(self._leads())
        )
        build = GaugeMetricFamily("ascend_allocator_build_info", "1, with the version as label", labels=["version"])
        build.add_metric([version("ascend-affinity")], 1)
        yield build
