"""The objects of programs that doctor reads: pods, configurations, admission policies, Nodes and Events."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from ascend.errors import UNREADABLE, InvalidValue
from device_plugin.publish.node_conditions import NOT_READY
from npuctl.doctor.told import EventSighting
from npuctl.reading.files import documents_in

OURS: Final = {"app.kubernetes.io/part-of": "ascend-affinity"}
"""The labels of this project's objects."""
THEIR_PLUGIN: Final = {"name": "ascend-device-plugin-ds"}
"""The labels of the pods of MindCluster's device plugin."""
VOLCANO: Final = {"app": "volcano-scheduler"}
"""The labels of the pods of Volcano's scheduler."""
KUBE_SCHEDULER: Final = {"component": "kube-scheduler"}
"""The labels of the pods of kube-scheduler, as kubeadm makes them."""
COMPONENT: Final = "app.kubernetes.io/component"
PLUGIN: Final = {**OURS, COMPONENT: "device-plugin"}
ALLOCATOR: Final = {**OURS, COMPONENT: "allocator"}
WRITERS_CONDITION: Final = "by-others"
"""The condition of the chart's policy for annotations that names who may write them."""
_SERVED: Final = "--scheduler-names="


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class LabelledObject(msgspec.Struct):
    """An object with labels."""

    metadata: _Metadata

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether it has all of these labels."""
        return labels.items() <= (self.metadata.labels or {}).items()


class _Reference(msgspec.Struct):
    name: str = ""


class _EnvFrom(msgspec.Struct, rename="camel"):
    config_map_ref: _Reference | None = None
    prefix: str = ""


class _Container(msgspec.Struct, rename="camel"):
    command: list[str] | None = None
    args: list[str] | None = None
    env_from: list[_EnvFrom] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None


class _PodStatus(msgspec.Struct):
    phase: str = ""


class ProgramPod(LabelledObject):
    """A pod, with what its containers execute and the ConfigMaps of their environment."""

    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def runs(self) -> bool:
        """Whether it is on a node, and has not ended."""
        return bool(self.spec.node_name) and self.status.phase not in {"Succeeded", "Failed"}

    @property
    def command_line(self) -> str:
        """The commands and arguments of its containers; those of an image are unknown."""
        return " ".join(
            word
            for container in self.spec.containers or ()
            for word in (*(container.command or ()), *(container.args or ()))
        )

    @property
    def component(self) -> str:
        """The component of this project; a pool of nodes has a DaemonSet of its own."""
        return (self.metadata.labels or {}).get(COMPONENT, "").partition("-pool")[0]

    @property
    def scheduler_names(self) -> list[str]:
        """The schedulers that an allocator serves, by its flag."""
        words = [word for container in self.spec.containers or () for word in container.args or ()]
        given = [word.removeprefix(_SERVED) for word in words if word.startswith(_SERVED)]
        try:
            return msgspec.json.decode(given[-1], type=list[str]) if given else []
        except UNREADABLE:
            return []

    @property
    def user(self) -> str:
        """The authenticated user as which it calls the API server."""
        return f"system:serviceaccount:{self.metadata.namespace}:{self.spec.service_account_name}"

    @property
    def config_maps(self) -> Iterator[str]:
        """The ConfigMaps (``namespace/name``) whose keys become variables of its containers, without a prefix."""
        spec = self.spec
        for container in (*(spec.containers or ()), *(spec.init_containers or ()), *(spec.ephemeral_containers or ())):
            for source in container.env_from or ():
                if source.config_map_ref is not None and not source.prefix:
                    yield f"{self.metadata.namespace}/{source.config_map_ref.name}"


class _VolcanoPlugin(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] | None = None


class _VolcanoTier(msgspec.Struct):
    plugins: list[_VolcanoPlugin] | None = None


class _VolcanoConfig(msgspec.Struct):
    tiers: list[_VolcanoTier] | None = None


class ConfigMapData(msgspec.Struct):
    """The data of a ConfigMap."""

    data: dict[str, str | None] | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The texts by key."""
        return {key: text for key, text in (self.data or {}).items() if text is not None}

    def volcano_plugins(self) -> dict[str, Mapping[str, object]] | None:
        """The arguments of the plugins in a configuration of Volcano, by name; None if there is none to be read."""
        plugins: dict[str, Mapping[str, object]] = {}
        texts = [text for key, text in self.texts.items() if key.endswith(".conf")]
        for text in texts:
            try:
                for document in documents_in("Volcano's configuration", text):
                    tiers = msgspec.convert(document or {}, _VolcanoConfig).tiers
                    for plugin in (plugin for tier in tiers or () for plugin in tier.plugins or ()):
                        plugins.setdefault(plugin.name, plugin.arguments or {})
            except (InvalidValue, *UNREADABLE):
                return None
        return plugins if texts else None


class _MatchCondition(msgspec.Struct):
    name: str
    expression: str


class _PolicySpec(msgspec.Struct, rename="camel"):
    match_conditions: list[_MatchCondition] | None = None


class AdmissionPolicy(LabelledObject):
    """A ValidatingAdmissionPolicy."""

    spec: _PolicySpec = msgspec.field(default_factory=_PolicySpec)

    @property
    def writers(self) -> list[str]:
        """The conditions that name the users who may write."""
        conditions = self.spec.match_conditions or ()
        return [condition.expression for condition in conditions if condition.name == WRITERS_CONDITION]


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    last_heartbeat_time: datetime | None = None


class _NodeStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class NodeHeartbeat(msgspec.Struct):
    """A Node, with the times of its conditions."""

    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def time_s(self) -> float | None:
        """The time of the device plugin's last heartbeat, Unix seconds; None if unknown."""
        own = (
            condition.last_heartbeat_time for condition in self.status.conditions or () if condition.type == NOT_READY
        )
        return next((time.timestamp() for time in own if time is not None), None)


class _Series(msgspec.Struct, rename="camel"):
    last_observed_time: str = ""


class PostedEvent(msgspec.Struct, rename="camel"):
    """An Event."""

    reason: str
    note: str = ""
    regarding: _Metadata = msgspec.field(default_factory=_Metadata)
    event_time: str | None = None
    deprecated_last_timestamp: str | None = None
    series: _Series | None = None

    @property
    def last(self) -> str:
        """When it was last seen, RFC 3339."""
        repeated = self.series.last_observed_time if self.series is not None else ""
        return max(repeated, self.event_time or "", self.deprecated_last_timestamp or "")

    @property
    def expiry(self) -> tuple[str, float]:
        """The note, and the time of the last sighting, Unix seconds."""
        return self.note, msgspec.convert(self.last, datetime).timestamp() if self.last else 0.0

    @property
    def told(self) -> EventSighting:
        """The note, and the object that it is about."""
        about = self.regarding
        namespace = about.namespace if about.kind != "Node" else ""
        key = "/".join(filter(None, (namespace, about.name)))
        return EventSighting(self.reason, self.note, about.kind, key, about.uid)
