"""The state can be rebuilt from the API server at any moment, and is then the same; where it is not, that is shown."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from allocator.observe.self_audit import SelfAudit
from allocator.rules.job import COSCHEDULING, STATEFUL_SET, VOLCANO, JobKey
from allocator.state.audit import compare_by_parts
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.client import KubeClient
from ascend.kube.objects import (
    BatchJob,
    ConfigMap,
    Metadata,
    Node,
    Pod,
    PodGroup,
    PodGroupSpec,
    StatefulSet,
    StatefulSetSpec,
)
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS, Catalogue
from tests.allocator.builders import World, audit, by_kind, node, pod, report
from tests.allocator.harness import Allocator, running, until

OBJECTS: list[Node | Pod | ConfigMap] = [
    node("n1"),
    node("n2", cordoned=True),
    report("n1", unhealthy=[3]),
    report("n2"),
    pod("a", 2, node="n1", chips=[0, 1], phase="Running"),
    pod("b", 4),
]


GROUP = "scheduling.k8s.io/group-name"
TRAIN = JobKey("default", "train", VOLCANO)
WEB = JobKey("default", "web", STATEFUL_SET)
OWNERS: list[StatefulSet | BatchJob] = [
    StatefulSet(metadata=Metadata(name="web", namespace="default"), spec=StatefulSetSpec(2)),
    BatchJob(metadata=Metadata(name="batch", namespace="default")),
]
GROUPS = {VOLCANO: [PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(2))]}
GANG: list[Node | Pod | ConfigMap] = [
    node("n1"),
    node("n2"),
    pod("train-0", 8, node="n1", chips=range(8), phase="Running", annotations={GROUP: "train"}),
    pod("train-1", 8, annotations={GROUP: "train"}),
]


def differences(world: World, objects: list[Node | Pod | ConfigMap]) -> list[str]:
    return [str(each) for each in audit(world.cluster, world.ledger, by_kind(*objects))]


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
    world.ledger.reserve(uid="uid-a", pod="default/a", node="n1", chips=(5,), stage=Stage.ASSUMED)
    assert differences(world, OBJECTS) == ["pod default/a: reservation is on n1, should be none: it has its place"]


def test_a_large_cluster_is_compared_in_small_parts() -> None:
    world = World()
    names = [f"n{number}" for number in range(200)]
    objects = [each for name in names for each in (node(name), pod(f"on-{name}", 1, node=name, chips=[0]))]
    world.add(*objects)
    world.ledger.reserve(uid="uid-on-n1", pod="default/on-n1", node="n1", chips=(5,), stage=Stage.ASSUMED)
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


def a_gang_of_which_one_is_bound_and_one_reserved() -> World:
    world = World()
    for owner in OWNERS:
        world.cluster.jobs.owner_applied(owner)
    for each in GROUPS[VOLCANO]:
        world.cluster.jobs.group_applied(VOLCANO, each)
    world.cluster.jobs.watched(VOLCANO)
    world.add(*GANG)
    world.ledger.reserve(uid="uid-train-1", pod="default/train-1", node="n2", chips=tuple(range(8)))
    return world


def differences_of_jobs(world: World) -> list[str]:
    found = audit(world.cluster, world.ledger, {**by_kind(*GANG, *OWNERS), **GROUPS})
    return [str(each) for each in found]


def test_jobs_of_which_everything_was_seen_differ_in_nothing() -> None:
    assert differences_of_jobs(a_gang_of_which_one_is_bound_and_one_reserved()) == []


def test_what_is_wrong_about_owners_is_found() -> None:
    jobs = (world := a_gang_of_which_one_is_bound_and_one_reserved()).cluster.jobs
    jobs._owners[WEB] = 99
    jobs.owner_deleted(OWNERS[1])
    assert differences_of_jobs(world) == [
        "Indexed Job default/batch: pods it is to have is None, should be 1",
        "StatefulSet default/web: pods it is to have is 99, should be 2",
    ]


def test_what_is_wrong_about_groups_is_found() -> None:
    jobs = (world := a_gang_of_which_one_is_bound_and_one_reserved()).cluster.jobs
    jobs._groups[TRAIN] = 77
    jobs._jobs[TRAIN].set_group_minimum(76)
    assert differences_of_jobs(world) == [
        f"{VOLCANO} default/train: minimum is 77, should be 2",
        f"{VOLCANO} default/train: minimum of its group is 76, should be 2",
    ]


def test_groups_of_a_kind_that_has_just_come_or_gone_are_not_compared() -> None:
    world = a_gang_of_which_one_is_bound_and_one_reserved()
    world.cluster.jobs.unwatched(VOLCANO)
    assert differences_of_jobs(world) == []
    world.cluster.jobs._groups[JobKey("default", "other", COSCHEDULING)] = 3
    assert differences_of_jobs(world) == [f"{COSCHEDULING} default/other: minimum is 3, should be None"]


def test_what_is_wrong_about_the_pods_of_a_job_is_found() -> None:
    job = (world := a_gang_of_which_one_is_bound_and_one_reserved()).cluster.jobs._jobs[TRAIN]
    job._vnpus["uid-train-0"] = 1
    job.size += 1
    del job._pods["uid-train-1"]
    assert differences_of_jobs(world) == [
        f"{VOLCANO} default/train: parts of chips (vNPUs) is 1, should be 0",
        f"{VOLCANO} default/train: pods (with chips, present) is (3, 2), should be (2, 2)",
        f"pod default/train-1: job it is present in is None, should be {VOLCANO} default/train",
    ]


def test_a_minimum_that_is_another_than_its_pods_state_is_found() -> None:
    world = World()
    objects: list[Node | Pod | ConfigMap] = [pod("a", 2, annotations={MIN_AVAILABLE: "3"})]
    world.add(*objects)
    assert differences(world, objects) == []
    world.cluster.jobs.by_key[JobKey("default", "a", "Pod")].note_minimum(pod("a", 2, annotations={MIN_AVAILABLE: "2"}))
    assert differences(world, objects) == ["Pod default/a: minimum that its pods state is 2, should be 3"]


def test_pods_that_are_wrongly_counted_as_placed_are_found() -> None:
    world = a_gang_of_which_one_is_bound_and_one_reserved()
    world.cluster.jobs.by_key[TRAIN].set_placed("uid-train-1", placed=False)
    # One with a reservation counts as well as a bound one.
    assert differences_of_jobs(world) == ["pod default/train-1: counts as placed is False, should be True"]


async def look(allocator: Allocator, kubeconfig: Path) -> list[str]:
    async with await KubeClient.connect(str(kubeconfig)) as client:
        app = allocator.app
        inspector = SelfAudit(
            client, app.cluster, app.ledger, show=lambda _count: None, period_s=1, second_comparison_s=0.01
        )
        return [str(each) for each in await inspector.compare()]


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


async def test_a_running_allocator_compares_owners_and_groups_too(tmp_path: Path) -> None:
    async with (
        ApiServer(resources=(*SERVED, VOLCANO_POD_GROUPS)) as server,
        running(server, tmp_path) as allocator,
    ):
        for version, kind, name, spec in (
            ("apps/v1", "StatefulSet", "web", {"replicas": 2}),
            ("batch/v1", "Job", "batch", {"parallelism": 3}),
            ("scheduling.volcano.sh/v1beta1", "PodGroup", "train", {"minMember": 2}),
        ):
            metadata = {"name": name, "namespace": "default"}
            await server.create({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
        jobs = allocator.app.cluster.jobs
        await until(lambda: len(jobs.owners) == 2 and bool(jobs.groups))
        assert await look(allocator, tmp_path / "kubeconfig") == []
        jobs._owners[WEB], jobs._groups[TRAIN] = 99, 77
        del jobs._owners[JobKey("default", "batch", "Indexed Job")]
        assert await look(allocator, tmp_path / "kubeconfig") == [
            "Indexed Job default/batch: pods it is to have is None, should be 3",
            f"{VOLCANO} default/train: minimum is 77, should be 2",
            "StatefulSet default/web: pods it is to have is 99, should be 2",
        ]
        # Until the watch has noticed that the kind is gone, its groups are no reason for alarm.
        jobs._owners.clear()
        server._catalogue = Catalogue()
        assert not any(VOLCANO in each for each in await look(allocator, tmp_path / "kubeconfig"))


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
