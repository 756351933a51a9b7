"""The rank of each pod of a job: its own, or the lowest that is free."""

import pytest

from allocator.rules.job import own_rank
from allocator.state.jobs import Jobs
from ascend.annotations import RANK
from ascend.kube.objects import Pod
from tests.allocator.reference import reference_cases
from tests.allocator.state.builders import INDEX, marked

CASES = reference_cases("ranks")


@pytest.mark.parametrize(
    ("each", "rank"),
    [
        (marked("p", annotations={RANK: "3"}), 3),
        (marked("p", annotations={RANK: "3"}, phase="Failed"), None),
        (marked("p", annotations={RANK: "many"}), None),
        (marked("p", labels={"apps.kubernetes.io/pod-index": "4"}), 4),
        (marked("p", labels={"statefulset.kubernetes.io/pod-name": "train-12"}), 12),
        (marked("p", labels={INDEX: "5"}), 5),
        (marked("p", annotations={INDEX: "5"}), 5),
        (marked("p", annotations={"volcano.sh/task-index": "6"}), 6),
        (marked("p", labels={INDEX: "5", "jobset.sigs.k8s.io/global-replicas": "2"}), None),
        (marked("p", env={"VC_TASK_INDEX": "7", "HOME": "1"}), 7),
        (marked("p", env={"VC_TASK_INDEX": "9" * 5000}), None),
        (marked("p", annotations={RANK: "3"}, labels={INDEX: "5"}), 3),
        (marked("p-8"), None),
    ],
)
def test_a_pods_own_rank_is_read_from_its_metadata(each: Pod, rank: int | None) -> None:
    assert own_rank(each) == rank


@pytest.mark.parametrize("case", CASES["rank_fill"]["cases"], ids=str)
def test_missing_ranks_are_the_lowest_unused(case: dict[str, object]) -> None:
    jobs, present = Jobs(), case["ranks_present"]
    assert isinstance(present, list)
    total = case["tasks"]
    assert isinstance(total, int)
    pods = [
        marked(f"p-{number}", owner="Job", annotations={RANK: present[number]} if number < len(present) else None)
        for number in range(total)
    ]
    for each in pods:
        jobs.pod_applied(each)
    ranked = jobs.job_of(pods[0]).ranked()
    assert [str(rank) for rank, each in ranked if RANK not in each.metadata.annotations] == case["assigned"]


def test_masters_are_ranked_first() -> None:
    jobs = Jobs()
    kind, index = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
    job = {"training.kubeflow.org/job-name": "train"}
    workers = [marked(f"w-{n}", labels={**job, kind: "worker", index: str(n)}) for n in (10, 9, 0)]
    master = marked("z-0", labels={**job, kind: "master", index: "0"})
    for each in (*workers, master):
        jobs.pod_applied(each)
    assert [each.name for _, each in jobs.job_of(master).ranked()] == ["z-0", "w-0", "w-9", "w-10"]


def test_a_successor_gets_the_free_rank() -> None:
    jobs = Jobs()
    pods = [marked(f"p-{name}", owner="ReplicaSet") for name in "abc"]
    for each in pods:
        jobs.pod_applied(each)
    job = jobs.job_of(pods[0])
    ranks = {each.name: rank for rank, each in job.ranked()}
    jobs.pod_applied(marked("p-b", owner="ReplicaSet", phase="Failed"))
    new = marked("p-z", owner="ReplicaSet")
    jobs.pod_applied(new)
    assert job.rank_of(new) == ranks["p-b"] == 1
    assert [job.rank_of(each) for each in (pods[0], pods[2])] == [0, 2]
