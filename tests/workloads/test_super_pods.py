"""A job with blocks, made by its real controller and placed through the real kube-scheduler."""

import asyncio
from collections.abc import Sequence

import pytest

from ascend.annotations import BLOCK, BLOCK_SUPER_POD, RANK, SERVER_INDEX, SUPER_POD_ID
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE
from ascend.kube.objects import PODS, JsonObject, Pod
from tests.bench.fake_cluster import fake_node
from tests.workloads.world import Workloads, example

CONTROLLERS = ()
DEFINITIONS = ()

pytestmark = pytest.mark.real

CHIPS = 16
INDEX = "batch.kubernetes.io/job-completion-index"


def server(super_pod: int, index: int) -> JsonObject:
    """Return the A3 server ``a3-<super pod>-<index>``."""
    node = fake_node(f"a3-{super_pod}-{index}")
    node["metadata"]["labels"]["accelerator-type"] = "module-a3-16-super-pod"
    node["metadata"]["annotations"] = {
        BASE_DEVICE_INFOS: write_base_device_infos({chip: ChipAddress() for chip in range(CHIPS)}),
        SUPER_POD_ID: str(super_pod),
        SERVER_INDEX: str(index),
    }
    for quantities in (node["status"]["capacity"], node["status"]["allocatable"]):
        quantities[RESOURCE] = str(CHIPS)
    return node


async def add_super_pods(workloads: Workloads, *sizes: int) -> None:
    """Add SuperPods of so many servers without a kubelet."""
    for super_pod, size in enumerate(sizes):
        for index in range(size):
            node = server(super_pod, index)
            await workloads.add(node)


def rank(pod: Pod) -> int:
    return int(pod.metadata.annotations[RANK])


def by_rank(pods: Sequence[Pod]) -> list[Pod]:
    return sorted(pods, key=rank)


def super_pods(pods: Sequence[Pod]) -> list[str]:
    """The SuperPods of pods by rank, as their nodes and their annotations say."""
    for pod in pods:
        assert pod.metadata.annotations[BLOCK_SUPER_POD] == pod.spec.node_name.split("-")[1]
        assert pod.metadata.annotations[BLOCK] == str(rank(pod) // 2)
        assert pod.metadata.annotations[INDEX] == pod.metadata.annotations[RANK]
    return [pod.metadata.annotations[BLOCK_SUPER_POD] for pod in by_rank(pods)]


async def test_a_job_of_two_blocks_starts_and_a_pod_is_replaced_in_its_super_pod(workloads: Workloads) -> None:
    await add_super_pods(workloads, 1, 4, 3)
    await workloads.create(example("superpod-job.yaml"))
    pods = await workloads.bound(4)
    placed = super_pods(pods)
    assert placed[0] == placed[1] == "1"
    assert placed[2] == placed[3]
    await workloads.run(pods)

    lost = by_rank(pods)[0]
    await workloads.cordon(lost.spec.node_name)
    await workloads.client.delete(PODS, lost.name, "default")
    await workloads.end_terminating()
    others = {pod.uid for pod in pods} - {lost.uid}

    async def replaced() -> list[Pod] | None:
        now = [pod for pod in await workloads.end_terminating() if pod.spec.node_name]
        return now if len(now) == 4 and others < {pod.uid for pod in now} else None

    after = by_rank(await workloads.eventually(replaced, "the pod is replaced"))
    assert super_pods(after) == placed
    assert after[0].spec.node_name != lost.spec.node_name
    assert [pod.uid for pod in after[1:]] == [pod.uid for pod in by_rank(pods)[1:]]


async def test_a_job_whose_blocks_do_not_fit_waits_as_a_whole_and_is_told_why(workloads: Workloads) -> None:
    await add_super_pods(workloads, 3, 1)
    await workloads.create(example("superpod-job.yaml"))
    pods = await workloads.refused(4)
    conditions = [each.message for pod in pods for each in pod.status.conditions if each.type == "PodScheduled"]
    assert any("2 blocks of 2 servers must be placed at once" in message for message in conditions), conditions
    await workloads.add(server(1, 1))
    assert super_pods(await workloads.bound(4)) in (["0", "0", "1", "1"], ["1", "1", "0", "0"])


def labelled(**labels: str) -> list[JsonObject]:
    """The example with labels on its pods."""
    (job,) = example("superpod-job.yaml")
    job["spec"]["template"]["metadata"]["labels"] = labels
    return [job]


@pytest.mark.long
async def test_soft_blocks_are_split_where_they_must_be(workloads: Workloads) -> None:
    await add_super_pods(workloads, 1, 1, 2)
    await workloads.create(labelled(**{"super-pod-affinity": "soft"}))
    pods = by_rank(await workloads.bound(4))
    written = [(pod.metadata.annotations[BLOCK], pod.metadata.annotations[BLOCK_SUPER_POD]) for pod in pods]
    assert written == [("0", "2"), ("0", "2"), ("1", "0"), ("2", "1")]


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [({"app": "ie", "jobID": "1"}, {"0"}), ({"inferserviceid": "s"}, {"1"})],
    ids=["MindIE", "service"],
)
async def test_inference_jobs_prefer_their_own_super_pods(
    workloads: Workloads, labels: dict[str, str], chosen: set[str]
) -> None:
    """MindIE: the fullest SuperPod that keeps its reserve; a new service: the one with most free servers."""
    await add_super_pods(workloads, 6, 7)
    await workloads.create(labelled(**labels))
    assert set(super_pods(await workloads.bound(4))) == chosen


async def test_the_pods_of_a_mind_ie_deployment_start_as_one_block(workloads: Workloads) -> None:
    await add_super_pods(workloads, 1, 4, 5)
    await workloads.create(example("mindie.yaml"))
    pods = by_rank(await workloads.bound(2))
    written = [(pod.metadata.annotations[BLOCK], pod.metadata.annotations[BLOCK_SUPER_POD]) for pod in pods]
    assert written == [("0", "1"), ("0", "1")]
    assert [rank(pod) for pod in pods] == [0, 1]


def named(name: str) -> JsonObject:
    """The example with another name."""
    (job,) = example("superpod-job.yaml")
    job["metadata"]["name"] = name
    return job


async def test_of_two_jobs_for_the_same_super_pods_one_starts_whole_and_then_the_other(workloads: Workloads) -> None:
    await add_super_pods(workloads, 3, 3)
    await workloads.create([named("one"), named("two")])
    first = await workloads.bound(4)
    assert len({pod.metadata.labels["job-name"] for pod in first}) == 1
    super_pods(first)
    other = {"one": "two", "two": "one"}[first[0].metadata.labels["job-name"]]

    async def said() -> bool:
        pods = [pod for pod in await workloads.pods() if pod.metadata.labels["job-name"] == other]
        messages = [each.message for pod in pods for each in pod.status.conditions if each.type == "PodScheduled"]
        return any("2 blocks of 2 servers must be placed at once" in message for message in messages)

    await workloads.eventually(said, "the other job is told why it waits")
    assert len([pod for pod in await workloads.pods() if pod.spec.node_name]) == 4
    name = first[0].metadata.labels["job-name"]
    path = f"/apis/batch/v1/namespaces/default/jobs/{name}?propagationPolicy=Background"
    await asyncio.to_thread(workloads.cluster.api.delete, path)
    for pod in first:  # no garbage collector runs here
        await workloads.client.delete(PODS, pod.name, "default")

    async def started() -> list[Pod] | None:
        pods = [pod for pod in await workloads.end_terminating() if pod.spec.node_name]
        return pods if [pod.metadata.labels["job-name"] for pod in pods] == [other] * 4 else None

    super_pods(await workloads.eventually(started, "the other job starts"))


def without_cpu(name: str) -> JsonObject:
    """A pod that takes all CPU of a node."""
    resources = {"requests": {"cpu": "64"}}
    spec = {"nodeName": name, "containers": [{"name": "c", "image": "x", "resources": resources}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{name}", "namespace": "default"}, "spec": spec}


async def test_a_block_whose_servers_have_no_cpu_is_placed_in_another_super_pod(workloads: Workloads) -> None:
    """Only kube-scheduler knows that: it offers the other servers, and all pods are placed among them."""
    await add_super_pods(workloads, 4, 6)
    await workloads.create([without_cpu(workloads.node_name(f"a3-0-{index}")) for index in (1, 2, 3)])
    job = named("train")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["resources"]["requests"] = {"cpu": "1"}
    await workloads.create([job])

    async def placed() -> list[Pod] | None:
        pods = [pod for pod in await workloads.pods() if pod.spec.node_name and not pod.name.startswith("on-")]
        return pods if len(pods) == 4 else None

    assert super_pods(await workloads.eventually(placed, "the job is placed")) == ["1", "1", "1", "1"]
