"""Measure how soon the chips of a deleted pod are free: for the allocator's next decision, and in the node's report."""

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

import grpc

from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.kube.objects import CONFIG_MAPS, ConfigMap
from ascend.products import ASCEND_910A
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from tests.bench.observations import PATIENCE_S, Observations, seen, watching
from tests.bench.outcome import Outcome, Run, ms, p50, table
from tests.bench.rig import NODE, Rig, one_node, some_chips

if TYPE_CHECKING:
    from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorAsyncStub

_FULL: Final = 20
_QUICK: Final = 1
_LONGEST_LIFE_S: Final = 1.5
_POLL_S: Final = 0.0005


async def measure(run: Run) -> Outcome:
    times = _QUICK if run.quick else _FULL
    rng = random.Random(run.seed)
    allocator: list[float] = []
    report: list[float] = []
    async with (
        one_node(seed=run.seed, with_allocator=True) as rig,
        watching(rig.client, CONFIG_MAPS, NAMESPACE) as reports,
        grpc.aio.insecure_channel(rig.grpc_address) as channel,
    ):
        stub: AllocatorAsyncStub = AllocatorStub(channel)
        for number in run.steps("pods deleted", times + 1):
            allocator_s, report_s = await _one(rig, reports, stub, number, rng)
            if number:  # the first one is a warm-up
                allocator.append(allocator_s)
                report.append(report_s)
    shown = table("seen by", "n", "p50 ms", "max ms")
    for reader, samples in (("the allocator (GetState)", allocator), ("the node's ConfigMap", report)):
        shown.add_row(reader, str(len(samples)), ms(p50(samples)), ms(max(samples)))
    outcome = Outcome(raw={"allocator, s": allocator, "report, s": report})
    outcome.show(
        "freed: from the removal of a pod from the API server until its chips are seen free",
        shown,
        f"Pods of 1/2/4/8 chips, deleted up to {_LONGEST_LIFE_S:g} s after the report showed them taken.",
        "The report is written at most once a second.",
    )
    return outcome


async def _one(
    rig: Rig, reports: Observations[ConfigMap], stub: "AllocatorAsyncStub", number: int, rng: random.Random
) -> tuple[float, float]:
    chips = some_chips(rng, ASCEND_910A.requests[number % len(ASCEND_910A.requests)])
    pod = await rig.create(f"freed-{number}", len(chips))
    shown = reports.when(lambda each, _gone: _taken(each) == len(chips))
    await rig.bind(pod, chips)
    await seen(shown, f"the report shows the chips of {pod.key} taken")
    await asyncio.sleep(rng.uniform(0, _LONGEST_LIFE_S))
    assert await _held(stub) == len(chips)
    freed = reports.when(lambda each, _gone: _taken(each) == 0)
    (gone_s,) = await rig.delete(pod)
    async with asyncio.timeout(PATIENCE_S):
        while await _held(stub):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(_POLL_S)
    allocator_s = time.perf_counter() - gone_s
    return allocator_s, await seen(freed, f"the report shows the chips of {pod.key} free") - gone_s


async def _held(stub: "AllocatorAsyncStub") -> int:
    """The number of chips the allocator counts as held."""
    state = await stub.GetState(pb.GetStateRequest(nodes=[NODE]))
    return sum(bool(chip.holders) for chip in state.nodes[0].chips)


def _taken(report: ConfigMap) -> int | None:
    """The number of chips that are not free in the node's report; None for another ConfigMap."""
    if report.name != config_map_name(NODE):
        return None
    return ASCEND_910A.chips - decode_report(report.data).free.bit_count()
