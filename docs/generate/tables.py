"""The tables of settings, metrics and rights."""

import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from allocator.metrics import AllocatorMetrics
from allocator.observe.cluster_gauges import ClusterGauges
from allocator.rescheduling.faults import FAULT_TYPE
from allocator.rules.rescheduling_labels import FAULT_SCHEDULING
from allocator.rules.unsupported import UNSUPPORTED
from allocator.settings import Settings as AllocatorSettings
from ascend.annotations import ALLOCATED, BACKUP_SOURCE, MIN_AVAILABLE, RANK, WRITERS, Writer
from ascend.daemon.observable import Observable
from ascend.daemon.setting import Setting, settings_of
from ascend.daemon.settings import ProgramSettings, fixed_settings
from ascend.jobs.described import JobDescription
from ascend.jobs.table import ENQUEUED, JOB_KINDS, MARKS, WORKLOADS
from ascend.kube.kept import DECIDING, FIELDS
from ascend.kube.objects import Resource
from ascend.reasons import Category, Reason
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.metrics import Metrics
from device_plugin.publish.rights import KUBELET_PODS, RIGHTS
from device_plugin.telemetry.collector import ChipMetrics
from device_plugin.telemetry.meter import Meter
from docs.generate.log_fields import LOG_FIELDS
from npuctl.doctor.api_server import ApiServerChecks
from npuctl.doctor.node import DoctorSettings, node_checks
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects
from tests.cluster.binaries import VERSIONS
from tests.cluster.controllers import CONTROLLERS

_BOUNDS: Final = {"ge": "≥", "gt": ">", "le": "≤"}
_KINDS: Final = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    Path: "path",
    JobDescription: "description",
}


def settings_table(kind: type[ProgramSettings]) -> Iterator[str]:
    """Yield the lines of the table of all settings of a program; ``*`` marks those that need no restart."""
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for name, setting in sorted(settings_of(kind).items()):
        mark = " *" if setting.is_reloaded else ""
        yield f"| `{name}`{mark} | {_default(setting)} | {_values(setting)} | {_text(setting.meta.description or '')} |"


def _text(text: str) -> str:
    # Otherwise <node> is HTML; between backticks Markdown shows it as it is.
    parts = text.split("`")
    return "`".join(part if code % 2 else part.replace("<", "&lt;") for code, part in enumerate(parts))


def _default(setting: Setting) -> str:
    if setting.default is MISSING:
        return "must be given"
    if isinstance(setting.default, bool):
        return f"`{setting.default}`".lower()
    return f"`{setting.default}`" if setting.default not in (None, "", []) else "-"


def _values(setting: Setting) -> str:
    if setting.is_list:
        return f"list of {_choices(setting.item)}"
    bounds = {sign: getattr(setting.meta, name) for name, sign in _BOUNDS.items()}
    shown = ", ".join(f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None)
    return " ".join(filter(None, (_choices(setting.item), shown)))


def _choices(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in typing.get_args(kind))
    return _KINDS.get(kind, "text")


def checks_table() -> Iterator[str]:
    """Yield the lines of the table of the checks of a node."""
    settings = fixed_settings(DoctorSettings, None, {"driver": "simulated"})
    yield "| check | problem or warning |"
    yield "|---|---|"
    for check in node_checks(settings, ApiServerChecks(settings), {}):
        yield f"| {check.name} | {check.about} |"


def metrics_table(registry: CollectorRegistry) -> Iterator[str]:
    """Yield the lines of the table of all metrics of a registry."""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    rows = {
        metric.name + ("_total" if metric.type == "counter" else ""): (metric, labels)
        for metric, labels in _metrics(registry)
    }
    for name, (metric, labels) in sorted(rows.items()):
        shown = ", ".join(f"`{label}`" for label in labels) or "-"
        yield f"| `{name}` | {metric.type} | {shown} | {_text(metric.documentation)} |"


def _metrics(registry: CollectorRegistry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    # Neither the registry nor a metric has a public attribute with its parts.
    for collector in registry._collector_to_names:  # noqa: SLF001
        if isinstance(collector, MetricWrapperBase):
            yield next(iter(collector.describe())), collector._labelnames  # noqa: SLF001
        else:
            for metric in collector.collect():
                yield metric, getattr(metric, "_labelnames", ())


def allocator_registry() -> CollectorRegistry:
    """Return the registry of an allocator without any objects."""
    empty = OfflineAllocator(ClusterObjects(), fixed_settings(AllocatorSettings, None, {}), 0)
    registry = AllocatorMetrics(empty.ledger, lambda: 0.0, empty.cluster.index).registry
    registry.register(ClusterGauges(empty.engine))
    return registry


def log_fields_table() -> Iterator[str]:
    """Yield the lines of the table of the fields of log lines."""
    yield "| field | meaning |"
    yield "|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in sorted(LOG_FIELDS.items()))


def telemetry_table() -> Iterator[str]:
    """Yield the lines of the table of the metrics of chips."""
    meter = Meter(SimulatedDriver(Path()), Observable(None), Metrics(), interval_s=1.0)
    yield "| metric | meaning |"
    yield "|---|---|"
    rows: dict[str, list[str]] = {}
    for metric in ChipMetrics(meter, lambda _phy_id: None, ()).describe():
        rows.setdefault(metric.documentation, []).append(metric.name)
    for meaning, names in sorted(rows.items(), key=lambda row: row[1]):
        shown = f"`{names[0]}`" if len(names) == 1 else f"`{names[0]}`, `{names[1]}` … `{names[-1]}`"
        yield f"| {shown} | {_text(meaning)} |"


def rights_table() -> Iterator[str]:
    """Yield the lines of the table of the rights that the device plugin needs at the API server."""
    yield "| right | what for |"
    yield "|---|---|"
    for right in RIGHTS:
        yield f"| `{right}`{f' (only `{right.setting}`)' if right.setting else ''} | {_text(right.why)} |"
    yield f"| one of {', '.join(f'`{right}`' for right in KUBELET_PODS)} | {KUBELET_PODS[0].why} |"


def writers_table() -> Iterator[str]:
    """Yield the lines of the table of the annotations of pods that not everybody may write."""
    yield "| annotation of a pod | written by |"
    yield "|---|---|"
    for writer in Writer:
        keys = [key for key, by in WRITERS.items() if by is writer]
        if writer is Writer.PROGRAMS:
            keys.append(f"{ALLOCATED}-<size>")
        yield f"| {', '.join(f'`{key}`' for key in keys)} | {writer.value} |"


def authors_table() -> Iterator[str]:
    """Yield the lines of the table of what a pod's author writes for the programs to read."""
    yield "| what | labels and annotations of a pod |"
    yield "|---|---|"
    stated = {key for kind in JOB_KINDS for key in kind.stated}
    for what, keys in {
        "how its job is placed": DECIDING - FIELDS | {MIN_AVAILABLE},
        "to which job it belongs, and how large that is (usually written by the controller of the job)": MARKS | stated,
        "its rank, at creation": {RANK},
        "what happens after a fault": {FAULT_SCHEDULING, FAULT_TYPE, BACKUP_SOURCE},
    }.items():
        yield f"| {what} | {', '.join(f'`{key}`' for key in sorted(keys))} |"


def reasons_table(category: Category) -> Iterator[str]:
    """Yield the lines of the table of all reasons of a category; reasons with the same text share a row."""
    yield "| reason | what it means | what helps | who acts |"
    yield "|---|---|---|---|"
    rows: dict[tuple[str, str, str], list[Reason]] = {}
    for reason in Reason:
        if reason.category is category:
            rows.setdefault((reason.meaning, reason.cure, reason.actor), []).append(reason)
    for (meaning, cure, actor), reasons in rows.items():
        words = ", ".join(f"`{reason}`" for reason in reasons)
        yield f"| {words} | {_text(meaning)} | {_text(cure)} | {actor} |"


def unsupported_table() -> Iterator[str]:
    """Yield the lines of the table of what pods may request and the allocator does not do."""
    yield "| a pod has | which requests | the pod is | because |"
    yield "|---|---|---|---|"
    for row in UNSUPPORTED:
        yield f"| {row.what} | {row.meaning} | {row.outcome} | {_text(row.sentence)} |"


def controllers_table() -> Iterator[str]:
    """Yield the lines of the table of the controllers with which jobs are tried."""
    yield "| controller | version | kinds | tried by |"
    yield "|---|---|---|---|"
    yield f"| kube-controller-manager | v{VERSIONS[0]} | Job, StatefulSet, Deployment | `make test` |"
    for each in CONTROLLERS.values():
        target = "test-long" if each.is_long else "test"
        yield f"| `{each.module}` | {each.version} | {each.kinds} | `make {target}` |"


def jobs_table() -> Iterator[str]:
    """Yield the lines of the table of the kinds of jobs."""
    yield "| kind | recognized by | number of pods | started together | ranks | replaces a dead pod |"
    yield "|---|---|---|---|---|---|"
    for kind in JOB_KINDS:
        yield f"| {' | '.join(kind.text)} |"


def workloads_table() -> Iterator[str]:
    """Yield the lines of the table of the workloads that ``npuctl plan`` expands."""
    yield "| kind | pods |"
    yield "|---|---|"
    rows: dict[str, dict[str, list[str]]] = {}
    for row in WORKLOADS.values():
        rows.setdefault(row.pods, {}).setdefault(row.version, []).append(f"`{row.kind}`")
    for pods, versions in rows.items():
        named = (f"{', '.join(kinds)} (`{version}`)" for version, kinds in versions.items())
        yield f"| {', '.join(named)} | {pods} |"


def watched_jobs() -> Iterator[str]:
    """Yield the rules of the chart by which the objects of jobs are watched."""
    return _rules((resource for kind in JOB_KINDS for resource in kind.objects), "list, watch")


def enqueued_jobs() -> Iterator[str]:
    """Yield the rules of the chart by which it reads the jobs whose pod groups it admits to the queue."""
    return _rules(ENQUEUED.values(), "get")


def _rules(resources: Iterable[Resource[Any]], verbs: str) -> Iterator[str]:
    plurals: dict[str, list[str]] = {}
    for resource in resources:
        named = plurals.setdefault(resource.api_version.partition("/")[0], [])
        if resource.plural not in named:
            named.append(resource.plural)
    for group, names in plurals.items():
        yield f"  - apiGroups: [{group}]"
        yield f"    resources: [{', '.join(names)}]"
        yield f"    verbs: [{verbs}]"
