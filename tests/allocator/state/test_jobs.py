"""Which pods are a job, and how many of them work together; the same after any order of events."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.rules.job import JobKey, find_job, is_later, own_rank, stated_minimum
from allocator.state.jobs import Jobs
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.errors import Refusal
from ascend.jobs.core import INDEXED_JOB, SINGLE
from ascend.jobs.job_set import JOB_SET
from ascend.jobs.kubeflow import KUBEFLOW
from ascend.jobs.pod_groups import COSCHEDULING, KUBERNETES, VOLCANO
from ascend.kube.objects import Metadata, Pod, SchedulingGroup
from ascend.kube.workloads import BatchJob, BatchJobSpec, StatefulSet
from tests.allocator.builders import GROUP, pod_group, stateful_set
from tests.allocator.state.builders import INDEX, marked


def in_group(pod: Pod, name: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduling_group=SchedulingGroup(name)))


@pytest.mark.parametrize(
    ("each", "kind", "name"),
    [
        (marked("p", annotations={GROUP: "g"}), VOLCANO, "g"),
        (in_group(marked("p"), "g"), KUBERNETES, "g"),
        (in_group(marked("p"), ""), SINGLE, "p"),
        (in_group(marked("p-0", owner="ReplicaSet"), "g"), KUBERNETES, "g"),
        (in_group(marked("p", annotations={GROUP: "v"}), "g"), KUBERNETES, "g"),
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
def test_labels_annotations_and_owners_identify_the_job(each: Pod, kind: str, name: str) -> None:
    assert find_job(each) == JobKey("default", name, kind)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_an_invalid_minimum_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="schedule_minAvailable"):
        stated_minimum(marked("p", annotations={MIN_AVAILABLE: text}))


def is_distributed(jobs: Jobs, pod: Pod) -> bool:
    """Whether the pod's job is distributed."""
    return jobs.job_of(pod).is_distributed_with(pod)


def test_a_group_minimum_above_1_overrides_that_of_the_pods() -> None:
    jobs = Jobs()
    each = marked("p", annotations={GROUP: "g", MIN_AVAILABLE: "4"})
    jobs.pod_applied(each)
    assert jobs.job_of(each).min_available == 4
    for minimum, expected in ((1, 4), (2, 2)):
        group = pod_group(minimum, name="g")
        jobs.group_applied(VOLCANO, group)
        assert jobs.job_of(each).min_available == expected
    jobs.group_applied(COSCHEDULING, pod_group(name="g"))
    assert jobs.job_of(each).min_available == 2


def test_a_group_that_is_served_in_another_version_stays_a_gang() -> None:
    jobs, each = Jobs(), in_group(marked("p"), "g")
    jobs.on_watched(KUBERNETES, "v1alpha2")
    jobs.group_applied(KUBERNETES, pod_group(2, name="g"))
    jobs.pod_applied(each)
    jobs.on_watched(KUBERNETES, "v1beta1")
    jobs.on_unserved(KUBERNETES, "v1alpha2")
    assert jobs.job_of(each).min_available == 2
    jobs.on_unserved(KUBERNETES, "v1beta1")
    assert jobs.job_of(each).min_available == 1


def stating(name: str, minimum: int | None, created: int) -> Pod:
    """A pod that states this minimum, created at this second."""
    annotations = {MIN_AVAILABLE: str(minimum)} if minimum else {}
    return marked(name, owner="StatefulSet", annotations=annotations, since=f"2026-01-01T00:00:{created:02}Z")


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_newest_pod_states_the_minimum_in_any_order_of_events(order: tuple[int, ...]) -> None:
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
def test_only_pods_with_chips_make_a_job_distributed(none: int | None) -> None:
    jobs = Jobs()
    annotations = {GROUP: "g"}
    jobs.group_applied(VOLCANO, pod_group(name="g"))
    worker, launcher = (marked(*each, annotations=annotations, owner="PyTorchJob") for each in (("a", 1), ("b", none)))
    jobs.pod_applied(worker)
    jobs.pod_applied(launcher)
    assert not is_distributed(jobs, worker)
    assert (jobs.job_of(worker).present, jobs.job_of(worker).size) == (2, 1)
    assert is_distributed(jobs, marked("not-seen-yet", annotations=annotations, owner="PyTorchJob"))


def stateful(replicas: int) -> StatefulSet:
    return stateful_set(replicas, name="owner")


def batch(parallelism: int, completions: int | None = None) -> BatchJob:
    return BatchJob(metadata=Metadata(name="owner", namespace="default"), spec=BatchJobSpec(parallelism, completions))


INDEXED = [marked(f"p-{n}", labels={INDEX: str(n)}, owner="Job") for n in range(2)]
ORDINAL = [marked(f"p-{n}", labels={"apps.kubernetes.io/pod-index": str(n)}, owner="StatefulSet") for n in range(2)]
PLAIN = [marked(f"p-{n}", owner="Job") for n in range(2)]
FLOW_LABELS = {"training.kubeflow.org/job-name": "t"}
FLOW = [marked(f"p-{n}", labels=FLOW_LABELS) for n in range(2)]
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
        # Pods that run one after the other do not run together.
        (batch(1, 4), INDEXED, 1, False),
        (batch(4), PLAIN, 1, False),
        (None, ORDINAL, None, True),
        (None, INDEXED, None, True),
        (None, FLOW, None, True),
        (None, SET, 2, True),
        # The other Jobs of the set may have more pods.
        (batch(1), ONE_SET, None, True),
        (batch(3), ONE_SET, 3, True),
        (stateful(2), GROUPED, 2, True),
        (None, REPLICAS, 1, False),
        (None, BARE, 1, False),
    ],
)
def test_the_job_size_does_not_depend_on_which_peers_exist(
    owner: StatefulSet | BatchJob | None,
    pods: list[Pod],
    cooperating: int | None,
    distributed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    jobs = Jobs()
    if owner is not None:
        jobs.owners.apply(owner)
    for each in pods:
        for peer in pods:
            assert jobs.job_of(peer).cooperation_with(peer).known == cooperating
            assert is_distributed(jobs, peer) == distributed
        jobs.pod_applied(each)
    assert jobs.job_of(pods[0]).cooperation_with(pods[0]).known == cooperating
    assert is_distributed(jobs, pods[0]) == distributed


def test_an_owner_may_come_late_grow_and_be_deleted() -> None:
    jobs = Jobs()
    jobs.pod_applied(ORDINAL[0])
    for owner, cooperating in ((stateful(1), 1), (stateful(2), 2)):
        jobs.owners.apply(owner)
        assert jobs.job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known == cooperating
    jobs.owners.delete(stateful(2))
    assert jobs.job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known is None
    assert Jobs().job_of(ORDINAL[0]).cooperation_with(ORDINAL[0]).known is None


@pytest.mark.parametrize(
    ("each", "later"),
    [
        (ORDINAL[0], False),
        (ORDINAL[1], True),
        (INDEXED[1], True),
        (marked("p", labels={**FLOW_LABELS, "training.kubeflow.org/replica-index": "0"}), False),
        (marked("p", labels={**FLOW_LABELS, "training.kubeflow.org/replica-index": "1"}), True),
        (marked("p"), False),
    ],
)
def test_an_index_above_zero_means_the_pod_has_peers(each: Pod, later: bool) -> None:  # noqa: FBT001 - as above
    assert is_later(each) == later
    assert Jobs().job_of(each).may_be_alone(each) != later


@pytest.mark.parametrize("owner", ["ReplicaSet", "Job"])
def test_replicas_are_distributed_only_with_a_minimum(owner: str) -> None:
    jobs = Jobs()
    pods = [marked(f"p-{name}", owner=owner) for name in "ab"]
    for each in pods:
        jobs.pod_applied(each)
    assert jobs.job_of(pods[0]).size == 2
    assert not is_distributed(jobs, pods[0])
    jobs.pod_applied(marked("p-a", owner=owner, annotations={MIN_AVAILABLE: "2"}))
    assert is_distributed(jobs, pods[0])


names = st.sampled_from(["a", "b", "c", "d"])
owners = st.sampled_from(["Job", "ReplicaSet", ""])
events = st.lists(
    st.one_of(
        st.tuples(st.just("deleted"), names),
        st.builds(
            lambda name, owner, phase, terminating, count, rank: marked(
                name,
                count,
                owner=owner,
                phase=phase,
                terminating=terminating,
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
def test_any_events_lead_to_the_jobs_of_the_present_pods(events: list[tuple[str, str] | Pod]) -> None:
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
        with_chips = [(rank, one) for rank, one in mine.by_rank() if one.requests_chips]  # the others need none
        assigned = [rank for rank, one in with_chips if own_rank(one) is None]
        assert len(set(assigned)) == len(assigned)
        assert not set(assigned) & {own_rank(one) for _, one in with_chips}
    if not pods:
        assert len(jobs.by_key) == 0


@pytest.mark.parametrize("name", ["train", "my train", "a/b c/d"])
@pytest.mark.parametrize("kind", [VOLCANO, KUBEFLOW])
def test_a_job_key_is_read_back_from_its_plan(kind: str, name: str) -> None:
    key = JobKey("default", name, kind)
    assert JobKey.of_plan(key.plan) == key
