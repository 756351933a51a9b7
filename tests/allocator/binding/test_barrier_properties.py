"""Gangs on random clusters with CPU and taints unknown to the allocator, with a scheduler like kube-scheduler."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.settings import Settings
from ascend.annotations import MIN_AVAILABLE
from tests.allocator.binding.simulation import Case, Demand, Simulation
from tests.allocator.builders import GROUP, pod


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Clusters and gangs whose pods may tolerate different nodes."""
    names = [f"n{number}" for number in range(draw(st.integers(2, 4)))]
    cpu = {name: draw(st.integers(4, 10)) for name in names}
    gangs = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(2, 3))
        same, priority = draw(st.booleans()), draw(st.sampled_from([0, 0, 1]))
        chips, cpus = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 5))
        some = st.one_of(st.just(frozenset(names)), st.frozensets(st.sampled_from(names), min_size=1))
        demands = []
        for rank in range(size):
            if not same:
                cpus = draw(st.integers(1, 5))
            tolerated = draw(some)
            annotations = {GROUP: f"g{number}", MIN_AVAILABLE: str(size)}
            since = f"2026-01-0{number + 1}"
            each = pod(
                f"g{number}-{rank}",
                chips,
                annotations=annotations,
                since=since,
                priority=priority,
                tolerations=" ".join(sorted(tolerated)),
                requirements=hash((cpus, tolerated)),
            )
            demands.append(Demand(each, chips, cpus, tolerated))
        gangs.append(demands)
    return Case(cpu, gangs)


@given(case=cases())
def test_every_gang_starts_whole_or_not_at_all_and_none_waits_for_ever(case: Case) -> None:
    async def check() -> None:
        simulation = Simulation(case)
        for _ in range(40):
            await simulation.run(30)
            partly = [gang for gang in case.gangs if 0 < simulation.started(gang) < len(gang)]
            assert not partly or simulation.bindings, "a gang has started in part"
            waiting = [gang for gang in case.gangs if simulation.started(gang) < len(gang)]
            if not any(case.fits(gang, simulation.bound) for gang in waiting):
                break
        else:
            raise AssertionError("a gang that fits has not started in 20 minutes")
        await simulation.close()

    asyncio.run(check())


@given(case=cases())
def test_every_gang_that_fits_the_empty_cluster_starts_when_the_others_have_ended(case: Case) -> None:
    async def check() -> None:
        simulation = Simulation(case, earmark_share=1.0)
        waiting = [gang for gang in case.gangs if case.fits(gang, {})]
        for _ in range(80):
            await simulation.run(30)
            for gang in [gang for gang in waiting if simulation.started(gang) == len(gang)]:
                waiting.remove(gang)
                simulation.end(gang)
            if not waiting:
                break
        else:
            raise AssertionError("a gang has not started in 40 minutes")
        await simulation.close()

    asyncio.run(check())


@dataclass(frozen=True)
class SlowCase:
    """What a simulation is made of; a simulation itself would grow in reports of failures."""

    case: Case
    hold_s: float
    clears: bool
    thieves: list[tuple[float, Demand]]


@st.composite
def slow_cases(draw: st.DrawFn) -> SlowCase:
    """A gang whose pods a scheduler does not filter within the time of a hold, another one, and pods without chips."""
    names = [f"n{number}" for number in range(draw(st.integers(2, 4)))]
    cpu = {name: draw(st.integers(4, 12)) for name in names}
    gangs = []
    for number in range(draw(st.integers(1, 2))):
        size, chips, cpus = draw(st.integers(2, 8)), draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
        annotations = {GROUP: f"g{number}", MIN_AVAILABLE: str(size)}
        since = f"2026-01-0{number + 1}"
        pods = [pod(f"g{number}-{rank}", chips, annotations=annotations, since=since) for rank in range(size)]
        gangs.append([Demand(each, chips, cpus, frozenset(names)) for each in pods])
    times = draw(st.lists(st.floats(0, 30), max_size=4))
    priorities = st.sampled_from([0, 0, -1])  # what a pod of higher priority takes is its own
    thieves = [
        (
            since_s,
            Demand(
                pod(f"thief-{number}", None, priority=draw(priorities)), 0, draw(st.integers(1, 6)), frozenset(names)
            ),
        )
        for number, since_s in enumerate(times)
    ]
    return SlowCase(Case(cpu, gangs), draw(st.sampled_from([1.0, 2.0, 4.0])), draw(st.booleans()), thieves)


@given(slow=slow_cases())
def test_a_gang_with_room_starts_whole_although_holds_end_before_its_scheduler_is_done(
    slow: SlowCase,
) -> None:
    async def check() -> None:
        case = slow.case
        simulation = Simulation(case, hold_s=slow.hold_s, clears=slow.clears, thieves=slow.thieves)
        for _ in range(600):
            await simulation.run(2)
            assert not simulation.oversubscribed()
            waiting = [gang for gang in case.gangs if simulation.started(gang) < len(gang)]
            if simulation.now_s > 40 and not any(case.fits(gang, simulation.bound) for gang in waiting):
                break
        else:
            raise AssertionError("a gang that fits has not started in 20 minutes")
        partly = [gang for gang in case.gangs if 0 < simulation.started(gang) < len(gang)]
        assert not partly or simulation.bindings, "a gang has started in part"
        await simulation.close()

    asyncio.run(check())


async def test_no_pod_is_given_up_while_a_scheduler_takes_more_than_a_minute_for_several_gangs() -> None:
    names = [f"n{number}" for number in range(32)]
    gangs = [
        [
            Demand(each, 1, 1, frozenset(names))
            for rank in range(64)
            for each in [pod(f"g{number}-{rank}", 1, annotations={GROUP: f"g{number}", MIN_AVAILABLE: "64"})]
        ]
        for number in range(4)
    ]
    simulation = Simulation(Case(dict.fromkeys(names, 64), gangs), hold_s=Settings().gang_hold_s)
    for gang in gangs:
        for rank, each in enumerate(gang):
            simulation.queue[each.pod.uid].due_s = rank - len(gang)  # those of all gangs in turn
    tried = set[str]()
    while simulation.queue:
        await simulation.run(1)
        assert not tried & simulation.queue.keys(), "a pod is tried again"
        tried = simulation.demands.keys() - simulation.queue.keys()
    await simulation.run(2)
    assert [simulation.started(gang) for gang in gangs] == [64] * 4
    assert simulation.now_s < 70
    await simulation.close()


@pytest.mark.parametrize("priority", [-1, 0, 1])
async def test_a_gang_whose_pods_differ_is_tried_until_each_is_where_it_fits(priority: int) -> None:
    nodes, annotations = frozenset(["n0", "n1"]), {GROUP: "mixed", MIN_AVAILABLE: "3"}
    mixed = [
        Demand(pod(f"mixed-{rank}", 4, annotations=annotations, since="2026-01-01", priority=priority), 4, cpu, nodes)
        for rank, cpu in enumerate((2, 5, 1))
    ]
    annotations = {GROUP: "small", MIN_AVAILABLE: "2"}
    small = [
        Demand(pod(f"small-{rank}", 1, annotations=annotations, since="2026-01-02"), 1, 1, nodes) for rank in (0, 1)
    ]
    simulation = Simulation(Case({"n0": 6, "n1": 4}, [mixed, small]))
    await simulation.run(300)
    assert simulation.started(mixed) == 3
    await simulation.close()


async def test_a_gang_whose_pods_differ_is_tried_with_others_of_them_on_a_node() -> None:
    """The pod that needs all CPU of a node has to be planned first, and on the only node that another one leaves."""
    nodes, annotations = frozenset(["n0", "n1"]), {GROUP: "mixed", MIN_AVAILABLE: "3"}
    mixed = [
        Demand(
            pod(f"mixed-{rank}", 4, annotations=annotations, tolerations=" ".join(sorted(tolerated))), 4, cpu, tolerated
        )
        for rank, (cpu, tolerated) in enumerate([(1, nodes), (4, nodes), (1, frozenset(["n1"]))])
    ]
    simulation = Simulation(Case({"n0": 4, "n1": 4}, [mixed]), earmark_share=1.0)
    await simulation.run(300)
    assert simulation.started(mixed) == 3
    await simulation.close()
