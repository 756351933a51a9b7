"""The kinds of objects that the allocator watches: the one table of them.

The informers, ``npuctl`` (from files and from a cluster) and the test of the chart's RBAC rules all use it:
a new kind is a new row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

from allocator.state.cluster import Cluster
from allocator.state.cluster_info import LABELS as CLUSTER_INFO_LABELS
from allocator.state.hyper_nodes import HYPER_NODE, HYPER_NODES
from allocator.state.jobs import Jobs
from allocator.state.plain_pods import PlainPods
from ascend.deviceinfo import LABELS, NAMESPACE
from ascend.jobs.kind import JobKind
from ascend.jobs.table import JOB_KINDS, TABLE
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, Resource
from ascend.kube.workloads import BATCH_JOBS, STATEFUL_SETS
from ascend.leaf_switches import NAME as SWITCHES

Scope: TypeAlias = Literal["all", "device-reports", "node-health"]
"""Which namespaces are watched: all of them, ``kube-system``, or that of the setting ``node_health_namespace``."""


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind of object that is watched.

    Attributes:
        name: its name in logs and readiness messages.
        resource: where the API server serves it, and its decoder.
        apply: adds or updates an object.
        delete: removes an object.
        scope: in which namespaces it is watched.
        label_selector: which objects are watched; empty for all.
        field_selector: the same by fields.
        jobs: what jobs call the kind, if it may be missing in a cluster: it comes with a custom resource.
        unkept: the objects of which the reflector keeps no copy; None if it keeps all.
    """

    name: str
    resource: Resource[Any]
    apply: Callable[[Cluster, Any], None]
    delete: Callable[[Cluster, Any], None]
    scope: Scope = "all"
    label_selector: str = ""
    field_selector: str = ""
    jobs: str = ""
    unkept: Callable[[Cluster], PlainPods] | None = None

    @property
    def is_optional(self) -> bool:
        """Whether a cluster may not serve the kind."""
        return bool(self.jobs)

    @property
    def selectors(self) -> dict[str, str]:
        """The query by which the API server selects the objects."""
        given = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {key: value for key, value in given.items() if value}

    def namespace(self, health_namespace: str) -> str:
        """The namespace to watch; empty for all of them.

        Args:
            health_namespace: the setting ``node_health_namespace``.
        """
        return {"all": "", "device-reports": NAMESPACE, "node-health": health_namespace}[self.scope]


def watched_kinds(health_namespace: str) -> tuple[WatchedKind, ...]:
    """The kinds to watch.

    Args:
        health_namespace: the setting ``node_health_namespace``; node health is not watched if it is empty.
    """
    return all_kinds() if health_namespace else tuple(kind for kind in all_kinds() if kind.scope != "node-health")


def fill(cluster: Cluster, objects: Mapping[str, Iterable[Any]]) -> Cluster:
    """Apply objects to a cluster, kind by kind in the order of the table.

    Args:
        cluster: it is changed and returned.
        objects: by name of the kind; an optional kind that is missing is not served.
    """
    for kind in all_kinds():
        for obj in objects.get(kind.name, ()):
            kind.apply(cluster, obj)
        if kind.is_optional and kind.name in objects:
            cluster.jobs.on_watched(kind.jobs)
    return cluster


def _of_jobs(kind: JobKind, resource: Resource[Any]) -> WatchedKind:
    name = kind.name
    applied, deleted = (
        (Jobs.group_applied, Jobs.group_deleted) if kind.is_group else (Jobs.source_applied, Jobs.source_deleted)
    )
    return WatchedKind(
        f"{resource.kind}.{resource.api_version}",
        resource,
        lambda cluster, obj: applied(cluster.jobs, name, obj),
        lambda cluster, obj: deleted(cluster.jobs, name, obj),
        jobs=name,
    )


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


_reports = partial(WatchedKind, resource=CONFIG_MAPS, label_selector=_selector(LABELS))
_owners = partial(
    WatchedKind,
    apply=lambda cluster, owner: cluster.jobs.owners.apply(owner),
    delete=lambda cluster, owner: cluster.jobs.owners.delete(owner),
)

KINDS: Final = (
    WatchedKind("nodes", NODES, Cluster.node_applied, Cluster.node_deleted),
    _reports(
        "device reports",
        apply=lambda cluster, config_map: cluster.reports.apply(config_map),
        delete=lambda cluster, config_map: cluster.reports.delete(config_map),
        scope="device-reports",
    ),
    WatchedKind(
        "leaf switches",
        CONFIG_MAPS,
        lambda cluster, config_map: cluster.switches.apply(config_map),
        lambda cluster, config_map: cluster.switches.delete(config_map),
        scope="device-reports",
        field_selector=f"metadata.name={SWITCHES}",
    ),
    _reports(
        "node health",
        apply=lambda cluster, config_map: cluster.reports.health_applied(config_map),
        delete=lambda cluster, config_map: cluster.reports.health_deleted(config_map),
        scope="node-health",
    ),
    _reports(
        "ClusterD's reports",
        apply=lambda cluster, config_map: cluster.reports.info_applied(config_map),
        delete=lambda cluster, config_map: cluster.reports.info_deleted(config_map),
        scope="node-health",
        label_selector=_selector(CLUSTER_INFO_LABELS),
    ),
    _owners("StatefulSets", STATEFUL_SETS),
    _owners("Jobs", BATCH_JOBS),
    WatchedKind(
        "HyperNodes",
        HYPER_NODES,
        lambda cluster, hyper_node: cluster.hyper_nodes.apply(hyper_node),
        lambda cluster, hyper_node: cluster.hyper_nodes.delete(hyper_node),
        jobs=HYPER_NODE,
    ),
    *(_of_jobs(kind, resource) for kind in JOB_KINDS for resource in kind.objects),
    WatchedKind("pods", PODS, Cluster.pod_applied, Cluster.pod_deleted, unkept=lambda cluster: cluster.plain),
)
"""Pods last: what they mean depends on all others."""


def all_kinds() -> tuple[WatchedKind, ...]:
    """All kinds, those of jobs that settings describe too."""
    return (*KINDS[:-1], *_described(TABLE.described), KINDS[-1])


@lru_cache(maxsize=1)
def _described(rows: tuple[JobKind, ...]) -> tuple[WatchedKind, ...]:
    return tuple(_of_jobs(kind, resource) for kind in rows for resource in kind.objects)
