"""Jobs start whole or not at all where their kind says so, each with ranks of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.annotations import Stamper
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.errors import Refusal
from ascend.jobs.kind import JobObject
from ascend.jobs.leader_worker_set import LEADER_WORKER_SET
from ascend.jobs.pod_groups import VOLCANO
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import Pod
from ascend.kube.workloads import StatefulSet, StatefulSetSpec
from ascend.reasons import Reason
from tests.allocator.builders import TYPE, World, node, pod, pod_group, stateful_set
from tests.allocator.jobs.manifests import TEMPLATE, job_object, kubeflow, leader_worker, ordinal, queued, task

B8 = {TYPE: "module-910b-8"}
MASTER_WORKER = f"{{Master: {{template: {TEMPLATE}}}, Worker: {{template: {TEMPLATE}}}}}"


def world(nodes: int, **objects: JobObject) -> World:
    """Servers of 8 chips, and the objects of jobs by kind."""
    made = World()
    made.add(*(node(f"n{at}", labels=B8) for at in range(nodes)))
    for kind, each in objects.items():
        made.cluster.jobs.source_applied(kind, each)
        made.cluster.jobs.on_watched(kind)
    return made


def placed(world: World, pods: list[Pod]) -> list[str]:
    """The node of each pod, or the reason of its refusal."""
    answers = []
    for each in pods:
        try:
            answers.append(world.engine.place(each).node)
        except Refusal as refusal:
            answers.append(str(refusal.reason))
    return answers


@pytest.mark.parametrize("is_watched", [True, False])
def test_the_groups_of_a_leader_worker_set_start_one_by_one_and_each_whole(is_watched: bool) -> None:  # noqa: FBT001
    serve = job_object(
        LEADER_WORKER_SET, f"{{leaderWorkerTemplate: {{size: 2, workerTemplate: {TEMPLATE}}}}}", name="serve"
    )
    made = world(3, **({LEADER_WORKER_SET: serve} if is_watched else {}))
    for name, replicas in (("serve", 2), ("serve-0", 1), ("serve-1", 1)):
        made.cluster.jobs.owners.apply(stateful_set(replicas, name=name))
    pods = [leader_worker(group, at) for group in range(2) for at in range(2)]
    made.add(pods[0])
    assert placed(made, pods[:1]) == [Reason.GANG_INCOMPLETE]
    made.add(*pods)
    assert placed(made, pods) == ["n0", "n1", Reason.GANG_DOES_NOT_FIT, Reason.GANG_DOES_NOT_FIT]


def test_with_leader_ready_the_leader_starts_alone() -> None:
    spec = f"{{startupPolicy: LeaderReady, leaderWorkerTemplate: {{size: 2, workerTemplate: {TEMPLATE}}}}}"
    made = world(2, **{LEADER_WORKER_SET: job_object(LEADER_WORKER_SET, spec, name="serve")})
    leader = leader_worker(0, 0)
    made.add(leader)
    assert placed(made, [leader]) == ["n0"]


@pytest.mark.parametrize("kind", ["PyTorchJob", "AscendJob"])
def test_a_training_job_without_a_pod_group_starts_whole(kind: str) -> None:
    field = "pytorchReplicaSpecs" if kind == "PyTorchJob" else "replicaSpecs"
    made = world(1, **{kind: job_object(kind, f"{{{field}: {MASTER_WORKER}}}")})
    pods = [kubeflow(kind, "master", 0), kubeflow(kind, "worker", 0)]
    made.add(pods[0])
    assert placed(made, pods[:1]) == [Reason.GANG_INCOMPLETE]
    made.add(pods[1])
    assert placed(made, pods) == [Reason.GANG_DOES_NOT_FIT] * 2
    made.add(node("n1", labels=B8))
    assert sorted(placed(made, pods)) == ["n0", "n1"]


def test_a_pod_whose_operators_object_is_not_known_yet_waits() -> None:
    made = world(2, PyTorchJob=job_object("PyTorchJob", "{}", name="other"))
    pod = kubeflow("PyTorchJob", "master", 0)
    made.add(pod)
    refusal = made.refusal(pod)
    assert refusal.reason is Reason.GROUP_MISSING
    assert "PyTorchJob default/train" in refusal.message


def test_plain_pods_of_a_group_of_kueue_start_whole() -> None:
    made, pods = world(1), [queued(at, "2") for at in range(2)]
    made.add(*pods)
    assert placed(made, pods) == [Reason.GANG_DOES_NOT_FIT] * 2


def test_an_invalid_count_of_kueue_is_refused() -> None:
    refusal = world(1).refusal(queued(0, "two"))
    assert refusal.reason is Reason.INVALID_MIN_AVAILABLE
    assert "kueue.x-k8s.io/pod-group-total-count='two'" in refusal.message


def test_a_stateful_set_that_starts_in_order_can_have_no_minimum() -> None:
    made = world(2)
    made.cluster.jobs.owners.apply(StatefulSet(metadata=stateful_set(1).metadata, spec=StatefulSetSpec(2)))
    first = ordinal(0, annotations={MIN_AVAILABLE: "2"})
    made.add(first)
    refusal = made.refusal(first)
    assert refusal.reason is Reason.INVALID_MIN_AVAILABLE
    assert refusal.message == (
        "pod default/train-0: StatefulSet default/train creates a pod only when the one before it is ready "
        "(podManagementPolicy OrderedReady), but 2 pods of job default/train must be placed together; set "
        "podManagementPolicy to Parallel, or the minimum to 1"
    )
    made.cluster.jobs.owners.apply(stateful_set(2))
    assert made.refusal(first).reason is Reason.GANG_INCOMPLETE


def test_a_pod_without_an_owner_or_a_group_can_have_no_minimum() -> None:
    made, pods = world(2), [pod(f"p{at}", 8, annotations={MIN_AVAILABLE: "2"}) for at in range(2)]
    made.add(*pods)
    refusal = made.refusal(pods[0])
    assert refusal.reason is Reason.INVALID_MIN_AVAILABLE
    assert refusal.message == (
        "pod default/p0: it has no owner and names no pod group, so no other pod can be placed together with it, as "
        "huawei.com/schedule_minAvailable requires; name a pod group on all of them, or remove the annotation"
    )
    alone = pod("alone", 8, annotations={MIN_AVAILABLE: "1"})
    made.add(alone)
    assert made.engine.place(alone).node == "n0"


@pytest.mark.parametrize("is_watched", [True, False])
@given(order=st.permutations(range(3)))
def test_the_tasks_of_a_vcjob_get_ranks_of_their_own(is_watched: bool, order: list[int]) -> None:  # noqa: FBT001
    tasks = f"{{tasks: [{{name: master, template: {TEMPLATE}}}, {{name: worker, replicas: 2, template: {TEMPLATE}}}]}}"
    made = world(3, **({VOLCANO_JOB: job_object(VOLCANO_JOB, tasks)} if is_watched else {}))
    made.cluster.jobs.group_applied(VOLCANO, pod_group(3, name="train-u"))
    made.cluster.jobs.on_watched(VOLCANO)
    pods = [task("master", 0), task("worker", 0), task("worker", 1)]
    for each in pods:
        each.metadata.annotations[MIN_AVAILABLE] = "3"
    made.add(*(pods[at] for at in order))
    stamper = Stamper(made.cluster, made.ledger, lambda: 1)
    ranks = {}
    for at in order:
        stamped = stamper.stamp(made.engine.place(pods[at]), Stage.BINDING)
        ranks[at] = stamper.annotations(pods[at], stamped)[RANK]
    assert ranks == {0: "0", 1: "1", 2: "2"}


def test_a_stateful_set_that_starts_in_order_is_placed_pod_by_pod() -> None:
    made = world(2)
    made.cluster.jobs.owners.apply(StatefulSet(metadata=stateful_set(1).metadata, spec=StatefulSetSpec(2)))
    for at in range(2):
        pod = ordinal(at)
        made.add(pod)
        assert placed(made, [pod]) == [f"n{at}"]
