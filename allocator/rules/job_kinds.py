"""The kinds of jobs: the one table of how each is recognized, and of what is known of it.

The rows are tried from the most specific mark of a pod, a pod group, to the most general, an owner; a pod without any
mark is a job of its own. ``allocator.rules.job`` finds the row of a pod, ``allocator.state.kinds`` watches the objects
of the rows, ``npuctl plan`` expands them, and the table in ``docs/jobs.md`` is generated from this one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from allocator.rules.job_marks import (
    COMPLETION_INDEX,
    COSCHEDULING_LABELS,
    JOB_SET_PREFIX,
    KUBEFLOW_PREFIX,
    KUEUE_PREFIX,
    LWS_PREFIX,
    OPERATOR,
    RAY_PREFIX,
    VOLCANO_ANNOTATIONS,
    VOLCANO_VERSION,
    Position,
    by_operator,
    by_owner,
    first_of,
    group_of_leader,
    indexed_job,
    leader_or_worker,
    other_owner,
    position_by_index,
    queued_group,
    queued_index,
    ray_group,
    replica,
    replicated,
)
from ascend.kube.job_objects import (
    ASCEND_JOBS,
    JOB_SETS,
    LEADER_WORKER_SETS,
    MPI_JOBS,
    MPI_JOBS_V2,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    TF_JOBS,
    VOLCANO_JOBS,
)
from ascend.kube.objects import Pod, Resource

VOLCANO: Final = "PodGroup.scheduling.volcano.sh"
COSCHEDULING: Final = "PodGroup.scheduling.x-k8s.io"
LEADER_WORKER_SET: Final = "LeaderWorkerSet"
ASCEND_JOB: Final = "AscendJob"
KUBEFLOW: Final = "kubeflow job"
JOB_SET: Final = "JobSet"
RAY_CLUSTER: Final = "RayCluster"
KUEUE: Final = "Kueue pod group"
VOLCANO_JOB: Final = "Job.batch.volcano.sh"
INDEXED_JOB: Final = "Indexed Job"
JOB: Final = "Job"
STATEFUL_SET: Final = "StatefulSet"
SINGLE: Final = "Pod"


class Text(NamedTuple):
    """A row for readers: sentences for the documentation and for ``npuctl``.

    Attributes:
        title: what users call the kind.
        recognized: how its pods are recognized.
        size: where the number of its pods comes from.
        minimum: how many of its pods are placed together unless something else is stated.
        ranks: the order of its ranks.
        owner: what creates the successor of a pod that has ended.
    """

    title: str
    recognized: str
    size: str
    minimum: str
    ranks: str
    owner: str


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job.

    Attributes:
        name: the kind in keys of jobs.
        text: the row for readers.
        find: the name of the job of a pod with the kind's mark; None for other pods.
        position: the position of a pod in the job.
        objects: where the API server serves the objects from which the pods are created, if they are watched; the
            first one that is served.
        object_name: the name of such an object; by default that of the job.
        stated: the number of pods that start together, as written on a pod by the kind's own controller; None if it is
            not written there.
        is_group: a pod group; what else marks its pods is read as well.
        is_alone: its pods work alone, unless a minimum requires several of them.
    """

    name: str
    text: Text
    find: Callable[[Pod], str | None]
    position: Callable[[Pod], Position] = position_by_index
    objects: tuple[Resource[Any], ...] = ()
    object_name: Callable[[Pod], str | None] | None = None
    stated: tuple[str, ...] = ()
    is_group: bool = False
    is_alone: bool = False


_ALL: Final = "all of them"
_ONE: Final = "1"
_OF_OBJECT: Final = "the object's replicas"

# fmt: off
JOB_KINDS: Final = (
    JobKind(VOLCANO,
        Text("PodGroup of Volcano", f"annotation `{VOLCANO_ANNOTATIONS[0]}` (or `{VOLCANO_ANNOTATIONS[1]}`)",
            "the object from which the pods were created, else `minMember`", "`minMember`",
            "as those of the kind of the pods", "that of the kind of the pods"),
        lambda pod: first_of(pod.metadata.annotations, VOLCANO_ANNOTATIONS), is_group=True),
    JobKind(COSCHEDULING,
        Text("PodGroup of scheduler-plugins", f"label `{COSCHEDULING_LABELS[0]}` (or the older "
            f"`{COSCHEDULING_LABELS[1]}`, with or without `/name`)",
            "the object from which the pods were created, else `minMember`", "`minMember`",
            "as those of the kind of the pods", "that of the kind of the pods"),
        lambda pod: first_of(pod.metadata.labels, COSCHEDULING_LABELS), is_group=True),
    JobKind(LEADER_WORKER_SET,
        Text("LeaderWorkerSet: each group", f"labels `{LWS_PREFIX}name` and `{LWS_PREFIX}group-index`",
            f"annotation `{LWS_PREFIX}size`", f"{_ALL}; 1 with `startupPolicy: LeaderReady`",
            "the leader, then the workers by index", "the LeaderWorkerSet's StatefulSets"),
        group_of_leader, leader_or_worker, (LEADER_WORKER_SETS,),
        lambda pod: pod.metadata.labels.get(f"{LWS_PREFIX}name"), stated=(f"{LWS_PREFIX}size",)),
    JobKind(ASCEND_JOB,
        Text("AscendJob", f"label `{KUBEFLOW_PREFIX}job-name`, and `{OPERATOR}: ascendjob-controller` or its owner",
            _OF_OBJECT, f"`runPolicy.schedulingPolicy.minAvailable`, else {_ALL}",
            "master first, then workers by index", "the ascend-operator"),
        by_operator(ASCEND_JOB), replica, (ASCEND_JOBS,)),
    *(
        JobKind(kind,
            Text(kind, f"label `{KUBEFLOW_PREFIX}job-name`, and `{OPERATOR}: {kind.lower()}-controller` or its owner",
                _OF_OBJECT, f"`runPolicy.schedulingPolicy.minAvailable`, else {minimum}",
                ranks, "the training operator, by `restartPolicy`"),
            by_operator(kind), replica, objects)
        for kind, minimum, ranks, objects in (
            ("PyTorchJob", f"{_ALL}, or `elasticPolicy.minReplicas` of its workers",
             "master first, then workers by index", (PYTORCH_JOBS,)),
            ("TFJob", _ALL, "chief or master first, then evaluators, ps and workers by index", (TF_JOBS,)),
            ("MPIJob", f"{_ALL}; without a launcher that waits for its workers",
             "the launcher if it requests chips, then workers by index", (MPI_JOBS, MPI_JOBS_V2)),
        )
    ),
    JobKind(KUBEFLOW,
        Text("another job of Kubeflow", f"label `{KUBEFLOW_PREFIX}job-name`", "unknown", _ONE,
            "master first, then by replica type and index", "the training operator, by `restartPolicy`"),
        lambda pod: pod.metadata.labels.get(f"{KUBEFLOW_PREFIX}job-name") or None, replica),
    JobKind(JOB_SET,
        Text("JobSet", f"label `{JOB_SET_PREFIX}jobset-name`", "`parallelism` times `replicas` of its templates", _ONE,
            "by template, then by Job, then by completion index", "its Jobs; the JobSet itself by `failurePolicy`"),
        lambda pod: pod.metadata.labels.get(f"{JOB_SET_PREFIX}jobset-name") or None, replicated, (JOB_SETS,)),
    JobKind(RAY_CLUSTER,
        Text("RayCluster, also of a RayJob or RayService", f"label `{RAY_PREFIX}cluster`",
            "`replicas` (within their limits) times `numOfHosts` of its groups, and its head",
            "1; with label `ray.io/gang-scheduling-enabled` all of them, or its `minReplicas` if it scales",
            "the head if it requests chips, then its groups", "the KubeRay operator"),
        lambda pod: pod.metadata.labels.get(f"{RAY_PREFIX}cluster") or None, ray_group, (RAY_CLUSTERS,)),
    JobKind(KUEUE,
        Text("plain pods of a group of Kueue", f"label `{KUEUE_PREFIX}name`, unless annotation `{KUEUE_PREFIX}serving`",
            f"annotation `{KUEUE_PREFIX}total-count`", _ALL,
            f"label `{KUEUE_PREFIX}pod-index`, else by name", "whoever created them"),
        queued_group, queued_index, stated=(f"{KUEUE_PREFIX}total-count",)),
    JobKind(VOLCANO_JOB,
        Text("vcjob", f"its owner, a Job of `{VOLCANO_VERSION}v1alpha1`; normally its PodGroup",
            "the replicas of its tasks", f"`minAvailable`, else those of its tasks, else {_ALL}",
            "master or leader task first, then the tasks in their order, each by index",
            "Volcano's controller, by the `policies` of the job"),
        by_owner("Job", VOLCANO_VERSION), objects=(VOLCANO_JOBS,)),
    JobKind(INDEXED_JOB,
        Text("Indexed Job", f"its owner, a Job, and label `{COMPLETION_INDEX}`",
            "`parallelism`, at most `completions`", _ONE, "the completion index", "the Job, by `backoffLimit`"),
        indexed_job),
    JobKind(JOB,
        Text("Job without an index", "its owner, a Job", "1: each pod is a job of its own", _ONE,
            "in the order of their Bindings", "the Job, by `backoffLimit`"),
        by_owner("Job"), is_alone=True),
    JobKind(STATEFUL_SET,
        Text("StatefulSet", "its owner, a StatefulSet", "`replicas`",
            "1; a minimum needs `podManagementPolicy: Parallel`", "the ordinal", "the StatefulSet"),
        by_owner(STATEFUL_SET)),
    *(
        JobKind(kind,
            Text(title, f"its owner, a {kind}", "1: each pod is a job of its own", _ONE,
                "in the order of their Bindings", f"the {kind}"),
            by_owner(kind), is_alone=True)
        for kind, title in (("ReplicaSet", "Deployment, ReplicaSet"),
                            ("ReplicationController", "ReplicationController"))
    ),
    JobKind("",
        Text("any other owner", "its owner, unless that is a DaemonSet or a Node", "unknown", _ONE,
            "in the order of their Bindings", "its owner"),
        other_owner),
    JobKind(SINGLE,
        Text("a pod without an owner", "none of the above", "1", _ONE, "0", "whoever created it"),
        lambda pod: pod.metadata.name, is_alone=True),
)
"""From the most specific mark to the most general; the kind of the second to last is that of the owner."""
# fmt: on

MARKS: Final = frozenset(
    {
        *VOLCANO_ANNOTATIONS,
        *COSCHEDULING_LABELS,
        OPERATOR,
        f"{LWS_PREFIX}name",
        f"{KUBEFLOW_PREFIX}job-name",
        f"{JOB_SET_PREFIX}jobset-name",
        f"{RAY_PREFIX}cluster",
        f"{KUEUE_PREFIX}name",
    }
)
"""The labels and annotations that mark pods; without any, a pod is recognized by its owner."""
MARKING_OWNERS: Final = frozenset({ASCEND_JOB, "PyTorchJob", "TFJob", "MPIJob"})
"""The kinds of owners whose pods are recognized without their labels, too."""

BY_NAME: Final = {kind.name: kind for kind in JOB_KINDS}
