"""Stand-ins for operators that have no Go module to build: they make pod groups and pods as the operators' sources do.

MindCluster's ascend-operator: pkg/controllers/v1/{job,pod,labels,annotation}.go, with `--enableGangScheduling=true`.
Volcano's job controller: pkg/controllers/job/{job_controller_actions,job_controller_util}.go.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

from tests.cluster.api import HTTPError, Server

Json: TypeAlias = dict[str, Any]
_GROUPS: Final = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
_PODS: Final = "/api/v1/namespaces/default/pods"
_POLL_S: Final = 0.05


@asynccontextmanager
async def running(api: Server) -> AsyncIterator[None]:
    """Run both operators."""
    kinds: tuple[tuple[str, Callable[[Json], Json], Callable[[Json], Iterator[Json]]], ...] = (
        ("/apis/mindxdl.gitee.com/v1/ascendjobs", _ascend_group, _ascend_pods),
        ("/apis/batch.volcano.sh/v1alpha1/jobs", _volcano_group, _volcano_pods),
    )

    async def work() -> None:
        while True:
            for path, group, pods in kinds:
                for job in (await asyncio.to_thread(api.get, path))["items"]:
                    await asyncio.to_thread(_sync, api, job, group(job), list(pods(job)))
            await asyncio.sleep(_POLL_S)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        yield
        task.cancel()


def _sync(api: Server, job: Json, group: Json, pods: list[Json]) -> None:
    name = f"{job['metadata']['name']}-{job['metadata']['uid']}"
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {key: job["metadata"][key] for key in ("name", "uid")}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [owner]}
    metadata |= {key: job["metadata"].get(key, {}) for key in ("labels", "annotations")}
    try:
        found = api.get(f"{_GROUPS}/{name}")
    except HTTPError:
        found = api.create(
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": group}
        )
    if found.get("status", {}).get("phase", "") in {"", "Pending"}:
        return
    for pod in pods:
        pod["metadata"] |= {"namespace": "default", "ownerReferences": [owner]}
        pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = name
        with suppress(HTTPError):
            api.create({"apiVersion": "v1", "kind": "Pod", **pod})


def _ascend_group(job: Json) -> Json:
    replicas = {kind.lower(): each.get("replicas", 1) for kind, each in job["spec"]["replicaSpecs"].items()}
    policy = job["spec"].get("runPolicy", {}).get("schedulingPolicy", {})
    return {"minMember": policy.get("minAvailable", sum(replicas.values())), "minTaskMember": replicas}


def _ascend_pods(job: Json) -> Iterator[Json]:
    name, specs = job["metadata"]["name"], job["spec"]["replicaSpecs"]
    named = any(each["template"]["spec"].get("schedulerName") for each in specs.values())
    # The master's chips shift the ranks of the workers.
    master_has_chips = any("limits" in each["resources"] for each in specs["Master"]["template"]["spec"]["containers"])
    for kind, each in specs.items():
        for index in range(each.get("replicas", 1)):
            template = each["template"]
            spec = {**template["spec"], "restartPolicy": each["restartPolicy"]}
            if not named:
                spec["schedulerName"] = job["spec"].get("schedulerName") or "volcano"
            rank = index + 1 if master_has_chips and kind == "Worker" else index
            labels = {
                "group-name": "mindxdl.gitee.com",
                "training.kubeflow.org/operator-name": "ascendjob-controller",
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": kind.lower(),
                "training.kubeflow.org/replica-index": str(index),
                "version": "0",
            }
            annotations = {"hccl/rankIndex": str(rank), "volcano.sh/task-spec": kind.lower()}
            metadata = template.get("metadata", {})
            yield {
                "metadata": {
                    "name": f"{name}-{kind.lower()}-{index}",
                    "labels": metadata.get("labels", {}) | labels,
                    "annotations": metadata.get("annotations", {}) | annotations,
                },
                "spec": spec,
            }


def _volcano_group(job: Json) -> Json:
    members = {task["name"]: task["replicas"] for task in job["spec"]["tasks"]}
    return {"minMember": job["spec"]["minAvailable"], "minTaskMember": members}


def _volcano_pods(job: Json) -> Iterator[Json]:
    name = job["metadata"]["name"]
    for task in job["spec"]["tasks"]:
        for index in range(task["replicas"]):
            template = task["template"]
            scheduler = template["spec"].get("schedulerName") or job["spec"].get("schedulerName") or "volcano"
            containers = [
                {**each, "env": [*each.get("env", []), {"name": "VC_TASK_INDEX", "value": str(index)}]}
                for each in template["spec"]["containers"]
            ]
            labels = {
                "volcano.sh/job-name": name,
                "volcano.sh/job-namespace": "default",
                "volcano.sh/queue-name": "default",
                "volcano.sh/task-index": str(index),
                "volcano.sh/task-spec": task["name"],
            }
            annotations = {
                "volcano.sh/job-name": name,
                "volcano.sh/job-version": "0",
                "volcano.sh/queue-name": "default",
                "volcano.sh/task-index": str(index),
                "volcano.sh/task-spec": task["name"],
                "volcano.sh/template-uid": f"{name}-{task['name']}",
            }
            metadata = template.get("metadata", {})
            yield {
                "metadata": {
                    "name": f"{name}-{task['name']}-{index}",
                    "labels": metadata.get("labels", {}) | labels,
                    "annotations": metadata.get("annotations", {}) | annotations,
                },
                "spec": {**template["spec"], "schedulerName": scheduler, "containers": containers},
            }
