"""Gangs that can't start, whatever the reason, keep neither chips nor turns from others."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.rules.vacancy import Vacancy
from allocator.state.node import NodeRecord
from ascend.annotations import MIN_AVAILABLE
from tests.allocator.binding.simulation import CHIPS, Case, Demand, Simulation
from tests.allocator.builders import GROUP, gated, pod

CPU = 8
NOWHERE = frozenset[str]()


def demand(gang: str, rank: int, size: int, chips: int, nodes: frozenset[str]) -> Demand:
    annotations = {GROUP: gang, MIN_AVAILABLE: str(size)} if size > 1 else {}
    return Demand(pod(f"{gang}-{rank}", chips, annotations=annotations), chips, 1, nodes)


def impossible(kind: str, number: int, nodes: frozenset[str], chips: int = 4) -> list[Demand]:
    """A gang of two of which the second can't start, or both can't together."""
    name = f"{kind}-{number}"
    first, second = (demand(name, rank, 2, chips, nodes) for rank in range(2))
    match kind:
        case "cpu":
            second.cpu = CPU + 1
        case "taint" | "claim":
            second.tolerated = NOWHERE
        case "gate":
            second.pod = gated(second.pod, "kueue.x-k8s.io/admission")
        case "scheduler":
            second.is_tried = False
        case "both":
            only = frozenset([min(nodes)])
            first.cpu = second.cpu = CPU // 2 + 1
            first.tolerated = second.tolerated = only
        case _:
            raise AssertionError(kind)
    return [first, second]


KINDS = ["cpu", "taint", "claim", "gate", "scheduler", "both"]


class Queue:
    """A cluster without running pods on which gangs wait that can't start."""

    def __init__(self, kinds: Sequence[str], nodes: int) -> None:
        self.names = frozenset(f"n{number}" for number in range(nodes))
        gangs = [impossible(kind, number, self.names) for number, kind in enumerate(kinds)]
        self.simulation = Simulation(Case(dict.fromkeys(self.names, CPU), gangs), cycles=10, earmark_share=0.5)

    async def seconds_until_start(self, pods: list[Demand], limit_s: int = 120) -> float:
        """How long pods wait that fit on what is free; they end at once."""
        self.simulation.add(pods)
        begin_s = self.simulation.now_s
        while self.simulation.started(pods) < len(pods):
            await self.simulation.run(0.25)
            if self.simulation.now_s - begin_s > limit_s:
                break
        waited_s = self.simulation.now_s - begin_s
        if waited_s <= limit_s:
            self.simulation.end(pods)
        return waited_s

    @property
    def kept(self) -> int:
        """The number of chips that nobody may use although no pod runs."""
        return sum(CHIPS - free(record) for record in self.simulation.rig.world.cluster.nodes.values())


def free(record: NodeRecord) -> int:
    assert isinstance(record.offer, Vacancy)
    return record.offer.free.bit_count()


def good(number: int, size: int, chips: int, nodes: frozenset[str]) -> list[Demand]:
    return [demand(f"good-{number}", rank, size, chips, nodes) for rank in range(size)]


@pytest.mark.parametrize("count", [12, 100])
@pytest.mark.parametrize("kinds", [KINDS[:-1], *([kind] for kind in KINDS[:-1])], ids=",".join)
async def test_a_gang_that_fits_on_what_is_free_starts_within_30_s(count: int, kinds: list[str]) -> None:
    queue = Queue([kinds[number % len(kinds)] for number in range(count)], nodes=2)
    await queue.simulation.run(60)
    await check_starts(queue)


async def test_gangs_whose_pods_exclude_each_other_keep_others_waiting_only_for_their_first_try() -> None:
    queue = Queue(["both"] * 12, nodes=2)
    await queue.simulation.run(120)  # each is tried once: nothing else tells that they can't start
    await check_starts(queue)


async def check_starts(queue: Queue) -> None:
    """Check that gangs and a single pod that fit start soon."""
    assert await queue.seconds_until_start(good(1, 2, 8, queue.names)) <= 30
    assert await queue.seconds_until_start(good(2, 1, 8, queue.names)) <= 30
    assert await queue.seconds_until_start(good(3, 4, 4, queue.names)) <= 30
    await queue.simulation.close()


@pytest.mark.parametrize("kind", KINDS[:-1])
async def test_gangs_that_cannot_start_keep_no_chips_after_a_minute(kind: str) -> None:
    queue = Queue([kind] * 12, nodes=4)
    await queue.simulation.run(60)
    for _ in range(60):
        await queue.simulation.run(5)
        assert queue.kept == 0
    await queue.simulation.close()


@settings(max_examples=15)
@given(
    # The first try of a gang of which no verdict tells anything holds chips for up to 20 s.
    kinds=st.lists(st.sampled_from(KINDS[:4]), min_size=1, max_size=12),
    nodes=st.integers(2, 4),
    size=st.integers(1, 3),
    chips=st.sampled_from([1, 4, 8]),
    after_s=st.integers(1, 90),
)
def test_whatever_waits_a_gang_that_fits_starts_within_30_s(
    kinds: list[str], nodes: int, size: int, chips: int, after_s: int
) -> None:
    async def check() -> None:
        queue = Queue(kinds, nodes)
        await queue.simulation.run(after_s)
        pods = good(0, size, chips, queue.names)
        if queue.simulation.case.fits(pods, {}):
            assert await queue.seconds_until_start(pods) <= 30
        await queue.simulation.close()

    asyncio.run(check())
