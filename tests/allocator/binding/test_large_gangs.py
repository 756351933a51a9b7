"""What the barrier does for a gang does not grow with the gang, or is done in many turns of the event loop."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from msgspec.structs import replace

from allocator.binding.barrier import AT_ONCE, STALLED_S
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Steps
from tests.allocator.binding.rig import BinderWorld
from tests.allocator.binding.test_barrier import gang, refused_by_its_scheduler
from tests.allocator.builders import node

pytestmark = pytest.mark.looptime


class Large:
    """A gang on as many nodes as it has pods."""

    def __init__(self, size: int) -> None:
        self.pods = gang("a", size)
        self.rig = BinderWorld(*self.pods)
        self.rig.world.add(*(node(f"m{number}") for number in range(size)))
        for each in self.pods:
            self.rig.world.engine.place(each)
        job = self.rig.world.engine.gang_of(self.pods[0])
        assert job is not None
        self.job = job
        self.calls: list[asyncio.Task[None]] = []

    async def ask(self, *pods: Pod) -> None:
        """Their scheduler asks to bind pods."""
        passed = self.rig.barrier.wait_for_gang
        self.calls += [asyncio.create_task(passed(each, self.job, is_repeated=True)) for each in pods]
        await asyncio.sleep(0)

    @property
    def stages(self) -> Counter[Stage | None]:
        return Counter(self.rig.stage(each.uid) for each in self.pods)

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)


@contextmanager
def counting() -> Iterator[list[str]]:
    """The functions of the allocator that are called within the block."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "/allocator/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("asked", [1, 30], ids=["few asked for", "many asked for"])
async def test_a_check_does_not_take_longer_for_a_large_gang(asked: int) -> None:
    calls = []
    for size in (40, 400):
        large = Large(size)
        await large.ask(*large.pods[: size * asked // 40])
        await large.rig.barrier.check()
        large.rig.world.now_s += STALLED_S - 1  # after its pods may be tried again
        with counting() as called:
            await large.rig.barrier.check()
        calls.append(called)
        assert large.stages[Stage.HELD] == size * asked // 40
        await large.close()
    assert calls[0] == calls[1]


async def test_a_binding_does_not_take_longer_for_a_large_gang() -> None:
    calls = []
    for size in (40, 400):
        large = Large(size)
        await large.ask(*large.pods[:-2])
        with counting() as called:
            await large.ask(large.pods[-2])
        calls.append(called)
        await large.close()
    assert calls[0] == calls[1]


async def test_the_bindings_of_a_large_gang_go_on_in_many_turns() -> None:
    large = Large(3 * AT_ONCE)
    await large.ask(*large.pods)
    turns = 0
    while (binding := large.stages[Stage.BINDING]) < len(large.pods):
        assert binding <= (turns + 1) * AT_ONCE
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2
    await asyncio.gather(*large.calls)


async def test_a_gang_that_has_begun_to_start_is_not_stopped_by_the_end_of_the_allocator() -> None:
    large = Large(3 * AT_ONCE)
    await large.ask(*large.pods)
    assert 0 < large.stages[Stage.BINDING] < len(large.pods)
    large.rig.barrier.close(Refusal(Reason.NOT_LEADER, "this allocator is stopping"))
    assert large.stages[Stage.BINDING] == len(large.pods)
    await asyncio.gather(*large.calls)


async def test_a_refusal_is_noticed_among_the_pods_of_a_large_gang() -> None:
    large = Large(40)
    await large.ask(*large.pods[:30])
    large.rig.world.add(refused_by_its_scheduler(large.pods[35]))
    for _ in range(4):
        large.rig.world.now_s += 1
        await large.rig.barrier.check()
    assert not large.stages[Stage.HELD]
    await large.close()


async def test_a_pod_that_is_bound_is_no_longer_refused() -> None:
    large = Large(4)
    await large.ask(*large.pods[:2])
    refused = refused_by_its_scheduler(large.pods[3])
    large.rig.world.add(refused)
    large.rig.world.add(replace(refused, spec=replace(refused.spec, node_name="m3")))
    for _ in range(4):
        large.rig.world.now_s += 1
        await large.rig.barrier.check()
    assert large.stages[Stage.HELD] == 2
    await large.close()


def calls_of_steps(steps: Steps[None]) -> Iterator[int]:
    """How many functions of the allocator each step calls."""
    is_done = False
    while not is_done:
        with counting() as called:
            is_done = next(steps, True) is True
        yield len(called)


def test_no_step_of_assigning_ranks_takes_longer_in_a_large_job() -> None:
    most = []
    for size in (400, 4_000):
        pods = gang("a", size)
        rig = BinderWorld(*pods)
        job = rig.world.cluster.jobs.job_of(pods[0])
        most.append(max(calls_of_steps(job.assign_ranks())))
        assert [rank for rank, _ in job.by_rank()] == list(range(size))
    assert most[1] < 2 * most[0]


def test_a_job_of_which_a_pod_goes_while_ranks_are_assigned_gets_different_ranks() -> None:
    pods = gang("a", 400)
    rig = BinderWorld(*pods)
    job = rig.world.cluster.jobs.job_of(pods[0])
    for number, _ in enumerate(job.assign_ranks()):
        rig.world.cluster.pod_deleted(pods[30 * number])
        rig.world.cluster.pod_deleted(pods[-1 - number])
    ranks = [rank for rank, _ in job.by_rank()]
    assert len(set(ranks)) == len(ranks) < len(pods)
