"""Pods are deleted after faults, made anew by their real controllers, and placed by the real kube-scheduler."""

from collections.abc import Iterable

import pytest

from allocator.rescheduling.actions import STRATEGIC_MERGE_PATCH
from ascend.annotations import BLOCK_SUPER_POD
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.faults import FaultTime, chip_fault
from ascend.kube.objects import NODES, PODS, JsonObject, Pod
from tests.bench.fake_cluster import fake_node
from tests.workloads.test_super_pods import add_super_pods, by_rank, server
from tests.workloads.world import Workloads, example

CONTROLLERS = ()
DEFINITIONS = ()
SETTINGS = {"reschedule": "on", "reschedule_faulty_share": 1.0, "reschedule_not_ready_s": 1.0}

pytestmark = pytest.mark.real


async def report(workloads: Workloads, node: str, *, faulty: Iterable[int] = (), chips: int = 16) -> None:
    """Report the chips of a node, as its device plugin would."""
    bad = chip_set(faulty)
    faults = tuple(chip_fault(chip_id=chip, level="SeparateNPU", codes={"80E01801": FaultTime(1, "SeparateNPU")})
                   for chip in faulty)  # fmt: skip
    data = encode_report(DeviceReport((1 << chips) - 1 & ~bad, bad, 0, 1, faults=faults))
    metadata = {"name": config_map_name(node), "namespace": NAMESPACE, "labels": LABELS}
    await workloads.create([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}])


async def end_as_kubelets_do(workloads: Workloads) -> None:
    """Report terminating pods as failed, and delete them once their controller has seen that."""
    for pod in await workloads.client.list_objects(PODS, "default"):
        if pod.is_terminating and pod.is_live:
            # The others stay, also DisruptionTarget, which is not the kubelet's own.
            body: JsonObject = {"status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]}}
            await workloads.client.patch(
                PODS,
                pod.name,
                body,
                namespace="default",
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
    await workloads.end_terminated()


async def replaced(workloads: Workloads, before: list[Pod], lost: set[str]) -> list[Pod]:
    """Wait until exactly the pods with these names were replaced, and all are bound."""
    stay = {pod.uid for pod in before if pod.name not in lost}

    async def check() -> list[Pod] | None:
        await end_as_kubelets_do(workloads)
        now = [pod for pod in await workloads.pods() if pod.spec.node_name and pod.is_live]
        return now if len(now) == len(before) and stay == {p.uid for p in now} & {p.uid for p in before} else None

    return await workloads.eventually(check, f"{sorted(lost)} are replaced")


def super_pod_job(**labels: str) -> list[JsonObject]:
    """The example of a job with blocks, which is rescheduled; it would fail with its first own failure."""
    (job,) = example("superpod-job.yaml")
    job["spec"]["template"]["metadata"]["labels"] = labels
    job["spec"]["backoffLimit"] = 0
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job["spec"]["podFailurePolicy"] = {"rules": [rule]}
    return [job]


async def test_a_pod_whose_chip_fails_is_replaced_in_its_super_pod_and_its_job_goes_on(workloads: Workloads) -> None:
    await add_super_pods(workloads, 4, 4)
    await workloads.create(super_pod_job(**{"fault-scheduling": "force", "pod-rescheduling": "on"}))
    pods = by_rank(await workloads.bound(4))
    await workloads.run(pods)
    lost = pods[3]
    await report(workloads, lost.spec.node_name, faulty=[5])
    after = by_rank(await replaced(workloads, pods, {lost.name}))
    assert after[3].spec.node_name != lost.spec.node_name
    assert [pod.metadata.annotations[BLOCK_SUPER_POD] for pod in after] == [
        pod.metadata.annotations[BLOCK_SUPER_POD] for pod in pods
    ]
    job = await workloads.read_job("train")
    assert job["status"].get("failed", 0) == 0
    assert not job["status"].get("conditions")


def stateful_set(replicas: int, chips: int, annotations: dict[str, str], **labels: str) -> list[JsonObject]:
    """A StatefulSet whose pods start together, and are rescheduled by force."""
    template = {
        "metadata": {
            "labels": {"app": "train", "fault-scheduling": "force", **labels},
            "annotations": {"huawei.com/schedule_minAvailable": str(replicas), **annotations},
        },
        "spec": {
            "containers": [{"name": "main", "image": "train", "resources": {"limits": {RESOURCE: str(chips)}}}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    spec = {
        "replicas": replicas, "podManagementPolicy": "Parallel", "serviceName": "train",
        "selector": {"matchLabels": {"app": "train"}}, "template": template,
    }  # fmt: skip
    return [{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "set"}, "spec": spec}]


@pytest.mark.long
async def test_a_block_moves_alone_when_its_super_pod_has_no_room(workloads: Workloads) -> None:
    await add_super_pods(workloads, 2, 2)
    await workloads.create(stateful_set(4, 16, {"sp-block": "32"}, **{"pod-rescheduling": "on"}))
    pods = by_rank(await workloads.bound(4))
    await workloads.run(pods)
    for index in range(2):
        await workloads.add(server(2, index))
    await report(workloads, pods[3].spec.node_name, faulty=[5])
    after = by_rank(await replaced(workloads, pods, {pod.name for pod in pods[2:]}))
    where = [pod.metadata.annotations[BLOCK_SUPER_POD] for pod in after]
    assert where == [pod.metadata.annotations[BLOCK_SUPER_POD] for pod in pods[:2]] + ["2", "2"]


async def test_all_pods_of_a_stateful_set_leave_with_one_whose_node_is_lost(workloads: Workloads) -> None:
    await workloads.add_nodes(4)
    await workloads.create(stateful_set(2, 8, {}))
    pods = await workloads.bound(2)
    await workloads.run(pods)
    lost = pods[0].spec.node_name
    ready = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await workloads.client.patch(NODES, lost, ready, subresource="status")
    after = await replaced(workloads, pods, {pod.name for pod in pods})
    assert lost not in {pod.spec.node_name for pod in after}


async def test_all_pods_of_a_stateful_set_leave_a_node_that_is_deleted_and_another_gets_its_name(
    workloads: Workloads,
) -> None:
    await workloads.add_nodes(4)
    await workloads.create(stateful_set(2, 8, {}))
    pods = await workloads.bound(2)
    await workloads.run(pods)
    lost = pods[0].spec.node_name
    deleted = await workloads.client.get(NODES, lost)
    await workloads.client.delete(NODES, lost)
    after = await replaced(workloads, pods, {pod.name for pod in pods})
    assert lost not in {pod.spec.node_name for pod in after}
    assert (await workloads.client.create(NODES, fake_node(lost))).uid != deleted.uid
    held = workloads.app.cluster.nodes[lost].holdings
    assert [holding.pod for holding in held.values()] == [pods[0].key]  # its containers may still run


@pytest.mark.long
async def test_a_pod_of_a_job_whose_node_is_lost_is_replaced(workloads: Workloads) -> None:
    await add_super_pods(workloads, 4, 4)
    await workloads.create(super_pod_job(**{"fault-scheduling": "force", "pod-rescheduling": "on"}))
    pods = by_rank(await workloads.bound(4))
    await workloads.run(pods)
    lost = pods[3]
    ready = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await workloads.client.patch(NODES, lost.spec.node_name, ready, subresource="status")

    async def check() -> list[Pod] | None:  # nobody ends its pods: the kubelet is lost
        now = [pod for pod in await workloads.pods() if pod.spec.node_name and pod.is_live]
        return now if len(now) == 4 and lost.uid not in {pod.uid for pod in now} else None

    after = by_rank(await workloads.eventually(check, f"{lost.name} is replaced"))
    assert {pod.uid for pod in pods[:3]} < {pod.uid for pod in after}
    assert (await workloads.read_job("train"))["status"].get("failed", 0) == 0
