"""Jobs as their projects' users write them, and the pods that their controllers make.

The labels and annotations are those of kube-controller-manager, LeaderWorkerSet v0.7.0, JobSet v0.8.0, Kubeflow's
training-operator v1.8.1, KubeRay v1.2.2, AIBrix, Kthena, Kueue v0.14.0, scheduler-plugins v0.32.7,
Volcano and MindCluster's ascend-operator.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from ascend.chips import RESOURCE
from ascend.jobs.kind import JobObject
from ascend.jobs.table import TABLE
from ascend.kube.objects import Pod

_CONTAINERS: Final = [{"name": "main", "resources": {"limits": {RESOURCE: "8"}}}]
TEMPLATE: Final = "{metadata: {}, spec: {containers: [{name: main, resources: {limits: {huawei.com/Ascend910: 8}}}]}}"
"""A template as users write it: a number of chips is a number."""
NO_CHIPS: Final = "{spec: {containers: [{name: main}]}}"


def job_object(kind: str, spec: str, *, name: str = "train", **metadata: Any) -> JobObject:
    """The object of a kind of job, with its spec in YAML."""
    given = {"metadata": {"name": name, "namespace": "default", "uid": name, **metadata}, "spec": yaml.safe_load(spec)}
    made: JobObject = msgspec.convert(given, TABLE.by_name[kind].objects[0].type)
    return made


def ray_cluster(manifest: str, *, name: str) -> JobObject:
    """The RayCluster that KubeRay makes of a RayJob or a RayService, given as YAML, with their labels."""
    given = yaml.safe_load(manifest)
    spec = given["spec"].get("rayClusterSpec") or given["spec"]["rayClusterConfig"]
    own = {"ray.io/originated-from-cr-name": given["metadata"]["name"], "ray.io/originated-from-crd": given["kind"]}
    labels = {**given["metadata"].get("labels", {}), **own}
    metadata = {**given["metadata"], "name": name, "namespace": "default", "uid": name, "labels": labels}
    cluster: JobObject = msgspec.convert(
        {"metadata": metadata, "spec": spec}, TABLE.by_name["RayCluster"].objects[0].type
    )
    return cluster


def made(
    name: str,
    owner: tuple[str, str, str] | None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    chips: bool = True,
    env: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    node: str = "",
    request: int = 8,
    uid: str = "",
) -> Pod:
    """A pod as a controller makes it: ``owner`` has its apiVersion, kind and name."""
    container: dict[str, Any] = {"name": "main", "env": [{"name": k, "value": v} for k, v in (env or {}).items()]}
    if chips:
        container["resources"] = {"limits": {RESOURCE: str(request)}}
    owners = (
        [{"apiVersion": owner[0], "kind": owner[1], "name": owner[2], "uid": "o", "controller": True}] if owner else []
    )
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid or f"uid-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
                "ownerReferences": owners,
            },
            "spec": {"containers": [container], "nodeSelector": dict(selector or {}), "nodeName": node},
            "status": {"phase": "Running" if node else "Pending"},
        },
        Pod,
    )


def kubeflow(kind: str, part: str, at: int, *, chips: bool = True, group: str = "", name: str = "train") -> Pod:
    """A pod of a job of Kubeflow, or of an AscendJob; ``group`` names its PodGroup."""
    version = "mindxdl.gitee.com/v1" if kind == "AscendJob" else "kubeflow.org/v1"
    prefix = "training.kubeflow.org"
    labels = {
        f"{prefix}/job-name": name,
        f"{prefix}/operator-name": f"{kind.lower()}-controller",
        f"{prefix}/replica-type": part,
        f"{prefix}/replica-index": str(at),
    }
    annotations = {"scheduling.k8s.io/group-name": group} if group else {}
    return made(f"{name}-{part}-{at}", (version, kind, name), labels, annotations, chips=chips)


def leader_worker(group: int, at: int, *, size: int = 2, name: str = "serve", **options: Any) -> Pod:
    """A pod of a group of a LeaderWorkerSet: the leader is number 0."""
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": name, f"{prefix}/group-index": str(group), f"{prefix}/worker-index": str(at)}
    owner, pod = (name, f"{name}-{group}") if at == 0 else (f"{name}-{group}", f"{name}-{group}-{at}")
    ordinal = {"apps.kubernetes.io/pod-index": str(at or group)}
    annotations = {f"{prefix}/size": str(size)}
    return made(pod, ("apps/v1", "StatefulSet", owner), labels | ordinal, annotations, **options)


def replicated(template: str, job: int, at: int, *, jobs: int, alike: int, name: str = "train") -> Pod:
    """A pod of a JobSet: pod ``at`` of Job ``job`` of ``alike`` Jobs of a template, of ``jobs`` Jobs in all."""
    prefix = "jobset.sigs.k8s.io"
    labels = {
        f"{prefix}/jobset-name": name,
        f"{prefix}/replicatedjob-name": template,
        f"{prefix}/replicatedjob-replicas": str(alike),
        f"{prefix}/global-replicas": str(jobs),
        f"{prefix}/job-index": str(job),
        "batch.kubernetes.io/job-completion-index": str(at),
    }
    return made(f"{name}-{template}-{job}-{at}-x", ("batch/v1", "Job", f"{name}-{template}-{job}"), labels)


def task(name: str, at: int, *, job: str = "train", group: str | None = None, request: int = 8) -> Pod:
    """A pod of a task of a vcjob; in its PodGroup, unless ``group`` is empty."""
    marks = {"volcano.sh/task-spec": name, "volcano.sh/task-index": str(at), "volcano.sh/job-name": job}
    grouped = {"scheduling.k8s.io/group-name": f"{job}-u"} if group is None else {}
    env = {"VC_TASK_INDEX": str(at), "VK_TASK_INDEX": str(at)}
    owner = ("batch.volcano.sh/v1alpha1", "Job", job)
    return made(f"{job}-{name}-{at}", owner, marks, marks | grouped, env=env, request=request)


def ray(group: str, number: int, *, chips: bool = True, name: str = "train") -> Pod:
    """A pod of a RayCluster."""
    is_head = group == "headgroup"
    labels = {
        "ray.io/cluster": name,
        "ray.io/node-type": "head" if is_head else "worker",
        "ray.io/group": group,
        "ray.io/is-ray-node": "yes",
    }
    return made(f"{name}-{group}-{number}", ("ray.io/v1", "RayCluster", name), labels, chips=chips)


def serving(role: str, at: int, *, is_entry: bool = False, name: str = "serve", group: int = 1) -> Pod:
    """A pod of a serving group of a ModelServing."""
    prefix = "modelserving.volcano.sh"
    labels = {f"{prefix}/name": name, f"{prefix}/group-name": f"{name}-{group}", f"{prefix}/role": role}
    labels |= {f"{prefix}/role-id": f"{role}-0"} | ({f"{prefix}/entry": "true"} if is_entry else {})
    owner = ("workload.serving.volcano.sh/v1alpha1", "ModelServing", name)
    return made(f"{name}-{group}-{role}-0-{at}", owner, labels)


def storm(role: str, at: int, *, name: str = "serve") -> Pod:
    """A pod of a role set of a StormService."""
    role_set, key = f"{name}-roleset-x7k2p", "stormservice.orchestration.aibrix.ai/role-replica-index"
    labels = {"storm-service-name": name, "roleset-name": role_set, "role-name": role, key: str(at)}
    return made(f"{role_set}-{role}-{at}", ("orchestration.aibrix.ai/v1alpha1", "RoleSet", role_set), labels)


def queued(number: int, total: str, *, name: str = "train") -> Pod:
    """A pod of a group of plain pods of Kueue."""
    labels = {"kueue.x-k8s.io/pod-group-name": name, "kueue.x-k8s.io/queue-name": "main"}
    return made(f"{name}-{number}", None, labels, {"kueue.x-k8s.io/pod-group-total-count": total})


def ordinal(number: int, *, name: str = "train", annotations: Mapping[str, str] | None = None, **options: Any) -> Pod:
    """A pod of a StatefulSet."""
    labels = {"apps.kubernetes.io/pod-index": str(number), "statefulset.kubernetes.io/pod-name": f"{name}-{number}"}
    return made(f"{name}-{number}", ("apps/v1", "StatefulSet", name), labels, annotations, **options)
