"""The edge to the API server: reflectors that keep the cluster's state true."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from allocator.groups import KINDS, GroupWatch
from allocator.state.cluster import Cluster
from ascend.deviceinfo import LABELS, NAMESPACE
from ascend.kube.client import KubeClient
from ascend.kube.objects import (
    BATCH_JOBS,
    CONFIG_MAPS,
    NODES,
    PODS,
    STATEFUL_SETS,
    BatchJob,
    ConfigMap,
    Node,
    Pod,
    StatefulSet,
)
from ascend.kube.reflector import Reflector


class _Nodes:
    def __init__(self, cluster: Cluster) -> None:
        self.applied: Callable[[Node], None] = cluster.node_applied
        self.deleted: Callable[[Node], None] = cluster.node_deleted


class _Pods:
    def __init__(self, cluster: Cluster) -> None:
        self.applied: Callable[[Pod], None] = cluster.pod_applied
        self.deleted: Callable[[Pod], None] = cluster.pod_deleted


class _Reports:
    def __init__(self, cluster: Cluster) -> None:
        self.applied: Callable[[ConfigMap], None] = cluster.report_applied
        self.deleted: Callable[[ConfigMap], None] = cluster.report_deleted


class _Owners:
    def __init__(self, cluster: Cluster) -> None:
        self.applied: Callable[[StatefulSet | BatchJob], None] = cluster.jobs.owner_applied
        self.deleted: Callable[[StatefulSet | BatchJob], None] = cluster.jobs.owner_deleted


class _Health:
    def __init__(self, cluster: Cluster) -> None:
        self.applied: Callable[[ConfigMap], None] = cluster.health_applied
        self.deleted: Callable[[ConfigMap], None] = cluster.health_deleted


class View:
    """Feeds a cluster from the API server.

    Args:
        client: the API server.
        cluster: what is fed.
        health_namespace: where the nodes' agents write how their nodes are; empty: nobody does.
        monotonic: the clock for ``age_s``.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        *,
        health_namespace: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
        self._pods = Reflector(client, PODS, _Pods(cluster), monotonic=monotonic)
        self._reflectors: dict[str, Reflector[Any] | GroupWatch] = {
            "nodes": Reflector(client, NODES, _Nodes(cluster), monotonic=monotonic),
            "pods": self._pods,
            "device reports": Reflector(
                client,
                CONFIG_MAPS,
                _Reports(cluster),
                namespace=NAMESPACE,
                label_selector=selector,
                monotonic=monotonic,
            ),
        }
        for name, resource in (("StatefulSets", STATEFUL_SETS), ("Jobs", BATCH_JOBS)):
            self._reflectors[name] = Reflector(client, resource, _Owners(cluster), monotonic=monotonic)
        if health_namespace:
            self._reflectors["node health"] = Reflector(
                client,
                CONFIG_MAPS,
                _Health(cluster),
                namespace=health_namespace,
                label_selector=selector,
                monotonic=monotonic,
            )
        for kind in KINDS:
            self._reflectors[kind] = GroupWatch(client, cluster.jobs, kind, monotonic=monotonic)

    def missing(self) -> str | None:
        """What the view still waits for, a sentence; None once it is complete."""
        waiting = [name for name, reflector in self._reflectors.items() if not reflector.synced.is_set()]
        return f"the view of the cluster is not complete yet: waiting for {', '.join(waiting)}" if waiting else None

    async def synced(self) -> None:
        """Wait until the view is complete."""
        for reflector in self._reflectors.values():
            await reflector.synced.wait()

    async def refresh_pods(self) -> None:
        """Wait until every Binding the API server has made by now is in the view."""
        await self._pods.refresh()

    @property
    def age_s(self) -> float | None:
        """Seconds since the API server was last heard of, on the quietest of the watches; None before all have."""
        ages = [reflector.age_s for reflector in self._reflectors.values()]
        return max((age for age in ages if age is not None), default=None) if None not in ages else None

    async def run(self) -> None:
        """Keep the view true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, reflector in self._reflectors.items():
                tasks.create_task(reflector.run(), name=f"watch {name}")
