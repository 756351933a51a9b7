"""The table of the kinds of jobs.

The rows are tried from the most specific mark of a pod, a pod group, to the most general, an owner; a pod without any
mark is a job of its own. Derived from it: how the allocator recognizes jobs and which objects it watches, who creates a
deleted pod anew, which pod groups are admitted to Volcano's queue, what ``npuctl plan`` expands and ``npuctl explain``
finds, the chart's rights, and the table in ``docs/jobs.md``.
"""

from typing import Any, Final

from ascend.jobs import (
    argo,
    core,
    infer_service_set,
    job_set,
    kubeflow,
    kueue,
    leader_worker_set,
    model_serving,
    pod_groups,
    ray,
    role_based_group,
    spark,
    storm_service,
    train_job,
    volcano_job,
)
from ascend.kube.objects import Resource

JOB_KINDS: Final = (
    *pod_groups.KINDS,
    leader_worker_set.KIND,
    *kubeflow.KINDS,
    job_set.KIND,
    ray.KIND,
    model_serving.KIND,
    storm_service.KIND,
    spark.KIND,
    kueue.KIND,
    volcano_job.KIND,
    argo.KIND,
    *core.KINDS,
)
"""From the most specific mark to the most general."""

BY_NAME: Final = {kind.name: kind for kind in JOB_KINDS}
MARKS: Final = frozenset(key for kind in JOB_KINDS for key in kind.marks)
"""The labels and annotations that mark pods; without any, a pod is recognized by its owner."""
WORKLOADS: Final = {
    (row.kind, row.version): row
    for rows in (
        *(kind.workloads for kind in JOB_KINDS),
        train_job.WORKLOADS,
        infer_service_set.WORKLOADS,
        role_based_group.WORKLOADS,
    )
    for row in rows
}
"""What is expanded to pods; those of the last three are of kinds above."""
RECREATING: Final = frozenset(owner for kind in JOB_KINDS if kind.recreates for owner in kind.owners)
"""The controllers that create a deleted pod anew, *group kind*."""
ENQUEUED: Final[dict[str, Resource[Any]]] = {
    f"{resource.api_version.partition('/')[0]} {resource.kind}": resource
    for kind in JOB_KINDS
    if kind.is_enqueued
    for resource in reversed(kind.objects)
}
"""The jobs whose operators create no pods before their PodGroup is in Volcano's queue, by *group kind*."""
