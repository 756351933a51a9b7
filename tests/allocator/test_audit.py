"""The comparison of the state with one that is rebuilt from the same objects finds every difference."""

import pytest

from allocator.rules.job import JobKey
from allocator.state.owned import Owned
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from ascend.jobs.core import STATEFUL_SET
from ascend.jobs.kind import JobFacts
from ascend.jobs.pod_groups import COSCHEDULING, VOLCANO
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ConfigMap, Metadata, Node, Pod
from ascend.kube.workloads import BatchJob, StatefulSet
from ascend.takes import Take
from tests.allocator.audit import Difference, audit, by_kind
from tests.allocator.builders import GROUP, World, node, pod, pod_group, report, stateful_set

OBJECTS: list[Node | Pod | ConfigMap] = [
    node("n1"),
    node("n2", cordoned=True),
    report("n1", unhealthy=[3]),
    report("n2"),
    pod("a", 2, node="n1", chips=[0, 1], phase="Running"),
    pod("b", 4),
]
TRAIN = JobKey("default", "train", VOLCANO)
WEB = JobKey("default", "web", STATEFUL_SET)
OWNERS: list[StatefulSet | BatchJob] = [
    stateful_set(2, name="web"),
    BatchJob(metadata=Metadata(name="batch", namespace="default")),
]
GROUPS = {VOLCANO: [pod_group(2)]}
GANG: list[Node | Pod | ConfigMap] = [
    node("n1"),
    node("n2"),
    pod("train-0", 8, node="n1", chips=range(8), phase="Running", annotations={GROUP: "train"}),
    pod("train-1", 8, annotations={GROUP: "train"}),
]


def differences(world: World, objects: list[Node | Pod | ConfigMap]) -> list[Difference]:
    return audit(world.cluster, world.ledger, by_kind(*objects))


def values(found: list[Difference]) -> list[tuple[str, str, str]]:
    """The objects that differ, what the state has, and what the objects give."""
    return [(each.object, each.kept, each.rebuilt) for each in found]


def test_a_complete_state_has_no_differences() -> None:
    world = World()
    world.add(*OBJECTS)
    world.engine.place(pod("b", 4))
    assert differences(world, OBJECTS) == []


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (node("n3"), ("node n3", "missing", "")),
        (node("n2"), ("node n2", "NodeCordoned", "")),
        (report("n1"), ("node n1", "NodeReport(unhealthy=8,", "NodeReport(unhealthy=0,")),
        (pod("c", 1), ("pod default/c", "missing", "")),
        (pod("c", 1), ("Pod default/c", "None", "(1, 1)")),
        (pod("b", 4, node="n1", chips=range(4, 8)), ("pod default/b", "", "n1")),
        (pod("b", 4, node="n1", chips=range(4, 8)), ("node n1", "None", "Holding(")),
        (pod("a", 2, phase="Failed", node="n1", chips=[0, 1]), ("node n1", "Vacancy(", "Vacancy(")),
    ],
)
def test_a_missed_change_is_found(missed: Node | Pod | ConfigMap, expected: tuple[str, str, str]) -> None:
    world = World()
    world.add(*OBJECTS)
    found = values(differences(world, [each for each in OBJECTS if each.name != missed.name] + [missed]))
    assert any(all(map(str.startswith, each, expected)) for each in found), found


def test_a_chip_of_two_pods_is_found() -> None:
    world = World()
    objects = [*OBJECTS, pod("second", 1, node="n1", chips=[1], phase="Running")]
    world.add(*objects)
    (found,) = differences(world, objects)
    assert found.object == "node n1"
    assert "uid-second" in found.field
    assert "Ascend910-1" in found.kept


def test_a_reservation_of_a_bound_pod_is_found() -> None:
    world = World()
    world.add(*OBJECTS)
    world.ledger.reserve(uid="uid-a", pod="default/a", node="n1", take=Take.whole((5,)), stage=Stage.ASSUMED)
    (found,) = differences(world, OBJECTS)
    assert (found.object, found.field) == ("pod default/a", "reservation")
    assert "n1" in found.kept


def test_a_report_outlives_its_node() -> None:
    world = World()
    world.add(node("n1"), report("n1"))
    world.cluster.node_deleted(node("n1"))
    world.add(node("n1"))
    assert differences(world, [node("n1"), report("n1")]) == []


def half_bound_gang() -> World:
    """A gang with a bound pod and one with a reservation, and other owners."""
    world = World()
    for owner in OWNERS:
        world.cluster.jobs.owners.apply(owner)
    for each in GROUPS[VOLCANO]:
        world.cluster.jobs.group_applied(VOLCANO, each)
    world.cluster.jobs.on_watched(VOLCANO)
    world.add(*GANG)
    world.ledger.reserve(uid="uid-train-1", pod="default/train-1", node="n2", take=Take.whole(range(8)))
    return world


def differences_of_jobs(world: World) -> list[tuple[str, str, str]]:
    return values(
        audit(
            world.cluster,
            world.ledger,
            {**by_kind(*GANG, *OWNERS), "PodGroup.scheduling.volcano.sh/v1beta1": GROUPS[VOLCANO]},
        )
    )


def test_complete_jobs_have_no_differences() -> None:
    assert differences_of_jobs(half_bound_gang()) == []


def test_wrong_replica_counts_are_found() -> None:
    jobs = (world := half_bound_gang()).cluster.jobs
    jobs.owners.by_key[WEB] = Owned(99)
    jobs.owners.delete(OWNERS[1])
    assert differences_of_jobs(world) == [
        ("Indexed Job default/batch", "None", str(Owned(1, failures_left=6))),
        ("StatefulSet default/web", str(Owned(99)), str(Owned(2))),
    ]


def test_wrong_group_minimums_are_found() -> None:
    jobs = (world := half_bound_gang()).cluster.jobs
    jobs._groups[TRAIN] = JobFacts(minimum=77)
    jobs._jobs[TRAIN].set_facts(JobFacts(minimum=76), None)
    assert differences_of_jobs(world) == [
        (f"{VOLCANO} default/train", str(JobFacts(minimum=77)), str(JobFacts(minimum=2))),
        (f"{VOLCANO} default/train", "76", "2"),
    ]


def test_groups_of_an_unwatched_kind_are_not_compared() -> None:
    world = half_bound_gang()
    world.cluster.jobs.on_unserved(VOLCANO)
    assert differences_of_jobs(world) == []
    world.cluster.jobs._groups[JobKey("default", "other", COSCHEDULING)] = JobFacts(minimum=3)
    assert differences_of_jobs(world) == [(f"{COSCHEDULING} default/other", str(JobFacts(minimum=3)), "None")]


def test_wrong_members_of_a_job_are_found() -> None:
    job = (world := half_bound_gang()).cluster.jobs._jobs[TRAIN]
    job.size += 1
    del job._pods["uid-train-1"]
    assert differences_of_jobs(world) == [
        (f"{VOLCANO} default/train", "(3, 2)", "(2, 2)"),
        ("pod default/train-1", "None", f"{VOLCANO} default/train"),
    ]


def test_wrongly_counted_vnpus_of_a_job_are_found() -> None:
    world, part = World(), Container("main", Resources(limits={f"{RESOURCE}-2c": "1"}))
    world.add(pod("train-0", None, annotations={GROUP: "train"}))
    objects: list[Node | Pod | ConfigMap] = [pod("train-0", containers=[part], annotations={GROUP: "train"})]
    assert (f"{VOLCANO} default/train", "0", "1") in values(differences(world, objects))


def test_a_wrong_stated_minimum_is_found() -> None:
    world = World()
    objects: list[Node | Pod | ConfigMap] = [pod("a", 2, annotations={MIN_AVAILABLE: "3"})]
    world.add(*objects)
    assert differences(world, objects) == []
    world.cluster.jobs.by_key[JobKey("default", "a", "Pod")].note_minimum(pod("a", 2, annotations={MIN_AVAILABLE: "2"}))
    assert values(differences(world, objects)) == [("Pod default/a", "2", "3")]


def test_pods_wrongly_counted_as_placed_are_found() -> None:
    world = half_bound_gang()
    world.cluster.jobs.by_key[TRAIN].set_placed("uid-train-1", "")
    # A pod with a reservation counts as well as a bound one.
    assert differences_of_jobs(world) == [("pod default/train-1", "False", "True")]
