"""How long the allocator takes to decide: in memory, compared with a loop over all nodes, and over HTTP as
kube-scheduler calls it."""

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from rich.table import Table

from allocator.decision.engine import DecisionEngine
from allocator.state.ledger import Ledger
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP, World, pod
from tests.allocator.cores import core_node, core_pod
from tests.allocator.harness import running
from tests.bench.free_sets import in_memory, node_name, on_server
from tests.bench.outcome import Outcome, Run, ms, p50, p99, table, us

REQUESTS: Final = ASCEND_910A.requests
_REFERENCE_BEST: Final = "107, 1,054 and 17,953 µs"
_ROUNDS: Final = 10
_PARTS: Final = (5, 10, 20)
_GANG: Final = 8
_IN_USE: Final = (40, 20, 40)
"""The shares of chips with a vNPU of 5 cores, in use as a whole, and free."""


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: tuple[int, ...]
    names: tuple[int, ...]
    indexed: int
    looked_at: int
    asked: int


_FULL: Final = _Size((100, 1_000, 10_000, 65_000), (1_000, 5_000), indexed=20_000, looked_at=2_000_000, asked=400)
_QUICK: Final = _Size((100, 1_000), (1_000,), indexed=2_000, looked_at=100_000, asked=40)


async def measure(run: Run) -> Outcome:
    size = _QUICK if run.quick else _FULL
    outcome = Outcome()
    in_process = table("nodes", "decisions/s", "p50 µs", "p99 µs", "walk/s", "walk p50 µs", "p99 µs", "ratio of p50s")
    for count in size.nodes:
        _in_process(run, size, count, in_process, outcome)
    outcome.show(
        "decisions: one pod that the informers have seen, in process: select node and chips, reserve and release them "
        "(1/2/4/8 chips in turn)",
        in_process,
        "walk: filter and rank all nodes by the same rules, then reserve and release; the result is the same.",
        f"The reference's best on these inputs, quoted, not measured here: {_REFERENCE_BEST}.",
        "Its source: docs/spec/measurements.md#decisions-in-process.",
    )
    while_waiting = table("nodes", "decisions/s", "p50 µs", "p99 µs")
    for count in size.nodes:
        _while_waiting(run, size, count, while_waiting, outcome)
    outcome.show(
        f"decisions: the same for 1, 2 and 4 chips, while nodes are kept for a gang of {_GANG} pods of 8 chips",
        while_waiting,
        "With earmark_share 0.5; each decision changes a node, after which the kept nodes are chosen anew.",
    )
    parts = table("nodes", "decisions/s", "p50 µs", "p99 µs")
    for count in size.nodes[:3]:
        _of_parts(run, size, count, parts, outcome)
    outcome.show(
        "decisions: the same for a part of a chip (5, 10 and 20 AI cores in turn), on nodes whose chips are cut",
        parts,
        "910B3 servers; of their chips 40 % have a vNPU of 5 cores, and 20 % are in use as a whole.",
    )
    extender = table(
        *("names", "in process\np50 ms", "\np99 ms", "over HTTP\np50 ms", "\np99 ms"),
        *("fits nowhere\np50 ms", "\np99 ms", "answer\nbytes"),
    )
    for count in size.names:
        await _extender(run, size, count, extender, outcome)
    outcome.show(
        "decisions: kube-scheduler's filter call with all names; the response is the node whose chips are reserved",
        extender,
        "Same free chips. In process: from the bytes of the request to those of the response. Over HTTP, allocator and",
        "client share one thread, so the numbers include both. Fits nowhere: 8 chips on nodes in use, over HTTP.",
    )
    return outcome


def _in_process(run: Run, size: _Size, count: int, shown: Table, outcome: Outcome) -> None:
    names = [node_name(number) for number in range(count)]
    pods = [pod(f"asks-{request}", request) for request in REQUESTS]
    engine = in_memory(count, run.seed, Ledger(ttl_s=30.0, monotonic=time.monotonic), pods)
    for each in pods:
        assert _indexed(engine, each) == _walk(engine, each, names), "the walk selected another node"
    indexed: list[float] = []
    walked: list[float] = []
    per_round = max(size.looked_at // count // _ROUNDS, 4)
    for number in run.steps(f"{count:,} nodes", _ROUNDS + 1):
        warm_up = number == 0
        _timed(lambda each: _indexed(engine, each), pods, size.indexed // _ROUNDS, [] if warm_up else indexed)
        _timed(lambda each: _walk(engine, each, names), pods, per_round, [] if warm_up else walked)
    shown.add_row(
        *(f"{count:,}", f"{len(indexed) / sum(indexed):,.0f}", us(p50(indexed)), us(p99(indexed))),
        *(f"{len(walked) / sum(walked):,.0f}", us(p50(walked)), us(p99(walked))),
        f"{p50(walked) / p50(indexed):,.0f}",
    )
    outcome.raw[f"{count} nodes, decision, s"] = indexed
    outcome.raw[f"{count} nodes, walk, s"] = walked


def _while_waiting(run: Run, size: _Size, count: int, shown: Table, outcome: Outcome) -> None:
    marks = {GROUP: "waits", MIN_AVAILABLE: str(_GANG)}
    gang = [pod(f"waits-{number}", 8, annotations=marks) for number in range(_GANG)]
    ledger = Ledger(ttl_s=30.0, monotonic=time.monotonic)
    pods = [pod(f"asks-{request}", request) for request in REQUESTS[:-1]]
    engine = in_memory(count, run.seed, ledger, [*gang, *pods], earmark_share=0.5)
    engine.earmarks.choose()
    decided: list[float] = []
    for number in run.steps(f"{count:,} nodes, a gang waits", _ROUNDS + 1):
        _timed(lambda each: _indexed(engine, each), pods, size.indexed // _ROUNDS, decided if number else [])
    assert len(ledger.promises) == 1
    shown.add_row(f"{count:,}", f"{len(decided) / sum(decided):,.0f}", us(p50(decided)), us(p99(decided)))
    outcome.raw[f"{count} nodes, decision while a gang waits, s"] = decided


def _of_parts(run: Run, size: _Size, count: int, shown: Table, outcome: Outcome) -> None:
    world, chance = World(), random.Random(run.seed)
    for number in range(count):
        world.add(core_node(node_name(number)))
        for chip in range(8):
            has = chance.choices((f"{chip}-vir05_1c_16g", f"{chip}", ""), _IN_USE)[0]
            if has:
                cores = 5 if "-" in has else 20
                name = f"on-{number}-{chip}"
                world.add(core_pod(name, cores, has=has, node=node_name(number), phase="Running"))
    pods = [core_pod(f"asks-{cores}", cores) for cores in _PARTS]
    for each in pods:
        world.add(each)
    decided: list[float] = []
    for number in run.steps(f"{count:,} nodes, parts of chips", _ROUNDS + 1):
        into = decided if number else []
        _timed(lambda each: _indexed(world.engine, each), pods, size.indexed // _ROUNDS, into)
    shown.add_row(f"{count:,}", f"{len(decided) / sum(decided):,.0f}", us(p50(decided)), us(p99(decided)))
    outcome.raw[f"{count} nodes, decision on a part, s"] = decided


def _timed(decide: Callable[[Pod], object], pods: list[Pod], times: int, into: list[float]) -> None:
    for number in range(times):
        each = pods[number % len(pods)]
        started_s = time.perf_counter()
        decide(each)
        into.append(time.perf_counter() - started_s)


def _indexed(engine: DecisionEngine, each: Pod) -> tuple[str, tuple[int, ...]]:
    kept = engine.place(each)
    engine.release(each.uid)
    return kept.node, kept.take.chips


def _walk(engine: DecisionEngine, each: Pod, names: list[str]) -> tuple[str, tuple[int, ...]]:
    fitting = engine.filter(each, names).fitting
    kept = engine.place(each, [engine.rank(each, fitting)[0].nodes[0]])
    engine.release(each.uid)
    return kept.node, kept.take.chips


async def _extender(run: Run, size: _Size, count: int, shown: Table, outcome: Outcome) -> None:
    taken: dict[str, list[float]] = {"in process": [], "over HTTP": [], "fits nowhere": []}
    answered = 0
    with tempfile.TemporaryDirectory(prefix="aa-") as folder:
        async with ApiServer() as server, aiohttp.ClientSession() as http:
            await on_server(server, count, run.seed)
            async with running(server, Path(folder), nominate="off") as allocator:  # else it reserves chips by itself
                engine, names = allocator.app.engine, [node_name(number) for number in range(count)]
                pods = [await allocator.pod(f"asks-{request}", request) for request in REQUESTS]
                questions = [_question(each, names) for each in pods]
                in_use = sorted(engine.filter(pod("whole", 8), names).refused)
                hopeless = _question(pods[-1], in_use)
                url = f"http://{allocator.app.extender_address}/scheduler/filter"
                for number in run.steps(f"{count:,} names", size.asked + 8):
                    which = number % len(pods)
                    started_s = time.perf_counter()
                    inside = msgspec.json.encode(await allocator.app.extender.filter(questions[which]))
                    inside_s = time.perf_counter() - started_s
                    engine.release(pods[which]["metadata"]["uid"])
                    over_http_s, answer = await _post(http, url, questions[which])
                    engine.release(pods[which]["metadata"]["uid"])
                    assert answer == inside, "two responses to the same request differ"
                    refused_s, refusal = await _post(http, url, hopeless)
                    answered = len(refusal)
                    assert b'"NodeNames":[]' in refusal, "it fits"
                    if number >= 8:
                        for samples, sample in zip(taken.values(), (inside_s, over_http_s, refused_s), strict=True):
                            samples.append(sample)
    figures = [figure(samples) for samples in taken.values() for figure in (p50, p99)]
    shown.add_row(f"{count:,}", *map(ms, figures), f"{answered:,}")
    outcome.raw |= {f"{count} names, filter {where}, s": samples for where, samples in taken.items()}


def _question(asking: dict[str, Any], names: list[str]) -> bytes:
    return msgspec.json.encode({"Pod": asking, "Nodes": None, "NodeNames": names})


async def _post(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, bytes]:
    started_s = time.perf_counter()
    async with http.post(url, data=body) as response:
        answer = await response.read()
    return time.perf_counter() - started_s, answer
