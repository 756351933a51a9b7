"""The objects of a cluster that the commands look at, and how they are listed from an API server."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, Self

import msgspec

from allocator.groups import KINDS
from allocator.settings import Settings
from allocator.state.report import node_of_health
from ascend.deviceinfo import NAMESPACE, decode_report, node_name
from ascend.errors import UNREADABLE, ApiError, InvalidReport, NotFound, Unreachable
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

_NO_GROUPS: Final[Mapping[str, Iterable[PodGroup]]] = MappingProxyType({})

HEALTH_NAMESPACE: Final = "mindx-dl"
"""The namespace of NodeD's ConfigMaps. Those in files are used even if the allocator's settings name no namespace."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Kubernetes objects, each kind ordered by name.

    Attributes:
        nodes: the nodes.
        pods: the pods of all namespaces.
        config_maps: the nodes' device reports and NodeD's; any others are ignored.
        groups: pod groups by kind. A kind that is missing here is not served by the cluster; pods of a group of that
            kind are placed alone.
        owners: the controllers of pods that say how many pods they have.
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
            objects: nodes, pods, ConfigMaps and controllers of pods.
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

    def plus(self, objects: Iterable[KubeObject], groups: Mapping[str, Iterable[PodGroup]]) -> Self:
        """Return these objects and more; of objects with the same kind and name these count.

        Args:
            objects: nodes, pods, ConfigMaps and controllers of pods.
            groups: pod groups by kind.
        """
        mine = (*self.nodes, *self.pods, *self.config_maps, *self.owners)
        merged = {(type(each), each.key): each for each in (*objects, *mine)}
        merged_groups = {
            kind: {each.key: each for each in (*groups.get(kind, ()), *self.groups.get(kind, ()))}.values()
            for kind in {**self.groups, **groups}
        }
        return type(self).of(merged.values(), merged_groups)

    @property
    def reports(self) -> dict[str, ConfigMap]:
        """The ConfigMaps with device reports, by node."""
        return {
            name: each
            for each in self.config_maps
            if each.metadata.namespace == NAMESPACE and (name := node_name(each.name)) is not None
        }

    def newest_report_s(self) -> int | None:
        """Return when the newest device report was written, Unix seconds; None if there is none."""
        times = []
        for each in self.reports.values():
            with contextlib.suppress(InvalidReport):
                times.append(decode_report(each.data).update_time_s)
        return max((time for time in times if time > 0), default=None)

    def unused_health_reports(self, settings: Settings) -> tuple[str, ...]:
        """The names of NodeD's ConfigMaps that are used here, but not by an allocator with these settings."""
        if settings.node_health_namespace:
            return ()
        health = (each.name for each in self.config_maps if each.metadata.namespace == HEALTH_NAMESPACE)
        return tuple(name for name in health if node_of_health(name) is not None)


async def list_objects(client: KubeClient, health_namespace: str = "") -> ClusterObjects:
    """List the objects from an API server.

    Args:
        client: the API server.
        health_namespace: the namespace of NodeD's ConfigMaps; empty if they are not used.

    Raises:
        ApiError: the API server refused.
        Unreachable: it did not answer.
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
        found = await _list_groups(client, resource)
        if found is not None:
            groups[kind] = found
    return ClusterObjects.of([*nodes, *pods, *reports, *health, *sets, *jobs], groups)


async def _list_groups(client: KubeClient, resource: Resource[PodGroup]) -> list[PodGroup] | None:
    """List the pod groups of a kind; None if the cluster does not serve it."""
    try:
        return await client.list_objects(resource)
    except NotFound:
        return None
    except ApiError as error:
        # The API server checks rights first, so a kind it does not serve is forbidden too.
        if error.status == HTTPStatus.FORBIDDEN and not await _is_served(client, resource):
            return None
        raise


class _Kind(msgspec.Struct):
    name: str


class _Kinds(msgspec.Struct):
    resources: list[_Kind]


async def _is_served(client: KubeClient, resource: Resource[PodGroup]) -> bool:
    """Whether the API server serves a kind, according to its discovery, which every authenticated user may read."""
    path = f"/{resource.prefix}"
    try:
        kinds = msgspec.json.decode(await client.request("GET", path), type=_Kinds)
    except NotFound:
        return False
    except ApiError:
        return True  # the error of the list request says more
    except UNREADABLE as error:
        raise Unreachable(f"the API server's discovery document {path} can't be decoded: {error}") from error
    return any(each.name == resource.plural for each in kinds.resources)
