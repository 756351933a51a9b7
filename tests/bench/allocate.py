"""How long the kubelet waits for the device plugin and a pod for its chips: a plugin process on the sandbox."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from ascend.products import ASCEND_910A
from ascend.templates import RESOURCE_CORES
from sandbox.kubelet.endpoint import PluginEndpoint
from tests.bench.outcome import Outcome, Run, ms, p50, p99, table
from tests.bench.rig import Rig, one_node, some_chips
from tests.bench.sightings import seen

_FULL: Final = (400, 40)
_QUICK: Final = (12, 2)
_WARM_UP: Final = 8
_CROWD: Final = ASCEND_910A.chips
_PART: Final = "in turn, 5 AI cores"


@dataclass(slots=True)
class _Times:
    """Seconds, one per pod."""

    prefer: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)

    async def settle(self) -> None:
        """Wait for the answers that the kubelet is still receiving: the plugin writes a claim at the same time."""
        while len(self.allocate) < len(self.prefer):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.001)

    def clear(self) -> None:
        for each in (self.prefer, self.allocate, self.claimed):
            each.clear()

    @property
    def answered(self) -> list[float]:
        """Record both calls of a pod: the kubelet makes them one after the other, for one pod at a time."""
        return [sum(pair) for pair in zip(self.prefer, self.allocate, strict=True)]


async def measure(run: Run) -> Outcome:
    singles, crowds = _QUICK if run.quick else _FULL
    rng = random.Random(run.seed)
    alone, crowded = _Times(), _Times()
    async with one_node(seed=run.seed) as rig:
        with _stopwatch(alone):
            for number in run.steps("one pod after another", singles + _WARM_UP):
                if number == _WARM_UP:
                    alone.clear()
                await _one(rig, number, rng, alone)
        with _stopwatch(crowded):
            for number in run.steps(f"{_CROWD} pods at once", crowds + 1):
                if number == 1:
                    crowded.clear()
                await _crowd(rig, number, rng, crowded)
    parts = _Times()
    async with one_node(seed=run.seed, with_cores=True) as rig:
        with _stopwatch(parts):
            for number in run.steps("parts of chips, one after another", singles // 2 + _WARM_UP):
                if number == _WARM_UP:
                    parts.clear()
                await _part(rig, number, parts)
    spans = ("prefer", "Allocate", "both", "bind→claim")
    shown = table("pods", "n", *(head for span in spans for head in (f"{span}\np50", "\np99")))
    outcome = Outcome()
    for what, times in (("in turn, 1/2/4/8", alone), (f"{_CROWD} at once, 1 chip", crowded), (_PART, parts)):
        columns = (times.prefer, times.allocate, times.answered, times.claimed)
        shown.add_row(what, str(len(times.claimed)), *(ms(f(column)) for column in columns for f in (p50, p99)))
        outcome.raw[f"{what}, prefer, s"] = times.prefer
        outcome.raw[f"{what}, allocate, s"] = times.allocate
        outcome.raw[f"{what}, claimed, s"] = times.claimed
    outcome.show(
        "allocate: a device plugin process, called by the sandbox's kubelet over its unix socket; ms",
        shown,
        "prefer: GetPreferredAllocation; it waits for the plugin's own watch to show the pod.",
        "bind→claim: from the start of POST Binding until a watch shows AscendReal on the pod. 8 at once: the kubelet",
        "admits one pod at a time, so the last waits for seven others.",
        f"{_PART}: with the creation of a vNPU, which the simulated driver does in no time: the plugin's own part.",
    )
    return outcome


async def _one(rig: Rig, number: int, rng: random.Random, times: _Times) -> None:
    count = ASCEND_910A.requests[number % len(ASCEND_910A.requests)]
    chips = some_chips(rng, count)
    pod = await rig.create(f"single-{number}", count)
    claimed = rig.claimed(pod, chips)
    started_s = time.perf_counter()
    await rig.bind(pod, chips)
    times.claimed.append(await seen(claimed, f"{pod.key} is claimed") - started_s)
    await times.settle()
    await rig.delete(pod)


async def _part(rig: Rig, number: int, times: _Times) -> None:
    pod = await rig.create(f"part-{number}", 5, RESOURCE_CORES)
    claimed = rig.part_claimed(pod)
    started_s = time.perf_counter()
    await rig.bind_part(pod, number % _CROWD)
    times.claimed.append(await seen(claimed, f"{pod.key} is claimed") - started_s)
    await times.settle()
    await rig.delete(pod)


async def _crowd(rig: Rig, number: int, rng: random.Random, times: _Times) -> None:
    chips = rng.sample(range(_CROWD), _CROWD)
    pods = [await rig.create(f"crowd-{number}-{which}", 1) for which in range(_CROWD)]
    claimed = [rig.claimed(pod, (chip,)) for pod, chip in zip(pods, chips, strict=True)]
    started = []
    for pod, chip in zip(pods, chips, strict=True):
        started.append(time.perf_counter())
        await rig.bind(pod, (chip,))
    for pod, sighting, started_s in zip(pods, claimed, started, strict=True):
        times.claimed.append(await seen(sighting, f"{pod.key} is claimed") - started_s)
    await times.settle()
    await rig.delete(*pods)


@contextmanager
def _stopwatch(times: _Times) -> Iterator[None]:
    """Time the calls at the kubelet's end of the socket."""
    with (
        patch.object(PluginEndpoint, "prefer", _timed(PluginEndpoint.prefer, times.prefer)),
        patch.object(PluginEndpoint, "allocate", _timed(PluginEndpoint.allocate, times.allocate)),
    ):
        yield


def _timed(call: Callable[..., Awaitable[Any]], into: list[float]) -> Callable[..., Awaitable[Any]]:
    async def timed(*arguments: Any) -> Any:
        started_s = time.perf_counter()
        answer = await call(*arguments)
        into.append(time.perf_counter() - started_s)
        return answer

    return timed
