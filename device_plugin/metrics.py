"""The device plugin's metrics (names: docs/spec/kube-api.md#metric-names)."""

from functools import partial
from importlib.metadata import version

from prometheus_client import Counter, Gauge, Histogram

from ascend.observe.exposition import new_registry
from ascend.serving.counts import Refusals

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All metrics of one plugin, in their own registry."""

    def __init__(self) -> None:
        self._without: dict[str, int] = {}
        registry = self.registry = new_registry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=BUCKETS_S)
        self.devices = gauge(
            "ascend_dp_devices",
            "Chips by state (free; used by pods, also in parts that were cut for them; cut into vNPUs beforehand; "
            "unhealthy), and why they are unhealthy",
            ["state", "reason"],
        )
        self.used_unhealthy = gauge(
            "ascend_dp_used_unhealthy_chips", "Unhealthy chips with which pods run: these have to be moved or ended"
        )
        self.transitions = counter("ascend_dp_health_transitions", "Changes of chips' health", ["to", "reason"])
        self.driver_calls = histogram("ascend_dp_dcmi_call_duration_seconds", "Duration of driver calls", ["call"])
        self.allocate_duration = histogram("ascend_dp_allocate_duration_seconds", "Duration of Allocate calls")
        self.allocations = counter(
            "ascend_dp_allocations", "Allocate calls by result: granted, or the reason of the refusal", ["result"]
        )
        self.mismatches = counter(
            "ascend_dp_allocation_mismatches", "Allocations for which the kubelet's ledger has other device ids"
        )
        self.annotation_repairs = counter(
            "ascend_dp_annotation_repairs",
            "Writes of annotations on pods that somebody had changed after the pods were given their chips",
        )
        self.foreign_processes = gauge(
            "ascend_dp_foreign_processes",
            "Processes that have used a chip for a minute which their pod was not given, or nobody",
            ["chip"],
        )
        self.without_chips = gauge(
            "ascend_dp_pods_without_chips", "Running pods with a container that requests chips and has none"
        )
        self.preferred_allocations = counter(
            "ascend_dp_preferred_allocations",
            "GetPreferredAllocation calls by result: answered, empty, or failed because of an internal error",
            ["result"],
        )
        self.report_writes = counter(
            "ascend_dp_report_writes",
            "Writes of the node's ConfigMap by result: written, conflict (somebody else wrote first), refused, or "
            "unreachable",
            ["result"],
        )
        self.registrations = counter("ascend_dp_registrations", "Registrations with the kubelet by result", ["result"])
        self.list_sent = gauge(
            "ascend_dp_last_list_sent_timestamp_seconds", "When the kubelet was last sent the list of devices"
        )
        self.claims_pending = gauge(
            "ascend_dp_claims_pending", "Pods that were given chips and whose annotations are not written yet"
        )
        self.telemetry_failures = counter(
            "ascend_dp_telemetry_failures", "Values of chips that could not be measured, by value", ["value"]
        )
        self.hot_resets = counter(
            "ascend_dp_hot_resets",
            "Resets of chips by result: succeeded, failed, or cancelled before the driver was asked",
            ["result"],
        )
        self.manual_resets = gauge(
            "ascend_dp_chips_awaiting_manual_reset", "Chips that people have to reset (the Node's annotation ResetInfo)"
        )
        self.settings_reloads = counter("ascend_dp_settings_reloads", "Reloads of the settings by result", ["result"])
        self.settings_awaiting_restart = gauge(
            "ascend_dp_settings_awaiting_restart", "Changed settings that take effect only after a restart"
        )
        self.http = Refusals("ascend_dp", registry)
        gauge("ascend_dp_build_info", "Version", ["version"]).labels(version=version("ascend-affinity")).set(1)

    def count_without(self, resource: str, pods: int) -> None:
        """Take over how many running pods request a resource and have a container without it."""
        self._without[resource] = pods
        self.without_chips.set(sum(self._without.values()))
