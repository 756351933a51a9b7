"""Jobs that arrive at random, on the real Kueue with topology-aware scheduling: with the admission check none is stuck.

``ARRIVALS=1000`` before the command has more jobs arrive; the figures are printed (``-s``).
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pytest

from allocator.admission.objects import CONTROLLER
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.kube.objects import Pod
from tests.bench.fake_cluster import fake_node
from tests.workloads.world import Workloads, example

CONTROLLERS = ("kueue",)
DEFINITIONS = ()
SETTINGS = {"admission_checks": True, "max_report_age_s": 3600.0}
API: Final = "kueue.x-k8s.io/v1beta1"
WORKLOADS: Final = f"/apis/{API}/namespaces/default/workloads"
RACK: Final = "example.org/rack"
ARRIVALS: Final = int(os.environ.get("ARRIVALS", "60"))
NODES, RACKS, CHIPS = 8, 2, 8
SHAPES: Final = ((1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (1, 4), (1, 4), (1, 8), (2, 8), (2, 8))
"""Pods, and chips of each."""
CUT_OFF: Final = 2
"""So many servers have a chip whose network is unhealthy: no pod of several that cooperate may be there."""
LASTS_S: Final = (5.0, 30.0)
EVERY_S: Final = 1.0
"""The mean time between two arrivals: somewhat more jobs than the servers can run at one time."""
STUCK_S: Final = 15.0
"""An admitted job is stuck if not all of its pods are bound after this time, although others end in the meantime."""

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3600)]


def queue(*, levels: tuple[str, ...], checked: bool) -> list[dict[str, Any]]:
    """A queue with topology-aware scheduling, with or without the admission check."""
    objects = [each for each in example("kueue.yaml") if each["kind"] != "Pod"]
    objects[0]["spec"] = {"nodeLabels": {"example.org/pool": "npu"}, "topologyName": "racks"}
    objects[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = NODES * CHIPS
    topology = {"apiVersion": API, "kind": "Topology", "metadata": {"name": "racks"}}
    topology = {**topology, "spec": {"levels": [{"nodeLabel": level} for level in levels]}}
    check = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "chips"}}
    if checked:
        objects[1]["spec"]["admissionChecks"] = ["chips"]
    return [topology, {**check, "spec": {"controllerName": CONTROLLER}}, *objects]


def job(name: str, pods: int, number: int) -> dict[str, Any]:
    """A Job of so many pods, each with this number of chips."""
    (made,) = example("indexed-job.yaml")
    made["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    spec = made["spec"]
    spec["parallelism"] = spec["completions"] = pods
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


@dataclass
class Jobs:
    """The jobs, and what was seen of them: the times of their arrival, admission, start and end, by name."""

    world: Workloads
    shapes: dict[str, tuple[int, int]]
    lasts_s: dict[str, float]
    arrived: dict[str, float] = field(default_factory=dict)
    admitted: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    chip_s: float = 0.0

    @classmethod
    def at_random(cls, world: Workloads, seed: int) -> Self:
        """Jobs of 1 to 24 chips that take some seconds."""
        chance = random.Random(seed)
        names = [f"job-{at}" for at in range(ARRIVALS)]
        return cls(
            world, {name: chance.choice(SHAPES) for name in names}, {name: chance.uniform(*LASTS_S) for name in names}
        )

    @property
    def moved_s(self) -> float:
        """When something was seen last."""
        return max(at_s for seen in (self.arrived, self.started, self.ended) for at_s in (*seen.values(), 0.0))

    def waits_s(self, now_s: float) -> list[float]:
        """How long admitted jobs have waited for their last pod."""
        return [self.started.get(name, now_s) - since_s for name, since_s in self.admitted.items()]

    async def arrive(self, seed: int) -> None:
        """Create the jobs one after the other."""
        chance = random.Random(seed)
        for name, shape in self.shapes.items():
            await self.world.create([job(name, *shape)])
            self.arrived[name] = time.monotonic()
            await asyncio.sleep(chance.expovariate(1 / EVERY_S))

    async def follow(self) -> None:
        """Note which jobs are admitted and start, and end those whose time is over."""
        now_s = time.monotonic()
        for workload in (await asyncio.to_thread(self.world.cluster.api.get, WORKLOADS))["items"]:
            conditions = workload.get("status", {}).get("conditions", ())
            if any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions):
                self.admitted.setdefault(workload["metadata"]["ownerReferences"][0]["name"], now_s)
        bound: dict[str, list[Pod]] = {}
        for pod in await self.world.pods():
            if pod.metadata.controller is not None and pod.is_live and pod.spec.node_name:
                bound.setdefault(pod.metadata.controller.name, []).append(pod)
        for name, pods in bound.items():
            if len(pods) == self.shapes[name][0]:
                await self._go_on(name, pods, now_s)

    def held(self) -> int:
        """The number of chips of jobs that run."""
        return sum(
            pods * chips
            for name, (pods, chips) in self.shapes.items()
            if name in self.started.keys() - self.ended.keys()
        )

    async def _go_on(self, name: str, pods: list[Pod], now_s: float) -> None:
        if name not in self.started:
            await self.world.run(pods)
            self.started[name] = now_s
        elif now_s - self.started[name] > self.lasts_s[name] and name not in self.ended:
            for pod in pods:
                await self.world.succeed(pod)
            self.ended[name] = now_s

    async def play(self, seed: int) -> None:
        """Let the jobs arrive, run and end; returns when all have ended, or nothing has moved for long."""
        arriving = asyncio.create_task(self.arrive(seed))
        last_s = time.monotonic()
        while len(self.ended) < len(self.shapes) and (
            not arriving.done() or time.monotonic() - self.moved_s < 4 * STUCK_S
        ):
            await self.follow()
            now_s = time.monotonic()
            self.chip_s += self.held() * (now_s - last_s)
            last_s = now_s
            await asyncio.sleep(0.1)
        await arriving


@pytest.mark.parametrize(
    ("levels", "checked"),
    [
        ((RACK, "kubernetes.io/hostname"), False),
        ((RACK,), False),
        ((RACK, "kubernetes.io/hostname"), True),
        ((RACK,), True),
    ],
    ids=["servers-alone", "racks-alone", "servers-checked", "racks-checked"],
)
async def test_no_admitted_job_is_stuck(workloads: Workloads, levels: tuple[str, ...], *, checked: bool) -> None:
    for number in range(NODES):
        node = fake_node(f"server-{number}")
        node["status"]["allocatable"] |= {"ephemeral-storage": "1Ti", "pods": "110"}
        node["metadata"]["labels"] |= {"example.org/pool": "npu", RACK: f"rack-{number % RACKS}"}
        await workloads.add(node)
        await workloads.create([report(node["metadata"]["name"], cut_off=number < CUT_OFF)])
    await workloads.create(queue(levels=levels, checked=checked))
    began_s, jobs = time.monotonic(), Jobs.at_random(workloads, seed=1)
    await jobs.play(seed=2)
    took_s = time.monotonic() - began_s
    waits = jobs.waits_s(time.monotonic())
    figures = {
        "levels": levels,
        "checked": checked,
        **{name: len(getattr(jobs, name)) for name in ("arrived", "admitted", "started", "ended")},
        "stuck": sum(wait_s > STUCK_S for wait_s in waits),
        "never": len(jobs.admitted.keys() - jobs.started.keys()),
        "median wait, s": round(statistics.median(waits), 2),
        "longest wait, s": round(max(waits), 1),
        "seconds": round(took_s, 1),
        "chips in use": round(jobs.chip_s / (NODES * CHIPS * took_s), 3),
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")
    if checked:
        assert figures["stuck"] == 0
        # Where Kueue chooses servers, it may choose the same again and again that don't do.
        assert len(jobs.ended) == ARRIVALS or "kubernetes.io/hostname" in levels
