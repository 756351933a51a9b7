"""Which pod groups are admitted to the queue, and which schedulers the pods of a job get from its operator."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from allocator.watch.pod_group_queue import QueuedPodGroup
from ascend.jobs.kubeflow import AscendSpec, KubeflowSpec
from ascend.jobs.templates import Template
from ascend.jobs.volcano_job import VolcanoSpec
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS, ServedResource
from tests.allocator.harness import Json, running, until

VOLCANO_JOBS = ServedResource("batch.volcano.sh", "v1alpha1", "jobs", "job", "Job", unconditional_update=False)


async def create_job(server: ApiServer, name: str, scheduler: str) -> None:
    """Create a Volcano Job and its group, as Volcano's controller does."""
    spec = {"schedulerName": scheduler, "tasks": []}
    job = await server.create(
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    )
    owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    metadata = {"name": name, "ownerReferences": [{**owner, "controller": True}]}
    await server.create(
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": {}}
    )


@pytest.mark.parametrize("is_on", [False, True])
async def test_groups_are_admitted_only_with_the_setting(tmp_path: Path, *, is_on: bool) -> None:
    admitted: list[str] = []

    async def follow(operation: str, resource: ServedResource, _subresource: str, document: Json) -> Json:
        if (operation, resource.plural) == ("UPDATE", "podgroups"):
            admitted.append(document["metadata"]["name"])
        return document

    async with ApiServer(resources=(*SERVED, VOLCANO_POD_GROUPS, VOLCANO_JOBS)) as server:
        server.admission.append(follow)
        async with running(server, tmp_path, enqueue_pod_groups=is_on) as allocator:
            await create_job(server, "ours", "default-scheduler")
            await create_job(server, "others", "volcano")
            await until(lambda: admitted == ["ours"] or not is_on)
            # Whatever the allocator does with groups it has done when it has seen this pod of the group.
            labels = {"scheduling.k8s.io/group-name": "ours"}
            for number in range(3):
                pod = await allocator.pod(f"a-{number}", 8, annotations=labels)
                await allocator.filter(pod, [])
        assert admitted == (["ours"] if is_on else [])


def template(scheduler: str = "") -> dict[str, Any]:
    return {"template": {"spec": {"schedulerName": scheduler} if scheduler else {}}}


@pytest.mark.parametrize(
    ("own", "master", "worker", "schedulers"),
    [
        ("", "", "", {"volcano"}),
        ("ours", "", "", {"ours"}),
        ("volcano", "ours", "ours", {"ours"}),
        # The operator looks for a name in all templates, and then changes none.
        ("ours", "volcano", "", {"volcano", "default-scheduler"}),
    ],
)
def test_the_schedulers_of_an_ascend_job(own: str, master: str, worker: str, schedulers: set[str]) -> None:
    spec = {"schedulerName": own, "replicaSpecs": {"Master": template(master), "Worker": template(worker)}}
    assert msgspec.convert(spec, AscendSpec[Template]).schedulers == schedulers


@pytest.mark.parametrize(
    ("own", "tasks", "schedulers"),
    [
        ("", ["", ""], {"volcano"}),
        ("ours", ["", "volcano"], {"ours", "volcano"}),
        ("ours", [], {"ours"}),
    ],
)
def test_the_schedulers_of_a_volcano_job(own: str, tasks: list[str], schedulers: set[str]) -> None:
    spec = {"schedulerName": own, "tasks": [template(each) for each in tasks]}
    assert msgspec.convert(spec, VolcanoSpec[Template]).schedulers == schedulers


@pytest.mark.parametrize(
    ("field", "names", "schedulers"),
    [
        ("pytorchReplicaSpecs", ["", ""], {"volcano"}),
        ("tfReplicaSpecs", ["ours", ""], {"ours", "volcano"}),
        ("mpiReplicaSpecs", ["ours", "ours"], {"ours"}),
    ],
)
def test_the_schedulers_of_a_kubeflow_job(field: str, names: list[str], schedulers: set[str]) -> None:
    spec = {field: {f"type-{at}": template(each) for at, each in enumerate(names)}}
    assert msgspec.convert(spec, KubeflowSpec[Template]).schedulers == schedulers


@pytest.mark.parametrize(("phase", "waits"), [("", True), ("Pending", True), ("Inqueue", False), ("Running", False)])
def test_a_group_waits_until_its_phase_is_beyond_pending(phase: str, *, waits: bool) -> None:
    group = msgspec.convert({"metadata": {"uid": "1"}, "status": {"phase": phase}}, QueuedPodGroup)
    assert group.waits is waits
