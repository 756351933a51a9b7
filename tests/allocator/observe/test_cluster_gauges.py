"""The gauges of what waits for chips and of what is free."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from allocator.decision.backlog import Backlog, BacklogReader, WaitingFor
from allocator.decision.engine import DecisionEngine
from allocator.observe.cluster_gauges import ClusterGauges
from allocator.state.supply import SIZES, Supply, SupplyReader
from ascend.annotations import MIN_AVAILABLE, PLACEMENT_GATE
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod, SchedulingGate
from ascend.products import PRODUCTS
from ascend.rules.identity import CHIP_NAME
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP, TYPE, World, node, pod, pod_group, selecting
from tests.allocator.cores import core_node, core_pod
from tests.allocator.gangs.test_obstacles import CHIPS, CPU, saying
from tests.allocator.harness import running
from tests.allocator.vnpus import cut, cut_node, vnpu_pod

NOW_S = 1_767_225_700.0
"""100 s after the pods of the builders were created."""


def read(world: World) -> Backlog:
    return asyncio.run(BacklogReader(world.cluster, world.ledger, world.engine).read())


def supply(world: World) -> Supply:
    return asyncio.run(SupplyReader(world.cluster.index).read())


def gated(each: Pod, gate: str) -> Pod:
    return replace(each, spec=replace(each.spec, scheduling_gates=[SchedulingGate(gate)]))


def gang(count: int, chips: int = 8, minimum: int | None = None) -> list[Pod]:
    annotations = {GROUP: "train", MIN_AVAILABLE: str(minimum or count)}
    return [pod(f"train-{number}", chips, annotations=annotations) for number in range(count)]


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (pod("a", 1), WaitingFor.BINDING),
        (pod("a", 4), WaitingFor.CHIPS),
        (pod("a", 3), WaitingFor.NODES),  # of another product, as the broken one may be
        (pod("a", 17), WaitingFor.CHANGE),
        (pod("a", 1, labels={"huawei.com/scheduler.softShareDev.policy": "fixed-share"}), WaitingFor.CHANGE),
        (selecting(pod("a", 8), {"pool": "none"}), WaitingFor.NODES),
        (selecting(pod("a", 8), {"pool": "broken"}), WaitingFor.NODES),
        (pod("a", 8, annotations={GROUP: "x", MIN_AVAILABLE: "2"}), WaitingFor.PODS),
        (gated(pod("a", 1), PLACEMENT_GATE), WaitingFor.BINDING),
        (saying(pod("a", 1), CPU), WaitingFor.SCHEDULER),
        (saying(pod("a", 4), CHIPS), WaitingFor.CHIPS),
    ],
    ids=lambda value: value if isinstance(value, WaitingFor) else "",
)
def test_a_waiting_pod_is_counted_by_what_it_waits_for(each: Pod, expected: WaitingFor) -> None:
    world = World()
    world.add(node("n1"), node("n2", ready=False, labels={"pool": "broken"}))
    world.fill("n1", [0, 1, 2, 4, 5, 6])
    world.add(each)
    backlog = read(world)
    assert backlog.pods == {("default", expected): 1}
    assert backlog.chips == {("default", expected): sum(c.chips for c in each.spec.containers)}


def test_a_size_of_which_no_vnpu_is_free_is_counted_as_none() -> None:
    world = World()
    vnpus = cut([0], parts=2)
    world.add(cut_node("n1", vnpus), vnpu_pod("a", vnpu=vnpus[0], node="n1"))
    assert supply(world).vnpus == {"2c": 1}
    world.add(vnpu_pod("b", vnpu=vnpus[1], node="n1"))
    assert supply(world).vnpus == {"2c": 0}
    world.add(cut_node("n2", cut([1])), vnpu_pod("unknown", node="n2"))
    assert supply(world).vnpus == {"2c": 0}


def test_whole_chips_that_are_requested_as_cores_wait_as_chips() -> None:
    world = World(vnpus_per_job=0)
    world.add(core_node("n1", chips=[0, 1]), core_pod("old", 40, has="0,1", node="n1"))
    world.add(core_pod("a", 20), core_pod("b", 40), core_pod("part", 5))
    assert read(world).pods == {("default", WaitingFor.CHIPS): 3}
    assert read(world).chips == {("default", WaitingFor.CHIPS): 3}


def test_pods_that_do_not_wait_are_not_counted() -> None:
    world = World()
    world.add(node("n1"), gated(pod("held", 8), "kueue.x-k8s.io/admission"), pod("ends", 8, terminating=True))
    world.add(pod("plain", None), pod("done", 8, phase="Succeeded"))
    world.fill("n1")
    assert read(world).pods == {}
    world.add(pod("a", 8))
    assert read(world).pods == {("default", WaitingFor.CHIPS): 1}
    world.cluster.pod_deleted(pod("a", 8))
    assert read(world).pods == {}


@pytest.mark.parametrize(
    ("nodes", "pods", "expected"),
    [
        (2, gang(2), WaitingFor.BINDING),
        (1, gang(2), WaitingFor.CHIPS),
        (0, gang(2), WaitingFor.NODES),
        (2, gang(2, 4), WaitingFor.CHANGE),
        (2, gang(3, minimum=2), WaitingFor.BINDING),
        (2, gang(3)[:2], WaitingFor.PODS),
        (2, [gang(2)[0], saying(gang(2)[1], CPU)], WaitingFor.SCHEDULER),
    ],
)
def test_a_gang_is_counted_as_a_whole(nodes: int, pods: list[Pod], expected: WaitingFor) -> None:
    world = World()
    world.add(*(node(f"n{number}") for number in range(nodes)), *pods)
    backlog = read(world)
    assert backlog.pods == {("default", expected): len(pods)}
    assert backlog.oldest == {("default", expected): "2026-01-01T00:00:00Z"}


def test_a_gang_that_its_scheduler_tries_again_and_again_waits_all_the_time() -> None:
    world = World()
    first, second = gang(2)
    world.add(node("n1"), node("n2"), first, second)
    waits = {("default", WaitingFor.BINDING): "2026-01-01T00:00:00Z"}
    assert read(world).oldest == waits  # it fits, but its scheduler lacks CPU for it, for example
    world.engine.place(first)
    assert read(world).oldest == waits
    world.cluster.pod_deleted(first)
    world.cluster.pod_deleted(second)
    assert read(world).oldest == {}


def test_the_oldest_pod_of_each_namespace_and_cause_counts() -> None:
    world = World()
    world.add(node("n1"))
    world.fill("n1")
    for name, created in (("b", "2026-01-01T00:00:02Z"), ("a", "2026-01-01T00:00:01Z"), ("c", "2026-01-01T00:00:03Z")):
        world.add(pod(name, 8, since=created))
    world.add(pod("invalid", 3, since="2026-01-01T00:00:00Z"))
    assert read(world).oldest == {
        ("default", WaitingFor.CHIPS): "2026-01-01T00:00:01Z",
        ("default", WaitingFor.CHANGE): "2026-01-01T00:00:00Z",
    }


def test_a_gang_whose_group_is_missing_waits_for_pods() -> None:
    world = World()
    world.cluster.jobs.on_watched(VOLCANO)
    world.add(node("n1"), pod("a", 8, annotations={GROUP: "train"}))
    assert read(world).pods == {("default", WaitingFor.PODS): 1}
    world.cluster.jobs.group_applied(VOLCANO, pod_group(1))
    assert read(world).pods == {("default", WaitingFor.BINDING): 1}


def test_a_pod_with_reserved_chips_waits_for_its_binding_and_others_for_chips() -> None:
    world = World()
    first, second = pod("a", 8), pod("b", 8)
    world.add(node("n1"), first, second)
    world.engine.place(first)
    assert read(world).pods == {("default", WaitingFor.BINDING): 1, ("default", WaitingFor.CHIPS): 1}


def test_a_request_is_read_again_when_it_may_have_changed() -> None:
    world = World()
    reader = BacklogReader(world.cluster, world.ledger, world.engine)
    world.add(node("n1", labels={TYPE: "module"}), node("n2", labels={TYPE: "module-910b-8"}))
    world.fill("n2")
    pods = gang(2)
    world.add(*pods)
    first = asyncio.run(reader.read())
    assert first.pods == {("default", WaitingFor.CHANGE): 2}  # ProductNotNamed
    world.cluster.node_deleted(node("n2"))
    world.add(node("n3", labels={TYPE: "module"}))
    assert asyncio.run(reader.read()).pods == {("default", WaitingFor.BINDING): 2}


@given(st.lists(st.sets(st.integers(0, 7)), max_size=6))
def test_the_supply_is_what_the_nodes_have_left(frees: Iterable[set[int]]) -> None:
    world = World()
    frees = list(frees)
    for number, free in enumerate(frees):
        world.occupy(f"n{number}", free)
    measured = supply(world)
    if not frees:
        assert measured.chips == {}
        return
    assert measured.chips == {"910A": sum(map(len, frees))}
    assert measured.healthy == {"910A": 8 * len(frees)}
    assert measured.servers == {"910A": sum(len(free) == 8 for free in frees)}
    rings = sum(ring <= free for free in frees for ring in ({0, 1, 2, 3}, {4, 5, 6, 7}))
    assert measured.rings == {"910A": rings}
    # On 910A servers each pod of a job of several pods takes a whole server.
    assert measured.largest_gang == {("910A", 8): measured.servers["910A"]}


sizes_and_models = st.tuples(
    st.sampled_from([size for size in SIZES if size <= 8]), st.sampled_from(["", "910B3", "910B4"])
)


@given(st.lists(sizes_and_models, min_size=1, max_size=8), st.sampled_from(SIZES))
def test_a_gang_of_the_largest_size_fits_and_a_larger_one_does_not(held: list[tuple[int, str]], chips: int) -> None:
    world = World()
    for number, (size, model) in enumerate(held):
        name = f"n{number}"
        world.add(node(name, labels={TYPE: "module-910b-8"} | ({CHIP_NAME: model} if model else {})))
        world.fill(name, range(size))
    largest = supply(world).largest_gang
    assert set(largest) == {("910B-8", size) for size in SIZES if size in PRODUCTS["910B-8"].requests}
    if (most := largest.get(("910B-8", chips), 0)) > 1:
        fits, too_large = gang(most, chips), gang(most + 1, chips)
        world.add(*fits)
        assert world.engine.filter(fits[0]).fitting
        for each in fits:
            world.cluster.pod_deleted(each)
        world.add(*too_large)
        assert not world.engine.filter(too_large[0]).fitting


@pytest.mark.parametrize(("sharing", "expected"), [((), 2), (("A3-16",), 4)])
def test_the_largest_gang_has_one_pod_on_a_server_that_peers_must_not_share(
    sharing: tuple[str, ...], expected: int
) -> None:
    world = World()
    world.add(*(node(f"n{n}", chips=range(16), allocatable=16, labels={TYPE: "module-a3-16"}) for n in range(2)))
    measured = asyncio.run(SupplyReader(world.cluster.index, sharing).read())
    assert measured.largest_gang["A3-16", 8] == expected


async def test_the_gauges_show_pods_that_no_scheduler_has_called_for(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.schedule(await allocator.pod("busy", 2), ["n1"])
        for name in "ab":
            await allocator.pod(name, 8)
        await allocator.app.gauges.measure()  # the background task does so every few seconds
        _, page = await allocator.get("/metrics")
        for line in (
            'ascend_allocator_waiting_pods{namespace="default",waits_for="chips"} 2.0',
            'ascend_allocator_waiting_chips{namespace="default",waits_for="chips"} 16.0',
            'ascend_allocator_free_chips{product="910A"} 6.0',
            'ascend_allocator_healthy_chips{product="910A"} 8.0',
            'ascend_allocator_free_servers{product="910A"} 0.0',
            'ascend_allocator_free_rings{product="910A"} 1.0',
            'ascend_allocator_largest_gang{chips="8",product="910A"} 0.0',
        ):
            assert line in page, page
        (age,) = re.findall(r'oldest_waiting_pod_seconds{namespace="default",waits_for="chips"} (.*)', page)
        assert 0 <= float(age) < 60


def test_the_age_of_a_pod_grows_with_the_clock() -> None:
    world = World()
    world.add(node("n1"), pod("a", 8))
    gauges = ClusterGauges(world.engine, lambda: NOW_S)
    asyncio.run(gauges.measure())
    (age,) = (each for each in gauges.collect() if each.name == "ascend_allocator_oldest_waiting_pod_seconds")
    assert {sample.labels["waits_for"]: sample.value for sample in age.samples if sample.value} == {"binding": 100.0}


async def test_measuring_many_nodes_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each node takes a turn
    world = World()
    world.add(*(node(f"n{number}") for number in range(100)))
    measuring = asyncio.create_task(ClusterGauges(world.engine, lambda: NOW_S).measure())
    turns = 0
    while not measuring.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 100


def test_kept_text_is_measured_of_the_namespaces_with_the_most() -> None:
    world = World()
    for number in range(30):
        long = pod(f"p{number}", annotations={"sp-fit": "x" * 1000, "hccl/rankIndex": "y" * 1000})
        own = replace(long.metadata, namespace=f"tenant-{number % 20}", uid=f"u{number}")
        for copy in range(600 if number % 20 < 12 else 1):
            world.add(replace(long, metadata=replace(own, name=f"p{number}-{copy}", uid=f"u{number}-{copy}")))
    gauges = ClusterGauges(world.engine)
    asyncio.run(gauges.measure())
    families = {family.name: family for family in gauges.collect()}
    kept = {sample.labels["namespace"]: sample.value for sample in families["ascend_allocator_kept_bytes"].samples}
    assert set(kept) == {f"tenant-{number}" for number in range(10)}
    assert all(2 * 600 * 2000 <= value < 2 * 600 * 2100 for value in kept.values())


def test_free_chips_that_are_kept_for_gangs_are_counted_by_namespace() -> None:
    world = World()
    world.engine = DecisionEngine(world.cluster, world.ledger, earmark_share=1.0)
    world.add(*(node(f"n{number}") for number in range(2)), pod("held", 8, node="n1", chips=range(8)), *gang(2))
    gauges = ClusterGauges(world.engine)
    world.engine.earmarks.choose()
    world.now_s += 30
    asyncio.run(gauges.measure())
    families = {family.name: family for family in gauges.collect()}
    (sample,) = families["ascend_allocator_earmarked_chip_seconds"].samples
    assert (sample.labels, sample.value) == ({"namespace": "default"}, 30 * 8)


def test_how_long_pods_have_waited_is_told_once_they_are_bound() -> None:
    world = World()
    gauges = ClusterGauges(world.engine, lambda: NOW_S)
    registry = CollectorRegistry()
    registry.register(gauges)
    waiting = pod("a", 8)
    world.add(node("n1"), waiting, pod("bound before it was seen", 1, node="n1", chips=[0]), pod("gone", 8))
    world.cluster.pod_deleted(pod("gone", 8))
    bound = pod("a", 8, node="n1", chips=range(8))
    for seen in (bound, bound):
        world.cluster.pod_applied(seen)
    assert registry.get_sample_value("ascend_allocator_wait_duration_seconds_count") == 1
    assert registry.get_sample_value("ascend_allocator_wait_duration_seconds_sum") == 100.0


async def test_the_chips_of_each_namespace_are_counted() -> None:
    world = World()
    gauges = ClusterGauges(world.engine)
    registry = CollectorRegistry()
    registry.register(gauges)
    world.add(node("n1"), pod("a", 2, node="n1", chips=[0, 1]), pod("b", 4, node="n1", chips=range(4, 8)))
    await gauges.measure()
    used = {"namespace": "default", "product": "910A"}
    assert registry.get_sample_value("ascend_allocator_used_chips", used) == 6
