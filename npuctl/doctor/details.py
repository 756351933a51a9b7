"""What npuctl doctor reads of the programs of both halves besides the objects that all commands read."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from ascend.conditions import NOT_READY
from ascend.deviceinfo import NAMESPACE
from ascend.errors import UNREADABLE, ApiError, InvalidValue, NotFound, Unreachable
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, EVENTS, NODES, PODS, Node
from device_plugin.health.fault_rules import default_rules, read_rules
from npuctl.doctor.plugins import unready
from npuctl.doctor.rights import Account, Denied, read_denied
from npuctl.doctor.told import ADVICE, EventSighting
from npuctl.doctor.variables import MOST_READ, PodVariables, VariableSource, taken, taken_in, wanted
from npuctl.reading.files import documents_in
from npuctl.reading.manifests import Manifest

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
_EXPIRES: Final = "CertificateExpires"
_SERVED: Final = "--scheduler-names="
_BINDINGS: Final = re.compile(r"--webhooks=\S*bindings")
_SCHEDULER: Final = "scheduler"
"""The component of the chart's kube-scheduler."""

_FAULT_RULES: Final = (NAMESPACE, "mindx-dl-fault-config")
"""The site's fault rules (docs/device-plugin.md#fault-rules)."""
_VOLCANOS_CONFIG: Final = ("volcano-system", "volcano-scheduler-configmap")
_THEIR_PLUGIN_IN_VOLCANO: Final = "volcano-npu"
"""The name of MindCluster's plugin has its version after this, as in ``volcano-npu_v26.0.0_linux-aarch64``."""
_POLICY: Final = "ValidatingAdmissionPolicy"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
WRITERS_CONDITION: Final = "by-others"
"""The condition of the chart's policy for annotations that names who may write them."""

T = TypeVar("T")


class _Container(msgspec.Struct):
    command: list[str] | None = None
    args: list[str] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    containers: list[_Container] | None = None

    @property
    def command_line(self) -> str:
        return " ".join(
            word
            for container in self.containers or ()
            for word in (*(container.command or ()), *(container.args or ()))
        )


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def runs(self) -> bool:
        return bool(self.spec.node_name) and self.status.phase not in {"Succeeded", "Failed"}

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
        return f"system:serviceaccount:{self.metadata.namespace}:{self.spec.service_account_name}"


class _ConfigMap(msgspec.Struct):
    data: dict[str, str | None] | None = None


class _VolcanoPlugin(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] | None = None


class _VolcanoTier(msgspec.Struct):
    plugins: list[_VolcanoPlugin] | None = None


class _VolcanoConfig(msgspec.Struct):
    tiers: list[_VolcanoTier] | None = None


class _MatchCondition(msgspec.Struct):
    name: str
    expression: str


class _PolicySpec(msgspec.Struct, rename="camel"):
    match_conditions: list[_MatchCondition] | None = None


class _Policy(msgspec.Struct):
    spec: _PolicySpec


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    last_heartbeat_time: datetime | None = None


class _NodeStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def heartbeat_s(self) -> float | None:
        """The time of the device plugin's last heartbeat, Unix seconds; None if unknown."""
        own = (
            condition.last_heartbeat_time for condition in self.status.conditions or () if condition.type == NOT_READY
        )
        return next((time.timestamp() for time in own if time is not None), None)


class _List(msgspec.Struct, Generic[T]):
    items: list[T] | None = None


class _Series(msgspec.Struct, rename="camel"):
    last_observed_time: str = ""


class _Event(msgspec.Struct, rename="camel"):
    reason: str
    note: str = ""
    regarding: _Metadata | None = None
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
        about = self.regarding or _Metadata("")
        namespace = about.namespace if about.kind != "Node" else ""
        return EventSighting(
            self.reason, self.note, about.kind, "/".join(filter(None, (namespace, about.name))), about.uid
        )


@dataclass(frozen=True, slots=True)
class Details:
    """What is known of MindCluster's programs, and of the users that may write.

    Attributes:
        plugins: the command line of MindCluster's device plugin, by node.
        plugin_users: the users as which its device plugins write.
        volcano_users: the users as which Volcano's schedulers write.
        chooses_by_volcano: whether Volcano's scheduler has MindCluster's plugin in its configuration; None if that is
            not known.
        extender: the arguments of Volcano's extender plugin; None if it is not configured, or that is not known.
        policies: the conditions of this project's admission policies, which name the users that may write.
        taken: the ConfigMaps from which pods take variables that name devices.
        served: the names of the schedulers that this project's allocator serves; None if they are not known.
        versions: the versions of this project's programs that run, by component.
        kube_schedulers: the command lines of the pods of kube-scheduler; none if it need not call the allocator: the
            chart has one of its own, or Bindings reach the allocator's webhook.
        told: the Events whose reasons ``told.ADVICE`` names, the oldest first.
        expiring: what the Events of the allocator say of certificates, with when each was seen last, Unix seconds.
        refused_rules: the entries of the site's fault rules that the device plugins leave out, a sentence each.
        heartbeats: when a device plugin that is not ready has said so last, Unix seconds, by node.
        denied: the rights that the accounts of this project's programs lack; None if that is not known.
        is_whole: the objects are those of an API server, so what is not among them does not exist.
        unread: why something could not be read, by what it is.
    """

    plugins: Mapping[str, str] = field(default_factory=dict)
    plugin_users: frozenset[str] = frozenset()
    volcano_users: frozenset[str] = frozenset()
    chooses_by_volcano: bool | None = None
    extender: Mapping[str, object] | None = None
    policies: tuple[str, ...] = ()
    taken: tuple[VariableSource, ...] = ()
    served: tuple[str, ...] | None = None
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    kube_schedulers: tuple[str, ...] = ()
    told: tuple[EventSighting, ...] = ()
    expiring: tuple[tuple[str, float], ...] = ()
    refused_rules: tuple[str, ...] = ()
    heartbeats: Mapping[str, float] = field(default_factory=dict)
    denied: tuple[Denied, ...] | None = None
    is_whole: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)


async def read_details(client: KubeClient, nodes: Iterable[Node] = ()) -> Details:
    """Read them from an API server, whose nodes are given; what can't be read is ``unread``."""
    namespace, name = _VOLCANOS_CONFIG
    unread: dict[str, str] = {}

    async def get(
        what: str, path: str, kind: type[T], labels: Mapping[str, str] | None = None, fields: str = ""
    ) -> T | None:
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        given = {"labelSelector": selector, "fieldSelector": fields}
        try:
            answer = await client.request("GET", path, query={key: text for key, text in given.items() if text} or None)
            return decode(answer, kind)
        except NotFound:
            return None
        except (ApiError, Unreachable) as error:
            unread[what] = str(error)
            return None

    plugins, volcanos, config, policies, pods, rules = await asyncio.gather(
        get("pods of MindCluster's device plugin", PODS.path(), _List[_Pod], THEIR_PLUGIN),
        get("pods of Volcano", PODS.path(), _List[_Pod], VOLCANO),
        get("Volcano's configuration", CONFIG_MAPS.path(namespace=namespace, name=name), _ConfigMap),
        get("admission policies", _POLICIES, _List[_Policy], OURS),
        get("variables of pods", PODS.path(), _List[PodVariables]),
        get("fault rules", CONFIG_MAPS.path(namespace=_FAULT_RULES[0], name=_FAULT_RULES[1]), _ConfigMap),
    )
    unready_nodes = list(unready(nodes))[:MOST_READ]
    shown = await asyncio.gather(*(get("heartbeats of Nodes", NODES.path(name=name), _Node) for name in unready_nodes))
    ours, kube_schedulers = await asyncio.gather(
        get("pods of this project", PODS.path(), _List[_Pod], OURS),
        get("pods of kube-scheduler", PODS.path(), _List[_Pod], KUBE_SCHEDULER),
    )
    events = await asyncio.gather(
        *(get("Events", EVENTS.path(), _List[_Event], fields=f"reason={reason}") for reason in (_EXPIRES, *ADVICE))
    )
    found, named = list[VariableSource](), wanted(_items(pods))
    if len(named) > MOST_READ:
        unread["ConfigMaps of variables"] = f"pods name {len(named)} of them; the first {MOST_READ} were read"
    for (namespace, name), pod in list(named.items())[:MOST_READ]:
        read = await get("ConfigMaps of variables", CONFIG_MAPS.path(namespace=namespace, name=name), _ConfigMap)
        found += taken((namespace, name), pod, (read.data if read is not None else None) or {})
    denied = None
    if accounts := frozenset(_accounts(_items(ours))):
        try:
            denied = await read_denied(client, sorted(accounts))
        except (ApiError, Unreachable) as error:
            unread["rights"] = str(error)
    details = _details(_items(plugins), _items(volcanos), config, _items(policies), unread)
    programs = _programs(_items(ours), _items(kube_schedulers))
    expiring, *told = (sorted(_items(answer), key=lambda event: event.last) for answer in events)
    return replace(
        details,
        **programs,
        expiring=tuple(dict(event.expiry for event in expiring).items()),
        refused_rules=_refused(rules),
        heartbeats=_heartbeats(zip(unready_nodes, shown, strict=True)),
        told=tuple(event.told for items in told for event in items),
        taken=tuple(found),
        denied=denied,
        is_whole=True,
    )


def find_details(manifests: Iterable[Manifest], nodes: Iterable[Node] = ()) -> Details:
    """Find them among the objects of files, whose nodes are given.

    Raises:
        InvalidValue: one of these objects is invalid.
    """
    plugins, volcanos, policies, ours, kube_schedulers = [], [], list[_Policy](), list[_Pod](), list[_Pod]()
    config: _ConfigMap | None = None
    rules: _ConfigMap | None = None
    shown = dict[str, _Node | None]()
    given, unready_nodes = list(manifests), unready(nodes)
    for manifest in given:
        match manifest.origin.kind:
            case "Pod" if _has(manifest, THEIR_PLUGIN):
                plugins.append(manifest.convert(_Pod))
            case "Pod" if _has(manifest, VOLCANO):
                volcanos.append(manifest.convert(_Pod))
            case "Pod" if _has(manifest, OURS):
                ours.append(manifest.convert(_Pod))
            case "Pod" if _has(manifest, KUBE_SCHEDULER):
                kube_schedulers.append(manifest.convert(_Pod))
            case "ConfigMap" if manifest.origin.key == "/".join(_VOLCANOS_CONFIG):
                config = manifest.convert(_ConfigMap)
            case "ConfigMap" if manifest.origin.key == "/".join(_FAULT_RULES):
                rules = manifest.convert(_ConfigMap)
            case "Node" if manifest.origin.key in unready_nodes:
                shown[manifest.origin.key] = manifest.part(_Node)
            case kind if kind == _POLICY and _has(manifest, OURS):
                policies.append(manifest.convert(_Policy))
    details = _details(plugins, volcanos, config, policies, {})
    return replace(
        details,
        **_programs(ours, kube_schedulers),
        taken=tuple(taken_in(given)),
        refused_rules=_refused(rules),
        heartbeats=_heartbeats(shown.items()),
    )


def _refused(rules: _ConfigMap | None) -> tuple[str, ...]:
    """The entries of fault rules that are left out."""
    data = {key: text for key, text in ((rules.data if rules is not None else None) or {}).items() if text is not None}
    return read_rules(data, default_rules())[1]


def _heartbeats(shown: Iterable[tuple[str, _Node | None]]) -> dict[str, float]:
    return {name: node.heartbeat_s for name, node in shown if node is not None and node.heartbeat_s is not None}


def _programs(ours: Iterable[_Pod], kube_schedulers: Iterable[_Pod]) -> dict[str, Any]:
    """What is known of this project's programs that run, and of kube-scheduler: fields of ``Details``."""
    versions, served, has_own = dict[str, set[str]](), list[str](), False
    for pod in ours:
        labels = pod.metadata.labels or {}
        component = labels.get(COMPONENT, "")
        if pod.runs and (version := labels.get("app.kubernetes.io/version")):
            versions.setdefault(component.partition("-pool")[0], set()).add(version)
        by_webhook = component == ALLOCATOR[COMPONENT] and _BINDINGS.search(pod.spec.command_line)
        has_own = has_own or (pod.runs and (component == _SCHEDULER or bool(by_webhook)))
        if pod.runs and component == ALLOCATOR[COMPONENT]:
            served += pod.scheduler_names
    return {
        "served": tuple(dict.fromkeys(served)) or None,
        "versions": {component: frozenset(found) for component, found in versions.items()},
        "kube_schedulers": tuple(
            scheduler.spec.command_line for scheduler in kube_schedulers if scheduler.runs and not has_own
        ),
    }


def _accounts(ours: Iterable[_Pod]) -> Iterator[Account]:
    """The accounts of this project's programs that run and have rights of their own."""
    for pod in ours:
        component = (pod.metadata.labels or {}).get(COMPONENT, "").partition("-pool")[0]
        if pod.runs and component in {ALLOCATOR[COMPONENT], PLUGIN[COMPONENT]}:
            yield Account(component, pod.user)


def _has(manifest: Manifest, labels: Mapping[str, str]) -> bool:
    return labels.items() <= manifest.labels.items()


def _details(
    plugins: Iterable[_Pod],
    volcanos: Iterable[_Pod],
    config: _ConfigMap | None,
    policies: Iterable[_Policy],
    unread: Mapping[str, str],
) -> Details:
    running = [plugin for plugin in plugins if plugin.runs]
    configured = _volcano_plugins(config) if config is not None else None
    return Details(
        {pod.spec.node_name: pod.spec.command_line for pod in running},
        frozenset(pod.user for pod in running),
        frozenset(volcano.user for volcano in volcanos if volcano.runs),
        None
        if configured is None
        else any(volcano_plugin.name.startswith(_THEIR_PLUGIN_IN_VOLCANO) for volcano_plugin in configured),
        next(
            (
                volcano_plugin.arguments or {}
                for volcano_plugin in configured or ()
                if volcano_plugin.name == "extender"
            ),
            None,
        ),
        tuple(_writers_conditions(policies)),
        unread=unread,
    )


def _volcano_plugins(config: _ConfigMap) -> list[_VolcanoPlugin] | None:
    """The plugins in a configuration of Volcano; None if there is none that can be read."""
    plugins: list[_VolcanoPlugin] = []
    texts = [text for key, text in (config.data or {}).items() if key.endswith(".conf")]
    for text in texts:
        try:
            for document in documents_in("Volcano's configuration", text or ""):
                tiers = msgspec.convert(document or {}, _VolcanoConfig).tiers
                plugins += [plugin for tier in tiers or () for plugin in tier.plugins or ()]
        except (InvalidValue, *UNREADABLE):
            return None
    return plugins if texts else None


def _writers_conditions(policies: Iterable[_Policy]) -> Iterator[str]:
    for policy in policies:
        for match_condition in policy.spec.match_conditions or ():
            if match_condition.name == WRITERS_CONDITION:
                yield match_condition.expression


def _items(found: _List[T] | None) -> list[T]:
    return (found.items or []) if found is not None else []
