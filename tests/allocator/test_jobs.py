"""A job is found by whatever marks its pods, and counts and ranks them, event by event as from the beginning."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.job import (
    COSCHEDULING,
    INDEXED_JOB,
    JOB_SET,
    KUBEFLOW,
    SINGLE,
    VOLCANO,
    JobKey,
    find_job,
    is_later,
    own_rank,
    stated_minimum,
)
from allocator.state.jobs import Jobs
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.errors import Refusal
from ascend.kube.objects import (
    BatchJob,
    BatchJobSpec,
    Container,
    EnvVar,
    Metadata,
    OwnerReference,
    Pod,
    PodGroup,
    PodGroupSpec,
    StatefulSet,
    StatefulSetSpec,
)
from tests.allocator.builders import container, pod

GROUP = "scheduling.k8s.io/group-name"
INDEX = "batch.kubernetes.io/job-completion-index"
CASES = json.loads((Path(__file__).parent / "cases" / "ranks.json").read_text())


def marked(
    name: str,
    count: int | None = 1,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: str = "",
    phase: str = "Pending",
    deleted: bool = False,
    env: Mapping[str, str] | None = None,
) -> Pod:
    """A pod with marks; ``owner`` is the kind of a controller named ``owner``."""
    asking = container("main", count)
    variables = [EnvVar(key, value) for key, value in (env or {}).items()]
    made = pod(
        name,
        annotations=annotations,
        phase=phase,
        containers=[Container("main", asking.resources, env=variables)],
    )
    owners = [OwnerReference(kind=owner, name="owner", uid="u", controller=True)] if owner else []
    metadata = msgspec.structs.replace(
        made.metadata,
        labels=dict(labels or {}),
        owner_references=owners,
        deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
    )
    return msgspec.structs.replace(made, metadata=metadata)


@pytest.mark.parametrize(
    ("each", "kind", "name"),
    [
        (marked("p", annotations={GROUP: "g"}), VOLCANO, "g"),
        (marked("p", labels={"scheduling.x-k8s.io/pod-group": "g"}), COSCHEDULING, "g"),
        (marked("p", labels={"pod-group.scheduling.sigs.k8s.io": "g"}), COSCHEDULING, "g"),
        (marked("p", labels={"training.kubeflow.org/job-name": "g"}), KUBEFLOW, "g"),
        (marked("p", labels={"jobset.sigs.k8s.io/jobset-name": "g"}, owner="Job"), JOB_SET, "g"),
        (marked("p-0", labels={INDEX: "0"}, owner="Job"), INDEXED_JOB, "owner"),
        (marked("p-x", owner="Job"), "Job", "owner"),
        (marked("p-0", owner="StatefulSet"), "StatefulSet", "owner"),
        (marked("p-0", owner="ReplicaSet"), "ReplicaSet", "owner"),
        (marked("p-0", owner="DaemonSet"), SINGLE, "p-0"),
        (marked("p"), SINGLE, "p"),
        (marked("p", annotations={GROUP: ""}), SINGLE, "p"),
        (marked("p", annotations={GROUP: "g"}, labels={"training.kubeflow.org/job-name": "k"}), VOLCANO, "g"),
    ],
)
def test_a_job_is_found_by_its_mark(each: Pod, kind: str, name: str) -> None:
    assert find_job(each) == JobKey("default", name, kind)


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
def test_a_rank_is_read_from_where_it_stands(each: Pod, rank: int | None) -> None:
    assert own_rank(each) == rank


def test_variables_that_number_no_pods_are_not_kept() -> None:
    assert marked("p", env={"PASSWORD": "x"}).spec.containers[0].env == []


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_a_minimum_that_is_no_number_of_pods_is_a_refusal(text: str) -> None:
    with pytest.raises(Refusal, match="schedule_minAvailable"):
        stated_minimum(marked("p", annotations={MIN_AVAILABLE: text}))


def test_the_group_says_the_minimum_and_the_pods_only_where_it_leaves_it_at_one() -> None:
    jobs = Jobs()
    each = marked("p", annotations={GROUP: "g", MIN_AVAILABLE: "4"})
    jobs.pod_applied(each)
    assert jobs.job_of(each).min_available == 4
    for minimum, expected in ((1, 4), (2, 2)):
        group = PodGroup(metadata=Metadata(name="g", namespace="default"), spec=PodGroupSpec(min_member=minimum))
        jobs.group_applied(VOLCANO, group)
        assert jobs.job_of(each).min_available == expected
    jobs.group_applied(COSCHEDULING, PodGroup(metadata=Metadata(name="g", namespace="default")))
    assert jobs.job_of(each).min_available == 2


def stating(name: str, minimum: int | None, created: int) -> Pod:
    made = marked(name, owner="StatefulSet", annotations={MIN_AVAILABLE: str(minimum)} if minimum else {})
    stamp = f"2026-01-01T00:00:{created:02}Z"
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=stamp))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_of_pods_that_contradict_each_other_the_newest_says_the_minimum_in_whatever_order_they_are_seen(
    order: tuple[int, ...],
) -> None:
    pods = [stating("p-0", 3, 10), stating("p-1", 2, 30), stating("p-2", 1, 20), stating("p-3", None, 40)]
    jobs = Jobs()
    for number in order:
        jobs.pod_applied(pods[number])
    job = jobs.job_of(pods[3])
    assert job.min_available == 2
    jobs.pod_applied(stating("p-0", 5, 10))
    assert job.min_available == 2
    for gone, left in ((1, 1), (2, 5), (0, 1)):
        jobs.pod_deleted(pods[gone])
        assert job.min_available == left
    jobs.pod_applied(stating("p-3", 4, 40))
    assert job.min_available == 4
    jobs.pod_applied(pods[3])
    assert job.min_available == 1


@pytest.mark.parametrize("none", [None, 0])
def test_only_pods_that_ask_for_chips_make_a_job_distributed(none: int | None) -> None:
    jobs = Jobs()
    mark = {GROUP: "g"}
    jobs.group_applied(VOLCANO, PodGroup(metadata=Metadata(name="g", namespace="default")))
    asks, plain = (marked(*each, annotations=mark, owner="PyTorchJob") for each in (("a", 1), ("b", none)))
    jobs.pod_applied(asks)
    jobs.pod_applied(plain)
    assert not jobs.is_distributed(asks)
    assert (jobs.job_of(asks).present, jobs.job_of(asks).size) == (2, 1)
    assert jobs.is_distributed(marked("not-seen-yet", annotations=mark, owner="PyTorchJob"))


def stateful(replicas: int) -> StatefulSet:
    return StatefulSet(metadata=Metadata(name="owner", namespace="default"), spec=StatefulSetSpec(replicas))


def batch(parallelism: int, completions: int | None = None) -> BatchJob:
    return BatchJob(metadata=Metadata(name="owner", namespace="default"), spec=BatchJobSpec(parallelism, completions))


INDEXED = [marked(f"p-{n}", labels={INDEX: str(n)}, owner="Job") for n in range(2)]
ORDINAL = [marked(f"p-{n}", labels={"apps.kubernetes.io/pod-index": str(n)}, owner="StatefulSet") for n in range(2)]
PLAIN = [marked(f"p-{n}", owner="Job") for n in range(2)]
FLOW = [marked(f"p-{n}", labels={"training.kubeflow.org/job-name": "t"}) for n in range(2)]
SETS = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-replicas": "2"}
SET = [marked(f"p-{n}", labels={**SETS, INDEX: str(n)}, owner="Job") for n in range(2)]

ONE_SET = [marked(f"p-{n}", labels={"jobset.sigs.k8s.io/jobset-name": "s", INDEX: str(n)}, owner="Job") for n in (0, 1)]
GROUPED, REPLICAS, BARE = (
    [marked(f"p-{n}", annotations={GROUP: "g"}, owner=owner) for n in range(2)]
    for owner in ("StatefulSet", "ReplicaSet", "")
)


@pytest.mark.parametrize(
    ("owner", "pods", "cooperating", "distributed"),
    [
        (stateful(1), ORDINAL, 1, False),
        (stateful(3), ORDINAL, 3, True),
        (batch(4, 4), INDEXED, 4, True),
        (batch(4, 1), INDEXED, 1, False),
        # One after the other is not together.
        (batch(1, 4), INDEXED, 1, False),
        (batch(4), PLAIN, 1, False),
        (None, ORDINAL, None, True),
        (None, INDEXED, None, True),
        (None, FLOW, None, True),
        (None, SET, 2, True),
        # Its other Jobs may have more.
        (batch(1), ONE_SET, None, True),
        (batch(3), ONE_SET, 3, True),
        (stateful(2), GROUPED, 2, True),
        (None, REPLICAS, 1, False),
        (None, BARE, 1, False),
    ],
)
def test_the_first_pod_is_told_the_same_whichever_of_its_peers_are_there(
    owner: StatefulSet | BatchJob | None,
    pods: list[Pod],
    cooperating: int | None,
    distributed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    jobs = Jobs()
    if owner is not None:
        jobs.owner_applied(owner)
    for each in pods:
        for asked in pods:
            assert jobs.job_of(asked).cooperation_with(asked).known == cooperating
            assert jobs.is_distributed(asked) == distributed
        jobs.pod_applied(each)
    assert jobs.job_of(pods[0]).cooperation_with(pods[0]).known == cooperating
    assert jobs.is_distributed(pods[0]) == distributed


def test_an_owner_may_come_late_grow_and_go() -> None:
    jobs = Jobs()
    jobs.pod_applied(ORDINAL[0])
    for owner, cooperating in ((stateful(1), 1), (stateful(2), 2)):
        jobs.owner_applied(owner)
        assert jobs.job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known == cooperating
    jobs.owner_deleted(stateful(2))
    assert jobs.job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known is None
    assert Jobs().job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known is None


@pytest.mark.parametrize(
    ("each", "later"),
    [
        (ORDINAL[0], False),
        (ORDINAL[1], True),
        (INDEXED[1], True),
        (marked("p", labels={"training.kubeflow.org/replica-index": "0"}), False),
        (marked("p", labels={"training.kubeflow.org/replica-index": "1"}), True),
        (marked("p"), False),
    ],
)
def test_an_index_above_zero_says_that_a_pod_is_not_alone(each: Pod, later: bool) -> None:  # noqa: FBT001 - as above
    assert is_later(each) == later
    assert Jobs().job_of(each).may_be_alone(each) != later


@pytest.mark.parametrize("owner", ["ReplicaSet", "Job"])
def test_pods_that_only_share_a_template_are_not_distributed_unless_they_need_each_other(owner: str) -> None:
    jobs = Jobs()
    pods = [marked(f"p-{name}", owner=owner) for name in "ab"]
    for each in pods:
        jobs.pod_applied(each)
    assert jobs.job_of(pods[0]).size == 2
    assert not jobs.is_distributed(pods[0])
    jobs.pod_applied(marked("p-a", owner=owner, annotations={MIN_AVAILABLE: "2"}))
    assert jobs.is_distributed(pods[0])


@pytest.mark.parametrize("case", CASES["rank_fill"]["cases"], ids=str)
def test_missing_ranks_are_the_lowest_unused(case: dict[str, object]) -> None:
    jobs, given = Jobs(), case["ranks_present"]
    assert isinstance(given, list)
    total = case["tasks"]
    assert isinstance(total, int)
    pods = [
        marked(f"p-{number}", owner="Job", annotations={RANK: given[number]} if number < len(given) else None)
        for number in range(total)
    ]
    for each in pods:
        jobs.pod_applied(each)
    ranked = jobs.job_of(pods[0]).ranked()
    assert [str(rank) for rank, each in ranked if RANK not in each.metadata.annotations] == case["assigned"]


def test_masters_are_numbered_first() -> None:
    jobs = Jobs()
    kind, index = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
    job = {"training.kubeflow.org/job-name": "train"}
    workers = [marked(f"w-{n}", labels={**job, kind: "worker", index: str(n)}) for n in (10, 9, 0)]
    master = marked("z-0", labels={**job, kind: "master", index: "0"})
    for each in (*workers, master):
        jobs.pod_applied(each)
    assert [each.name for _, each in jobs.job_of(master).ranked()] == ["z-0", "w-0", "w-9", "w-10"]


def test_a_successor_gets_the_rank_that_became_free() -> None:
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


names = st.sampled_from(["a", "b", "c", "d"])
owners = st.sampled_from(["Job", "ReplicaSet", ""])
events = st.lists(
    st.one_of(
        st.tuples(st.just("deleted"), names),
        st.builds(
            lambda name, owner, phase, deleted, count, rank: marked(
                name,
                count,
                owner=owner,
                phase=phase,
                deleted=deleted,
                annotations={RANK: str(rank)} if rank is not None else None,
            ),
            names,
            owners,
            st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]),
            st.booleans(),
            st.sampled_from([None, 1, 8]),
            st.none() | st.integers(0, 4),
        ),
    ),
    max_size=30,
)


@given(events=events)
def test_after_any_events_the_jobs_are_those_of_the_pods_there_are(events: list[tuple[str, str] | Pod]) -> None:
    jobs, pods = Jobs(), dict[str, Pod]()
    for event in events:
        if isinstance(event, Pod):
            pods[event.uid] = event
            jobs.pod_applied(event)
            jobs.job_of(event).rank_of(event)
        elif (gone := pods.pop(f"uid-{event[1]}", None)) is not None:
            jobs.pod_deleted(gone)
    fresh = Jobs()
    for each in pods.values():
        fresh.pod_applied(each)
    for each in pods.values():
        mine, other = jobs.job_of(each), fresh.job_of(each)
        assert (mine.key, mine.size, mine.present, set(mine.pods)) == (
            other.key,
            other.size,
            other.present,
            set(other.pods),
        )
        given_ranks = [rank for rank, one in mine.ranked() if own_rank(one) is None]
        assert len(set(given_ranks)) == len(given_ranks)
        assert not set(given_ranks) & {own_rank(one) for one in mine.pods.values()}
    if not pods:
        assert len(jobs) == 0


@pytest.mark.parametrize("name", ["train", "my train", "a/b c/d"])
@pytest.mark.parametrize("kind", [VOLCANO, KUBEFLOW])
def test_a_job_is_known_by_the_name_of_its_plan(kind: str, name: str) -> None:
    key = JobKey("default", name, kind)
    assert JobKey.of_plan(key.plan) == key
