"""The alerts of the chart.

Each has a runbook in docs/failures.md, under a heading with its name. ``make docs`` writes them to the chart's
``files/alerts.yaml``, which its PrometheusRule takes over.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import yaml

from ascend.reasons import Reason

PATH: Final = Path(__file__).parents[1] / "charts" / "ascend-affinity" / "files" / "alerts.yaml"
LONGEST_WAIT_S: Final = "LONGEST_WAIT_S"
"""In an expression, in place of the chart's value ``prometheusRules.longestWaitSeconds``."""
_LEADS: Final = "ascend_allocator_leader == 1"


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition that somebody has to look at.

    Attributes:
        name: its name, and that of its runbook.
        expr: a query that returns a series for each place where the condition holds.
        hold: how long the condition has to hold, as a duration of Prometheus.
        severity: critical if pods with chips can't start, or run with wrong or broken chips; info if nobody has to act.
        summary: a sentence; a template of Prometheus over labels and value.
    """

    name: str
    expr: str
    hold: str
    severity: Literal["critical", "warning", "info"]
    summary: str


def at_leader(metric: str, **labels: str) -> str:
    """The series of the allocator that leads, with labels that match; a standby's are as old as what it has seen."""
    return f"({select(metric, **labels)} and on (instance) {_LEADS})"


def select(metric: str, **labels: str) -> str:
    """The series of a metric whose labels match regular expressions, or do not match those that begin with ``!``."""
    matchers = [
        f'{label}!~"{pattern[1:]}"' if pattern.startswith("!") else f'{label}=~"{pattern}"'
        for label, pattern in labels.items()
    ]
    return metric + (f"{{{','.join(matchers)}}}" if matchers else "")


def grew(counter: str, window: str, **labels: str) -> str:
    """Whether a counter grew in a window; a series that began in it, with 1, has no increase for Prometheus."""
    series = select(counter, **labels)
    return f"(increase({series}[{window}]) > 0 or ({series} > 0 unless {series} offset {window}))"


def unusable(*reasons: Reason) -> str:
    """Nodes on which no pod with chips can be placed, for one of these reasons."""
    return at_leader("ascend_allocator_unusable_nodes", reason="|".join(reasons)) + " > 0"


ALERTS: Final = (
    Alert(
        "AscendAllocatorNoLeader",
        f"absent({_LEADS})",
        "2m",
        "critical",
        "No allocator leads, or Prometheus reads none: pods that request Ascend chips stay Pending.",
    ),
    Alert(
        "AscendAllocatorViewStale",
        at_leader("ascend_allocator_snapshot_age_seconds") + " > 120",
        "1m",
        "critical",
        "The allocator {{ $labels.instance }} has heard nothing from the API server for {{ $value }} s.",
    ),
    Alert(
        "AscendAllocatorNotCalled",
        f"sum({at_leader('ascend_allocator_waiting_pods', waits_for='binding')}) > 0 unless "
        f"sum({grew('ascend_allocator_decision_duration_seconds_count', '10m', kind='!explain')}) > 0",
        "10m",
        "critical",
        "{{ $value }} pods fit, and no scheduler has called the allocator for 10 minutes.",
    ),
    Alert(
        "AscendSchedulerNotConnected",
        f"{grew('ascend_dp_allocations_total', '15m', result=Reason.NOT_PLACED)} or "
        f"{grew('ascend_allocator_decisions_total', '15m', reason=Reason.SCHEDULER_NOT_CONNECTED)}",
        "0s",
        "critical",
        "A scheduler binds pods that request chips without calling the allocator; their nodes refuse them.",
    ),
    Alert(
        "AscendPodsWaitLong",
        f"{at_leader('ascend_allocator_oldest_waiting_pod_seconds')} > {LONGEST_WAIT_S}",
        "1m",
        "warning",
        "A pod of namespace {{ $labels.namespace }} has waited for {{ $value | humanizeDuration }}, for"
        " {{ $labels.waits_for }}.",
    ),
    Alert(
        "AscendChipsFragmented",
        f"sum by (product) ({at_leader('ascend_allocator_free_chips')}) >= 4 and "
        f"sum by (product) ({at_leader('ascend_allocator_free_rings')}) == 0 and "
        f"on () sum({at_leader('ascend_allocator_waiting_pods', waits_for='chips')}) > 0",
        "30m",
        "info",
        "{{ $value }} chips of {{ $labels.product }} are free, no ring of them is, and pods wait.",
    ),
    Alert(
        "AscendReservationsExpire",
        f"increase(ascend_allocator_expired_reservations_total[15m]) > 0 and on (instance) {_LEADS}",
        "30m",
        "warning",
        "Schedulers have chips reserved, and let the reservations expire.",
    ),
    Alert(
        "AscendBindingsInDoubt",
        at_leader("ascend_allocator_reservations", state="doubtful") + " > 0",
        "10m",
        "warning",
        "The answers to {{ $value }} Bindings were lost, and the API server has not told since whether they were made.",
    ),
    Alert(
        "AscendNominationsStale",
        f"sum(increase({select('ascend_allocator_nominations_total', outcome='elsewhere|cleared')}[1h])) > "
        f"0.5 * sum(increase({select('ascend_allocator_nominations_total', outcome='written')}[1h]))",
        "30m",
        "warning",
        "More than half of the nominations of the last hour were in vain: cleared, or other nodes were taken.",
    ),
    Alert(
        "AscendReschedulingStopped",
        f"{at_leader('ascend_allocator_rescheduling_stopped')} > 0 or "
        f"{at_leader('ascend_allocator_rescheduling_dark_zones')} > 0",
        "5m",
        "warning",
        "So many nodes have faults, or are not Ready, that no pods are deleted to be created anew.",
    ),
    Alert(
        "AscendReschedulingForgets",
        f"{at_leader('ascend_allocator_rescheduling_unread_entries')} > 0 or "
        f"{at_leader('ascend_allocator_rescheduling_shortened_jobs')} > 0",
        "10m",
        "warning",
        "What the allocator remembers of faults can't be read, or does not fit into its ConfigMap.",
    ),
    Alert(
        "AscendCertificateExpires",
        "ascend_allocator_certificate_renewal_timestamp_seconds < time() and "
        "ascend_allocator_certificate_expiry_timestamp_seconds > time()",
        "1h",
        "warning",
        "The certificate {{ $labels.certificate }} of the allocator should have been renewed by now.",
    ),
    Alert(
        "AscendCertificateExpired",
        "ascend_allocator_certificate_expiry_timestamp_seconds <= time()",
        "0s",
        "critical",
        "The certificate {{ $labels.certificate }} of the allocator has expired.",
    ),
    Alert(
        "AscendDevicePluginNotReady",
        unusable(Reason.RESOURCE_NOT_OFFERED, Reason.NO_BASE_DEVICE_INFOS, Reason.CHIPS_NOT_DIVISIBLE),
        "5m",
        "warning",
        "{{ $value }} nodes with chips offer none: {{ $labels.reason }}.",
    ),
    Alert(
        "AscendReportStale",
        unusable(Reason.STALE_REPORT, Reason.INVALID_REPORT, Reason.PRODUCT_MISMATCH, Reason.INCONSISTENT_CAPACITY),
        "5m",
        "warning",
        "The reports of {{ $value }} nodes can't be used: {{ $labels.reason }}.",
    ),
    Alert(
        "AscendDriverSilent",
        select("ascend_dp_devices", state="unhealthy", reason="DriverSilent") + " > 0",
        "2m",
        "critical",
        "The driver of node {{ $labels.node }} says nothing of {{ $value }} chips.",
    ),
    Alert(
        "AscendChipsUnhealthy",
        select("ascend_dp_devices", state="unhealthy", reason="!DriverSilent") + " > 0",
        "30m",
        "warning",
        "{{ $value }} chips of node {{ $labels.node }} are unhealthy: {{ $labels.reason }}.",
    ),
    Alert(
        "AscendPodsOnBrokenChips",
        "ascend_dp_used_unhealthy_chips > 0",
        "5m",
        "critical",
        "Pods run with {{ $value }} unhealthy chips of node {{ $labels.node }}.",
    ),
    Alert(
        "AscendChipsAwaitReset",
        "ascend_dp_chips_awaiting_manual_reset > 0",
        "5m",
        "warning",
        "{{ $value }} chips of node {{ $labels.node }} have to be reset by hand.",
    ),
    Alert(
        "AscendPodsWithoutChips",
        "ascend_dp_pods_without_chips > 0",
        "2m",
        "critical",
        "{{ $value }} pods of node {{ $labels.node }} request chips and run without.",
    ),
    Alert(
        "AscendForeignProcesses",
        "ascend_dp_foreign_processes > 0",
        "5m",
        "warning",
        "{{ $value }} processes use chip {{ $labels.chip }} of node {{ $labels.node }} without having been given it.",
    ),
    Alert(
        "AscendBooksDisagree",
        f"{at_leader('ascend_allocator_disputed_chips')} > 0 or {grew('ascend_dp_allocation_mismatches_total', '1h')}",
        "10m",
        "warning",
        "What the pods' annotations, the kubelet's ledger and the allocator say of who has which chips differs.",
    ),
    Alert(
        "AscendClaimsPending",
        "ascend_dp_claims_pending > 0",
        "10m",
        "warning",
        "{{ $value }} pods of node {{ $labels.node }} have chips, and their annotations can't be written.",
    ),
    Alert(
        "AscendAllocationsRefused",
        grew("ascend_dp_allocations_total", "15m", result=f"!granted|{Reason.NOT_PLACED}"),
        "0s",
        "warning",
        "The device plugin of node {{ $labels.node }} has refused pods that were bound to it: {{ $labels.result }}.",
    ),
)


def render() -> str:
    """The rules as a file of Prometheus."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.hold,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook_url": f"failures.md#{alert.name.lower()}"},
        }
        for alert in ALERTS
    ]
    groups = {"groups": [{"name": "ascend-affinity", "rules": rules}]}
    text = yaml.safe_dump(groups, sort_keys=False, width=1000)
    return f"# Generated by `make docs` from deploy/monitoring/alerts.py; do not edit.\n{text}"
