"""Large gangs are planned piece by piece, with the result of a plan that is made at once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from allocator.gangs import gradual
from allocator.state.promises import Promise
from allocator.state.reservation import Stage
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod, report
from tests.allocator.gangs.builders import MESHES, gang, of_pool, world_of

Interference = Callable[[World, list[Pod]], None]


@pytest.fixture(autouse=True)
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    monkeypatch.setattr(gradual, "_STEP", 1)
    monkeypatch.setattr("allocator.gangs.pending._STEP", 1)
    monkeypatch.setattr("allocator.gangs.planning._STEP", 1)
    monkeypatch.setattr("allocator.gangs.board._STEP", 1)
    monkeypatch.setattr("allocator.state.index._STEP", 1)
    monkeypatch.setattr(gradual, "MANY", 1)


def seats(world: World) -> dict[str, tuple[str, int]]:
    return {held.uid: (held.node, chip_set(held.take.chips)) for held in world.ledger}


def planned_at_once(world: World, each: Pod, names: list[str] | None = None) -> dict[str, tuple[str, int]]:
    try:
        world.engine.place(each, names)
    except Refusal:
        return {}
    return seats(world)


async def prepare(world: World, each: Pod, names: list[str] | None = None, between: Iterable[Interference] = ()) -> int:
    """Prepare a pod; in each turn of the loop one thing happens in between. The number of turns."""
    preparing, turns = asyncio.create_task(world.engine.prepare(each, names)), 0
    things = iter(between)
    while not preparing.done():
        await asyncio.sleep(0)
        turns += 1
        if (thing := next(things, None)) is not None and not preparing.done():
            thing(world, [])
    await preparing
    return turns


async def test_planning_a_large_gang_yields_to_the_event_loop() -> None:
    world = world_of(100)
    world.add(*(pods := gang("train", 100)))
    assert await prepare(world, pods[0]) > 300  # reading, searching and reserving
    assert {held.stage for held in world.ledger} == {Stage.PLANNED}
    assert len(world.ledger) == 100


def test_what_a_large_gang_requests_is_put_together_in_pieces() -> None:
    world = world_of(100)
    world.add(*(pods := gang("train", 100)))
    planner, job = world.engine.gangs.planner, world.cluster.jobs.job_of(pods[0])
    pieces = sum(1 for _ in planner.gang_request(pods[0], world.engine.request_of(pods[0]), job, None))
    assert pieces == 100


async def test_where_a_pod_of_a_large_gang_fits_is_found_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(100)
    world.add(*(pods := gang("train", 100)), *(more := gang("more", 101)))
    expected = [world.engine.filter(each).fitting for each in pods[:3]]

    def not_at_once(*_: object) -> None:
        raise AssertionError("planned at once")

    with monkeypatch.context() as patched:
        patched.setattr(world.engine.gangs, "preview", not_at_once)
        for each, fitting in zip(pods, expected, strict=False):
            previewing, turns = asyncio.create_task(world.engine.preview(each)), 0
            while not previewing.done():
                await asyncio.sleep(0)
                turns += 1
            seat = await previewing
            assert turns > 200  # reading and searching; the gang's requests are cached
            assert world.engine.filter(each, None, seat).fitting == fitting
            assert [tier.nodes for tier in world.engine.rank(each, None, seat)] == [fitting]
    assert not len(world.ledger)
    assert await world.engine.preview(more[0]) is None
    refusals = world.engine.filter(more[0]).refusals
    assert {refusal.reason for refusal in refusals} == {Reason.GANG_DOES_NOT_FIT}
    seat_of = world.engine.place(pods[0]).node
    assert await world.engine.preview(pods[0]) is None
    assert world.engine.filter(pods[0]).fitting == [seat_of]


async def test_small_gangs_and_single_pods_are_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradual, "MANY", 64)
    world = world_of(8)
    world.add(*(pods := gang("train", 4)), alone := pod("alone", 1))
    for each in (pods[0], alone):
        await prepare(world, each)
    assert not len(world.ledger)


async def test_a_small_gang_is_planned_piece_by_piece_among_many_named_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradual, "MANY", 64)
    monkeypatch.setattr(gradual, "MANY_NODES", 7)
    world = world_of(8)
    world.add(*(pods := gang("train", 4)))
    names = [f"n{number}" for number in range(8)]
    assert await prepare(world, pods[0], names[:7]) < 8
    assert not len(world.ledger)
    assert await prepare(world, pods[0], names) > 8
    assert len(world.ledger) == 4


async def test_a_small_gang_is_planned_piece_by_piece_among_many_selected_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradual, "MANY", 64)
    monkeypatch.setattr(gradual, "MANY_NODES", 7)
    world = world_of(8, pool="a")
    world.add(*(pods := [of_pool(member, "a") for member in gang("train", 4)]))
    assert await prepare(world, pods[0]) > 8
    assert len(world.ledger) == 4


async def test_calls_for_other_pods_of_the_gang_wait_for_its_plan() -> None:
    world = world_of(20)
    world.add(*(pods := gang("train", 20)))
    await asyncio.gather(*(world.engine.prepare(each) for each in pods))
    assert len(world.ledger) == 20
    assert {world.engine.place(each).node for each in pods} == {f"n{number}" for number in range(20)}


@pytest.mark.parametrize(("nodes", "fits"), [(20, True), (19, False)])
async def test_whether_a_large_gang_fits_is_found_piece_by_piece(nodes: int, fits: bool) -> None:  # noqa: FBT001 - a parameter
    world = world_of(nodes)
    world.add(*(pods := gang("train", 20)))
    finding, turns = asyncio.create_task(world.engine.plans.may_fit(pods[0], world.cluster.jobs.job_of(pods[0]))), 0
    while not finding.done():
        await asyncio.sleep(0)
        turns += 1
    assert await finding is fits
    assert turns > 20
    assert not len(world.ledger)


async def test_what_is_promised_to_the_gang_counts_as_free() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 4)))
    plan = world.cluster.jobs.job_of(pods[0]).key.plan
    world.ledger.promises.keep(Promise(plan, "job", 0, {"n1": 0xFF, "n2": 0xFF}, 1e9, drains=True))
    await prepare(world, pods[0])
    assert len(world.ledger) == 4


async def test_a_cancelled_plan_leaves_no_reservation() -> None:
    world = world_of(50)
    world.add(*(pods := gang("train", 50)))
    preparing = asyncio.create_task(world.engine.prepare(pods[0]))
    while not len(world.ledger):  # noqa: ASYNC110 - the state of a task
        await asyncio.sleep(0)
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    assert not len(world.ledger)
    await prepare(world, pods[0])
    assert len(world.ledger) == 50


requests = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=10)
idle = st.lists(st.just(0xFF) | st.integers(0, 0xFF), min_size=3, max_size=8)
pools = st.lists(st.sampled_from(["", "a", "b"]), min_size=10, max_size=10)


def crowded(sizes: list[int], idle: list[int], pool: list[str], minimum: int) -> tuple[World, list[Pod]]:
    """Nodes with these free chips, the even ones in pool a, and a gang."""
    world = World()
    for number, free in enumerate(idle):
        world.occupy(f"n{number}", free=[chip for chip in range(8) if free >> chip & 1])
        seen = world.cluster.nodes[f"n{number}"].node
        assert seen is not None
        world.add(node(seen.name, labels={**MESHES, "pool": "ab"[number % 2]}))
    pods = [
        of_pool(each, pool[at]) if pool[at] else each
        for at, chips in enumerate(sizes)
        for each in gang("train", 1, chips=chips, minimum=min(minimum, len(sizes)), first=at)
    ]
    world.add(*pods)
    return world, pods


@given(sizes=requests, idle=idle, pool=pools, minimum=st.integers(2, 10), named=st.none() | st.sets(st.integers(0, 7)))
def test_the_plan_is_that_of_planning_at_once(
    sizes: list[int], idle: list[int], pool: list[str], minimum: int, named: set[int] | None
) -> None:
    names = None if named is None else [f"n{number}" for number in sorted(named)]
    world, pods = crowded(sizes, idle, pool, minimum)
    expected = planned_at_once(world, pods[0], names)
    world, pods = crowded(sizes, idle, pool, minimum)
    asyncio.run(prepare(world, pods[0], names))
    event(f"{len(world.ledger)} seats")
    if len(world.ledger):
        assert seats(world) == expected
    assert planned_at_once(world, pods[0], names) == expected


def refused(world: World, each: Pod, names: list[str] | None = None) -> tuple[str, str] | None:
    """Why a pod is refused."""
    try:
        world.engine.place(each, names)
    except Refusal as refusal:
        return refusal.reason, refusal.message
    return None


@given(sizes=requests, idle=idle, pool=pools, minimum=st.integers(2, 10), named=st.none() | st.sets(st.integers(0, 9)))
def test_why_there_is_no_plan_is_what_planning_at_once_says(
    sizes: list[int], idle: list[int], pool: list[str], minimum: int, named: set[int] | None
) -> None:
    names = None if named is None else [f"n{number}" for number in sorted(named)]
    world, pods = crowded(sizes, idle, pool, minimum)
    expected = refused(world, pods[0], names)
    world, pods = crowded(sizes, idle, pool, minimum)
    asyncio.run(prepare(world, pods[0], names))
    event(f"refused: {expected is not None}")
    assert refused(world, pods[0], names) == expected


async def test_that_there_is_no_plan_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(19)
    world.add(*(pods := gang("train", 20)))
    names = [f"n{number}" for number in range(19)]

    def not_at_once(*_: object) -> None:
        raise AssertionError("planned at once")

    monkeypatch.setattr("allocator.gangs.planning.at_once", not_at_once)
    await prepare(world, pods[0], names)
    assert refused(world, pods[0], names) is not None
    assert refused(world, pods[1], names) is not None  # an equal pod


async def test_names_are_made_a_set_once_for_all_pods_of_a_gang() -> None:
    class Names(Collection[str]):
        """The names in a call, and how often they were read."""

        read = 0

        def __iter__(self) -> Iterator[str]:
            self.read += 1
            return iter(["n0", "n1", "n2"])

        def __len__(self) -> int:
            return 3

        def __contains__(self, name: object) -> bool:
            return name in {"n0", "n1", "n2"}

    world = world_of(3)
    world.add(*(pods := gang("train", 4)))
    prepared = []
    for each in pods:
        prepared.append(await world.engine.prepare(each, names := Names()))
        with pytest.raises(Refusal):
            world.engine.place(each, prepared[-1])
        assert names.read == 1
    assert len({id(names) for names in prepared}) == 1  # so that sets of thousands are not compared


@given(calls=st.lists(st.lists(st.sampled_from([f"n{number}" for number in range(5)]), min_size=2), min_size=1))
def test_the_candidates_of_a_plan_are_the_names_of_its_call(calls: list[list[str]]) -> None:
    async def prepare_all() -> None:
        world = world_of(3)
        world.add(*gang("train", 4))
        pods = iter(gang("train", 4) * len(calls))
        for names in calls:
            assert await world.engine.prepare(next(pods), names) == frozenset(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradual, "_NAMES", 2)
        asyncio.run(prepare_all())


def _take(number: int) -> Interference:
    def act(world: World, _pods: list[Pod]) -> None:
        world.add(single := pod(f"single-{number}-{world.cluster.changes.revision}", 1))
        planned_at_once(world, single)

    return act


def _report(number: int, bad: int) -> Interference:
    return lambda world, _pods: world.add(report(f"n{number}", unhealthy=[bad]))


def _cordon(number: int) -> Interference:
    return lambda world, _pods: world.add(
        node(f"n{number}", cordoned=True, labels={**MESHES, "pool": "ab"[number % 2]})
    )


def _delete(number: int) -> Interference:
    def act(world: World, _pods: list[Pod]) -> None:
        if (seen := world.cluster.pods.get(f"uid-train-{number}")) is not None and not seen.spec.node_name:
            world.cluster.pod_deleted(seen)

    return act


def _place(number: int) -> Interference:
    """A call for another pod of the gang that does not wait for the plan."""

    def act(world: World, _pods: list[Pod]) -> None:
        if (seen := world.cluster.pods.get(f"uid-train-{number}")) is not None:
            planned_at_once(world, seen)

    return act


def _nothing() -> Interference:
    return lambda _world, _pods: None


interference = st.one_of(
    *[st.builds(_nothing)] * 3,
    st.builds(_take, st.integers(0, 7)),
    st.builds(_report, st.integers(0, 7), st.integers(0, 7)),
    st.builds(_cordon, st.integers(0, 7)),
    st.builds(_delete, st.integers(0, 9)),
    st.builds(_place, st.integers(0, 9)),
)


@given(
    crowd=st.tuples(requests, idle, pools, st.integers(2, 10)),
    quiet=st.integers(0, 40),
    between=st.lists(interference, min_size=1, max_size=20),
)
def test_whatever_happens_in_between_the_gang_has_all_its_seats_or_none(
    crowd: tuple[list[int], list[int], list[str], int], quiet: int, between: list[Interference]
) -> None:
    world, pods = crowded(*crowd)
    asyncio.run(prepare(world, pods[0], between=[_nothing()] * quiet + between))
    event(f"{len(world.ledger)} seats")
    world.engine.gangs.prune()
    taken: Counter[tuple[str, int]] = Counter((held.node, chip) for held in world.ledger for chip in held.take.chips)
    assert not [each for each, times in taken.items() if times > 1]
    for held in world.ledger:
        record = world.cluster.nodes[held.node]
        assert not record.held & chip_set(held.take.chips), "a chip of a running pod"
        if (seen := world.cluster.pods.get(held.uid)) is not None and held.stage is Stage.PLANNED:
            assert world.cluster.suits(held, world.engine.request_of(seen)), "an unusable seat"
    job = world.cluster.jobs.job_of(pods[0])

    def complete() -> bool:
        """Whether the gang has no seats or enough; that of a deleted pod waits for its successor."""
        reserved = sum(held.plan == job.key.plan for held in world.ledger)
        return not reserved or reserved >= min(job.min_available, len(pods))

    assert complete()
    if pods[0].uid in world.cluster.pods:
        why = refused(world, pods[0])
        assert complete()
        if why is not None:  # also without what was found before
            world.cluster.index.version += 1
            assert refused(world, pods[0]) == why
