"""A rescheduler on a clock that the test sets; its requests are applied to the state of a small cluster at once."""

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from allocator.metrics import AllocatorMetrics
from allocator.rescheduling.actions import Actions
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.reading import READ_S, Reader
from allocator.rescheduling.records import RecordWriter
from allocator.rescheduling.rescheduler import Rescheduler
from allocator.rescheduling.reset_config import ResetConfigs
from allocator.rescheduling.storage import MemoryPacking, decode
from allocator.settings import Settings
from allocator.state.node import NodeRecord
from allocator.state.report import read_report
from ascend.annotations import BLOCK, MIN_AVAILABLE, RANK
from ascend.errors import ApiError, Unreachable
from ascend.kube.events import Regarding
from ascend.kube.objects import ConfigMap, Node, Pod
from tests.allocator.builders import GROUP, World, node, owned_by, pod, report

SETTINGS = Settings(reschedule="on", reschedule_pods_per_minute=20, reschedules_per_hour=3)
STEP_S, LONG_S = 4.0, 3600.0
"""Looks come so closely, but for a while that is longer: then nothing is looked at."""


def encode(memory: Memory) -> dict[str, str]:
    """What is stored of a memory."""
    return MemoryPacking(memory).pack()


class Crashed(BaseException):
    """The process ends; no handler of errors sees it."""


class Server(Reader):
    """What the API server has: what the cluster has seen, unless ``now`` says something else.

    Attributes:
        now: nodes, pods and reports by name of their node, as they are now; None for one that is gone.
        silent: whether it does not answer.
        answers_after_s: how long it takes for an answer.
        seen: time, name and whether it was Ready, of each read of a node.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.now: dict[str, Node | Pod | ConfigMap | None] = {}
        self.silent = False
        self.answers_after_s = 0.0
        self.seen: list[tuple[float, str, bool]] = []

    async def anything(self) -> None:
        self.world.now_s += READ_S if self.silent else self.answers_after_s
        if self.silent:
            raise Unreachable("no answer")

    async def node(self, name: str) -> Node | None:
        await self.anything()
        known = self.world.cluster.nodes.get(name)
        found = self.now.get(name, known.node if known is not None else None)
        assert found is None or isinstance(found, Node)
        self.seen.append((self.world.now_s, name, found is not None and found.is_ready))
        return found

    async def pod(self, pod: Pod) -> Pod | None:
        await self.anything()
        found = self.now.get(pod.name, self.world.cluster.pods.get(pod.uid))
        assert found is None or isinstance(found, Pod)
        return found if found is not None and found.uid == pod.uid else None

    async def record(self, name: str) -> NodeRecord:
        known = self.world.cluster.nodes[name]
        report = self.now.get(f"report {name}")
        own = read_report(report) if isinstance(report, ConfigMap) else known.report
        return dataclasses.replace(known, node=await self.node(name), report=own)


class Scene(Actions):
    """A rescheduler whose requests are applied to a small cluster.

    Attributes:
        deleted: name and grace period of each deleted pod, in order; 0 for a deletion by force.
        marked: what was written on pods.
        said: reason and sentence of each Event.
        stored: what is stored in the ConfigMap.
        stuck: the names of pods whose kubelet does not end them.
        refuses: what the API server answers.
        is_late: whether the watch does not show deletions.
        dies: whether the process ends before it deletes.
        has_finalizers: whether a deletion by force leaves pods in place.
        is_leader: whether it leads.
        asked: how often it was asked whether it leads.
        leads_until: as the value of ``asked`` gets larger, another one leads; None if that does not happen.
        server: what the API server has.
        metrics: those of the rescheduler that was started last.
    """

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.deleted: list[tuple[str, int | None]] = []
        self.marked: dict[str, str] = {}
        self.said: list[tuple[str, str]] = []
        self.about: list[Regarding] = []
        self.stored = encode(Memory())
        self.stuck: set[str] = set()
        self.refuses: ApiError | None = None
        self.is_late = self.dies = self.has_finalizers = False
        self.reset_configs: ResetConfigs | None = None
        self.records: RecordWriter | None = None
        self.is_leader, self.asked = True, 0
        self.leads_until: int | None = None
        self.settings = dataclasses.replace(SETTINGS, **settings)
        self.server = Server(self.world)
        self.rescheduler = self.start()

    def start(self) -> Rescheduler:
        """Start a rescheduler, as a new leader does, without reading what is stored."""
        cluster, ledger = self.world.cluster, self.world.ledger
        self.metrics = AllocatorMetrics(ledger, lambda: 0.0, cluster.index)
        return Rescheduler(
            cluster,
            self,
            self.server,
            self.settings,
            announcer=Announcer(self._publish),
            records=self.records,
            reset_configs=self.reset_configs,
            metrics=self.metrics,
            leads=self._leads,
            now_s=lambda: self.world.now_s,
            monotonic=lambda: self.world.now_s,
        )

    async def succeed(self) -> None:
        """Let a new leader take over."""
        self.rescheduler = self.start()
        await self.rescheduler.load()

    def _publish(self, regarding: Regarding, reason: str, note: str, **_more: Any) -> bool:
        self.said.append((reason, note))
        self.about.append(regarding)
        return True

    def _leads(self) -> bool:
        self.asked += 1
        if self.leads_until is not None and self.asked > self.leads_until:
            self.is_leader = False
        return self.is_leader

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a metric as Prometheus would read it."""
        return self.metrics.registry.get_sample_value(f"ascend_allocator_{name}", labels)

    def reasons(self) -> list[str]:
        """The reasons of the Events, each once."""
        return list(dict.fromkeys(reason for reason, _ in self.said))

    async def look(self, after_s: float = 0.0) -> list[str]:
        """Look all the time for a while; return the names of the pods that are deleted in it."""
        before, until_s = len(self.deleted), self.world.now_s + after_s
        while self.world.now_s + STEP_S < until_s <= self.world.now_s + LONG_S:
            self.world.now_s += STEP_S
            await self.rescheduler.look()
        return sorted([*(name for name, _ in self.deleted[before:]), *await self.look_once(until_s - self.world.now_s)])

    async def look_once(self, after_s: float) -> list[str]:
        """Look after a while in which nothing was looked at; return the names of the pods that are deleted then."""
        self.world.now_s += after_s
        before = len(self.deleted)
        await self.rescheduler.look()
        return sorted(name for name, _ in self.deleted[before:])

    async def settle(self) -> list[str]:
        """Look twice, so that a fault lasts long enough."""
        await self.look()
        return await self.look(CONFIRM_S)

    async def delete(self, pod: Pod, why: str, grace_s: int | None) -> None:
        assert why
        assert pod.uid in decode(self.stored)[0].jobs[self.world.cluster.jobs.job_of(pod).key.plan].deleted
        if self.dies:
            raise Crashed
        if self.refuses is not None:
            raise self.refuses
        self.deleted.append((pod.name, grace_s))
        if self.is_late:
            return
        if pod.name in self.stuck:
            ends_s = self.world.now_s + (pod.spec.termination_grace_period_seconds or 0 if grace_s is None else grace_s)
            gone = replace(pod.metadata, deletion_timestamp=datetime.fromtimestamp(ends_s, UTC).isoformat())
            self.world.cluster.pod_applied(replace(pod, metadata=gone))
        else:
            self.world.cluster.pod_deleted(pod)

    async def delete_by_force(self, pod: Pod) -> None:
        self.deleted.append((pod.name, 0))
        if not self.has_finalizers:
            self.world.cluster.pod_deleted(pod)

    async def annotate(self, pod: Pod, status: str) -> None:
        self.marked[pod.name] = status

    async def load(self, now_s: float) -> Memory:
        return decode(self.stored, now_s)[0]

    async def save(self, memory: Memory) -> None:
        if not memory.broken:
            self.stored = encode(memory)


def job(
    pods: int,
    *,
    name: str = "train",
    first_node: int = 1,
    kind: str = "StatefulSet",
    api_version: str = "apps/v1",
    blocks: int = 0,
    chips: Iterable[int] = range(8),
    is_gang: bool = True,
    **labels: str,
) -> list[Pod]:
    """The running pods of a gang, each on a node of its own; by default it is rescheduled by force."""
    said = {"fault-scheduling": "force"} | {key.replace("_", "-"): value for key, value in labels.items()}
    held = list(chips)
    return [
        owned_by(
            pod(
                f"{name}-{rank}", len(held), node=f"n{first_node + rank}", chips=held, phase="Running", labels=said,
                annotations={RANK: str(rank)}
                | ({GROUP: name, MIN_AVAILABLE: str(pods)} if is_gang else {})
                | ({BLOCK: str(rank // blocks)} if blocks else {}),
            ),
            kind, api_version, name=name,
        )
        for rank in range(pods)
    ]  # fmt: skip


def scene(pods: list[Pod], *, nodes: int = 40, **settings: Any) -> Scene:
    """A cluster of so many nodes, with a job."""
    made = Scene(**settings)
    made.world.add(*(node(f"n{number}") for number in range(1, nodes + 1)), *pods)
    return made


def anew(each: Pod) -> Pod:
    """The pod as its controller creates it anew."""
    return replace(each, metadata=replace(each.metadata, uid=f"{each.uid}+"))


def waiting(each: Pod) -> Pod:
    """The pod as its controller creates it anew, before it is placed."""
    new = anew(each)
    return replace(new, spec=replace(new.spec, node_name=""), status=replace(new.status, phase="Pending"))


def lost(name: str) -> Any:
    return node(name, ready=False)


def sub_healthy(name: str) -> ConfigMap:
    """The report of a node whose switches are sub-healthy."""
    return report(name, data={**report(name).data, "SwitchInfoCfg": '{"NodeStatus": "SubHealthy"}'})
