"""Measure the plugin's answers to the kubelet and the time from Binding to claim: a plugin process on the sandbox."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from ascend.products import ASCEND_910A
from sandbox.kubelet.endpoint import Endpoint
from tests.bench.observations import seen
from tests.bench.outcome import Outcome, Run, ms, p50, p99, table
from tests.bench.rig import Rig, one_node, some_chips

_FULL: Final = (400, 40)
_QUICK: Final = (12, 2)
_WARM_UP: Final = 8
_AT_ONCE: Final = ASCEND_910A.chips


@dataclass(slots=True)
class _Times:
    """Seconds, one per pod."""

    prefer: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)

    def clear(self) -> None:
        for each in (self.prefer, self.allocate, self.claimed):
            each.clear()

    @property
    def both_calls(self) -> list[float]:
        """Both calls of each pod together: the kubelet makes them one after the other, for one pod at a time."""
        return [sum(pair) for pair in zip(self.prefer, self.allocate, strict=True)]


async def measure(run: Run) -> Outcome:
    singles, batches = _QUICK if run.quick else _FULL
    rng = random.Random(run.seed)
    alone, at_once = _Times(), _Times()
    async with one_node(seed=run.seed) as rig:
        with _stopwatch(alone):
            for number in run.steps("one pod after another", singles + _WARM_UP):
                if number == _WARM_UP:
                    alone.clear()
                await _one(rig, number, rng, alone)
        with _stopwatch(at_once):
            for number in run.steps(f"{_AT_ONCE} pods at once", batches + 1):
                if number == 1:
                    at_once.clear()
                await _all_at_once(rig, number, rng, at_once)
    spans = ("prefer", "Allocate", "both", "bind→claim")
    shown = table("pods", "n", *(head for span in spans for head in (f"{span}\np50", "\np99")))
    outcome = Outcome()
    for what, times in (("one by one, 1/2/4/8", alone), (f"{_AT_ONCE} at once, 1 chip", at_once)):
        columns = (times.prefer, times.allocate, times.both_calls, times.claimed)
        shown.add_row(what, str(len(times.claimed)), *(ms(f(column)) for column in columns for f in (p50, p99)))
        outcome.raw[f"{what}, prefer, s"] = times.prefer
        outcome.raw[f"{what}, allocate, s"] = times.allocate
        outcome.raw[f"{what}, claimed, s"] = times.claimed
    outcome.show(
        "allocate: a device plugin process, called by the sandbox's kubelet over its unix socket; ms",
        shown,
        "prefer: GetPreferredAllocation; it waits for the plugin's own watch to show the pod.",
        "bind→claim: from the start of POST Binding until a watch shows AscendReal on the pod. 8 at once: the kubelet",
        "admits one pod at a time, so the last one waits for seven others.",
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
    await rig.delete(pod)


async def _all_at_once(rig: Rig, number: int, rng: random.Random, times: _Times) -> None:
    chips = rng.sample(range(_AT_ONCE), _AT_ONCE)
    pods = [await rig.create(f"at-once-{number}-{which}", 1) for which in range(_AT_ONCE)]
    claimed = [rig.claimed(pod, (chip,)) for pod, chip in zip(pods, chips, strict=True)]
    started = []
    for pod, chip in zip(pods, chips, strict=True):
        started.append(time.perf_counter())
        await rig.bind(pod, (chip,))
    for pod, observation, started_s in zip(pods, claimed, started, strict=True):
        times.claimed.append(await seen(observation, f"{pod.key} is claimed") - started_s)
    await rig.delete(*pods)


@contextmanager
def _stopwatch(times: _Times) -> Iterator[None]:
    """Time the calls at the kubelet's end of the socket."""
    with (
        patch.object(Endpoint, "prefer", _timed(Endpoint.prefer, times.prefer)),
        patch.object(Endpoint, "allocate", _timed(Endpoint.allocate, times.allocate)),
    ):
        yield


def _timed(call: Callable[..., Awaitable[Any]], into: list[float]) -> Callable[..., Awaitable[Any]]:
    async def timed(*arguments: Any) -> Any:
        started_s = time.perf_counter()
        answer = await call(*arguments)
        into.append(time.perf_counter() - started_s)
        return answer

    return timed
