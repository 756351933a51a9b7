"""The rank of each pod of a job: its own, or the lowest that is free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.job import own_rank
from allocator.state.jobs import Jobs
from ascend.annotations import RANK
from ascend.jobs.job_set import JOB_SET
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import Pod
from tests.allocator.jobs.manifests import (
    TEMPLATE,
    job_object,
    kubeflow,
    leader_worker,
    made,
    ordinal,
    queued,
    replicated,
    task,
)
from tests.allocator.reference import reference_cases
from tests.allocator.state.builders import INDEX, marked

JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
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
        (marked("p", labels={INDEX: "5", JOB_SET_NAME: "s", "jobset.sigs.k8s.io/global-replicas": "2"}), None),
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
    ranked = jobs.job_of(pods[0]).by_rank()
    assert [str(rank) for rank, each in ranked if RANK not in each.metadata.annotations] == case["assigned"]


def test_masters_are_ranked_first() -> None:
    jobs = Jobs()
    kind, index = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
    job = {"training.kubeflow.org/job-name": "train"}
    workers = [marked(f"w-{n}", labels={**job, kind: "worker", index: str(n)}) for n in (10, 9, 0)]
    master = marked("z-0", labels={**job, kind: "master", index: "0"})
    for each in (*workers, master):
        jobs.pod_applied(each)
    assert [each.name for _, each in jobs.job_of(master).by_rank()] == ["z-0", "w-0", "w-9", "w-10"]


def test_a_successor_gets_the_free_rank() -> None:
    jobs = Jobs()
    pods = [marked(f"p-{name}", owner="ReplicaSet") for name in "abc"]
    for each in pods:
        jobs.pod_applied(each)
    job = jobs.job_of(pods[0])
    ranks = {each.name: rank for rank, each in job.by_rank()}
    jobs.pod_applied(marked("p-b", owner="ReplicaSet", phase="Failed"))
    new = marked("p-z", owner="ReplicaSet")
    jobs.pod_applied(new)
    assert job.rank_of(new) == ranks["p-b"] == 1
    assert [job.rank_of(each) for each in (pods[0], pods[2])] == [0, 2]


GROUP = "scheduling.k8s.io/group-name"


def in_group(each: Pod, rank: int | None = None) -> Pod:
    """The pod in one PodGroup with all others, with a rank written on it if any."""
    written = {RANK: str(rank)} if rank is not None else {}
    each.metadata.annotations.update({GROUP: "mixed", **written})
    return each


numbers = st.integers(0, 3)
pods = st.one_of(
    st.builds(task, st.sampled_from(["master", "worker", "ps"]), numbers),
    st.builds(lambda part, at: kubeflow("PyTorchJob", part, at), st.sampled_from(["master", "worker"]), numbers),
    st.builds(leader_worker, numbers, numbers),
    st.builds(
        lambda part, job, at: replicated(part, job, at, jobs=4, alike=2), st.sampled_from("ab"), numbers, numbers
    ),
    st.builds(ordinal, numbers),
    st.builds(lambda at: ordinal(at, name="other"), numbers),
    st.builds(lambda at: queued(at, "2"), numbers),
    st.builds(lambda at: made(f"plain-{at}", None), numbers),
)
OBJECTS = (
    (VOLCANO_JOB, job_object(VOLCANO_JOB, f"{{tasks: [{{name: worker, replicas: 2, template: {TEMPLATE}}}]}}")),
    (JOB_SET, job_object(JOB_SET, "{replicatedJobs: [{name: a, template: {spec: {parallelism: 2}}}]}")),
)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "read", "delete", "object", "no object"]), pods, st.none() | numbers),
    max_size=40,
)


def apply(jobs: Jobs, present: dict[str, Pod], step: str, pod: Pod) -> None:
    """Carry out a step; ranks that are read twice must be the same."""
    if step == "put":
        present[pod.uid] = pod
        jobs.pod_applied(pod)
    elif step == "delete" and pod.uid in present:
        jobs.pod_deleted(present.pop(pod.uid))
    elif "object" in step:
        for kind, made_from in OBJECTS:
            (jobs.source_applied if step == "object" else jobs.source_deleted)(kind, made_from)
    elif pod.uid in present:
        job = jobs.job_of(present[pod.uid])
        before = job.rank_of(present[pod.uid])
        job.by_rank()
        assert job.rank_of(present[pod.uid]) == before


@given(steps=steps, grouped=st.booleans())
def test_no_two_pods_of_a_job_ever_have_the_same_rank(
    steps: list[tuple[str, Pod, int | None]],
    grouped: bool,  # noqa: FBT001 - drawn
) -> None:
    jobs, present = Jobs(), dict[str, Pod]()
    for step, each, rank in steps:
        apply(jobs, present, step, in_group(each, rank) if grouped else each)
        for job in jobs:
            given = job._ranks._ranks._given if job._ranks is not None else {}
            read = [given[uid] for uid in job.pods if uid in given]
            assert len(set(read)) == len(read)
    for job in jobs:
        ranked = job.by_rank()
        assert len({rank for rank, _ in ranked}) == len(ranked)


def test_a_written_rank_counts_and_the_assigned_ones_avoid_it() -> None:
    jobs = Jobs()
    for each in (marked("a", owner="ReplicaSet"), marked("b", owner="ReplicaSet", annotations={RANK: "0"})):
        jobs.pod_applied(each)
    job = jobs.job_of(marked("a", owner="ReplicaSet"))
    assert [(rank, each.name) for rank, each in job.by_rank()] == [(0, "b"), (1, "a")]


def test_an_assigned_rank_is_none_that_a_peer_states() -> None:
    jobs = Jobs()
    first = marked("a", owner="ReplicaSet")
    for each in (marked("b", owner="ReplicaSet", annotations={RANK: "0"}), first):
        jobs.pod_applied(each)
    assert jobs.job_of(first).rank_of(first) == 1


def test_the_tasks_of_a_vcjob_are_ranked_in_turn_without_their_object() -> None:
    jobs = Jobs()
    pods = [task("worker", 1), task("worker", 0), task("master", 0)]
    for each in pods:
        jobs.pod_applied(each)
    assert [each.name for _, each in jobs.job_of(pods[0]).by_rank()] == [
        "train-master-0",
        "train-worker-0",
        "train-worker-1",
    ]


def test_the_only_task_of_a_vcjob_has_its_indexes_as_ranks() -> None:
    jobs = Jobs()
    jobs.pod_applied(task("worker", 3))
    assert jobs.job_of(task("worker", 3)).rank_of(task("worker", 3)) == 3


def test_the_ranks_of_a_vcjob_survive_a_restart_in_any_order() -> None:
    tasks = f"""
        tasks:
          - {{name: worker, replicas: 2, template: {TEMPLATE}}}
          - {{name: log, replicas: 1, template: {{spec: {{containers: [{{name: main}}]}}}}}}
          - {{name: late, replicas: 2, template: {TEMPLATE}}}
          - {{name: Master, replicas: 1, template: {TEMPLATE}}}
        """
    jobs = Jobs()
    jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, tasks))
    expected = {("late", 1): 4, ("worker", 1): 2, ("master", 0): 0, ("late", 0): 3, ("worker", 0): 1}
    for (name, at), rank in expected.items():
        each = task(name, at)
        jobs.pod_applied(each)
        assert jobs.job_of(each).rank_of(each) == rank
