"""Volcano with MindCluster's plugin ``ascend-for-volcano``: how it takes chips, and evicts pods of faulty ones.

It reads what a device plugin and pods tell it, never the driver: a session each second, on copies of its informers
(docs/spec/scheduling.md). Placement is by the rule of 910A servers; of its scores only the tightest ring is here.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from ascend.errors import ApiError, Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, ConfigMap, Node, Pod
from ascend.kube.reflector import Reflector
from tests.mindcluster.report import RESOURCE, device_list

NAME: Final = "volcano"
SESSION_S: Final = 1.0
JOB: Final = "volcano.sh/job-name"
FAULT_SCHEDULING: Final = "fault-scheduling"
REAL: Final = "huawei.com/AscendReal"
CONFIGURATION: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
_RINGS: Final = (range(4), range(4, 8))
_VALID: Final = frozenset({1, 2, 4, 8})
"""Jobs with other requests are not valid."""


class NotSchedulable(Exception):
    """A node that does not take a pod, in the words of the plugin."""


@dataclass(slots=True)
class Cached:
    """A node in the cache, which survives sessions.

    Attributes:
        free: its free list, in string order.
        lost: its list of unhealthy chips.
        time_s: when the lists were made: with cards that are maintained by itself the time of the session.
        updated: the last UpdateTime that was taken over.
        device_list: the report's lists of that time.
        idle: chips that the kubelet still has for others.
        capacity: chips that the kubelet has.
    """

    free: list[str] = field(default_factory=list)
    lost: frozenset[str] = frozenset()
    time_s: float = 0.0
    updated: int = -1
    device_list: dict[str, str] = field(default_factory=dict)
    idle: int = 0
    capacity: int = 0


class MindClusterScheduler:
    """Schedules the pods that name it. Use as an async context manager.

    Args:
        client: the API server.

    Attributes:
        refusals: what each node last said about each pod, by pod name and node.
        unstable: the nodes that it has ever refused as "not stable", and what it said.
        evicted: the names of the pods that it has evicted, in order.
        minimum: how many pods of a job are placed together, by the job's name; other pods are placed alone.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._nodes = Reflector(client, NODES)
        self._pods = Reflector(client, PODS)
        self._reports = Reflector(client, CONFIG_MAPS, label_selector="mx-consumer-cim=true")
        self._cache: dict[str, Cached] = {}
        self._binding: dict[str, Pod] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.refusals: dict[str, dict[str, str]] = defaultdict(dict)
        self.unstable: dict[str, str] = {}
        self.evicted: list[str] = []
        self.minimum: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(each.run()) for each in (self._nodes, self._pods, self._reports)]
        self._tasks.append(asyncio.create_task(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _run(self) -> None:
        for each in (self._nodes, self._pods, self._reports):
            await each.synced.wait()
        while True:
            await asyncio.sleep(SESSION_S)
            await self._session()

    async def _session(self) -> None:
        nodes = self._refresh()
        await self._reschedule(nodes)
        waiting = sorted((each for each in self._pods.objects.values() if self._waits(each)), key=lambda each: each.key)
        jobs: dict[str, list[Pod]] = defaultdict(list)
        for pod in waiting:
            jobs[pod.metadata.labels.get(JOB, pod.name)].append(pod)
        bindings: list[tuple[Pod, str, dict[str, str]]] = []
        for job, pods in jobs.items():
            bindings += self._place_job(nodes, pods, self.minimum.get(job, 1))
        await asyncio.gather(*(self._bind(*each) for each in bindings))

    def _waits(self, pod: Pod) -> bool:
        return (
            pod.spec.scheduler_name == NAME
            and pod.is_live
            and not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and _requested(pod) in _VALID
            and pod.uid not in self._binding
        )

    # The cache.

    def _refresh(self) -> dict[str, Cached]:
        """Take over what the informers have (docs/spec/scheduling.md#free-list)."""
        usable = {}
        unbound = {pod.uid for pod in self._pods.objects.values() if not pod.spec.node_name and pod.is_live}
        self._binding = {uid: pod for uid, pod in self._binding.items() if uid in unbound}
        for name, node in self._nodes.objects.items():
            cached = self._cache.setdefault(name, Cached())
            is_described = "accelerator" in node.metadata.labels and "baseDeviceInfos" in node.metadata.annotations
            if node.is_ready and RESOURCE in node.status.capacity and is_described:
                self._refresh_node(cached, node)
                if RESOURCE in cached.device_list:
                    usable[name] = cached
        return usable

    def _refresh_node(self, cached: Cached, node: Node) -> None:
        pods = [*self._pods.objects.values(), *self._binding.values()]
        here = [pod for pod in pods if pod.spec.node_name == node.name and pod.is_live]
        cached.capacity = int(node.status.capacity.get(RESOURCE, "0"))
        cached.idle = int(node.status.allocatable.get(RESOURCE, "0")) - sum(map(_requested, here))
        report = self._reports.objects.get(f"kube-system/mindx-dl-deviceinfo-{node.name}")
        if isinstance(report, ConfigMap):
            lists, updated = device_list(report.data)
            if updated > cached.updated:
                cached.device_list, cached.updated = lists, updated
        else:
            cached.device_list = {}
        lost = _split(cached.device_list, "Unhealthy")
        withheld = lost | _split(cached.device_list, "Recovering")
        used = {name for pod in here for name in _held(pod)}
        base = json.loads(node.metadata.annotations["baseDeviceInfos"])
        new = [name for name in sorted(base) if name not in used and name not in withheld]
        now_s = time.monotonic()
        old = cached.free
        takes_new = (
            now_s - cached.time_s > 10 or not old or not new or cached.idle != len(old) or cached.idle == len(new)
        )
        cached.free = new if takes_new else [name for name in new if name in old or name in cached.lost]
        cached.lost, cached.time_s = lost, now_s

    # Placement.

    def _place_job(
        self, nodes: dict[str, Cached], pods: list[Pod], minimum: int
    ) -> list[tuple[Pod, str, dict[str, str]]]:
        """All pods of a job that fit; none if they are fewer than its minimum."""
        placed: list[tuple[Pod, str, dict[str, str]]] = []
        is_distributed = len(pods) > 1
        for pod in pods:
            choices = []
            for name, cached in nodes.items():
                try:
                    choices.append((name, _choose(cached, _requested(pod), is_distributed=is_distributed)))
                except NotSchedulable as error:
                    self.refusals[pod.name][name] = str(error)
                    if "not stable" in str(error):
                        self.unstable[name] = str(error)
            if choices:
                name, chips = min(choices, key=lambda each: (len(nodes[each[0]].free), each[0]))
                cached = nodes[name]
                whole = len(chips) == cached.capacity == cached.idle
                placed.append((pod, name, _annotations(pod, chips, is_distributed=is_distributed, is_whole=whole)))
                cached.free = [each for each in cached.free if each not in chips]
                cached.idle -= len(chips)
        if len(placed) >= minimum:
            return placed
        for _, name, annotations in placed:  # the job is discarded
            chips = annotations[RESOURCE].split(",")
            nodes[name].free = [*chips, *nodes[name].free]
            nodes[name].idle += len(chips)
        return []

    async def _bind(self, pod: Pod, node: str, annotations: dict[str, str]) -> None:
        metadata = replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
        self._binding[pod.uid] = replace(pod, metadata=metadata, spec=replace(pod.spec, node_name=node))
        try:
            await self._client.bind(
                namespace=pod.metadata.namespace, name=pod.name, uid=pod.uid, node=node, annotations=annotations
            )
        except (ApiError, Conflict):
            del self._binding[pod.uid]

    # Rescheduling.

    async def _reschedule(self, nodes: dict[str, Cached]) -> None:
        """Delete the pods of the jobs that have a faulty chip and want to be rescheduled."""
        faulty = {
            pod.metadata.labels.get(JOB, pod.name)
            for pod in self._pods.objects.values()
            if pod.is_live and pod.spec.node_name in nodes and set(_held(pod)) & nodes[pod.spec.node_name].lost
        }
        for pod in list(self._pods.objects.values()):
            how = pod.metadata.labels.get(FAULT_SCHEDULING, "off")
            is_meant = pod.metadata.labels.get(JOB, pod.name) in faulty and pod.spec.scheduler_name == NAME
            if not is_meant or how == "off" or not pod.is_live or pod.metadata.deletion_timestamp is not None:
                continue
            with suppress(NotFound, Conflict):
                await self._client.delete(
                    PODS, pod.name, pod.metadata.namespace, uid=pod.uid, grace_s=0 if how == "force" else None
                )
                self.evicted.append(pod.name)


def _choose(cached: Cached, count: int, *, is_distributed: bool) -> list[str]:
    """Choose chips on a node (docs/spec/scheduling.md#node-filter).

    Raises:
        NotSchedulable: it does not take the pod.
    """
    free = list(cached.free)
    if len(free) > cached.idle or len(free) > cached.capacity or cached.idle > cached.capacity:
        raise NotSchedulable(f"{RESOURCE} not stable:device-info is <{len(free)}> but k8s is <{cached.idle}>")
    if len(free) < count or cached.idle < count:
        raise NotSchedulable(f"NPUResourceShortage: need {count}, have {len(free)}")
    if is_distributed:
        key = f"{RESOURCE}-NetworkUnhealthy"
        if key not in cached.device_list:
            raise NotSchedulable(f"{key} is missing")
        free = [each for each in free if each not in _split(cached.device_list, "NetworkUnhealthy")]
    if count == 8:
        groups = [free]
    else:
        groups = [[each for each in free if int(each.rpartition("-")[2]) in ring] for ring in _RINGS]
    fitting = sorted((each for each in groups if len(each) >= count), key=len)
    if not fitting or len(fitting[0]) < count:
        raise NotSchedulable("the npus on this node don't satisfy the schedulable topology")
    return fitting[0][:count]


def _annotations(pod: Pod, chips: list[str], *, is_distributed: bool, is_whole: bool) -> dict[str, str]:
    """What the Binding carries (docs/spec/scheduling.md#pod-annotations)."""
    written = {
        RESOURCE: ",".join(chips),
        "predicate-time": str(time.time_ns()),
        "distributed-job": str(is_distributed).lower(),
        "hccl/rankIndex": "0",
    }
    if is_whole or "training.kubeflow.org/operator-name" in pod.metadata.labels:
        written[REAL] = written[RESOURCE]
        devices = [{"device_id": each.rpartition("-")[2], "device_ip": "10.20.0.1"} for each in chips]
        configuration = {
            "pod_name": pod.name,
            "server_id": pod.uid,
            "server_ip": "192.0.2.1",
            "host_ip": "192.0.2.1",
            "super_pod_id": -2,
            "rack_id": 0,
            "devices": devices,
            "server_index": "",
        }
        written[CONFIGURATION] = json.dumps(configuration, separators=(",", ":"))
    return written


def _requested(pod: Pod) -> int:
    return sum(int(each.resources.limits.get(RESOURCE, "0")) for each in pod.spec.containers)


def _held(pod: Pod) -> Iterable[str]:
    """The chips that count as used: of AscendReal if there is one, else those that were written."""
    names = pod.metadata.annotations.get(REAL) or pod.metadata.annotations.get(RESOURCE) or ""
    return names.split(",") if names else ()


def _split(lists: dict[str, str], which: str) -> frozenset[str]:
    """A list of the report; one element that it can't parse makes the whole list empty."""
    names = lists.get(f"{RESOURCE}-{which}", "").split(",")
    is_right = all(name.rpartition("-")[2].isdecimal() for name in names)
    return frozenset(names) if is_right else frozenset()
