"""The device plugin's metrics (names: spec/field.md §6)."""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All metrics of one plugin, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.devices = Gauge(
            "ascend_dp_devices",
            "Chips by state, and why they are not to be used",
            ["state", "reason"],
            registry=self.registry,
        )
        self.transitions = Counter(
            "ascend_dp_health_transitions", "Changes of a chip's health", ["to", "reason"], registry=self.registry
        )
        self.driver_calls = Histogram(
            "ascend_dp_dcmi_call_duration_seconds",
            "How long calls of the driver took",
            ["call"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.allocate_duration = Histogram(
            "ascend_dp_allocate_duration_seconds",
            "How long the kubelet waited for Allocate",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.allocations = Counter(
            "ascend_dp_allocations", "Allocate calls by result", ["result"], registry=self.registry
        )
        self.mismatches = Counter(
            "ascend_dp_allocation_mismatches",
            "Hand-overs in which the kubelet's own ledger has other ids",
            registry=self.registry,
        )
        self.without_chips = Gauge(
            "ascend_dp_pods_without_chips",
            "Running pods with a container that asks for chips and has none",
            registry=self.registry,
        )
        self.preferences = Counter(
            "ascend_dp_preferences",
            "GetPreferredAllocation calls by result: steered, none, or failed for a fault of ours",
            ["result"],
            registry=self.registry,
        )
        self.report_writes = Counter(
            "ascend_dp_report_writes",
            "Writes of the node's ConfigMap by result: written, conflict (an edit came first, made anew), refused, or "
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
            "ascend_dp_claims_pending", "Hand-overs not yet written on their pods", registry=self.registry
        )
        self.settings_reloads = Counter(
            "ascend_dp_settings_reloads", "Settings read again by result", ["result"], registry=self.registry
        )
        self.settings_awaiting_restart = Gauge(
            "ascend_dp_settings_awaiting_restart",
            "Changed settings that only a restart applies",
            registry=self.registry,
        )
        Gauge("ascend_dp_build_info", "Version", ["version"], registry=self.registry).labels(
            version=version("ascend-affinity")
        ).set(1)
