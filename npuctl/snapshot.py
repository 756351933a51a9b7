"""A cluster's objects at one moment, from files or an API server, and the state the allocator makes of them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Self

import msgspec

from allocator.decision.engine import DecisionEngine
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.previous_nodes import PreviousNodes
from allocator.state.report import node_of_health
from allocator.watch.pod_groups import KINDS
from ascend.deviceinfo import NAMESPACE
from ascend.errors import UNREADABLE, ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import (
    BATCH_JOBS,
    CONFIG_MAPS,
    NODES,
    PODS,
    STATEFUL_SETS,
    BatchJob,
    ConfigMap,
    KubeObject,
    Node,
    Pod,
    PodGroup,
    Resource,
    StatefulSet,
)

_NO_GROUPS: Final[Mapping[str, Iterable[PodGroup]]] = {}

HEALTH_NAMESPACE = "mindx-dl"
"""Where MindCluster's NodeD writes; what it says there is heeded too where the setting names no namespace."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects, each kind by name.

    Attributes:
        nodes: the nodes.
        pods: the pods of all namespaces.
        config_maps: nodes' reports, and others, which do no harm.
        groups: pod groups by kind; a kind that is not there is none that the cluster has: who is of such a group is
            placed alone.
        owners: what pods may belong to and says how many there are.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    groups: Mapping[str, tuple[PodGroup, ...]] = field(default_factory=dict)
    owners: tuple[StatefulSet | BatchJob, ...] = ()

    @classmethod
    def of(cls, objects: Iterable[KubeObject], groups: Mapping[str, Iterable[PodGroup]] = _NO_GROUPS) -> Self:
        """Sort objects by kind and name.

        Args:
            objects: nodes, pods, ConfigMaps and owners of pods.
            groups: pod groups by kind.
        """
        ordered = sorted(objects, key=lambda each: each.key)
        return cls(
            tuple(each for each in ordered if isinstance(each, Node)),
            tuple(each for each in ordered if isinstance(each, Pod)),
            tuple(each for each in ordered if isinstance(each, ConfigMap)),
            {kind: tuple(sorted(some, key=lambda group: group.key)) for kind, some in groups.items()},
            tuple(each for each in ordered if isinstance(each, StatefulSet | BatchJob)),
        )

    @classmethod
    async def fetch(cls, client: KubeClient, health_namespace: str = "") -> Self:
        """Read them from an API server.

        Args:
            client: the API server.
            health_namespace: where nodes' agents write how their nodes are; empty: nobody does.

        Raises:
            ApiError: it refused.
            Unreachable: no answer.
        """
        nodes, pods, reports, sets, jobs = await asyncio.gather(
            client.list_objects(NODES),
            client.list_objects(PODS),
            client.list_objects(CONFIG_MAPS, NAMESPACE),
            client.list_objects(STATEFUL_SETS),
            client.list_objects(BATCH_JOBS),
        )
        health = await client.list_objects(CONFIG_MAPS, health_namespace) if health_namespace else []
        groups = {}
        for kind, resource in KINDS.items():
            found = await _groups(client, resource)
            if found is not None:
                groups[kind] = found
        return cls.of([*nodes, *pods, *reports, *health, *sets, *jobs], groups)

    def agents_unasked(self, settings: Settings) -> tuple[str, ...]:
        """The ConfigMaps of nodes' agents that are heeded here, but not by an allocator with these settings."""
        if settings.node_health_namespace:
            return ()
        agents = (each for each in self.config_maps if each.metadata.namespace == HEALTH_NAMESPACE)
        return tuple(each.name for each in agents if node_of_health(each.name) is not None)

    def feed(self, cluster: Cluster, health_namespace: str) -> None:
        """Tell a cluster of all of them, as the allocator's watches would.

        Args:
            cluster: what is told.
            health_namespace: where nodes' agents write how their nodes are.
        """
        for node in self.nodes:
            cluster.node_applied(node)
        for config_map in self.config_maps:
            if config_map.metadata.namespace == NAMESPACE:
                cluster.report_applied(config_map)
            if config_map.metadata.namespace == health_namespace:
                cluster.health_applied(config_map)
        for kind, groups in self.groups.items():
            for group in groups:
                cluster.jobs.group_applied(kind, group)
            cluster.jobs.watched(kind)
        for owner in self.owners:
            cluster.jobs.owner_applied(owner)
        for pod in self.pods:
            cluster.pod_applied(pod)


async def _groups(client: KubeClient, resource: Resource[PodGroup]) -> list[PodGroup] | None:
    """The pod groups of a kind; None where the cluster does not have it, as not every one does."""
    try:
        return await client.list_objects(resource)
    except NotFound:
        return None
    except ApiError as error:
        # Who has no right to list them is told so before anybody looks whether there is such a kind.
        if error.status == HTTPStatus.FORBIDDEN and not await _is_served(client, resource):
            return None
        raise


class _Kind(msgspec.Struct):
    name: str


class _Kinds(msgspec.Struct):
    resources: list[_Kind]


async def _is_served(client: KubeClient, resource: Resource[PodGroup]) -> bool:
    """Whether the API server has a kind, by its discovery, which is open to everybody it knows."""
    path = f"/{resource.prefix}"
    try:
        kinds = msgspec.json.decode(await client.request("GET", path), type=_Kinds)
    except NotFound:
        return False
    except ApiError:
        return True  # what was refused before says more
    except UNREADABLE as error:
        raise Unreachable(f"the API server's answer about {path} is not understood: {error}") from error
    return any(each.name == resource.plural for each in kinds.resources)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocator's state and engine, without its front ends and without a clock that goes on.

    Attributes:
        cluster: what is seen.
        ledger: what is decided.
        engine: decides.
    """

    cluster: Cluster
    ledger: Ledger
    engine: DecisionEngine

    @classmethod
    def of(cls, snapshot: Snapshot, settings: Settings, now_s: Callable[[], float]) -> Self:
        """What an allocator with these settings makes of these objects.

        Args:
            snapshot: the objects.
            settings: the allocator's.
            now_s: wall clock, Unix seconds.
        """
        # Reservations made here are for good: the ledger's clock stands still.
        ledger = Ledger(ttl_s=settings.reservation_ttl_s, monotonic=lambda: 0.0)
        previous = PreviousNodes() if settings.prefer_previous_node else None
        cluster = Cluster(ledger, now_s=now_s, max_report_age_s=settings.max_report_age_s, previous=previous)
        snapshot.feed(cluster, settings.node_health_namespace or HEALTH_NAMESPACE)
        return cls(cluster, ledger, DecisionEngine(cluster, ledger, gang_ttl_s=settings.gang_ttl_s))
