"""The device plugin on a real kubelet under the reference's conditions, row by row next to the reference's results."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from rich.text import Text

from ascend.chips import ChipSet
from ascend.deviceinfo import NAMESPACE, config_map_name
from tests.bench.outcome import Outcome, Run, p50, table
from tests.bench.plugin_returns import NOTES, another, identity, measure_returns, watched_s
from tests.bench.plugin_rig import PluginRig, plugin_rig
from tests.bench.reference import REFERENCE
from tests.bench.sightings import seen
from tests.bench.usage import cpu_s, rss_mib
from tests.cluster import requirements
from tests.conformance.node import PluginNode, written_set

ALL: Final = 0xFF
PAIRS: Final = 17
_POLL_S: Final = 0.002
_HISTOGRAM: Final = "kubelet_device_plugin_alloc_duration_seconds"


@dataclass(frozen=True, slots=True)
class _Size:
    starts: int
    pods: int
    faults: int
    restarts: int
    idle_s: float
    pairs: int


_FULL: Final = _Size(starts=6, pods=100, faults=6, restarts=6, idle_s=60.0, pairs=PAIRS)
_QUICK: Final = _Size(starts=1, pods=2, faults=1, restarts=1, idle_s=3.0, pairs=2)


@dataclass(slots=True)
class _Samples:
    """Samples by row: in seconds, unless the row names another unit."""

    rows: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, row: str, value: float) -> None:
        self.rows.setdefault(row, []).append(value)


async def measure(run: Run) -> Outcome:
    size = _QUICK if run.quick else _FULL
    if sentences := [*requirements.missing(), *requirements.missing_compiler().values()]:
        lines = ("!" * 100, "PLUGIN NOT MEASURED: the real cluster cannot run here.", *sentences, "!" * 100)
        return Outcome([Text("\n".join(lines), style="bold red")])
    samples = _Samples()
    rng = random.Random(run.seed)
    async with AsyncExitStack() as stack:
        with run.doing("start a cluster with a real kubelet"):
            rig = await stack.enter_async_context(plugin_rig())
        for _ in run.steps("starts", size.starts):
            await _start(rig, samples)
        with run.doing(f"idle for {size.idle_s:g} s"):
            await _idle(rig, size.idle_s, samples)
        await _allocations(run, rig, size, rng, samples)
        await _swaps(run, rig, size.pairs, samples)
        await _faults(run, rig, size, rng, samples)
        await measure_returns(run, rig, size.restarts, samples.add)
        for _ in run.steps("kubelet restarts", size.restarts):
            await _kubelet(rig, rng, samples)
    return _outcome(size, samples)


async def _start(rig: PluginRig, samples: _Samples) -> None:
    node = rig.node
    await asyncio.to_thread(node.plugin.process.stop)
    node.cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config_map_name(node.node.name)}")
    await asyncio.sleep(1.5)  # the kubelet shows 0 for a while, and there is no report
    reported, offered, requests = rig.reported(lambda free, _: free == ALL), rig.offered(8), rig.audit.end
    await asyncio.to_thread(node.plugin.process.start)
    started_s = time.perf_counter()
    samples.add("start → allocatable 8", await seen(offered, "the chips are offered") - started_s)
    samples.add("start → ConfigMap", await seen(reported, "the chips are reported") - started_s)
    registered_s = rig.registered_s(started_s - 1.0)
    assert registered_s is not None
    samples.add("start → registered", registered_s - started_s)
    await asyncio.to_thread(node.wait_until_allocatable)
    await asyncio.sleep(1.0)
    samples.add("API requests at the start", rig.audit.since(requests).total())


async def _idle(rig: PluginRig, idle_s: float, samples: _Samples) -> None:
    await asyncio.sleep(min(10.0, idle_s))  # until the work of the start is done
    process = rig.node.plugin.process
    requests, calls, used_s, started_s = rig.audit.end, rig.node.chips.calls(), cpu_s(process), time.perf_counter()
    await asyncio.sleep(idle_s)
    passed_s = time.perf_counter() - started_s
    found = rig.audit.since(requests)
    samples.add("RSS, MiB", rss_mib(process.pid))
    samples.add("CPU, % of a core", (cpu_s(process) - used_s) / passed_s * 100)
    samples.add("API requests, per min", found.total() / passed_s * 60)
    samples.add("driver calls, per min", (rig.node.chips.calls() - calls) / passed_s * 60)
    samples.notes.append(f"Requests of the idle plugin to the API server in {passed_s:.0f} s: {dict(found) or 'none'}.")


async def _allocations(run: Run, rig: PluginRig, size: _Size, rng: random.Random, samples: _Samples) -> None:
    node = rig.node
    series = {(0, 1): size.pods, (3,): max(size.pods // 10, 1), tuple(range(8)): max(size.pods // 33, 1)}
    for chips, count in series.items():
        what = f"{len(chips)} chip{'s' if len(chips) > 1 else ''}"
        before = _histogram(rig)
        for number in run.steps(f"pods with {what}", count):
            name = f"alone-{len(chips)}-{number}"
            await asyncio.to_thread(node.create, name, len(chips))
            await asyncio.sleep(rng.uniform(0, 0.5))
            claimed, runs = rig.claimed(name), rig.runs(name)
            started_s = time.perf_counter()
            await rig.bind(name, *chips)
            samples.add(f"bind → AscendReal, {what}", await seen(claimed, f"{name} is claimed") - started_s)
            samples.add(f"bind → Running, {what}", await seen(runs, f"{name} runs") - started_s)
            await asyncio.to_thread(node.delete, name)
        buckets = {bound: n - before[0].get(bound, 0) for bound, n in _histogram(rig)[0].items()}
        mean_s = (_histogram(rig)[1] - before[1]) / count
        samples.rows[f"Allocate, {what}"] = [mean_s]
        samples.rows[f"Allocate, {what}, p99 at most"] = [_bound(buckets, 0.99)]


def _histogram(rig: PluginRig) -> tuple[dict[float, float], float]:
    """The kubelet's histogram of the plugin's Allocate calls: calls by upper bound in seconds, and their sum."""
    found: dict[float, float] = {}
    for bound in _BOUNDS:
        found[bound] = rig.node.kubelet_metric(
            f"{_HISTOGRAM}_bucket", resource_name="huawei.com/Ascend910", le=_go(bound)
        )
    return found, rig.node.kubelet_metric(f"{_HISTOGRAM}_sum", resource_name="huawei.com/Ascend910")


_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)


def _go(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else f"{bound:g}"


def _bound(buckets: dict[float, float], share: float) -> float:
    """The smallest bound that this share of the calls does not exceed."""
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * buckets[math.inf])


async def _swaps(run: Run, rig: PluginRig, pairs: int, samples: _Samples) -> None:
    node = rig.node
    swapped = 0
    for number in run.steps("pairs a millisecond apart", pairs):
        first, second = f"a-{number}", f"b-{number}"
        for name in (first, second):
            await asyncio.to_thread(node.create, name, 2)
        claimed = [rig.claimed(name) for name in (first, second)]
        now = time.time_ns()
        bindings = ((first, (0, 1), now + 1_000_000), (second, (2, 3), now))
        await asyncio.to_thread(node.bind_together, 0.001, *bindings)
        for each in claimed:
            await seen(each, "both are claimed")
        swapped += node.ledger()[first, "main"] != 0b0011
        assert written_set(node.annotations(first), "huawei.com/AscendReal") == 0b0011
        await asyncio.to_thread(node.delete, first, second)
    samples.add("pairs swapped, %", swapped / pairs * 100)
    samples.notes.append(
        f"Pairs of 2 chips bound 1 ms apart against their predicate-time: {swapped} of {pairs} swapped."
    )


async def _faults(run: Run, rig: PluginRig, size: _Size, rng: random.Random, samples: _Samples) -> None:
    node, chips = rig.node, rig.node.chips
    chip = itertools.count(rng.randrange(8))

    async def series(what: str, count: int, breaks: Callable[[int], None]) -> None:
        for _ in run.steps(what, count):
            which = next(chip) % 8
            await asyncio.sleep(1.0 + rng.uniform(0, 4.0))  # the last report is over a second old, as is usual
            reported, offered = rig.reported(partial(_is_bad, which)), rig.offered(7)
            started_s = time.perf_counter()
            breaks(which)
            samples.add(f"{what} → ConfigMap", await seen(reported, "it is reported") - started_s)
            samples.add(f"{what} → allocatable 7", await seen(offered, "it is not offered") - started_s)
            chips.repair(which)
            await asyncio.to_thread(node.wait_until_allocatable)
            await asyncio.to_thread(node.wait_until, lambda: node.report().free == ALL, "all are reported")

    async def restart(change: Callable[[], None]) -> None:
        with run.doing("restart the plugin"):
            await asyncio.to_thread(node.plugin.process.stop)
            chips.repair_all()
            change()
            await asyncio.to_thread(node.start_plugin)

    await series("fault by event", size.faults, chips.fail)
    await series("card dropped", size.faults, chips.drop)
    await restart(chips.lose_events)
    await series("event lost", size.faults, chips.fail)
    await restart(chips.refuse_events)
    await series("fault by polling", size.faults, chips.fail)
    await restart(chips.repair_all)


def _is_bad(chip: int, _free: ChipSet, unhealthy: ChipSet) -> bool:
    return unhealthy == 1 << chip


async def _kubelet(rig: PluginRig, rng: random.Random, samples: _Samples) -> None:
    node = rig.node
    socket = node.node.device_plugin_dir / "kubelet.sock"
    if not node.ledger():
        await asyncio.to_thread(node.place, "holds", 2, 3)
        await asyncio.to_thread(node.check, "holds", 2, 3)
    before = identity(socket)
    await asyncio.to_thread(node.node.kubelet.kill)
    await asyncio.sleep(0.5 + rng.uniform(0, 0.5))
    await asyncio.to_thread(node.node.kubelet.start)
    await another(socket, before)
    offered = rig.offered(8)
    there_s, there_at_s = time.perf_counter(), time.time()
    while (registered_s := rig.registered_s(there_s - 0.5)) is None:  # noqa: ASYNC110 - another process's log
        await asyncio.sleep(_POLL_S)
    samples.add("kubelet.sock → registered", registered_s - there_s)
    samples.add("kubelet.sock → watched", await watched_s(node, there_at_s) - there_at_s)
    samples.add("kubelet.sock → allocatable 8", max(0.0, await seen(offered, "the chips are offered") - there_s))
    await asyncio.to_thread(node.wait_until, partial(_has, node), "the kubelet knows its pod")
    await asyncio.to_thread(node.check, "holds", 2, 3)
    await asyncio.sleep(11.0)  # so that each restart counts as a single one


def _has(node: PluginNode) -> bool:
    return node.node.server.answers("/healthz") and ("holds", "main") in node.ledger()


def _outcome(size: _Size, samples: _Samples) -> Outcome:
    shown = table("row", "n", "median", "worst", "reference", "worst", "heading")
    for row, values in sorted(samples.rows.items(), key=_order):
        said = REFERENCE.get(row)
        plain = any(unit in row for unit in ("MiB", "%", "per min", "requests"))
        told = _number if plain else _seconds
        quoted: Sequence[str] = (
            (told(said.median), "" if said.worst is None else told(said.worst), said.section)
            if said is not None
            else ("", "", "")
        )
        shown.add_row(row, str(len(values)), told(p50(values)), told(max(values)), *quoted)
    outcome = Outcome(raw=dict[str, Any](samples.rows))
    outcome.show(
        "plugin: on a real kubelet with the fake driver of 8 × 910B3, under the reference's conditions",
        shown,
        "reference: docs/spec/measurements.md, quoted; ∞: not within 40 s.",
        "Allocate: mean of the kubelet's histogram; the limit of its p99 is a bucket's bound.",
        "allocatable: includes up to 1 s of the kubelet's own delay, so the median is no guarantee.",
        *NOTES,
        *samples.notes,
        *(() if size is _FULL else ("Quick: these numbers mean little.",)),
    )
    return outcome


def _order(item: tuple[str, list[float]]) -> int:
    names = list(REFERENCE)
    row = item[0].removesuffix(", p99 at most")
    return names.index(row) if row in names else len(names)


def _seconds(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def _number(value: float) -> str:
    return f"{value:.1f}" if value % 1 else f"{value:.0f}"
