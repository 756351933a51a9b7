"""Jobs that arrive at random, on the real Kueue with topology-aware scheduling, with and without the admission check.

Both ways run side by side: one control plane has two equal pools of servers with a queue each, and of each job one
arrives for either queue at the same moment. ``ARRIVALS=1000`` before the command has more jobs arrive; the figures are
printed (``-s``).
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from allocator.admission.objects import CONTROLLER, Workload, kinds
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from tests.bench.fake_cluster import fake_node
from tests.workloads.world import KUEUE, Workloads, example

CONTROLLERS = (KUEUE,)
DEFINITIONS = ()
SETTINGS = {"admission_checks": True, "max_report_age_s": 3600.0}
API: Final = "kueue.x-k8s.io/v1beta1"
POOL: Final = "example.org/pool"
RACK: Final = "example.org/rack"
ARRIVALS: Final = int(os.environ.get("ARRIVALS", "60"))
NODES, RACKS, CHIPS = (32, 4, 8) if ARRIVALS > 200 else (8, 2, 8)
SHAPES: Final = ((1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (1, 4), (1, 4), (1, 8), (2, 8), (2, 8))
"""Pods, and chips of each."""
CUT_OFF: Final = NODES // 4
"""So many servers have a chip whose network is unhealthy: no pod of several that cooperate may be there."""
LASTS_S: Final = (5.0, 30.0)
LOAD: Final = 1.3
"""How many chips jobs ask for while they arrive, as a share of those that are there."""
MOST_WAITING: Final = 40
"""Further jobs arrive only while fewer wait in one of the queues: Kueue tries all of a queue again after each end."""
STUCK_S: Final = 15.0
"""A job that Kueue has let go is stuck if not all of its pods are bound after this time, although others end."""
TICK_S: Final = 0.1

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3600)]


def queue(pool: str, *, checked: bool) -> list[dict[str, Any]]:
    """A queue for the servers of a pool with topology-aware scheduling, with or without the admission check."""
    objects = [item for item in example("kueue.yaml") if item["kind"] != "Pod"]
    flavor, cluster_queue, local_queue = objects
    for item in objects:
        item["metadata"]["name"] = pool
    flavor["spec"] = {"nodeLabels": {POOL: pool}, "topologyName": "racks"}
    (quota,) = cluster_queue["spec"]["resourceGroups"][0]["flavors"]
    quota["name"] = pool
    quota["resources"][0]["nominalQuota"] = NODES * CHIPS
    if checked:
        cluster_queue["spec"]["admissionChecks"] = ["chips"]
    local_queue["spec"]["clusterQueue"] = pool
    return objects


def job(name: str, pool: str, pods: int, number: int) -> dict[str, Any]:
    """A Job of so many pods, each with this number of chips."""
    (made,) = example("indexed-job.yaml")
    made["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": pool}}
    spec = made["spec"]
    spec |= {"parallelism": pods, "completions": pods, "ttlSecondsAfterFinished": 0}
    template = spec["template"]
    template["metadata"]["annotations"] = {
        "huawei.com/schedule_minAvailable": str(pods),
        "kueue.x-k8s.io/podset-unconstrained-topology": "true",
    }
    template["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] = number
    return made


def report(node: str, *, cut_off: bool) -> dict[str, Any]:
    """The report of a server, of which perhaps one chip has an unhealthy network."""
    written = DeviceReport(free=0xFF, unhealthy=0, network_unhealthy=int(cut_off), update_time_s=int(time.time()))
    metadata = {"name": config_map_name(node), "namespace": NAMESPACE, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(encode_report(written))}


@dataclass(frozen=True)
class Arrival:
    """What arrives: how long after the job before, how many pods with how many chips, and how long they run."""

    after_s: float
    shape: tuple[int, int]
    lasts_s: float

    @property
    def chips(self) -> int:
        """The chips of all of its pods."""
        return self.shape[0] * self.shape[1]


def at_random(seed: int) -> list[Arrival]:
    """Jobs of 1 to 16 chips that take some seconds."""
    chance = random.Random(seed)
    work = statistics.mean(pods * chips for pods, chips in SHAPES) * statistics.mean(LASTS_S)
    often = NODES * CHIPS * LOAD / work
    return [
        Arrival(chance.expovariate(often), chance.choice(SHAPES), chance.uniform(*LASTS_S)) for _ in range(ARRIVALS)
    ]


@dataclass
class Jobs:
    """The jobs of a queue, and the times of their arrival and admission, of their pods without gates, start and end."""

    world: Workloads
    pool: str
    arrivals: list[Arrival]
    arrived: dict[str, float] = field(default_factory=dict)
    admitted: dict[str, float] = field(default_factory=dict)
    let_go: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    present: dict[str, dict[str, Pod]] = field(default_factory=dict)
    used: float = 0.0

    def __post_init__(self) -> None:
        self.by_name = {f"{self.pool}-{number}": arrival for number, arrival in enumerate(self.arrivals)}

    @property
    def moved_s(self) -> float:
        """When something was seen last."""
        return max(at_s for seen in (self.arrived, self.started, self.ended) for at_s in (*seen.values(), 0.0))

    @property
    def held(self) -> int:
        """The number of chips of jobs that run."""
        return sum(self.by_name[name].chips for name in self.started.keys() - self.ended.keys())

    async def arrive(self, number: int) -> None:
        """Create a job."""
        name = f"{self.pool}-{number}"
        await self.world.create([job(name, self.pool, *self.arrivals[number].shape)])
        self.arrived[name] = time.monotonic()

    def see_workload(self, workload: Workload) -> None:
        """Note when a job is admitted."""
        owner = workload.metadata.controller
        if owner is not None and owner.name in self.by_name and workload.is_true("Admitted"):
            self.admitted.setdefault(owner.name, time.monotonic())

    def see_pod(self, pod: Pod) -> None:
        """Note the pods of a job without gates; the scheduler tries them from now on."""
        owner = pod.metadata.controller
        if owner is None or not pod.is_live or pod.is_gated or owner.name not in self.by_name.keys() - self.ended:
            return
        pods = self.present.setdefault(owner.name, {})
        pods[pod.uid] = pod
        if len(pods) == self.by_name[owner.name].shape[0]:
            self.let_go.setdefault(owner.name, time.monotonic())

    async def go_on(self) -> None:
        """Start the jobs whose pods are all bound, and end those whose time is over."""
        now_s = time.monotonic()
        for name, pods in tuple(self.present.items()):
            if name not in self.started:
                if name in self.let_go and all(pod.spec.node_name for pod in pods.values()):
                    self.started[name] = now_s
            elif now_s - self.started[name] > self.by_name[name].lasts_s:
                self.ended[name] = now_s
                for pod in self.present.pop(name).values():
                    await self.world.succeed(pod)

    def figures(self, took_s: float) -> dict[str, object]:
        """What is told of them; the chips in use are those until the last arrival."""
        now_s = time.monotonic()
        waits = [self.started.get(name, now_s) - since_s for name, since_s in self.let_go.items()]
        by_kueue = [at_s - self.admitted.get(name, at_s) for name, at_s in self.let_go.items()]
        queued = [at_s - self.arrived[name] for name, at_s in self.started.items()]
        return {
            **{name: len(getattr(self, name)) for name in ("arrived", "admitted", "let_go", "started", "ended")},
            "stuck": sum(wait_s > STUCK_S for wait_s in waits),
            "never": len(self.let_go.keys() - self.started.keys()),
            "from admission to pods without gates, median, s": round(statistics.median(by_kueue), 1),
            "from there to the start, median": round(statistics.median(waits), 1),
            "at most": round(max(waits), 1),
            "from arrival to start, median": round(statistics.median(queued), 1),
            "from the first arrival to the last end": round(max(self.ended.values()) - min(self.arrived.values()), 1),
            "chips in use": round(self.used / (NODES * CHIPS * took_s), 3),
        }


class _Watch:
    """A reflector's handler: several followers see each object."""

    def __init__(self, *seen: Any) -> None:
        self._seen = seen

    def on_apply(self, obj: Any) -> None:
        for see in self._seen:
            see(obj)

    def on_delete(self, obj: Any) -> None:
        pass


async def arrive(both: tuple[Jobs, ...], arrivals: list[Arrival]) -> None:
    """Create the jobs one after the other, at the same moment for each queue."""
    for number, arrival in enumerate(arrivals):
        await asyncio.sleep(arrival.after_s)
        while min(len(jobs.arrived) - len(jobs.started) for jobs in both) >= MOST_WAITING:  # noqa: ASYNC110 - polled
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*(jobs.arrive(number) for jobs in both))


async def play(world: Workloads, both: tuple[Jobs, ...], arrivals: list[Arrival]) -> float:
    """Let jobs arrive, run and end, until all have ended or nothing has moved for long; how long they arrived."""
    watched = (
        Reflector(world.client, kinds("v1beta1").workloads, _Watch(*(jobs.see_workload for jobs in both))),
        Reflector(world.client, PODS, _Watch(*(jobs.see_pod for jobs in both))),
    )
    async with AsyncExitStack() as stack:
        for reflector in watched:
            stack.callback(asyncio.create_task(reflector.run()).cancel)
        began_s = last_s = time.monotonic()
        arriving, took_s = asyncio.create_task(arrive(both, arrivals)), 0.0
        while any(len(jobs.ended) < len(arrivals) for jobs in both):
            now_s = time.monotonic()
            if arriving.done() and now_s - max(jobs.moved_s for jobs in both) > 4 * STUCK_S:
                break
            for jobs in both:
                await jobs.go_on()
                if not arriving.done():
                    jobs.used += jobs.held * (now_s - last_s)
                    took_s = now_s - began_s
            last_s = now_s
            await asyncio.sleep(TICK_S)
        await arriving
    return took_s


@pytest.mark.parametrize("levels", [(RACK, "kubernetes.io/hostname"), (RACK,)], ids=["servers", "racks"])
async def test_no_admitted_job_is_stuck(workloads: Workloads, levels: tuple[str, ...]) -> None:
    pools = {"alone": False, "checked": True}
    for pool in pools:
        for number in range(NODES):
            node = fake_node(f"{pool}-{number}")
            node["status"]["allocatable"] |= {"ephemeral-storage": "1Ti", "pods": "110"}
            node["metadata"]["labels"] |= {POOL: pool, RACK: f"{pool}-{number % RACKS}"}
            await workloads.add(node)
            await workloads.create([report(node["metadata"]["name"], cut_off=number < CUT_OFF)])
    topology = {"apiVersion": API, "kind": "Topology", "metadata": {"name": "racks"}}
    check = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "chips"}}
    await workloads.create(
        [
            {**topology, "spec": {"levels": [{"nodeLabel": level} for level in levels]}},
            {**check, "spec": {"controllerName": CONTROLLER}},
        ]
    )
    for pool, is_checked in pools.items():
        await workloads.create(queue(pool, checked=is_checked))
    arrivals = at_random(seed=1)
    both = tuple(Jobs(workloads, pool, arrivals) for pool in pools)
    took_s = await play(workloads, both, arrivals)
    told = {jobs.pool: jobs.figures(took_s) for jobs in both}
    sys.stdout.write(f"{json.dumps({'levels': levels, 'arrivals take, s': round(took_s), **told}, indent=1)}\n")
    assert told["checked"]["stuck"] == 0
    # Where Kueue chooses servers, it may choose the same again and again that don't do.
    if "kubernetes.io/hostname" not in levels:
        assert len(both[1].ended) == ARRIVALS
