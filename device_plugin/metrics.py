"""The device plugin's metrics (names: docs/spec/kube-api.md#metric-names)."""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All metrics of one plugin, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.devices = Gauge(
            "ascend_dp_devices",
            "Chips by state, and why they are unhealthy",
            ["state", "reason"],
            registry=self.registry,
        )
        self.transitions = Counter(
            "ascend_dp_health_transitions", "Changes of chips' health", ["to", "reason"], registry=self.registry
        )
        self.driver_calls = Histogram(
            "ascend_dp_dcmi_call_duration_seconds",
            "Duration of driver calls",
            ["call"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.allocate_duration = Histogram(
            "ascend_dp_allocate_duration_seconds",
            "Duration of Allocate calls",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.allocations = Counter(
            "ascend_dp_allocations",
            "Allocate calls by result: granted, or the reason of the refusal",
            ["result"],
            registry=self.registry,
        )
        self.mismatches = Counter(
            "ascend_dp_allocation_mismatches",
            "Hand-overs for which the kubelet's ledger has other device ids",
            registry=self.registry,
        )
        self.without_chips = Gauge(
            "ascend_dp_pods_without_chips",
            "Running pods with a container that requests chips and has none",
            registry=self.registry,
        )
        self.preferred_allocations = Counter(
            "ascend_dp_preferred_allocations",
            "GetPreferredAllocation calls by result: answered, empty, or failed because of an internal error",
            ["result"],
            registry=self.registry,
        )
        self.report_writes = Counter(
            "ascend_dp_report_writes",
            "Writes of the node's ConfigMap by result: written, conflict (somebody else wrote first), refused, or "
            "unreachable",
            ["result"],
            registry=self.registry,
        )
        self.registrations = Counter(
            "ascend_dp_registrations", "Registrations with the kubelet by result", ["result"], registry=self.registry
        )
        self.list_sent = Gauge(
            "ascend_dp_last_list_sent_timestamp_seconds",
            "When the kubelet was last sent the list of devices",
            registry=self.registry,
        )
        self.claims_pending = Gauge(
            "ascend_dp_claims_pending",
            "Pods that were given chips and whose annotations are not written yet",
            registry=self.registry,
        )
        self.settings_reloads = Counter(
            "ascend_dp_settings_reloads", "Reloads of the settings by result", ["result"], registry=self.registry
        )
        self.settings_awaiting_restart = Gauge(
            "ascend_dp_settings_awaiting_restart",
            "Changed settings that take effect only after a restart",
            registry=self.registry,
        )
        Gauge("ascend_dp_build_info", "Version", ["version"], registry=self.registry).labels(
            version=version("ascend-affinity")
        ).set(1)
