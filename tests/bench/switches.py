"""How long the allocator takes to place a large job below leaf switches, by each version, and to refuse one."""

import gc
import random
import time
from typing import Final

from allocator.rules.asked import SwitchLimits
from ascend.kube.objects import Pod
from tests.allocator.builders import World, pod
from tests.allocator.switches.world import bind, job, server, table
from tests.bench.outcome import Outcome, Run, ms, p50
from tests.bench.outcome import table as new_table

_WIDTH: Final = 32
_SERVERS: Final = (10_000, 1_000)
_PODS: Final = (1_024, 64)
_TIMES: Final = (10, 2)
_OTHERS: Final = (50, 5)
"""Jobs that run already, each of which spans two switches."""
_FILL: Final = 0.3


async def measure(run: Run) -> Outcome:
    servers, pods, times, others = (each[run.quick] for each in (_SERVERS, _PODS, _TIMES, _OTHERS))
    outcome = Outcome()
    shown = new_table("version", "placed p50 ms", "max ms", "refused p50 ms", "max ms")
    for version in ("1.0", "2.0"):
        world = _world(servers, others, version, run.seed)
        placed, refused = [], []
        for number in run.steps(f"version {version}, {pods:,} pods", times):
            placed.append(_placed(world, job(pods, "normal-schema", name=f"train{number}")))
            refused.append(_refused(world, job(servers, "large-model-schema", name=f"large{number}")))
        outcome.raw[f"version {version}, placed, s"] = placed
        outcome.raw[f"version {version}, refused, s"] = refused
        shown.add_row(version, ms(p50(placed)), ms(max(placed)), ms(p50(refused)), ms(max(refused)))
    outcome.show(
        f"switches: a job of {pods:,} pods on {servers:,} nodes below {servers // _WIDTH} leaf switches",
        shown,
        f"{_FILL:.0%} of the nodes are in use, and {others} other jobs span two switches each.",
        "placed: from the first pod's request until all are reserved in one step.",
        "refused: a job with more pods than there are free nodes.",
    )
    return outcome


def _world(servers: int, others: int, version: str, seed: int) -> World:
    world = World(ttl_s=3600.0, switches=SwitchLimits(version=version))
    world.cluster.switches.apply(table(range(servers // _WIDTH + 1), width=_WIDTH))
    chance = random.Random(seed)
    for at in range(servers):
        made = server(at // _WIDTH, at % _WIDTH)
        world.add(made)
        if chance.random() < _FILL:
            world.add(pod(f"holds-{at}", 8, node=made.name, chips=range(8), phase="Running"))
    for number in range(others):
        spanning = job(_WIDTH, name=f"other{number}")
        world.add(*spanning)
        bind(world, spanning)
    return world


def _placed(world: World, pods: list[Pod]) -> float:
    world.add(*pods)
    gc.collect()
    started_s = time.perf_counter()
    world.engine.place(pods[-1])
    took_s = time.perf_counter() - started_s
    for each in pods:
        world.engine.release(each.uid)
        world.cluster.pod_deleted(each)
    return took_s


def _refused(world: World, pods: list[Pod]) -> float:
    world.add(*pods)
    gc.collect()
    started_s = time.perf_counter()
    world.refusal(pods[-1])
    took_s = time.perf_counter() - started_s
    for each in pods:
        world.cluster.pod_deleted(each)
    return took_s
