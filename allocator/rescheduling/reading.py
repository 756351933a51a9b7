"""Reads objects anew from the API server, as they are in etcd and not in a cache: what a deletion depends on."""

import asyncio
from typing import Final

from allocator.state.cluster import Cluster
from allocator.state.cluster_info import ClusterInfo
from allocator.state.node import NodeRecord, read_server, unknown_node
from allocator.state.node_reports import judge_freshness
from allocator.state.report import NO_REPORT, NODE_INFO_PREFIX, read_agent_health, read_report
from ascend.deviceinfo import NAMESPACE, config_map_name
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, ConfigMap, Node, Pod, Resource, T

READ_S: Final = 3.0
"""How long an answer may take: an older one would leave a gap in what is seen."""


class Reader:
    """Reads without ``resourceVersion``, so each answer is at least as recent as the request.

    Each method raises ``ApiError`` if the API server refuses, and ``Unreachable`` if it does not answer within
    ``READ_S``.

    Args:
        client: the API server.
        cluster: what is known of the nodes.
        health_namespace: the setting ``node_health_namespace``.
    """

    def __init__(self, client: KubeClient, cluster: Cluster, health_namespace: str) -> None:
        self._client = client
        self._cluster = cluster
        self._health_namespace = health_namespace

    async def anything(self) -> None:
        """Return once the API server and etcd have answered."""
        await self._client.request("GET", NODES.path(), query={"limit": "1"}, timeout_s=READ_S)

    async def node(self, name: str) -> Node | None:
        """Read a Node; None if it does not exist."""
        return await self._read_named(NODES, name)

    async def pod(self, pod: Pod) -> Pod | None:
        """Read a pod; None if the pod is gone, also if another pod has the name."""
        try:
            found = await self._client.get(PODS, pod.name, pod.metadata.namespace, timeout_s=READ_S)
        except NotFound:
            return None
        return found if found.uid == pod.uid else None

    async def record(self, name: str) -> NodeRecord:
        """Read all sources of a node's health: the Node, and the reports of its agents and of ClusterD."""
        known = self._cluster.nodes.get(name)
        sources = sorted(self._cluster.reports.info.sources(name)) if self._health_namespace else []
        node, (report, health, *said) = await asyncio.gather(
            self.node(name),
            asyncio.gather(
                self._read_named(CONFIG_MAPS, config_map_name(name), NAMESPACE),
                self._health(NODE_INFO_PREFIX + name),
                *map(self._health, sources),
            ),
        )
        info = ClusterInfo()
        for config_map in filter(None, said):
            info.apply(config_map)
        own = read_report(report) if report is not None else NO_REPORT
        read = NodeRecord(name, unknown_node(name), own, info.combine(name, own), node=node)
        if health is not None:
            read.health = read_agent_health(health)
        if node is not None:
            read.server = read_server(node, read.report, known.held if known is not None else 0)
        if read.updated_s is not None:
            is_same = known is not None and known.updated_s == read.updated_s
            read.stale = known.stale if known is not None and is_same else judge_freshness(name, read.updated_s, 0, 0)
        return read

    async def _health(self, name: str) -> ConfigMap | None:
        return await self._read_named(CONFIG_MAPS, name, self._health_namespace) if self._health_namespace else None

    async def _read_named(self, resource: Resource[T], name: str, namespace: str = "") -> T | None:
        # The allocator may list these, and not get them; the API server reads the one key.
        selector = f"metadata.name={name}"
        found = await self._client.list_objects(resource, namespace, field_selector=selector, timeout_s=READ_S)
        return found[0] if found else None
