"""Every kind of job: what its pods are recognized by, how many there are, how many start together, and their ranks."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from allocator.rules.job import JobKey, find_job, first_kind
from allocator.state.jobs import Jobs
from ascend.annotations import MIN_AVAILABLE
from ascend.jobs.kind import JobObject
from ascend.jobs.kueue import KUEUE
from ascend.jobs.leader_worker_set import LEADER_WORKER_SET
from ascend.jobs.pod_groups import COSCHEDULING, KUBERNETES, VOLCANO
from ascend.jobs.table import JOB_KINDS
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import KubeObject, Metadata, Pod, SchedulingGroup
from ascend.kube.workloads import (
    BatchJob,
    BatchJobSpec,
    PodGroup,
    PodGroupSpec,
    SchedulingPolicy,
    StatefulSet,
    StatefulSetSpec,
)
from tests.allocator.jobs.manifests import (
    NO_CHIPS,
    TEMPLATE,
    job_object,
    kubeflow,
    leader_worker,
    made,
    ordinal,
    queued,
    ray,
    ray_cluster,
    replicated,
    serving,
    storm,
    task,
)

INDEX: Final = "batch.kubernetes.io/job-completion-index"


class Case(NamedTuple):
    """A job: its row in the table, its objects, its pods by rank, its name, size and minimum."""

    kind: str
    objects: Sequence[KubeObject]
    pods: Sequence[Pod]
    job: str
    size: int | None
    minimum: int


def group(minimum: int, name: str = "train", **labels: str) -> PodGroup:
    return PodGroup(metadata=Metadata(name, "default", labels=labels), spec=PodGroupSpec(minimum))


def native_group(policy: str) -> PodGroup:
    spec = PodGroupSpec(scheduling_policy=msgspec.yaml.decode(policy, type=SchedulingPolicy))
    return PodGroup(metadata=Metadata("train", "default"), spec=spec)


def in_group(pod: Pod) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduling_group=SchedulingGroup("train")))


def jobs_of(objects: Sequence[KubeObject], kind: str = "") -> Jobs:
    """Jobs that know these objects; PodGroups are of Volcano unless the kind says otherwise."""
    jobs = Jobs()
    for each in objects:
        if isinstance(each, PodGroup):
            named = kind if kind in {COSCHEDULING, KUBERNETES} else VOLCANO
            jobs.group_applied(named, each)
            jobs.on_watched(named)
        elif isinstance(each, JobObject):
            source = next(
                row.name
                for row in JOB_KINDS
                for resource in row.objects
                if resource.type is type(each) and (row.name == kind or kind in {VOLCANO, COSCHEDULING, KUBERNETES})
            )
            jobs.source_applied(source, each)
            jobs.on_watched(source)
        elif isinstance(each, StatefulSet | BatchJob):
            jobs.owners.apply(each)
    return jobs


_MASTER_WORKER: Final = f"Master: {{replicas: 1, template: {TEMPLATE}}}, Worker: {{replicas: 2, template: {TEMPLATE}}}"
_TORCH: Final = f"{{pytorchReplicaSpecs: {{{_MASTER_WORKER}}}}}"
_TORCH_PODS: Final = [("master", 0), ("worker", 0), ("worker", 1)]
_RAY_HEAD: Final = f"headGroupSpec: {{rayStartParams: {{dashboard-host: 0.0.0.0}}, template: {NO_CHIPS}}}"

CASES: Final = {
    "Deployment": Case(
        "ReplicaSet", [], [made(f"web-5d-{at}", ("apps/v1", "ReplicaSet", "web-5d")) for at in "ab"], "web-5d", 1, 1
    ),
    "Job": Case(
        "Job",
        [BatchJob(metadata=Metadata("train", "default"), spec=BatchJobSpec(2, 2))],
        [made(f"train-{at}", ("batch/v1", "Job", "train")) for at in "ab"],
        "train",
        1,
        1,
    ),
    "Indexed Job": Case(
        "Indexed Job",
        [BatchJob(metadata=Metadata("train", "default"), spec=BatchJobSpec(2, 2))],
        [made(f"train-{at}-x", ("batch/v1", "Job", "train"), {INDEX: str(at)}) for at in range(2)],
        "train",
        2,
        1,
    ),
    "JobSet": Case(
        "JobSet",
        [
            job_object(
                "JobSet",
                f"""
                replicatedJobs:
                  - {{name: driver, replicas: 1, template: {{spec: {{template: {NO_CHIPS}}}}}}}
                  - name: workers
                    replicas: 2
                    template: {{spec: {{parallelism: 2, completions: 2, template: {TEMPLATE}}}}}
                """,
            )
        ],
        [replicated("workers", job, at, jobs=3, alike=2) for job in range(2) for at in range(2)],
        "train",
        4,
        1,
    ),
    "StatefulSet, Parallel": Case(
        "StatefulSet",
        [StatefulSet(metadata=Metadata("train", "default"), spec=StatefulSetSpec(2, "Parallel"))],
        [ordinal(at, annotations={MIN_AVAILABLE: "2"}) for at in range(2)],
        "train",
        2,
        2,
    ),
    "StatefulSet, OrderedReady": Case(
        "StatefulSet",
        [StatefulSet(metadata=Metadata("train", "default"), spec=StatefulSetSpec(2))],
        [ordinal(at) for at in range(2)],
        "train",
        2,
        1,
    ),
    "LeaderWorkerSet": Case(
        LEADER_WORKER_SET,
        [
            job_object(
                LEADER_WORKER_SET,
                f"{{startupPolicy: LeaderCreated, leaderWorkerTemplate: {{size: 3, workerTemplate: {TEMPLATE}}}}}",
                name="serve",
            )
        ],
        [leader_worker(1, at, size=3) for at in range(3)],
        "serve-1",
        3,
        3,
    ),
    "LeaderWorkerSet, leader without chips": Case(
        LEADER_WORKER_SET,
        [
            job_object(
                LEADER_WORKER_SET,
                f"{{leaderWorkerTemplate: {{size: 3, leaderTemplate: {NO_CHIPS}, workerTemplate: {TEMPLATE}}}}}",
                name="serve",
            )
        ],
        [leader_worker(0, at, size=3) for at in (1, 2)],
        "serve-0",
        2,
        3,
    ),
    "LeaderWorkerSet that is not watched": Case(
        LEADER_WORKER_SET, [], [leader_worker(0, at, size=2) for at in range(2)], "serve-0", 2, 2
    ),
    "LeaderWorkerSet, LeaderReady": Case(
        LEADER_WORKER_SET,
        [
            job_object(
                LEADER_WORKER_SET,
                f"{{startupPolicy: LeaderReady, leaderWorkerTemplate: {{size: 2, workerTemplate: {TEMPLATE}}}}}",
                name="serve",
            )
        ],
        [leader_worker(0, at) for at in range(2)],
        "serve-0",
        2,
        1,
    ),
    "PyTorchJob": Case(
        "PyTorchJob",
        [job_object("PyTorchJob", _TORCH)],
        [kubeflow("PyTorchJob", *each) for each in _TORCH_PODS],
        "train",
        3,
        3,
    ),
    "PyTorchJob, elastic": Case(
        "PyTorchJob",
        [
            job_object(
                "PyTorchJob",
                f"""
                elasticPolicy: {{minReplicas: 1, maxReplicas: 3, rdzvBackend: c10d}}
                pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {TEMPLATE}}}}}
                """,
            )
        ],
        [kubeflow("PyTorchJob", "worker", at) for at in range(2)],
        "train",
        2,
        1,
    ),
    "PyTorchJob with its own minimum": Case(
        "PyTorchJob",
        [job_object("PyTorchJob", f"{{runPolicy: {{schedulingPolicy: {{minAvailable: 2}}}}, {_TORCH[1:]}")],
        [kubeflow("PyTorchJob", *each) for each in _TORCH_PODS],
        "train",
        3,
        2,
    ),
    "PyTorchJob with a PodGroup": Case(
        VOLCANO,
        [group(3), job_object("PyTorchJob", _TORCH)],
        [kubeflow("PyTorchJob", *each, group="train") for each in _TORCH_PODS],
        "train",
        3,
        3,
    ),
    "TFJob": Case(
        "TFJob",
        [
            job_object(
                "TFJob",
                f"""
                tfReplicaSpecs:
                  Chief: {{replicas: 1, template: {TEMPLATE}}}
                  PS: {{replicas: 1, template: {NO_CHIPS}}}
                  Worker: {{replicas: 2, template: {TEMPLATE}}}
                """,
            )
        ],
        [kubeflow("TFJob", *each) for each in (("chief", 0), ("worker", 0), ("worker", 1))],
        "train",
        3,
        4,
    ),
    "MPIJob": Case(
        "MPIJob",
        [
            job_object(
                "MPIJob",
                f"""
                slotsPerWorker: 8
                mpiReplicaSpecs:
                  Launcher: {{replicas: 1, template: {NO_CHIPS}}}
                  Worker: {{replicas: 2, template: {TEMPLATE}}}
                """,
            )
        ],
        [kubeflow("MPIJob", "worker", at) for at in range(2)],
        "train",
        2,
        3,
    ),
    "MPIJob whose launcher waits": Case(
        "MPIJob",
        [
            job_object(
                "MPIJob",
                f"""
                launcherCreationPolicy: WaitForWorkersReady
                mpiReplicaSpecs:
                  Launcher: {{template: {NO_CHIPS}}}
                  Worker: {{replicas: 2, template: {TEMPLATE}}}
                """,
            )
        ],
        [kubeflow("MPIJob", "worker", at) for at in range(2)],
        "train",
        2,
        2,
    ),
    "PaddleJob": Case(
        "PaddleJob",
        [job_object("PaddleJob", f"{{paddleReplicaSpecs: {{Worker: {{replicas: 2, template: {TEMPLATE}}}}}}}")],
        [kubeflow("PaddleJob", "worker", at) for at in range(2)],
        "train",
        2,
        2,
    ),
    "ModelServing": Case(
        "ModelServing",
        [
            job_object(
                "ModelServing",
                f"""
                schedulerName: default-scheduler
                replicas: 2
                template:
                  gangPolicy: {{minRoleReplicas: {{llama: 1}}}}
                  roles:
                    - {{name: llama, replicas: 1, workerReplicas: 1, entryTemplate: {TEMPLATE},
                        workerTemplate: {TEMPLATE}}}
                    - {{name: router, workerReplicas: 0, entryTemplate: {NO_CHIPS}}}
                """,
                name="serve",
            )
        ],
        [serving("llama", 0, is_entry=True), serving("llama", 1)],
        "serve-1",
        2,
        1,
    ),
    "StormService": Case(
        "StormService",
        [
            job_object(
                "StormService",
                f"""
                replicas: 1
                stateful: true
                template:
                  spec:
                    roles:
                      - {{name: prefill, replicas: 1, stateful: true, template: {TEMPLATE}}}
                      - {{name: decode, replicas: 1, podGroupSize: 2, template: {TEMPLATE}}}
                """,
                name="serve",
            )
        ],
        [storm("prefill", 0), storm("decode", 0), storm("decode", 1)],
        "serve-roleset-x7k2p",
        3,
        1,
    ),
    "Workflow of Argo": Case(
        "Workflow",
        [],
        [made(f"steps-{at}", ("argoproj.io/v1alpha1", "Workflow", "steps")) for at in "ab"],
        "steps",
        1,
        1,
    ),
    "executors of Spark": Case(
        "Spark application",
        [],
        [
            made(
                f"pi-exec-{at}",
                ("v1", "Pod", "pi-driver"),
                {"spark-app-selector": "spark-7f", "spark-role": "executor", "spark-exec-id": str(at)},
            )
            for at in (1, 2)
        ],
        "spark-7f",
        1,
        1,
    ),
    "another job of Kubeflow": Case(
        "kubeflow job", [], [kubeflow("XGBoostJob", "worker", at) for at in range(2)], "train", None, 1
    ),
    "RayCluster": Case(
        "RayCluster",
        [
            job_object(
                "RayCluster",
                f"""
                headGroupSpec: {{rayStartParams: {{}}, template: {NO_CHIPS}}}
                workerGroupSpecs:
                  - {{groupName: large, replicas: 1, minReplicas: 1, numOfHosts: 2, template: {TEMPLATE}}}
                """,
            )
        ],
        [ray("large", at) for at in range(2)],
        "train",
        2,
        1,
    ),
    "RayCluster as a gang that scales": Case(
        "RayCluster",
        [
            job_object(
                "RayCluster",
                f"""
                enableInTreeAutoscaling: true
                headGroupSpec: {{template: {TEMPLATE}}}
                workerGroupSpecs: [{{groupName: large, replicas: 3, minReplicas: 2, template: {TEMPLATE}}}]
                """,
                labels={"ray.io/gang-scheduling-enabled": "true"},
            )
        ],
        [ray("headgroup", 0), *(ray("large", at) for at in range(3))],
        "train",
        4,
        3,
    ),
    "RayCluster whose groups have limits": Case(
        "RayCluster",
        [
            job_object(
                "RayCluster",
                f"""
                headGroupSpec: {{template: {NO_CHIPS}}}
                workerGroupSpecs:
                  - {{groupName: a, replicas: 1, minReplicas: 2, template: {TEMPLATE}}}
                  - {{groupName: b, replicas: 3, maxReplicas: 1, template: {TEMPLATE}}}
                  - {{groupName: c, replicas: 2, minReplicas: 2, suspend: true, template: {TEMPLATE}}}
                  - {{groupName: d, template: {TEMPLATE}}}
                """,
                labels={"ray.io/gang-scheduling-enabled": "true"},
            )
        ],
        [ray("a", 0), ray("a", 1), ray("b", 0)],
        "train",
        3,
        4,
    ),
    "RayJob": Case(
        "RayCluster",
        [
            ray_cluster(
                f"""
                kind: RayJob
                metadata: {{name: rayjob-sample}}
                spec:
                  entrypoint: python sample_code.py
                  runtimeEnvYAML: 'env_vars: {{counter_name: test_counter}}'
                  rayClusterSpec:
                    rayVersion: '2.9.0'
                    {_RAY_HEAD}
                    workerGroupSpecs: [{{replicas: 1, minReplicas: 1, maxReplicas: 5, groupName: small-group,
                      rayStartParams: {{}}, template: {TEMPLATE}}}]
                """,
                name="rayjob-sample-raycluster-x7k2p",
            )
        ],
        [ray("small-group", 0, name="rayjob-sample-raycluster-x7k2p")],
        "rayjob-sample-raycluster-x7k2p",
        1,
        1,
    ),
    "RayService as a gang": Case(
        "RayCluster",
        [
            ray_cluster(
                f"""
                kind: RayService
                metadata: {{name: rayservice-sample, labels: {{ray.io/gang-scheduling-enabled: "true"}}}}
                spec:
                  serveConfigV2: 'applications: []'
                  rayClusterConfig:
                    rayVersion: '2.9.0'
                    {_RAY_HEAD}
                    workerGroupSpecs: [{{replicas: 2, minReplicas: 1, maxReplicas: 5, groupName: small-group,
                      rayStartParams: {{}}, template: {TEMPLATE}}}]
                """,
                name="rayservice-sample-raycluster-x7k2p",
            )
        ],
        [ray("small-group", at, name="rayservice-sample-raycluster-x7k2p") for at in range(2)],
        "rayservice-sample-raycluster-x7k2p",
        2,
        3,
    ),
    "vcjob with minima of its tasks": Case(
        VOLCANO_JOB,
        [
            job_object(
                VOLCANO_JOB,
                f"""
                minAvailable: 0
                tasks:
                  - {{name: ps, replicas: 1, template: {TEMPLATE}}}
                  - {{name: worker, replicas: 3, minAvailable: 2, template: {TEMPLATE}}}
                """,
            )
        ],
        [task("ps", 0, group=""), *(task("worker", at, group="") for at in range(3))],
        "train",
        4,
        3,
    ),
    "vcjob of two tasks": Case(
        VOLCANO,
        [
            group(3, "train-u"),
            job_object(
                VOLCANO_JOB,
                f"""
                minAvailable: 3
                schedulerName: volcano
                tasks:
                  - {{name: worker, replicas: 2, template: {TEMPLATE}}}
                  - {{name: master, replicas: 1, template: {TEMPLATE}}}
                """,
            ),
        ],
        [task("master", 0), task("worker", 0), task("worker", 1)],
        "train-u",
        3,
        3,
    ),
    "vcjob without its PodGroup": Case(
        VOLCANO_JOB,
        [job_object(VOLCANO_JOB, f"{{tasks: [{{name: default, replicas: 2, template: {TEMPLATE}}}]}}")],
        [task("default", at, group="") for at in range(2)],
        "train",
        2,
        2,
    ),
    "AscendJob": Case(
        "AscendJob",
        [job_object("AscendJob", f"{{schedulerName: default-scheduler, replicaSpecs: {{{_MASTER_WORKER}}}}}")],
        [kubeflow("AscendJob", *each) for each in _TORCH_PODS],
        "train",
        3,
        3,
    ),
    "plain pods of Kueue": Case(KUEUE, [], [queued(at, "2") for at in range(2)], "train", 2, 2),
    "PodGroup of scheduler-plugins": Case(
        COSCHEDULING,
        [group(2)],
        [made(f"p-{at}", None, {"scheduling.x-k8s.io/pod-group": "train"}) for at in "ab"],
        "train",
        2,
        2,
    ),
    "PodGroup of Kubernetes": Case(
        KUBERNETES,
        [native_group("{gang: {minCount: 2}}")],
        [in_group(made(f"p-{at}", None)) for at in "ab"],
        "train",
        2,
        2,
    ),
    "PodGroup of Kubernetes without a gang": Case(
        KUBERNETES,
        [native_group("{basic: {}}")],
        [in_group(made(f"p-{at}", None)) for at in "ab"],
        "train",
        1,
        1,
    ),
    "PodGroup of Kubernetes of an Indexed Job": Case(
        KUBERNETES,
        [native_group("{gang: {minCount: 2}}"), BatchJob(metadata=Metadata("t", "default"), spec=BatchJobSpec(2, 2))],
        [in_group(made(f"t-{at}-x", ("batch/v1", "Job", "t"), {INDEX: str(at)})) for at in range(2)],
        "train",
        2,
        2,
    ),
    "a pod without an owner": Case("Pod", [], [made("alone", None)], "alone", 1, 1),
    "another owner": Case("Rollout", [], [made(f"r-{at}", ("x/v1", "Rollout", "r")) for at in "ab"], "r", 1, 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_is_known_before_its_pods_exist(case: Case) -> None:
    jobs = jobs_of(case.objects, case.kind)
    key = JobKey("default", case.job, case.kind)
    for each in case.pods:
        job = jobs.job_of(each)
        assert job.key == key
        assert not jobs.lacks_group(job)
        assert job.min_available == case.minimum
        assert job.cooperation_with(each).known == case.size


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_same_is_known_when_all_pods_exist(case: Case) -> None:
    jobs = jobs_of(case.objects, case.kind)
    for each in reversed(case.pods):
        jobs.pod_applied(each)
    job = jobs.job_of(case.pods[0])
    assert job.min_available == case.minimum
    if case.size is not None:
        assert job.cooperation_with(case.pods[0]).known == case.size
    assert [each.name for _, each in job.by_rank()] == [each.name for each in case.pods]
    assert [rank for rank, _ in job.by_rank()] == list(range(len(case.pods)))


def test_every_row_of_the_table_has_a_manifest() -> None:
    assert {row.name or "Rollout" for row in JOB_KINDS} - {case.kind for case in CASES.values()} == {
        "ReplicationController"
    }


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if any(isinstance(o, JobObject) for o in case.objects)]
)
def test_pods_wait_for_the_object_that_says_how_many_there_are(case: Case) -> None:
    jobs = jobs_of(case.objects, case.kind)
    source = next(each for each in case.objects if isinstance(each, JobObject))
    (kind,) = {row.name for row in JOB_KINDS if row.name in jobs.discovery.watched and not row.is_group}
    job = jobs.job_of(case.pods[0])
    jobs.pod_applied(case.pods[0])
    jobs.source_deleted(kind, source)
    # A PodGroup says enough.
    assert jobs.lacks_group(jobs.job_of(case.pods[0])) is not job.key.kind.startswith("PodGroup")
    jobs.source_applied(kind, source)
    assert not jobs.lacks_group(jobs.job_of(case.pods[0]))
    jobs.source_deleted(kind, source)
    jobs.on_unserved(kind)
    assert not jobs.lacks_group(jobs.job_of(case.pods[0]))


def test_two_groups_of_a_leader_worker_set_are_two_jobs() -> None:
    pods = [leader_worker(group, at) for group in range(2) for at in range(2)]
    assert [str(find_job(each)) for each in pods] == ["default/serve-0"] * 2 + ["default/serve-1"] * 2


def test_jobs_of_two_kinds_may_have_one_name() -> None:
    assert find_job(kubeflow("PyTorchJob", "worker", 0)) != find_job(kubeflow("TFJob", "worker", 0))


def test_what_kueue_groups_for_its_quota_only_is_no_gang() -> None:
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    annotations = {"kueue.x-k8s.io/pod-group-total-count": "2", "kueue.x-k8s.io/pod-group-serving": "true"}
    each = made("web-0", ("apps/v1", "StatefulSet", "web"), labels, annotations)
    assert find_job(each).kind == "StatefulSet"
    assert Jobs().job_of(each).min_available == 1


@pytest.mark.parametrize("minimum", ["1", "2"])
def test_a_minimum_on_the_pods_overrides_that_of_the_kind(minimum: str) -> None:
    jobs = jobs_of([job_object("PyTorchJob", _TORCH)], "PyTorchJob")
    pod = kubeflow("PyTorchJob", "worker", 0)
    pod.metadata.annotations[MIN_AVAILABLE] = minimum
    assert jobs.job_of(pod).min_available == int(minimum)


def test_a_group_of_pods_of_two_objects_belongs_to_neither() -> None:
    one, two = (job_object("PyTorchJob", _TORCH, name=name) for name in "ab")
    jobs = jobs_of([group(2, "g"), one, two], VOLCANO)
    pods = [kubeflow("PyTorchJob", "master", 0, group="g", name=name) for name in "ab"]
    for each in pods:
        jobs.pod_applied(each)
    job = jobs.job_of(pods[0])
    assert job.source is None
    assert sorted(rank for rank, _ in job.by_rank()) == [0, 1]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_fast_way_finds_the_row_that_all_rows_in_turn_find(case: Case) -> None:
    for each in case.pods:
        assert find_job(each) == first_kind(each)[1]
        by_owner = replace(each, metadata=replace(each.metadata, labels={}, annotations={}))
        assert find_job(by_owner) == first_kind(by_owner)[1]
        bare = replace(each, metadata=replace(each.metadata, owner_references=[]))
        assert find_job(bare) == first_kind(bare)[1]
