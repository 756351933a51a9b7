"""How long the allocator takes to place a large job with blocks, to place it again after faults, and to refuse one."""

import gc
import random
import time
from collections.abc import Iterable
from typing import Final

from allocator.rules.asked import SuperPodLimits
from allocator.rules.request import ChipRequest
from allocator.state.location import Level
from ascend.kube.objects import Pod
from tests.allocator.builders import World, pod
from tests.allocator.superpods.test_jobs import again
from tests.allocator.superpods.world import CHIPS, bind, job, server, super_pod_of
from tests.bench.outcome import Outcome, Run, ms, p50, table

_SUPER_PODS: Final = (220, 22)
_SERVERS: Final = (10_000, 1_000)
_PODS: Final = (1_024, 64)
_TIMES: Final = (10, 2)
_BLOCKS: Final = (8, 32)
_FAULTS: Final = 10
_FILLS: Final = {"empty": 0.0, "half full": 0.5}
_SIZE: Final = 48


async def measure(run: Run) -> Outcome:
    numbers, servers, pods, times = (each[run.quick] for each in (_SUPER_PODS, _SERVERS, _PODS, _TIMES))
    outcome = Outcome()
    titles = ("placed p50 ms", "max ms", f"{_FAULTS} faults p50 ms", "max ms", "refused p50 ms", "max ms")
    shown = table("cluster", "nodes of a block", *titles)
    for fill_name, fill in _FILLS.items():
        for size in _BLOCKS:
            world = _world(numbers, servers, fill, run.seed)
            placed: list[float] = []
            repaired: list[float] = []
            refused: list[float] = []
            for number in run.steps(f"{fill_name}, {pods:,} pods in blocks of {size}", times):
                one, other = _measure(world, pods, size, f"train{number}", random.Random(run.seed + number))
                placed.append(one)
                repaired.append(other)
                refused.append(_refused(world, pods, f"large{number}"))
            outcome.raw[f"{fill_name}, blocks of {size}, placed, s"] = placed
            outcome.raw[f"{fill_name}, blocks of {size}, repaired, s"] = repaired
            outcome.raw[f"{fill_name}, after blocks of {size}, refused, s"] = refused
            shown.add_row(
                *(fill_name, f"{size}", ms(p50(placed)), ms(max(placed))),
                *(ms(p50(repaired)), ms(max(repaired)), ms(p50(refused)), ms(max(refused))),
            )
    outcome.show(
        f"super_pods: a job of {pods:,} pods of {CHIPS} chips on {servers:,} nodes in {numbers} SuperPods",
        shown,
        "placed: from the first pod's request until all are reserved in one step.",
        f"faults: {_FAULTS} of its nodes fail while it runs, in different SuperPods; from the request of the first new",
        "pod until all have seats, each in the SuperPod of its block. Goals: 200 ms and 50 ms.",
        f"refused: another job of about as many pods, in blocks of {_SIZE} nodes, for which no SuperPod has room.",
    )
    return outcome


def _world(numbers: int, servers: int, fill: float, seed: int) -> World:
    world = World(ttl_s=3600.0, super_pods=SuperPodLimits(_SIZE, 2))
    chance = random.Random(seed)
    used = [chance.uniform(0, 2 * fill) for _ in range(numbers)]  # some SuperPods are nearly empty, others nearly full
    for at in range(servers):
        made = server(at % numbers, at // numbers)
        world.add(made)
        if chance.random() < used[at % numbers]:
            world.add(pod(f"holds-{at}", CHIPS, node=made.name, chips=range(CHIPS), phase="Running"))
    return world


def _measure(world: World, count: int, size: int, name: str, chance: random.Random) -> tuple[float, float]:
    pods = job(count, size, name=name)
    world.add(*pods)
    placed_s = _timed(world, pods[-1:])
    running = [bind(world, each) for each in pods]
    lost = _repairable(world, running, chance)
    healthy = []
    for each in lost:
        super_pod, _, index = each.spec.node_name.partition("-")
        healthy.append(server(int(super_pod), int(index)))
        world.add(server(int(super_pod), int(index), ready=False))
        world.cluster.pod_deleted(each)
    world.add(*(new := [again(each) for each in lost]))
    repaired_s = _timed(world, new)
    for each in (*running, *new):
        world.engine.release(each.uid)
        world.cluster.pod_deleted(each)
    world.add(*healthy)
    return placed_s, repaired_s


def _refused(world: World, count: int, name: str) -> float:
    """Try to place a job whose blocks are larger than any SuperPod; return how long that took."""
    world.add(*(pods := job(count // _SIZE * _SIZE, _SIZE, name=name)))
    gc.collect()
    started_s = time.perf_counter()
    refusal = world.refusal(pods[-1])
    took_s = time.perf_counter() - started_s
    assert "there is room for 0" in refusal.message
    for each in pods:
        world.cluster.pod_deleted(each)
    return took_s


def _repairable(world: World, running: list[Pod], chance: random.Random) -> list[Pod]:
    """Pods in different SuperPods, each of which has a free server."""
    verdict = world.cluster.index.ranking(ChipRequest(CHIPS)).verdict
    places = world.cluster.index.topology.places(Level.SUPER_POD)
    by_super_pod = {super_pod_of(each.spec.node_name): each for each in chance.sample(running, len(running))}
    with_room = {number for number, place in places.items() if any(names for _, names in place.fitting(verdict))}
    return [each for number, each in by_super_pod.items() if number in with_room][:_FAULTS]


def _timed(world: World, pods: Iterable[Pod]) -> float:
    gc.collect()
    started_s = time.perf_counter()
    for each in pods:
        world.engine.place(each)
    return time.perf_counter() - started_s
