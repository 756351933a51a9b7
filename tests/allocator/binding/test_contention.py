"""Many gangs in each other's way, because of CPU that the allocator does not know, start one after the other."""

import pytest

from ascend.annotations import MIN_AVAILABLE
from tests.allocator.binding.simulation import Case, Demand, Simulation
from tests.allocator.builders import GROUP, pod

SIZE = 4


def contenders(number: int, *, nodes: int, impossible: int = 0) -> Case:
    """Gangs whose pods fit in twos on a node by chips, but not by CPU; the first ones never fit."""
    names = frozenset(f"n{each}" for each in range(nodes))
    gangs = []
    for each in range(number):
        annotations, since = {GROUP: f"g{each}", MIN_AVAILABLE: str(SIZE)}, f"2026-01-01T00:00:{each:02}Z"
        pods = [pod(f"g{each}-{rank}", 4, annotations=annotations, since=since) for rank in range(SIZE)]
        cpus = [9 if each < impossible and rank == SIZE - 1 else 4 for rank in range(SIZE)]
        gangs.append([Demand(one, 4, cpu, names) for one, cpu in zip(pods, cpus, strict=True)])
    return Case(dict.fromkeys(names, 6), gangs)


async def starts(case: Case, limit_s: float) -> list[int]:
    """The gangs in the order in which they have started until a time; they end at once."""
    simulation = Simulation(case, cycles=40, earmark_share=0.5)
    # All first pods are created before the second ones, and so on.
    ranks = (gang[rank].pod.uid for rank in range(SIZE) for gang in case.gangs)
    simulation.queue = {uid: simulation.queue[uid] for uid in ranks}
    started: list[int] = []
    while simulation.now_s < limit_s:
        await simulation.run(0.25)
        for number, gang in enumerate(case.gangs):
            if number not in started and simulation.started(gang) == SIZE:
                started.append(number)
                simulation.end(gang)
    await simulation.close()
    return started


@pytest.mark.parametrize("nodes", [4, 8])
async def test_most_gangs_wait_for_their_turn_without_a_try_in_vain(nodes: int) -> None:
    # A try in vain takes 5 s; only the first ones, which find the cluster empty, have one.
    started = await starts(contenders(10, nodes=nodes), 25)
    assert sorted(started) == list(range(10))
    waited = [number for number in started if number > 3]
    assert waited == sorted(waited)  # the oldest first


async def test_gangs_that_never_start_do_not_keep_the_others_waiting_for_long() -> None:
    started = await starts(contenders(8, nodes=4, impossible=2), 60)
    assert sorted(started) == list(range(2, 8))
