"""The state can be rebuilt from the API server at any moment, and is then the same; where it is not, that is shown."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from allocator.selfaudit import SelfAudit
from allocator.state.audit import audit, compare_by_parts
from allocator.state.reservation import Stage
from ascend.kube.client import KubeClient
from ascend.kube.objects import ConfigMap, Node, Pod
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World, node, pod, report
from tests.allocator.harness import Allocator, running, until

OBJECTS: list[Node | Pod | ConfigMap] = [
    node("n1"),
    node("n2", cordoned=True),
    report("n1", unhealthy=[3]),
    report("n2"),
    pod("a", 2, node="n1", chips=[0, 1], phase="Running"),
    pod("b", 4),
]


def differences(world: World, objects: list[Node | Pod | ConfigMap]) -> list[str]:
    found = audit(
        world.cluster,
        world.ledger,
        nodes=[each for each in objects if isinstance(each, Node)],
        reports=[each for each in objects if isinstance(each, ConfigMap)],
        pods=[each for each in objects if isinstance(each, Pod)],
    )
    return [str(each) for each in found]


def test_a_state_that_has_seen_everything_differs_in_nothing() -> None:
    world = World()
    world.add(*OBJECTS)
    world.engine.place(pod("b", 4))
    assert differences(world, OBJECTS) == []


@pytest.mark.parametrize(
    ("missed", "said"),
    [
        (node("n3"), "node n3: record is missing, should be there"),
        (node("n2"), "node n2: server is NodeCordoned"),
        (report("n1"), "node n1: report is NodeReport(unhealthy=8,"),
        (pod("c", 1), "pod default/c: record is missing, should be there"),
        (pod("c", 1), "Pod default/c: pods (with chips, present) is None, should be (1, 1)"),
        (pod("b", 4, node="n1", chips=range(4, 8)), "pod default/b: node is , should be n1"),
        (pod("b", 4, node="n1", chips=range(4, 8)), "node n1: what pod uid-b holds is None, should be Holding("),
        (pod("a", 2, phase="Failed", node="n1", chips=[0, 1]), "node n1: offer without reservations is Vacancy("),
    ],
)
def test_a_change_that_was_missed_is_found(missed: Node | Pod | ConfigMap, said: str) -> None:
    world = World()
    world.add(*OBJECTS)
    found = differences(world, [each for each in OBJECTS if each.name != missed.name] + [missed])
    assert any(each.startswith(said) for each in found), found


def test_chips_that_two_pods_have_are_found() -> None:
    world = World()
    objects = [*OBJECTS, pod("thief", 1, node="n1", chips=[1], phase="Running")]
    world.add(*objects)
    assert differences(world, objects) == ["node n1: chips of pod uid-thief is Ascend910-1 twice, should be given once"]


def test_what_is_kept_for_a_pod_that_has_its_place_is_found() -> None:
    world = World()
    world.add(*OBJECTS)
    world.ledger.reserve(uid="uid-a", pod="default/a", node="n1", chips=(5,), stage=Stage.BOUND)
    assert differences(world, OBJECTS) == ["pod default/a: reservation is on n1, should be none: it has its place"]


def test_a_large_cluster_is_compared_in_small_parts() -> None:
    world = World()
    names = [f"n{number}" for number in range(200)]
    objects = [each for name in names for each in (node(name), pod(f"on-{name}", 1, node=name, chips=[0]))]
    world.add(*objects)
    world.ledger.reserve(uid="uid-on-n1", pod="default/on-n1", node="n1", chips=(5,), stage=Stage.BOUND)
    twin = world.cluster.twin()
    parts = [list(map(str, part)) for part in compare_by_parts(world.cluster, world.ledger, twin)]
    assert max(map(len, parts)) <= 64
    found = [each for part in parts for each in part]
    assert sorted(found) == sorted(differences(world, []))
    # Each node and pod, each pod's job, and the reservation for a pod that has its place.
    assert len(found) == 200 + 200 + 200 + 1


def test_a_report_outlives_the_node_it_is_of() -> None:
    world = World()
    world.add(node("n1"), report("n1"))
    world.cluster.node_deleted(node("n1"))
    world.add(node("n1"))
    assert differences(world, [node("n1"), report("n1")]) == []


async def look(allocator: Allocator, kubeconfig: Path) -> list[str]:
    async with await KubeClient.connect(str(kubeconfig)) as client:
        app = allocator.app
        inspector = SelfAudit(client, app.cluster, app.ledger, show=lambda _count: None, period_s=1, second_look_s=0.01)
        return [str(each) for each in await inspector.look()]


async def test_a_running_allocator_compares_itself_with_its_api_server(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        for number in range(3):
            await allocator.schedule(await allocator.pod(f"p{number}", 2), ["n1"])
        await until(lambda: not len(allocator.app.ledger))
        assert await look(allocator, tmp_path / "kubeconfig") == []
        cluster = allocator.app.cluster
        gone = next(iter(cluster.pods.values()))
        cluster.pod_deleted(gone)
        found = await look(allocator, tmp_path / "kubeconfig")
        assert f"pod {gone.key}: record is missing, should be there" in found


async def test_the_number_of_differences_is_a_metric(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, audit_period_s=0.05) as allocator:
        await allocator.node("n1")
        each = await allocator.pod("p", 2)
        allocator.app.cluster.pod_deleted(msgspec.convert(each, Pod))

        async def shown() -> bool:
            _, text = await allocator.get("/metrics")
            return "ascend_allocator_state_differences 0.0" not in text

        async with asyncio.timeout(20):
            while not await shown():  # noqa: ASYNC110 - another task's state
                await asyncio.sleep(0.02)
