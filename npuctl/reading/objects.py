"""The objects of a cluster that the commands look at."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Self

from msgspec.structs import replace

from allocator.settings import Settings
from allocator.state.cluster_info import is_cluster_info
from allocator.state.kinds import all_kinds
from allocator.state.report import node_of_health
from ascend.cordons import Cordon, read_cordons
from ascend.deviceinfo import NAMESPACE, DeviceReport, decode_report, node_name
from ascend.errors import InvalidReport
from ascend.kube.objects import ConfigMap, KubeObject, Node, Pod

_key = attrgetter("key")

_NO_GROUPS: Final[Mapping[str, Iterable[KubeObject]]] = MappingProxyType({})

HEALTH_NAMESPACE: Final = "mindx-dl"
"""The namespace of MindCluster's ConfigMaps. Those in files are used even if the allocator's settings name none."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Kubernetes objects, each kind ordered by name.

    Attributes:
        by_kind: the objects by name of their watched kind (``allocator.state.kinds``); ConfigMaps of all namespaces are
            under all of their kinds. An optional kind that is missing is not served by the cluster: pods of a group of
            that kind are placed alone.
    """

    by_kind: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Iterable[KubeObject], groups: Mapping[str, Iterable[KubeObject]] = _NO_GROUPS) -> Self:
        """Sort objects by kind and name.

        Args:
            objects: of all kinds that are not optional.
            groups: pod groups and the objects of operators, by name of their kind.
        """
        ordered = sorted(objects, key=_key)
        fixed = {
            kind.name: tuple(obj for obj in ordered if isinstance(obj, kind.resource.type))
            for kind in all_kinds()
            if not kind.is_optional
        }
        return cls(fixed | {kind: tuple(sorted(some, key=_key)) for kind, some in groups.items()})

    def plus(self, objects: Iterable[KubeObject], groups: Mapping[str, Iterable[KubeObject]]) -> Self:
        """Return these objects and more, as for ``of``; of objects with the same kind and name these count."""
        return self.with_new(type(self).of(objects, groups))

    def with_new(self, new: "ClusterObjects") -> Self:
        """Return these objects and others; of objects with the same kind and name these count.

        An optional kind of which neither has an object stays as it is here: served or not.
        """
        more = {kind: some for kind, some in new.by_kind.items() if some or kind in self.by_kind}
        merged = {
            kind: {obj.key: obj for obj in (*more.get(kind, ()), *self.by_kind.get(kind, ()))}
            for kind in {**self.by_kind, **more}
        }
        return type(self)({kind: tuple(sorted(found.values(), key=_key)) for kind, found in merged.items()})

    def with_changed(self, changed: Iterable[KubeObject]) -> Self:
        """Return the objects with others of kinds that are not optional; of the same kind and name the others count."""
        new = type(self).of(changed)
        merged = {
            kind: {obj.key: obj for obj in (*known, *new.by_kind.get(kind, ()))} for kind, known in self.by_kind.items()
        }
        return type(self)({kind: tuple(sorted(found.values(), key=_key)) for kind, found in merged.items()})

    def without(self, dropped: Callable[[Pod], bool]) -> Self:
        """Return the objects without some pods."""
        return self.with_pods(pod for pod in self.pods if not dropped(pod))

    def with_pods(self, pods: Iterable[Pod]) -> Self:
        """Return the objects with other pods, which are ordered by name."""
        return type(self)({**self.by_kind, "pods": tuple(pods)})

    def without_gates(self, ungated: Callable[[Pod], bool]) -> Self:
        """Return these objects, with the scheduling gates of some pods removed.

        Args:
            ungated: whether to remove the gates of a pod.
        """

        def changed(pod: Pod) -> Pod:
            return replace(pod, spec=replace(pod.spec, scheduling_gates=[])) if pod.is_gated and ungated(pod) else pod

        return self.with_pods(map(changed, self.pods))

    def watched_objects(self, health_namespace: str) -> dict[str, list[Any]]:
        """The objects that an allocator watches, by name of their kind; MindCluster's are in this namespace."""
        return {
            kind.name: [
                obj
                for obj in self.by_kind[kind.name]
                if kind.namespace(health_namespace) in {"", obj.metadata.namespace}
            ]
            for kind in all_kinds()
            if kind.name in self.by_kind
        }

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        return self.by_kind.get("nodes", ())

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods of all namespaces."""
        return self.by_kind.get("pods", ())

    @property
    def config_maps(self) -> tuple[ConfigMap, ...]:
        """The ConfigMaps, device reports and MindCluster's among them."""
        return self.by_kind.get("device reports", ())

    @property
    def reports(self) -> dict[str, ConfigMap]:
        """The ConfigMaps with device reports, by node."""
        return {
            name: config_map
            for config_map in self.config_maps
            if config_map.metadata.namespace == NAMESPACE and (name := node_name(config_map.name)) is not None
        }

    @property
    def valid_reports(self) -> dict[str, DeviceReport]:
        """The device reports that are valid, by node."""
        reports = {}
        for name, config_map in self.reports.items():
            with contextlib.suppress(InvalidReport):
                reports[name] = decode_report(config_map.data)
        return reports

    @property
    def cordons(self) -> dict[str, dict[int, Cordon]]:
        """The chips that operators have taken out of use, by node and physical id."""
        return {name: found for name, config_map in self.reports.items() if (found := read_cordons(config_map))}

    def unused_health_reports(self, settings: Settings) -> tuple[str, ...]:
        """The names of MindCluster's ConfigMaps that are used here, but not by an allocator with these settings."""
        if settings.node_health_namespace:
            return ()
        health = (
            config_map.name for config_map in self.config_maps if config_map.metadata.namespace == HEALTH_NAMESPACE
        )
        return tuple(name for name in health if node_of_health(name) is not None or is_cluster_info(name))
