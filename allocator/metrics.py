"""The allocator's metrics (docs/spec/kube-api.md#metric-names)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from allocator.state.index import NodeIndex
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.daemon.validity import Validity
from ascend.observe.exposition import new_registry
from ascend.serving.counts import Refusals

# From half a millisecond (a decision in memory) to the timeout of a scheduler (a Binding with a slow API server).
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class AllocatorMetrics(Collector):
    """All metrics of one allocator, in a registry of their own.

    Args:
        ledger: its reservations are counted at each scrape.
        age_s: seconds since the last contact with the API server; None before the informers have synced.
        index: its unusable nodes are counted at each scrape.
        leads: whether this allocator leads.
        validities: the lifetimes of certificates, by what they are.
    """

    def __init__(
        self,
        ledger: Ledger,
        age_s: Callable[[], float | None],
        index: NodeIndex,
        leads: Callable[[], bool] = lambda: True,
        validities: Callable[[], Mapping[str, Validity]] = dict,
    ) -> None:
        self._validities = validities
        self._ledger = ledger
        self._age_s = age_s
        self._index = index
        self._leads = leads
        self.registry = new_registry()
        counter = partial(Counter, registry=self.registry)
        self.duration_s = Histogram(
            "ascend_allocator_decision_duration_seconds",
            "Duration of calls from schedulers, by the server that they come to and kind of call",
            ["server", "kind"],
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self.decisions = counter(
            "ascend_allocator_decisions_total",
            "Decisions on pods by outcome (bound, reserved, refused, failed, repeated) and reason",
            ["outcome", "reason"],
        )
        self.requeued = counter(
            "ascend_allocator_requeued_total", "Refused pods that their scheduler was made to requeue"
        )
        self.nominations = counter(
            "ascend_allocator_nominations_total",
            "Nominations by what became of them: written, dropped (the pod changed before), bound (on the nominated"
            " node), elsewhere (bound on another node), cleared",
            ["outcome"],
        )
        self.nomination_waits = counter(
            "ascend_allocator_nomination_wait_seconds_total",
            "How long answers to filter waited for the nominations of the next pods",
        )
        self.gates_lifted = counter(
            "ascend_allocator_gates_lifted_total",
            "Scheduling gates lifted, by why: placed (its chips are reserved), preempts (it may preempt other pods),"
            " limit (it has waited for the limit), refused (its scheduler has refused pods of its gang), invalid (no"
            " node can ever take it), off (pods are not gated any more)",
            ["why"],
        )
        self.admission_checks = counter(
            "ascend_allocator_admission_checks_total",
            "Answers to admission checks of Kueue, by state: Ready (the pods of a workload fit), Retry (they do not)",
            ["state"],
        )
        self.rescheduled = counter(
            "ascend_allocator_rescheduled_pods_total",
            "Pods deleted to be created anew, by the fault (NodeUnhealthy, CardUnhealthy, SubHealthFault,"
            " RelationFaultSeparate, pod-failed; peer: with a faulty pod of their job)",
            ["reason"],
        )
        self.rescheduling_stopped = Gauge(
            "ascend_allocator_rescheduling_stopped",
            "1 while so many nodes have faults that no pods are deleted",
            registry=self.registry,
        )
        self.dark_zones = Gauge(
            "ascend_allocator_rescheduling_dark_zones",
            "Zones whose nodes are not Ready, so that no pods are deleted there",
            registry=self.registry,
        )
        self.rescheduling_shortened = Gauge(
            "ascend_allocator_rescheduling_shortened_jobs",
            "Jobs of which not all that the next leader has to know of their faults fits into its ConfigMap",
            registry=self.registry,
        )
        self.rescheduling_unread = Gauge(
            "ascend_allocator_rescheduling_unread_entries",
            "Parts of what a former leader has remembered of faults that can't be read, and hold rescheduling back",
            registry=self.registry,
        )
        self.http = Refusals("ascend_allocator", self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metrics that are read from the state at each scrape."""
        reservations = GaugeMetricFamily(
            "ascend_allocator_reservations",
            "Pods with reserved chips, by state: planned (with their gang), reserved (for their schedulers to bind),"
            " held (until the others of their gang come), binding (the Binding is being posted), assumed (it was made;"
            " the watch does not show it yet), doubtful (its answer was lost: kept until it is known)",
            labels=["state"],
        )
        for stage in Stage:
            reservations.add_metric([stage.value], self._ledger.count(stage))
        yield reservations
        yield CounterMetricFamily(
            "ascend_allocator_expired_reservations_total",
            "Reservations that expired unused",
            value=self._ledger.expired_total,
        )
        age_s = self._age_s()
        if age_s is not None:
            yield GaugeMetricFamily(
                "ascend_allocator_snapshot_age_seconds",
                "Time since the last contact with the API server, on the quietest watch",
                value=age_s,
            )
        unusable = GaugeMetricFamily(
            "ascend_allocator_unusable_nodes",
            "Nodes on which no pod with chips can be placed, by reason",
            labels=["reason"],
        )
        for reason, count in sorted(self._index.refusals().items()):
            unusable.add_metric([reason], count)
        yield unusable
        expiry = GaugeMetricFamily(
            "ascend_allocator_certificate_expiry_timestamp_seconds",
            "When a certificate expires: server, client_ca, or by its name in client_names what a client of HTTP has"
            " presented",
            labels=["certificate"],
        )
        renewal = GaugeMetricFamily(
            "ascend_allocator_certificate_renewal_timestamp_seconds",
            "When it should have been renewed at the latest: 30 days, or a quarter of its lifetime, before it expires",
            labels=["certificate"],
        )
        for what, validity in sorted(self._validities().items()):
            expiry.add_metric([what], validity.ends_s)
            renewal.add_metric([what], validity.renewal_s)
        yield expiry
        yield renewal
        yield GaugeMetricFamily("ascend_allocator_leader", "1 if this allocator leads", value=int(self._leads()))
        build = GaugeMetricFamily("ascend_allocator_build_info", "1, with the version as label", labels=["version"])
        build.add_metric([version("ascend-affinity")], 1)
        yield build
