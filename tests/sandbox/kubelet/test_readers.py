"""The APIs that read the kubelet's state: pod-resources and ``GET /pods``."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest

from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc as services
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import Cluster, container, pod
from tests.sandbox.kubelet.peer import OPTIONS, RESOURCE, Plugin


@pytest.fixture
async def lister(kubelet: Kubelet) -> AsyncIterator["services.PodResourcesListerAsyncStub"]:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources_socket}", options=OPTIONS) as channel:
        yield services.PodResourcesListerStub(channel)


def held(pods: pb.ListPodResourcesResponse) -> dict[tuple[str, str], set[str]]:
    return {
        (f"{each.namespace}/{each.name}", part.name): {one for group in part.devices for one in group.device_ids}
        for each in pods.pod_resources
        for part in each.containers
    }


async def pods_of(kubelet: Kubelet, **headers: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(kubelet.pods_url, headers=headers) as response:
        return response.status, await response.json() if response.status == 200 else {}


async def test_pod_resources_list_the_devices_of_active_pods(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, lister: "services.PodResourcesListerAsyncStub"
) -> None:
    plugin.numa = {"Ascend910-0": 1}
    plugin.send()
    plugin.prefer = lambda _available, _chosen, _size: ["Ascend910-0", "Ascend910-1"]
    await cluster.run("a", chips=2, initContainers=[container("prepare", chips=1)])
    await cluster.run("b")
    answer = await lister.List(pb.ListPodResourcesRequest())
    assert held(answer) == {
        ("default/a", "main"): kubelet.ledger()["default/a", "main"],
        ("default/b", "main"): set(),
    }
    entries = [part for each in answer.pod_resources for one in each.containers for part in one.devices]
    assert [each.resource_name for each in entries] == [RESOURCE, RESOURCE]
    assert {each.device_ids[0]: [node.ID for node in each.topology.nodes] for each in entries} == {
        "Ascend910-0": [1],
        "Ascend910-1": [],
    }


async def test_listing_frees_the_devices_of_finished_pods(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, lister: "services.PodResourcesListerAsyncStub"
) -> None:
    await cluster.run("a", chips=2)
    await kubelet.finish("default/a")
    assert kubelet.ledger()
    assert held(await lister.List(pb.ListPodResourcesRequest())) == {}
    assert kubelet.ledger() == {}
    assert len(plugin.allocated) == 1


async def test_get_returns_one_pod_and_an_error_for_an_unknown_one(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, lister: "services.PodResourcesListerAsyncStub"
) -> None:
    await cluster.run("a", chips=2)
    answer = await lister.Get(pb.GetPodResourcesRequest(pod_name="a", pod_namespace="default"))
    shown = {one for part in answer.pod_resources.containers[0].devices for one in part.device_ids}
    assert shown == kubelet.ledger()["default/a", "main"] == set(plugin.allocated[0])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lister.Get(pb.GetPodResourcesRequest(pod_name="x", pod_namespace="default"))
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "pod x in namespace default not found"


async def test_allocatable_resources_are_all_healthy_devices(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, lister: "services.PodResourcesListerAsyncStub"
) -> None:
    await cluster.run("a", chips=2)
    plugin.health["Ascend910-7"] = "Unhealthy"
    plugin.send()
    await kubelet.until(lambda: kubelet.devices(RESOURCE)["Ascend910-7"] == "Unhealthy")
    answer = await lister.GetAllocatableResources(pb.AllocatableResourcesRequest())
    shown = {each for part in answer.devices for each in part.device_ids}
    assert shown == set(plugin.health) - {"Ascend910-7"}


async def test_requests_above_the_rate_limit_are_rejected(lister: "services.PodResourcesListerAsyncStub") -> None:
    calls = [lister.List(pb.ListPodResourcesRequest()) for _ in range(100)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert refused
    assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_the_list_of_pods_contains_the_pod_under_admission(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    listed = []

    async def look(devices: list[str]) -> Any:
        _, body = await pods_of(kubelet)
        listed.append({each["metadata"]["name"] for each in body["items"]})
        return await plugin._allocate(devices)

    plugin.allocate = look
    for name in ("a", "b"):
        await cluster.create(pod(name, chips=1))
    await kubelet.until(lambda: kubelet.has_container("default/b", "main"))
    assert listed == [{"a"}, {"a", "b"}]


async def test_the_list_of_pods_has_all_fields(cluster: Cluster, kubelet: Kubelet) -> None:
    body = pod("a", terminationGracePeriodSeconds=0)
    body["metadata"]["annotations"] = {"huawei.com/Ascend910": "Ascend910-0"}
    created = await cluster.create(body)
    await kubelet.until(kubelet.pod_keys)
    _, answer = await pods_of(kubelet)
    assert answer["kind"] == "PodList"
    (item,) = answer["items"]
    assert item["metadata"]["uid"] == created.uid
    assert item["metadata"]["annotations"] == {"huawei.com/Ascend910": "Ascend910-0"}
    assert item["metadata"]["creationTimestamp"]
    assert item["spec"]["terminationGracePeriodSeconds"] == 0


async def test_the_list_of_pods_requires_a_token(kubelet: Kubelet) -> None:
    kubelet.pods_answer.token = "secret"
    assert (await pods_of(kubelet))[0] == 401
    assert (await pods_of(kubelet, Authorization="Bearer secret"))[0] == 200


async def test_the_list_of_pods_can_be_forbidden_delayed_or_changed(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.run("a")
    kubelet.pods_answer.forbidden = True
    assert (await pods_of(kubelet))[0] == 403
    kubelet.pods_answer.forbidden = False
    kubelet.pods_answer.hold()
    slow = asyncio.create_task(pods_of(kubelet))
    await kubelet.until(lambda: kubelet.pods_answer.requests == 2)
    assert not slow.done()
    kubelet.pods_answer.release()
    assert len((await slow)[1]["items"]) == 1
    kubelet.pods_answer.rewrite = lambda _items: []
    assert (await pods_of(kubelet))[1]["items"] == []


async def test_the_list_of_pods_can_show_the_kubelets_own_statuses(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await plugin.stop()
    kubelet.pods_answer.status_overlay = True
    await cluster.create(pod("a", nodeSelector={"no": "node"}))
    await kubelet.until(lambda: kubelet.pod_keys() and kubelet.status("default/a").get("phase") == "Failed")
    _, answer = await pods_of(kubelet)
    assert answer["items"][0]["status"]["phase"] == "Failed"


async def test_a_restart_does_not_change_the_addresses_of_both_apis(
    kubelet: Kubelet, lister: "services.PodResourcesListerAsyncStub"
) -> None:
    url = kubelet.pods_url
    await kubelet.restart()
    assert kubelet.pods_url == url
    assert (await pods_of(kubelet))[0] == 200
    await lister.List(pb.ListPodResourcesRequest(), wait_for_ready=True)
