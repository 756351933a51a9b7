"""The dashboards of the chart, in Grafana's own types.

``make docs`` writes them to the chart's ``files/dashboards``; the chart makes ConfigMaps of them for Grafana's
sidecar. The data source is a variable, as are namespace and node.
"""

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

from deploy.monitoring.alerts import PATH as ALERTS_PATH
from deploy.monitoring.alerts import at_leader, select

FOLDER: Final = ALERTS_PATH.with_name("dashboards")
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH: Final = 24
"""Of a dashboard, in Grafana's columns."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    Attributes:
        title: its title.
        queries: what it shows, by legend: a template over labels.
        description: what a reader has to know of it.
        unit: Grafana's name of the unit.
        is_number: whether it shows the last value, and not a line over time.
        is_stacked: whether its areas are stacked.
    """

    title: str
    queries: dict[str, str]
    description: str
    unit: str = "short"
    is_number: bool = False
    is_stacked: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels."""

    uid: str
    title: str
    rows: dict[str, tuple[Panel, ...]]


def total(metric: str, *by: str, **labels: str) -> str:
    """The sum of a gauge of the allocator that leads."""
    return f"sum by ({', '.join(by)}) ({at_leader(metric, **labels)})" if by else f"sum({at_leader(metric, **labels)})"


def quantile(share: float, histogram: str, *by: str, window: str = "$__rate_interval") -> str:
    """A quantile of a histogram of all programs."""
    return f"histogram_quantile({share}, sum by ({', '.join((*by, 'le'))}) (rate({histogram}_bucket[{window}])))"


def rate(counter: str, by: str, **labels: str) -> str:
    """How often something happens in a second."""
    return f"sum by ({by}) (rate({select(counter, **labels)}[$__rate_interval]))"


CLUSTER: Final = Board(
    "ascend-affinity-cluster",
    "Ascend chips: what waits and what is free",
    {
        "Now": (
            Panel(
                "Waiting pods",
                {"": f"{total('ascend_allocator_waiting_pods')} or vector(0)"},
                "Pods that request chips and are not bound, whether a scheduler has called for them or not.",
                is_number=True,
            ),
            Panel(
                "Oldest waiting pod",
                {"": f"max({at_leader('ascend_allocator_oldest_waiting_pod_seconds')}) or vector(0)"},
                "Since its creation. The alert AscendPodsWaitLong is about it.",
                unit="s",
                is_number=True,
            ),
            Panel(
                "Free chips",
                {"{{product}}": total("ascend_allocator_free_chips", "product")},
                "On nodes that can be used.",
                is_number=True,
            ),
            Panel(
                "Free rings",
                {"{{product}}": total("ascend_allocator_free_rings", "product")},
                "Rings, meshes or cards all of whose chips are free. Many free chips and no ring: fragmented nodes.",
                is_number=True,
            ),
            Panel(
                "Nodes that can't be used",
                {"": f"{total('ascend_allocator_unusable_nodes')} or vector(0)"},
                "For the reasons of the panel below.",
                is_number=True,
            ),
        ),
        "Jobs": (
            Panel(
                "Chips requested in vain, by what they wait for",
                {"{{waits_for}}": total("ascend_allocator_waiting_chips", "waits_for", namespace="$namespace")},
                "binding: they fit now; chips: of other pods; nodes: that can be used; pods: of their gang; scheduler:"
                " it refuses them for other reasons; change: of their invalid request.",
                is_stacked=True,
            ),
            Panel(
                "Chips in use, by namespace",
                {"{{namespace}}": total("ascend_allocator_used_chips", "namespace", namespace="$namespace")},
                "Chips that pods hold, also in parts.",
                is_stacked=True,
            ),
            Panel(
                "How long pods waited",
                {
                    "half of them": quantile(0.5, "ascend_allocator_wait_duration_seconds", window="1h"),
                    "95 of 100": quantile(0.95, "ascend_allocator_wait_duration_seconds", window="1h"),
                },
                "From their creation until they were bound, of those bound in the last hour.",
                unit="s",
            ),
            Panel(
                "The largest gang that fits now",
                {"{{product}}, {{chips}} chips each": total("ascend_allocator_largest_gang", "product", "chips")},
                "The most pods of one job that would fit at once.",
            ),
        ),
        "Supply": (
            Panel(
                "Free and healthy chips",
                {
                    "free, {{product}}": total("ascend_allocator_free_chips", "product"),
                    "healthy, {{product}}": total("ascend_allocator_healthy_chips", "product"),
                },
                "On nodes that can be used.",
            ),
            Panel(
                "Nodes that can't be used, by reason",
                {"{{reason}}": total("ascend_allocator_unusable_nodes", "reason")},
                "docs/reasons.md has the cure of each.",
                is_stacked=True,
            ),
            Panel(
                "Chips kept for jobs that come first",
                {"{{namespace}}": rate("ascend_allocator_earmarked_chip_seconds_total", "namespace")},
                "Free chips that are kept for the oldest waiting jobs, on the average.",
                is_stacked=True,
            ),
        ),
        "Allocator": (
            Panel(
                "Calls of schedulers",
                {"{{server}} {{kind}}": rate("ascend_allocator_decision_duration_seconds_count", "server, kind")},
                "By the server that is called, and kind of call.",
                unit="reqps",
            ),
            Panel(
                "Decisions",
                {"{{outcome}} {{reason}}": rate("ascend_allocator_decisions_total", "outcome, reason")},
                "Pods bound, reserved and refused, with the reason.",
                unit="ops",
            ),
            Panel(
                "Duration of calls, 99 of 100",
                {"{{server}} {{kind}}": quantile(0.99, "ascend_allocator_decision_duration_seconds", "server", "kind")},
                "A Binding includes the API server's answer.",
                unit="s",
            ),
            Panel(
                "Reservations",
                {"{{state}}": total("ascend_allocator_reservations", "state")},
                "Pods with reserved chips. Doubtful: the answer to a Binding was lost.",
                is_stacked=True,
            ),
            Panel(
                "CPU and memory",
                {
                    "CPU, cores": "sum(rate(process_cpu_seconds_total[$__rate_interval])"
                    " and on (instance) ascend_allocator_leader)",
                    "memory, GiB": "max(process_resident_memory_bytes"
                    " and on (instance) ascend_allocator_leader) / 2^30",
                },
                "Of the allocators.",
            ),
            Panel(
                "Age of what the allocator sees",
                {"{{instance}}": "ascend_allocator_snapshot_age_seconds"},
                "Time since the last contact with the API server, on the quietest watch.",
                unit="s",
            ),
        ),
    },
)

NODES: Final = Board(
    "ascend-affinity-nodes",
    "Ascend chips: health and hand-over on the nodes",
    {
        "Health": (
            Panel(
                "Chips by state",
                {"{{state}}": 'sum by (state) (ascend_dp_devices{node=~"$node"})'},
                "Free, used by pods, cut into vNPUs beforehand, and unhealthy.",
                is_stacked=True,
            ),
            Panel(
                "Unhealthy chips, by reason",
                {"{{reason}}": 'sum by (reason) (ascend_dp_devices{state="unhealthy",node=~"$node"}) or vector(0)'},
                "docs/failures.md says what to do.",
                is_stacked=True,
            ),
            Panel(
                "Pods on unhealthy chips",
                {"{{node}}": 'ascend_dp_used_unhealthy_chips{node=~"$node"}'},
                "Chips with which pods run although they are unhealthy.",
            ),
            Panel(
                "Chips that await a reset by people",
                {"{{node}}": 'ascend_dp_chips_awaiting_manual_reset{node=~"$node"}'},
                "The Node's annotation ResetInfo names them.",
            ),
        ),
        "Hand-over": (
            Panel(
                "Allocate calls",
                {"{{result}}": rate("ascend_dp_allocations_total", "result", node="$node")},
                "Granted, or the reason of the refusal.",
                unit="ops",
            ),
            Panel(
                "Duration of Allocate, 99 of 100",
                {"": quantile(0.99, "ascend_dp_allocate_duration_seconds", window="1h")},
                "The kubelet starts no container meanwhile.",
                unit="s",
            ),
            Panel(
                "Claims that are not written yet",
                {"{{node}}": 'ascend_dp_claims_pending{node=~"$node"}'},
                "Pods that have their chips, and whose annotations can't be written.",
            ),
            Panel(
                "Writes of reports",
                {"{{result}}": rate("ascend_dp_report_writes_total", "result", node="$node")},
                "Of the ConfigMaps mindx-dl-deviceinfo-….",
                unit="ops",
            ),
        ),
        "Driver": (
            Panel(
                "Duration of driver calls, 99 of 100",
                {"{{call}}": quantile(0.99, "ascend_dp_dcmi_call_duration_seconds", "call")},
                "Calls that hang are not delayed here: their chips become unhealthy (DriverSilent).",
                unit="s",
            ),
            Panel(
                "CPU and memory",
                {
                    "CPU, cores": "max(rate(process_cpu_seconds_total[$__rate_interval])"
                    " and on (instance) ascend_dp_build_info)",
                    "memory, MiB": "max(process_resident_memory_bytes and on (instance) ascend_dp_build_info) / 2^20",
                },
                "Of the device plugin that takes most.",
            ),
        ),
    },
)

BOARDS: Final = (CLUSTER, NODES)


def render(board: Board) -> str:
    """A dashboard as Grafana imports it."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .tags(["ascend"])
        .refresh("30s")
        .time("now-6h", "now")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    variable = {"namespace": "ascend_allocator_used_chips", "node": "ascend_dp_devices"}
    queries = [query for row in board.rows.values() for panel in row for query in panel.queries.values()]
    for name, metric in variable.items():
        if any(f"${name}" in query for query in queries):
            made.with_variable(
                dashboard.QueryVariable(name)
                .query(f"label_values({metric}, {name})")
                .datasource(_SOURCE)
                .include_all(include_all=True)
                .all_value(".*")
                .multi(multi=True)
                .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            )
    for title, panels in board.rows.items():
        made.with_row(dashboard.Row(title))
        for panel in panels:
            made.with_panel(_panel(panel, _WIDTH // (len(panels) if panel.is_number else 2)))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _panel(panel: Panel, width: int) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.is_number:
        made = stat.Panel().height(4)
    else:
        made = timeseries.Panel().height(8)
        if panel.is_stacked:
            made.fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    made.title(panel.title).description(panel.description).unit(panel.unit).datasource(_SOURCE).span(width).min(0)
    for ref, (legend, query) in zip(ascii_uppercase, panel.queries.items(), strict=False):
        made.with_target(prometheus.Dataquery().ref_id(ref).expr(query).legend_format(legend or panel.title))
    return made
