"""How long the allocator takes to plan a gang: all of its pods placed and reserved in one step, or refused."""

import gc
import random
import time
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import node, pod
from tests.bench.free_sets import node_name
from tests.bench.outcome import Outcome, Run, ms, p50, table

_NODES: Final = (10_000, 1_000)
_PODS: Final = ((8, 64, 512, 5_000), (8, 64))
_TIMES: Final = (10, 2)
_CHIPS: Final = 8
_FILLS: Final = {"empty": 0.0, "half full": 0.5, "95 % full": 0.95}
_BUDGET_S: Final = 0.5


async def measure(run: Run) -> Outcome:
    nodes, sizes, times = _NODES[run.quick], _PODS[run.quick], _TIMES[run.quick]
    outcome = Outcome()
    titles = ("plan p50 ms", "max ms", "CPU p50 ms", "release p50 ms", "one by one ms")
    shown = table("cluster", "pods", "outcome", *titles)
    for fill_name, fill in _FILLS.items():
        cluster, engine = _cluster(nodes, fill, run.seed)
        for count in sizes:
            samples: list[float] = []
            busy: list[float] = []
            released: list[float] = []
            for _ in run.steps(f"{fill_name}, {count:,} pods", times):
                taken_s, busy_s, word, released_s = _plan(cluster, engine, count)
                samples.append(taken_s)
                busy.append(busy_s)
                released.append(released_s)
            outcome.raw[f"{fill_name}, {count} pods, plan, s"] = samples
            outcome.raw[f"{fill_name}, {count} pods, plan, CPU s"] = busy
            outcome.raw[f"{fill_name}, {count} pods, release, s"] = released
            single_s, single_word = _one_by_one(engine, count)
            shown.add_row(
                *(fill_name, f"{count:,}", word, ms(p50(samples)), ms(max(samples))),
                *(ms(p50(busy)), ms(p50(released)), f"{ms(single_s)} ({single_word})"),
            )
    outcome.show(
        f"gangs: {nodes:,} nodes, pods of {_CHIPS} chips, from the first pod's request until all are reserved",
        shown,
        f"The goal is {_BUDGET_S:g} s for 5,000 pods; it includes ranks, validity and every reservation.",
        "release: all seats of a gang that does not start, in one turn of the event loop.",
        "one by one: the same number of single pods, placed one after the other; half of them may find no node.",
    )
    return outcome


def _cluster(nodes: int, fill: float, seed: int) -> tuple[Cluster, DecisionEngine]:
    ledger = Ledger(ttl_s=3600.0, monotonic=time.monotonic)
    cluster = Cluster(ledger)
    full = set(random.Random(seed).sample(range(nodes), int(nodes * fill)))
    for number in range(nodes):
        name = node_name(number)
        cluster.node_applied(node(name))
        if number in full:
            cluster.pod_applied(pod(f"holds-{name}", _CHIPS, node=name, chips=range(_CHIPS), phase="Running"))
    return cluster, DecisionEngine(cluster, ledger)


def _gang(count: int) -> list[Pod]:
    marks = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: str(count)}
    return [pod(f"train-{number}", _CHIPS, annotations=marks) for number in range(count)]


def _plan(cluster: Cluster, engine: DecisionEngine, count: int) -> tuple[float, float, str, float]:
    pods = _gang(count)
    for each in pods:
        cluster.pod_applied(each)
    gc.collect()
    started_s, busy_s = time.perf_counter(), time.process_time()
    made, word = None, "placed"
    try:
        made = engine.place(pods[-1])
    except Refusal as refusal:
        word = refusal.reason
    taken_s, busy_s = time.perf_counter() - started_s, time.process_time() - busy_s
    if made is not None:
        assert made.stage is Stage.PLANNED
        assert len({engine.place(each).node for each in pods}) == count
    gc.collect()
    started_s = time.perf_counter()
    engine.gangs.release_unused(cluster.jobs.job_of(pods[0]))
    released_s = time.perf_counter() - started_s
    for each in pods:
        cluster.pod_deleted(each)
    return taken_s, busy_s, word, released_s


def _one_by_one(engine: DecisionEngine, count: int) -> tuple[float, str]:
    pods = [pod(f"single-{number}", _CHIPS) for number in range(count)]
    placed = 0
    started_s = time.perf_counter()
    for each in pods:
        try:
            engine.place(each)
            placed += 1
        except Refusal:
            break
    taken_s = time.perf_counter() - started_s
    for each in pods:
        engine.release(each.uid)
    return taken_s, f"{placed:,} placed"
