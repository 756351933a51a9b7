"""Which half of the cluster is whose: the device plugin of each node, and the program that chooses chips.

Each half of MindCluster can be replaced by itself. What works and what does not in each pairing is in
docs/mindcluster.md#by-halves.
"""

import asyncio
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec

from ascend.annotations import ALLOCATED, FENCE
from ascend.errors import ApiError, NotFound
from ascend.grammar import count, some
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS, Pod
from npuctl.doctor.finding import Finding, ok, problem, warning
from npuctl.reading.objects import ClusterObjects

PAGE: Final = "docs/mindcluster.md"

_OURS: Final = {"app.kubernetes.io/part-of": "ascend-affinity"}
COMPONENT: Final = "app.kubernetes.io/component"
PLUGIN: Final = {**_OURS, COMPONENT: "device-plugin"}
ALLOCATOR: Final = {**_OURS, COMPONENT: "allocator"}
_THEIR_PLUGIN: Final = {"name": "ascend-device-plugin-ds"}
_VOLCANO: Final = {"app": "volcano-scheduler"}
_VOLCANOS_NAME: Final = "volcano"
_VOLCANOS_CONFIG: Final = ("volcano-system", "volcano-scheduler-configmap")
WRITERS_CONDITION: Final = "by-others"
"""The condition of the chart's policy for annotations that names who may write them."""
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

_THEIR_PLUGIN_IN_VOLCANO: Final = re.compile(r"^[\s\-{]*name:\s*[\"']?volcano-npu", re.MULTILINE)
"""MindCluster's plugin has its version in its name, as in ``volcano-npu_v26.0.0_linux-aarch64``."""
_FOLLOWS: Final = re.compile(r"--?volcanoType(?:=(.*))?")
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Details:
    """What only the API server tells about MindCluster's programs.

    Attributes:
        plugins: the command line of its device plugin, by node.
        plugin_users: the users as which its device plugins write.
        volcano_users: the users as which Volcano's schedulers write.
        volcano: the configuration of Volcano's scheduler; None if there is none, or it can't be read.
        policies: the conditions of this project's admission policies, which name the users that may write.
        unread: what this user may not read, a part of a sentence each.
    """

    plugins: Mapping[str, str] = field(default_factory=dict)
    plugin_users: frozenset[str] = frozenset()
    volcano_users: frozenset[str] = frozenset()
    volcano: str | None = None
    policies: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


async def read_details(client: KubeClient) -> Details:
    """Read them; what the cluster does not have is left out.

    Raises:
        ApiError: the API server refused for another reason than this user's rights.
        Unreachable: it did not answer.
    """
    namespace, name = _VOLCANOS_CONFIG
    unread: list[str] = []

    async def get(what: str, path: str, kind: type[T], labels: Mapping[str, str] | None = None) -> T | None:
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        try:
            answer = await client.request("GET", path, query={"labelSelector": selector} if selector else None)
            return decode(answer, kind)
        except NotFound:
            return None
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            unread.append(what)
            return None

    plugins, volcanos, config, policies = await asyncio.gather(
        get("pods", PODS.path(), _List[_Pod], _THEIR_PLUGIN),
        get("pods", PODS.path(), _List[_Pod], _VOLCANO),
        get("Volcano's configuration", CONFIG_MAPS.path(namespace=namespace, name=name), _ConfigMap),
        get("admission policies", _POLICIES, _List[_Policy], _OURS),
    )
    running = [each for each in _items(plugins) if each.runs]
    return Details(
        {each.spec.node_name: each.spec.command_line for each in running},
        frozenset(each.user for each in running),
        frozenset(each.user for each in _items(volcanos) if each.runs),
        "\n".join(each for each in (config.data or {}).values() if each is not None) if config is not None else None,
        tuple(
            each.expression
            for policy in _items(policies)
            for each in policy.spec.match_conditions or ()
            if each.name == WRITERS_CONDITION
        ),
        tuple(sorted(set(unread))),
    )


def check_programs(objects: ClusterObjects, npu_nodes: Iterable[str], details: Details | None) -> Iterator[Finding]:
    """Say whose the halves are, and what follows.

    Args:
        objects: the objects of the cluster; the programs are known by the labels of their pods.
        npu_nodes: the names of the nodes with chips.
        details: what the API server tells besides; None if the objects come from files.
    """
    details = details or Details()
    pods = [pod for pod in objects.pods if pod.is_live and pod.spec.node_name]
    ours = sorted({pod.spec.node_name for pod in pods if _is_plugin(pod)})
    theirs = sorted(nodes_of_mindclusters_plugin(pods))
    allocates = any(_has(pod, ALLOCATOR) for pod in pods)
    volcano = any(_has(pod, _VOLCANO) for pod in pods) and (
        details.volcano is None or _THEIR_PLUGIN_IN_VOLCANO.search(details.volcano) is not None
    )
    if not (ours or theirs or allocates or volcano):
        yield ok("whose they are is not known: none of their pods is among the objects")
        return
    plugins = [pod for pod in pods if _is_plugin(pod) or _has(pod, _THEIR_PLUGIN)]
    unready = sorted({pod.spec.node_name for pod in plugins if _is_unready(pod)})
    yield from _check_plugins(ours, theirs, set(npu_nodes), unready)
    yield from _check_choosers(pods, allocates=allocates, volcano=volcano, is_sure=details.volcano is not None)
    if allocates and theirs:
        yield from _check_their_plugin(theirs, details)
    if volcano and ours and not allocates and details.volcano is not None:
        works = "whole chips, faults and rescheduling work, vNPUs that are cut beforehand only with chooseChips"
        yield ok(f"MindCluster's scheduler over this device plugin, on {_nodes(ours)}", f"{works} ({PAGE})")
    if allocates:
        yield from _check_writers(details, volcano=volcano)
    if details.unread:
        advice = "what depends on it is not checked; give the user of the kubeconfig the right to get and list it"
        yield warning(f"this user may not read {' and '.join(details.unread)}", advice)


def _check_plugins(
    ours: Sequence[str], theirs: Sequence[str], npu_nodes: Collection[str], unready: Sequence[str]
) -> Iterator[Finding]:
    whose = {"this project's": ours, "MindCluster's": theirs}
    runs = [f"{maker} device plugin on {_nodes(nodes)}" for maker, nodes in whose.items() if nodes]
    if runs:
        yield ok(", ".join(runs))
    if unready:
        advice = "pods that are bound there meanwhile can fail; its log, and npuctl doctor on the node, say why"
        yield warning(f"the device plugin is not ready on {_nodes(unready)}", advice)
    if both := sorted(set(ours) & set(theirs)):
        advice = f"this project's gives way; keep one of the two DaemonSets off the node ({PAGE})"
        yield problem(f"both device plugins on {_nodes(both)}", advice)
    if none := sorted(set(npu_nodes) - set(ours) - set(theirs)):
        advice = (
            "no new pod gets chips there, unless a plugin runs that is no pod, or has other labels; while a node "
            f"changes from one plugin to the other, this is so for a moment ({PAGE})"
        )
        yield warning(f"no pod of a known device plugin on {_nodes(none)}", advice)


def _check_choosers(pods: Iterable[Pod], *, allocates: bool, volcano: bool, is_sure: bool) -> Iterator[Finding]:
    names = {"this project's allocator": allocates, "MindCluster's plugin of Volcano": volcano}
    choosers = [name for name, is_there in names.items() if is_there]
    if not choosers:
        advice = (
            "pods wait, or get no chips, unless the device plugin chooses them (devicePlugin.chooseChips), or a "
            "scheduler that is no pod or has other labels"
        )
        yield warning("no known program chooses chips", advice)
        return
    unsure = ", if ascend-for-volcano is in its configuration, which is not known" if volcano and not is_sure else ""
    if len(choosers) == 1:
        yield ok(f"chips are chosen by {choosers[0]}{unsure}")
        return
    mixed = _placed_by_both(pods)
    for node, (first, second) in mixed.items() if is_sure else ():
        sentence = f"node {node} has pods of both schedulers: {first} of this allocator, {second} of Volcano"
        yield problem(sentence, f"neither knows what the other is about to give away; keep them apart ({PAGE})")
    if not mixed or not is_sure:
        sentence = f"this project's allocator and Volcano both choose chips{unsure}"
        yield warning(sentence, f"keep their jobs on different nodes, or switch all nodes at once ({PAGE})")


def _placed_by_both(pods: Iterable[Pod]) -> dict[str, tuple[str, str]]:
    """The nodes with pods of both schedulers, with one of each."""
    placed = defaultdict[str, dict[bool, str]](dict)
    for pod in pods:
        is_ours = FENCE in pod.metadata.annotations
        if ALLOCATED in pod.metadata.annotations and (is_ours or pod.spec.scheduler_name == _VOLCANOS_NAME):
            placed[pod.spec.node_name].setdefault(is_ours, pod.key)
    return {node: (keys[True], keys[False]) for node, keys in sorted(placed.items()) if len(keys) > 1}


def _check_their_plugin(theirs: Sequence[str], details: Details) -> Iterator[Finding]:
    ignoring = sorted(node for node, line in details.plugins.items() if node in theirs and _follows(line) is False)
    if ignoring:
        sentence = f"MindCluster's device plugin ignores the chips that the allocator writes, on {_nodes(ignoring)}"
        yield problem(sentence, f"run it with -volcanoType=true ({PAGE})")
    if following := sorted(set(theirs) - set(ignoring)):
        known = all(_follows(details.plugins.get(node, "")) for node in following)
        works = (
            "whole chips work" if known else "whole chips work if it runs with -volcanoType=true, which is not known"
        )
        limits = f"{works}; vNPUs and pods with chips in several containers need this project's device plugin"
        sentence = f"this allocator over MindCluster's device plugin, on {_nodes(following)}"
        yield ok(sentence, f"{limits}; chips of pods that start together may be swapped ({PAGE})")


def _check_writers(details: Details, *, volcano: bool) -> Iterator[Finding]:
    """Whether the admission policy lets MindCluster's programs write their annotations.

    Volcano writes none of them without MindCluster's plugin.
    """
    writers = dict.fromkeys(details.plugin_users, "MindCluster's device plugin")
    if volcano:
        writers |= dict.fromkeys(details.volcano_users, "Volcano's scheduler")
    for user, program in sorted(writers.items()):
        if details.policies and not any(f'"{user}"' in each for each in details.policies):
            advice = f"add {user} to allocator.policies.writers ({PAGE})"
            yield problem(f"the admission policy refuses what {program} writes on pods", advice)


def _follows(command_line: str) -> bool | None:
    """Whether a plugin follows the annotations of pods; None if its flags can't be told, as with variables."""
    try:
        words = list(shlex.shlex(command_line, posix=True, punctuation_chars=True))
    except ValueError:
        return None
    words = [part for word in words for part in word.split()]
    if any("volcanoType" in word for word in words) and "$" in command_line:
        return None
    given = [found[1] for word in words if (found := _FOLLOWS.fullmatch(word.strip("\"'")))]
    if not given:
        return None if "$" in command_line else False
    return True if given[-1] is None or given[-1] in _TRUE else False if given[-1] in _FALSE else None


def _is_plugin(pod: Pod) -> bool:
    """Whether it is of this project's device plugin; a pool of nodes has a DaemonSet of its own."""
    labels = pod.metadata.labels
    return _has(pod, _OURS) and f"{labels.get(COMPONENT, '')}-".startswith(f"{PLUGIN[COMPONENT]}-")


def _is_unready(pod: Pod) -> bool:
    """Whether its condition says so; files may have none."""
    return any(each.type == "Ready" and each.status != "True" for each in pod.status.conditions)


def nodes_of_mindclusters_plugin(pods: Iterable[Pod]) -> frozenset[str]:
    """The nodes on which pods of MindCluster's device plugin run."""
    return frozenset(
        pod.spec.node_name for pod in pods if pod.is_live and pod.spec.node_name and _has(pod, _THEIR_PLUGIN)
    )


def _has(pod: Pod, labels: Mapping[str, str]) -> bool:
    return labels.items() <= pod.metadata.labels.items()


def _nodes(names: Sequence[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"{count(len(names), 'node')} ({some(names)})"


# What is decoded of the objects that npuctl does not read otherwise.


class _Container(msgspec.Struct):
    command: list[str] | None = None
    args: list[str] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    containers: list[_Container] | None = None

    @property
    def command_line(self) -> str:
        return " ".join(word for each in self.containers or () for word in (*(each.command or ()), *(each.args or ())))


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""


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
    def user(self) -> str:
        return f"system:serviceaccount:{self.metadata.namespace}:{self.spec.service_account_name}"


class _ConfigMap(msgspec.Struct):
    data: dict[str, str | None] | None = None


class _MatchCondition(msgspec.Struct):
    name: str
    expression: str


class _PolicySpec(msgspec.Struct, rename="camel"):
    match_conditions: list[_MatchCondition] | None = None


class _Policy(msgspec.Struct):
    spec: _PolicySpec


class _List(msgspec.Struct, Generic[T]):
    items: list[T] | None = None


def _items(found: "_List[T] | None") -> list[T]:
    return (found.items or []) if found is not None else []
