"""Gangs that can't start, whatever the reason, keep neither chips nor turns from others."""

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.gangs.resting import SHARE
from tests.allocator.binding.impossible import CPU, EXCLUDING, IDLE_KINDS, KINDS, Queue, demand, good
from tests.allocator.binding.simulation import CHIPS, LABELS, Demand
from tests.allocator.builders import node, pod

BOUND_S = 30.0
LATE_S = 300
"""How long after it can start a gang may take while pods come all the time that fit on its chips."""
TAKING_TURNS = ["last-elsewhere", "exclusive", "both"]
"""Kinds of which one gets the chips that gangs of the others release."""
TOGETHER = [kind for kind in KINDS if kind != "last-elsewhere"]
"""Nodes are kept for gangs that lack chips elsewhere (docs/gangs.md): that adds to a try of this kind."""
OLDER_S = 150
"""How much longer for each older gang that can't start: nodes drain for it, twice if the gang has tried as well."""


@pytest.mark.parametrize(
    ("count", "kinds", "after_s"),
    [
        *((12, [kind], after_s) for kind in KINDS for after_s in (3, 60)),
        *((number, TAKING_TURNS, 3) for number in (12, 100)),
        (100, TOGETHER, 3),
        *(
            pytest.param(100, kinds, after_s, marks=pytest.mark.long)
            for kinds in (TOGETHER, *([kind] for kind in KINDS))
            for after_s in (3, 60)
            if (kinds, after_s) != (TOGETHER, 3)
        ),
    ],
)
async def test_a_gang_that_fits_on_what_is_free_starts_within_30_s(
    count: int, kinds: list[str], after_s: float
) -> None:
    queue = Queue([kinds[number % len(kinds)] for number in range(count)], nodes=2)
    await queue.simulation.run(after_s)
    assert await queue.seconds_until_start(good(1, 2, 8, queue.names)) <= BOUND_S
    assert await queue.seconds_until_start(good(2, 1, 8, queue.names)) <= BOUND_S
    assert await queue.seconds_until_start(good(3, 4, 4, queue.names)) <= BOUND_S
    await queue.simulation.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_gangs_that_cannot_start_keep_no_chips_after_a_minute(kind: str) -> None:
    queue = Queue([kind] * 12, nodes=2)
    await queue.simulation.run(60)
    for _ in range(60):
        await queue.simulation.run(5)
        assert queue.kept == 0
    await queue.simulation.close()


@settings(max_examples=15)
@given(
    kinds=st.lists(st.sampled_from(IDLE_KINDS), max_size=3),
    durations_s=st.lists(st.integers(4, 30), min_size=4, max_size=4),
    pause_s=st.integers(1, 6),
    obstacle_s=st.integers(5, 90),
)
def test_a_gang_that_has_tried_in_vain_starts_although_pods_come_that_fit_on_its_chips(
    kinds: list[str], durations_s: list[int], pause_s: int, obstacle_s: int
) -> None:
    """Pods that need whole nodes come all the time, older gangs can't start; the CPU that the gang lacks gets free."""

    async def check() -> None:
        queue = Queue([], nodes=4, cycles=8)
        simulation, blocking = queue.simulation, Demand(pod("blocks", None), 0, CPU - 1, queue.names)
        late = [demand("late", rank, 2, CHIPS, queue.names, since="2026-01-02T00:00:00Z") for rank in range(2)]
        late[1].cpu = CPU
        blocks = [replace(blocking, pod=pod(f"blocks-{number}", None)) for number in range(4)]
        simulation.thieves = [(0.0, each) for each in blocks]
        await simulation.run(2)
        queue.add(kinds)
        await simulation.run(2)
        simulation.add(late)
        running: list[tuple[float, Demand]] = []
        for second in range(obstacle_s + LATE_S + OLDER_S * len(kinds)):
            if second == obstacle_s:
                for each in blocks:
                    simulation.end_plain(each)
            if second % pause_s == 0 and sum(end_s == math.inf for end_s, _ in running) < 4:
                coming = demand(
                    f"comes-{second}", 0, 1, CHIPS, queue.names, since=f"2026-01-03T00:{second // 60:02}:00Z"
                )
                simulation.add([coming])
                running.append((math.inf, coming))
            await simulation.run(1)
            for number, (end_s, each) in enumerate(running):
                if end_s == math.inf and simulation.started([each]):
                    running[number] = second + durations_s[number % 4], each
            for _, each in [entry for entry in running if entry[0] <= second]:
                simulation.end([each])
            running = [entry for entry in running if entry[0] > second]
            if simulation.started(late) == 2:
                break
        assert simulation.started(late) == 2
        await simulation.close()

    asyncio.run(check())


@pytest.mark.parametrize("ends_each_s", [pytest.param(0, marks=pytest.mark.long), 2])
async def test_gangs_whose_pods_exclude_each_other_keep_few_chips_after_their_first_tries(ends_each_s: int) -> None:
    queue = Queue(EXCLUDING * 2, nodes=2)
    await queue.simulation.run(120)
    kept = 0
    for second in range(900):
        if ends_each_s and second % ends_each_s == 0:
            queue.end_pod()
        await queue.simulation.run(1)
        kept += queue.kept
    one_try = CHIPS * 15
    assert kept <= SHARE * 2 * CHIPS * 900 + one_try
    await queue.simulation.close()


@pytest.mark.parametrize("count", [1, 12])
async def test_a_gang_starts_in_time_once_a_node_comes_that_it_lacked(count: int) -> None:
    queue = Queue(["exclusive"] * count, nodes=2)
    simulation = queue.simulation
    for each in simulation.demands.values():
        each.tolerated = frozenset(["n0", "n1", "n2"])
    await simulation.run(300)
    simulation.case.cpu["n2"] = CPU
    simulation.rig.world.add(node("n2", labels=LABELS))
    simulation.wake()
    await simulation.run(BOUND_S)
    assert max(map(simulation.started, simulation.case.gangs)) == 3
    assert sum(map(simulation.started, simulation.case.gangs)) == 3
    await simulation.close()


async def test_a_gang_starts_in_time_once_it_can_although_a_pod_waits_for_a_node_that_is_full() -> None:
    queue = Queue(["exclusive"], nodes=2)
    simulation, full = queue.simulation, frozenset(["full"])
    for each in simulation.demands.values():
        each.tolerated = frozenset(["n0", "n1", "n2"])
    simulation.case.cpu["full"] = CPU
    simulation.rig.world.add(node("full", labels=LABELS))
    simulation.add([demand("runs", 0, 1, CHIPS, full)])
    await simulation.run(1)
    simulation.add([demand("waits", 0, 1, CHIPS, full)])
    await simulation.run(300)
    simulation.case.cpu["n2"] = CPU
    simulation.rig.world.add(node("n2", labels=LABELS))
    simulation.wake()
    await simulation.run(BOUND_S)
    assert simulation.started(simulation.case.gangs[0]) == 3
    await simulation.close()


@settings(max_examples=15)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    cycles=st.sampled_from([4, 8, 20, 40]),
    is_eager=st.booleans(),
    counts_bindings=st.booleans(),
    nodes=st.integers(2, 4),
    size=st.integers(1, 3),
    chips=st.sampled_from([1, 4, 8]),
    after_s=st.integers(1, 90),
)
def test_whatever_waits_a_gang_that_fits_starts_within_30_s(
    kinds: list[str],
    nodes: int,
    *,
    size: int,
    chips: int,
    after_s: int,
    cycles: int,
    is_eager: bool,
    counts_bindings: bool,
) -> None:
    """However fast its scheduler is, and however long it waits before it tries a pod again."""

    async def check() -> None:
        queue = Queue(kinds, nodes, cycles=cycles, is_eager=is_eager, counts_bindings=counts_bindings)
        await queue.simulation.run(after_s)
        pods = good(0, size, chips, queue.names)
        if queue.simulation.case.fits(pods, queue.simulation.bound):
            assert await queue.seconds_until_start(pods) <= BOUND_S
        await queue.simulation.close()

    asyncio.run(check())
