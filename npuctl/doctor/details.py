"""What npuctl doctor reads of the programs of both halves besides the objects that all commands read."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import msgspec

from ascend.deviceinfo import NAMESPACE
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.containers import RESERVED
from ascend.kube.objects import CONFIG_MAPS, EVENTS, NODES, PODS, Node
from device_plugin.health.fault_rules_file import default_rules, read_rules
from npuctl.doctor.program_objects import (
    ALLOCATOR,
    COMPONENT,
    KUBE_SCHEDULER,
    OURS,
    PLUGIN,
    THEIR_PLUGIN,
    VOLCANO,
    AdmissionPolicy,
    ConfigMapData,
    NodeHeartbeat,
    PostedEvent,
    ProgramPod,
)
from npuctl.doctor.rights import Account, Denied, read_denied
from npuctl.doctor.told import ADVICE, EventSighting, unready
from npuctl.reading.manifest import Manifest

_EXPIRES: Final = "CertificateExpires"
_BINDINGS: Final = re.compile(r"--webhooks=\S*bindings")
_SCHEDULER: Final = "scheduler"
"""The component of the chart's kube-scheduler."""
_FAULT_RULES: Final = f"{NAMESPACE}/mindx-dl-fault-config"
"""The site's fault rules (docs/device-plugin.md#fault-rules)."""
_VOLCANOS_CONFIG: Final = "volcano-system/volcano-scheduler-configmap"
_THEIR_PLUGIN_IN_VOLCANO: Final = "volcano-npu"
"""The name of MindCluster's plugin has its version after this, as in ``volcano-npu_v26.0.0_linux-aarch64``."""
_POLICY: Final = "ValidatingAdmissionPolicy"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_WITH_RIGHTS: Final = frozenset({ALLOCATOR[COMPONENT], PLUGIN[COMPONENT]})
"""The components with rights of their own."""
_MOST_READ: Final = 200
"""More Nodes and ConfigMaps than this are not read one by one."""
T = TypeVar("T")


class _List(msgspec.Struct, Generic[T]):
    items: list[T] | None = None


class VariableSource(msgspec.Struct, frozen=True):
    """A ConfigMap with variables of ascend-docker-runtime, and the first pod that takes them by ``envFrom``.

    An admission policy sees only the pod. Secrets are not read.

    Attributes:
        config_map: ``namespace/name``.
        keys: the variables.
        pod: ``namespace/name``.
    """

    config_map: str
    keys: tuple[str, ...]
    pod: str


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
    unread: dict[str, str] = {}

    async def get(what: str, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> T | None:
        try:
            return decode(await client.request("GET", path, query=query), kind)
        except NotFound:
            return None
        except (ApiError, Unreachable) as error:
            unread[what] = str(error)
            return None

    pods, policies = await asyncio.gather(
        get("pods", PODS.path(), _List[ProgramPod]),
        get("admission policies", _POLICIES, _List[AdmissionPolicy]),
    )
    events = await asyncio.gather(
        *(
            get("Events", EVENTS.path(), _List[PostedEvent], {"fieldSelector": f"reason={reason}"})
            for reason in (_EXPIRES, *ADVICE)
        ),
    )
    listed = _items(pods)
    taking = list(_sources(listed))
    if len(taking) > _MOST_READ:
        unread["ConfigMaps of variables"] = f"pods name {len(taking)} of them; the first {_MOST_READ} were read"
    wanted = dict.fromkeys(taking[:_MOST_READ], "ConfigMaps of variables")
    wanted |= {_VOLCANOS_CONFIG: "Volcano's configuration", _FAULT_RULES: "fault rules"}
    paths = {key: CONFIG_MAPS.path(namespace=key.partition("/")[0], name=key.partition("/")[2]) for key in wanted}
    maps = await asyncio.gather(*(get(what, paths[key], ConfigMapData) for key, what in wanted.items()))
    names = list(unready(nodes))[:_MOST_READ]
    beats = await asyncio.gather(*(get("heartbeats of Nodes", NODES.path(name=name), NodeHeartbeat) for name in names))
    denied = None
    ours = (pod for pod in listed if pod.runs and pod.has(OURS) and pod.component in _WITH_RIGHTS)
    if accounts := {Account(pod.component, pod.user) for pod in ours}:
        try:
            denied = await read_denied(client, sorted(accounts))
        except (ApiError, Unreachable) as error:
            unread["rights"] = str(error)
    details = _details(listed, _items(policies), _given(wanted, maps), _given(names, beats))
    expiring, *told = (sorted(_items(answer), key=lambda event: event.last) for answer in events)
    return replace(
        details,
        expiring=tuple(dict(event.expiry for event in expiring).items()),
        told=tuple(event.told for same in told for event in same),
        denied=denied,
        is_whole=True,
        unread=unread,
    )


def find_details(manifests: Iterable[Manifest], nodes: Iterable[Node] = ()) -> Details:
    """Find them among the objects of files, whose nodes are given.

    Raises:
        InvalidValue: one of these objects is invalid.
    """
    given = {(manifest.origin.kind, manifest.origin.key): manifest for manifest in manifests}
    pods = [manifest.part(ProgramPod) for (kind, _), manifest in given.items() if kind == "Pod"]
    policies = [manifest.part(AdmissionPolicy) for (kind, _), manifest in given.items() if kind == _POLICY]
    wanted = (*_sources(pods), _VOLCANOS_CONFIG, _FAULT_RULES)
    maps = {key: given["ConfigMap", key].part(ConfigMapData) for key in wanted if ("ConfigMap", key) in given}
    beats = {name: given["Node", name].part(NodeHeartbeat) for name in unready(nodes) if ("Node", name) in given}
    return _details(pods, policies, maps, beats)


def _details(
    pods: Sequence[ProgramPod],
    policies: Iterable[AdmissionPolicy],
    config_maps: Mapping[str, ConfigMapData],
    nodes: Mapping[str, NodeHeartbeat],
) -> Details:
    """What all of these say; ConfigMaps by ``namespace/name``, Nodes by name."""
    running = [pod for pod in pods if pod.runs]
    plugins = [pod for pod in running if pod.has(THEIR_PLUGIN)]
    ours = [pod for pod in running if pod.has(OURS)]
    allocators = [pod for pod in ours if pod.component == ALLOCATOR[COMPONENT]]
    # It need not ask the allocator if another kube-scheduler does, or if the allocator sees each Binding.
    needs_none = any(pod.component == _SCHEDULER for pod in ours) or any(
        _BINDINGS.search(pod.command_line) for pod in allocators
    )
    versions = defaultdict[str, set[str]](set)
    for pod in ours:
        if version := (pod.metadata.labels or {}).get("app.kubernetes.io/version"):
            versions[pod.component].add(version)
    none = ConfigMapData()
    configured = config_maps.get(_VOLCANOS_CONFIG, none).volcano_plugins()
    rules = config_maps.get(_FAULT_RULES, none).texts
    return Details(
        plugins={pod.spec.node_name: pod.command_line for pod in plugins},
        plugin_users=frozenset(pod.user for pod in plugins),
        volcano_users=frozenset(pod.user for pod in running if pod.has(VOLCANO)),
        chooses_by_volcano=None
        if configured is None
        else any(name.startswith(_THEIR_PLUGIN_IN_VOLCANO) for name in configured),
        extender=configured.get("extender") if configured is not None else None,
        policies=tuple(condition for policy in policies if policy.has(OURS) for condition in policy.writers),
        taken=tuple(_taken(pods, config_maps)),
        served=tuple(dict.fromkeys(name for pod in allocators for name in pod.scheduler_names)) or None,
        versions={component: frozenset(found) for component, found in versions.items()},
        kube_schedulers=tuple(pod.command_line for pod in running if pod.has(KUBE_SCHEDULER) and not needs_none),
        refused_rules=read_rules(rules, default_rules())[1],
        heartbeats={name: node.time_s for name, node in nodes.items() if node.time_s is not None},
    )


def _sources(pods: Iterable[ProgramPod]) -> dict[str, str]:
    """The ConfigMaps (``namespace/name``) that pods name, each with the first of these pods."""
    found: dict[str, str] = {}
    for pod in pods:
        for config_map in pod.config_maps:
            found.setdefault(config_map, f"{pod.metadata.namespace}/{pod.metadata.name}")
    return found


def _taken(pods: Iterable[ProgramPod], config_maps: Mapping[str, ConfigMapData]) -> Iterator[VariableSource]:
    """Yield what pods take from ConfigMaps with variables of ascend-docker-runtime."""
    for config_map, pod in _sources(pods).items():
        data = config_maps[config_map].data if config_map in config_maps else None
        if keys := tuple(key for key in RESERVED if key in (data or {})):
            yield VariableSource(config_map, keys, pod)


def _given(names: Iterable[str], objects: Iterable[T | None]) -> dict[str, T]:
    return {name: found for name, found in zip(names, objects, strict=True) if found is not None}


def _items(found: _List[T] | None) -> list[T]:
    return (found.items or []) if found is not None else []
