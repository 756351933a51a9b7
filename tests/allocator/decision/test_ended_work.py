"""What ends for a pod or a gang of higher priority: the least and least important work, by one rule for both."""

from collections.abc import Iterable
from itertools import chain, combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from allocator.decision.preemption import Preemption
from allocator.decision.tentative import Tentative
from allocator.rules.victims import Suggestion
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import GROUP, World, pod
from tests.allocator.cores import core_node, core_pod
from tests.allocator.decision.test_gang_preemption import answers, everywhere, gang, holder, world_of
from tests.allocator.vnpus import cut, cut_node, vnpu_pod


def of(job: str, minimum: int) -> dict[str, str]:
    return {GROUP: job, MIN_AVAILABLE: str(minimum)}


def running(
    job: str, nodes: Iterable[int], minimum: int, chips: Iterable[int] = range(8), priority: int = 1
) -> list[Pod]:
    """A gang with a pod on each of these nodes."""
    held, on = list(chips), list(nodes)
    return [holder(f"{job}-{number}", f"n{number}", held, priority, annotations=of(job, minimum)) for number in on]


async def ended_for(pods: list[Pod], nodes: int, *others: Pod) -> set[str]:
    """The pods that end for others, if these are the running ones."""
    world, preemption = world_of(nodes, *others, *pods)
    found = await answers(world, preemption, pods)
    return {name for names in found.values() for name in names}


async def both(nodes: int, *others: Pod, chips: int = 8) -> set[str]:
    """The pods that end for one pod of higher priority, which are also those that end for a gang."""
    alone = await ended_for([pod("urgent", chips, priority=9)], nodes, *others)
    # A gang of two, of which one pod runs: it lacks one.
    runs, lacks = gang(2, chips=chips)
    node = f"n{nodes}"
    held = holder(runs.name, node, range(chips), 9, annotations=runs.metadata.annotations)
    assert (
        await ended_for(
            [lacks], nodes + 1, held, holder("last", node, range(chips, 8), 99) if chips < 8 else held, *others
        )
        == alone
    )
    return alone


async def test_a_pod_alone_ends_rather_than_one_of_a_running_gang() -> None:
    assert await both(5, *running("big", range(4), 4), holder("lone", "n4", range(8))) == {"lone"}


async def test_eight_pods_of_one_chip_end_rather_than_a_gang_of_many() -> None:
    ones = [holder(f"one-{chip}", "n4", [chip]) for chip in range(8)]
    assert await both(5, *running("big", range(4), 4), *ones) == {each.name for each in ones}


async def test_one_pod_ends_rather_than_several_with_as_many_chips() -> None:
    assert await both(
        2, *(holder(f"one-{chip}", "n0", [chip]) for chip in range(8)), holder("lone", "n1", range(8))
    ) == {"lone"}


async def test_few_chips_end_rather_than_few_pods() -> None:
    ones = [holder(f"one-{chip}", "n1", [chip]) for chip in range(3)]
    kept = holder("important", "n1", range(4, 8), 99)
    assert await both(2, holder("lone", "n0", range(8)), *ones, kept, chips=4) == {each.name for each in ones}


async def test_less_important_work_ends_rather_than_a_little_less_work() -> None:
    assert await both(2, holder("low", "n0", range(8), 1), holder("high", "n1", range(7), 2)) == {"low"}
    # The highest priority first, then the chips, then what is less important of them.
    mixed = [holder("low", "n0", range(4), 1), holder("high-0", "n0", range(4, 8), 5)]
    assert await both(2, *mixed, holder("high-1", "n1", range(8), 5)) == {"low", "high-0"}


async def test_the_priority_of_the_job_of_a_pod_counts() -> None:
    low, high = running("mixed", [0], 2, priority=1), running("mixed", [1], 2, priority=5)
    assert await both(3, *low, *high, holder("lone", "n2", range(8), 4)) == {"lone"}
    important = running("mixed", [1], 2, priority=9)
    _, preemption = world_of(2, *low, *important)
    assert isinstance(preemption.victims(pod("urgent", 8, priority=9), "n0"), Refusal)


async def test_a_gang_that_keeps_its_minimum_loses_only_the_pod() -> None:
    elastic = running("elastic", range(4), 3, range(4))
    full = [holder(f"high-{number}", f"n{number}", range(4, 8), 99) for number in range(4)]
    lone = holder("lone", "n4", range(6))
    assert len(victims := await both(5, *elastic, *full, lone, chips=4)) == 1
    assert victims < {each.name for each in elastic}
    assert await ended_for(gang(2, chips=4), 5, *elastic, *full, lone) == {"lone"}  # two seats, for six chips
    assert await both(5, *running("rigid", range(4), 4, range(4)), *full, lone, chips=4) == {"lone"}


async def test_a_gang_takes_what_other_gangs_can_spare_and_ends_none() -> None:
    spare = [*running("a", range(3), 2), *running("b", range(3, 6), 2)]
    victims = await ended_for(gang(2), 6, *spare)
    assert len(victims) == 2
    assert {name[0] for name in victims} == {"a", "b"}
    # With three pods, one of both gangs ends; the third pod takes a seat there as well.
    victims = await ended_for(gang(3), 6, *spare)
    assert {len([name for name in victims if name.startswith(job)]) for job in "ab"} in ({1, 2}, {0, 3})


def test_within_a_node_as_between_nodes_also_for_volcano() -> None:
    big = [holder("big-0", "n0", range(4), annotations=of("big", 2)), *running("big", [1], 2)]
    ones = [holder(f"one-{chip}", "n0", [chip]) for chip in range(4, 8)]
    urgent = pod("urgent", 4, priority=9)
    world, preemption = world_of(2, *big, *ones, urgent)
    chosen = preemption.victims(urgent, "n0")
    assert not isinstance(chosen, Refusal)
    names = {each.name for each in ones}
    assert {each.uid.removeprefix("uid-") for each in chosen.victims} == names
    tentative = Tentative(world.cluster, world.ledger, world.engine)
    assert {uid.removeprefix("uid-") for uid in tentative.victims(urgent, "n0", [*big, *ones])} == names


def test_the_gang_of_a_pod_with_a_vnpu_counts_as_well() -> None:
    world = World(vnpus_per_job=0)
    parts = cut([0, 1])
    world.add(cut_node("n1", parts))
    world.add(*(vnpu_pod(f"gang-{n}", vnpu=parts[n], node="n1", annotations=of("gang", 2)) for n in range(2)))
    world.add(*(vnpu_pod(f"lone-{n}", vnpu=parts[n], node="n1", since="2025-01-01T00:00:00Z") for n in range(2, 8)))
    chosen = Preemption(world.cluster, world.ledger, world.engine).victims(vnpu_pod("urgent", priority=9), "n1")
    assert not isinstance(chosen, Refusal)
    assert [each.uid[:8] for each in chosen.victims] == ["uid-lone"]


async def test_the_gang_of_a_pod_with_ai_cores_counts_as_well() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1]), core_node("n2", chips=[0]))
    world.add(
        core_pod("gang-0", 10, has="0-vir10_3c_32g", node="n1", annotations=of("gang", 2)),
        core_pod("gang-1", 20, has="0", node="n2", annotations=of("gang", 2)),
        *(core_pod(f"five-{n}", 5, has="0-vir05_1c_16g", node="n1", since="2025-01-01T00:00:00Z") for n in range(2)),
        core_pod("lone", 20, has="1", node="n1", since="2025-01-01T00:00:00Z"),
    )
    preemption = Preemption(world.cluster, world.ledger, world.engine)

    async def victims(cores: int) -> set[str]:
        chosen = await preemption.improve(
            core_pod(f"urgent-{cores}", cores, priority=9), {"n1": Suggestion(), "n2": Suggestion()}
        )
        assert chosen is not None
        return {each.uid.removeprefix("uid-") for each in chosen.victims}

    assert await victims(20) == {"lone"}
    assert await victims(10) == {"five-0", "five-1"}


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[int, list[Pod]]:
    """A number of nodes, and pods that run there: alone, or of two gangs with any minimum."""
    nodes, pods = draw(st.integers(1, 4)), list[Pod]()
    jobs: dict[str, list[Pod]] = {}
    minima = {job: draw(st.integers(2, 4)) for job in ("a", "b")}
    for number in range(nodes):
        start = 0
        while start < 8:
            size = draw(st.sampled_from([each for each in (2, 4, 8) if start % each == 0 and start + each <= 8]))
            job = draw(st.sampled_from(["-", "", "", "a", "b"]))
            if job != "-":
                annotations = of(job, minima[job]) if job else {}
                name = f"p{number}-{start}"
                pods.append(
                    holder(
                        name, f"n{number}", range(start, start + size), draw(st.integers(0, 3)), annotations=annotations
                    )
                )
                jobs.setdefault(job or name, []).append(pods[-1])
            start += size
    for job, minimum in minima.items():
        assume(job not in jobs or len(jobs[job]) >= minimum)
    return nodes, pods


def _chips(each: Pod) -> int:
    return each.spec.containers[0].chips


def _job(each: Pod) -> str:
    return each.metadata.annotations.get(GROUP) or each.name


def _cost(pods: list[Pod], gone: Iterable[str]) -> tuple[int, int, int, int]:
    """The highest priority, the chips, how important these are, and the pods of what ends without some pods."""
    names = set(gone)
    highest, chips, importance, number = -1, 0, 0, 0
    for job in {_job(each) for each in pods if each.name in names}:
        all_of = [each for each in pods if _job(each) == job]
        ending = [each for each in all_of if each.name in names]
        if len(all_of) - len(ending) < int(all_of[0].metadata.annotations.get(MIN_AVAILABLE, "1")):
            ending = all_of
        priority = max(each.priority for each in all_of)
        highest = max(highest, priority)
        chips += sum(map(_chips, ending))
        importance += priority * sum(map(_chips, ending))
        number += len(ending)
    return highest, chips, importance, number


def _fit_without(nodes: int, pods: list[Pod], waiting: list[Pod], gone: Iterable[str]) -> bool:
    names = set(gone)
    world, _ = world_of(nodes, *(each for each in pods if each.name not in names), *waiting)
    try:
        world.engine.place(waiting[0])
    except Refusal:
        return False
    return True


def _subsets(names: list[str]) -> Iterable[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


@given(_clusters(), st.sampled_from((2, 4, 8)), st.integers(1, 4))
async def test_no_other_victims_on_any_node_cost_less_for_one_pod(
    drawn: tuple[int, list[Pod]], chips: int, priority: int
) -> None:
    nodes, pods = drawn
    urgent = pod("urgent", chips, priority=priority)
    world, preemption = world_of(nodes, *pods, urgent)
    chosen = await preemption.improve(urgent, everywhere(world))
    important = {_job(each) for each in pods if each.priority >= priority}
    possible = []
    for number in range(nodes):
        here = [each for each in pods if each.spec.node_name == f"n{number}"]
        may_end = [each.name for each in here if _job(each) not in important]
        others = [each for each in range(nodes) if each != number]
        full = [holder(f"full-{each}", f"n{each}", range(8), 99) for each in others]
        if not _fit_without(nodes, [*here, *full], [urgent], ()):  # else its scheduler needs no victims there
            possible += [
                _cost(pods, gone) for gone in _subsets(may_end) if _fit_without(nodes, [*here, *full], [urgent], gone)
            ]
    names = [victim.uid.removeprefix("uid-") for victim in chosen.victims] if chosen is not None else []
    assert _cost(pods, names) == min(possible, default=_cost(pods, ()))


@given(_clusters(), st.integers(2, 3), st.sampled_from((2, 4, 8)), st.integers(1, 4))
async def test_no_gang_ends_if_pods_alone_that_are_less_work_would_do(
    drawn: tuple[int, list[Pod]], size: int, chips: int, priority: int
) -> None:
    nodes, pods = drawn
    waiting = gang(size, chips=chips, priority=priority)
    world, preemption = world_of(nodes, *pods, *waiting)
    try:
        found = await answers(world, preemption, waiting)
    except Refusal:
        return
    victims = {name for names in found.values() for name in names}
    highest, *ended = _cost(pods, victims)
    if all(_job(each) == each.name for each in pods if each.name in victims):
        return
    alone = [each.name for each in pods if _job(each) == each.name and each.priority <= min(highest, priority - 1)]
    for instead in _subsets(alone):
        _, chips_instead, _, number = _cost(pods, instead)
        if (chips_instead, number) < (ended[0], ended[2]):
            assert not _fit_without(nodes, pods, waiting, instead), (victims, instead)
