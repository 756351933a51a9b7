"""Restarts of the kubelet and reboots of the node: the checkpoint, and what happens to pods."""

import asyncio
import base64
import json
from datetime import UTC, datetime

import pytest

from ascend.kube.objects import JsonObject
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import ServedResource
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import Clock, Cluster, pod
from tests.sandbox.kubelet.peer import RESOURCE, Plugin


async def test_the_checkpoint_contains_the_allocations(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.numa = {"Ascend910-0": 0, "Ascend910-1": 1}
    plugin.send()
    plugin.prefer = lambda _available, _chosen, _size: ["Ascend910-0", "Ascend910-1", "Ascend910-2"]
    created = await cluster.run("a", chips=3)
    checkpoint = json.loads((kubelet.socket_dir / "kubelet_internal_checkpoint").read_text())
    (entry,) = checkpoint["Data"]["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (created.uid, "main", RESOURCE)
    assert entry["DeviceIDs"] == {"0": ["Ascend910-0"], "1": ["Ascend910-1"], "-1": ["Ascend910-2"]}
    response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert response.envs["ASCEND_VISIBLE_DEVICES"] == "0,1,2"
    assert checkpoint["Data"]["RegisteredDevices"] == {RESOURCE: sorted(plugin.health)}
    assert isinstance(checkpoint["Checksum"], int)


async def test_every_list_and_watch_message_updates_the_checkpoint(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.health["Ascend910-0"] = "Unhealthy"
    plugin.send()
    await kubelet.until(lambda: kubelet.devices(RESOURCE)["Ascend910-0"] == "Unhealthy")
    checkpoint = json.loads((kubelet.socket_dir / "kubelet_internal_checkpoint").read_text())
    assert checkpoint["Data"]["RegisteredDevices"] == {RESOURCE: sorted(set(plugin.health) - {"Ascend910-0"})}


async def test_running_pods_keep_their_devices_without_another_allocate(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=2)
    await cluster.run("b", chips=4)
    ledger, before = kubelet.ledger(), kubelet.container("default/a", "main")
    await kubelet.restart()
    await kubelet.until(lambda: len(kubelet.pod_keys()) == 2)
    assert kubelet.ledger() == ledger
    assert kubelet.container("default/a", "main") == before
    await cluster.node(lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("0", "0"))
    async with Plugin(kubelet.socket_dir) as successor:
        await cluster.register(successor)
        await cluster.run("c", chips=2)
        assert len(successor.allocated) == 1
        assert not set(successor.allocated[0]) & (ledger["default/a", "main"] | ledger["default/b", "main"])
    assert len(plugin.allocated) == 2


async def test_a_restarted_kubelet_does_not_report_its_predecessors_devices(
    server: ApiServer, kubelet: Kubelet, plugin: Plugin
) -> None:
    assert kubelet.allocatable(RESOURCE) == len(plugin.health)
    updating, may_update = asyncio.Event(), asyncio.Event()

    async def delay_update(
        _operation: str, resource: ServedResource, subresource: str, document: JsonObject
    ) -> JsonObject:
        if (resource.plural, subresource) == ("nodes", "status"):
            updating.set()
            await may_update.wait()
        return document

    server.admission.append(delay_update)
    await kubelet.restart()
    await updating.wait()
    assert kubelet.allocatable(RESOURCE) is None
    may_update.set()
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 0)


async def test_new_pods_are_rejected_until_the_plugin_registers_again(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await kubelet.restart()
    await cluster.node(lambda _capacity, allocatable: allocatable.get(RESOURCE) == "0")
    await cluster.create(pod("a", chips=1))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == f"OutOf{RESOURCE}"
    assert not plugin.allocated


async def test_after_a_reboot_pods_fail_if_the_plugin_has_not_registered(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=2)
    await kubelet.reboot()
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    text = f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
    assert failed.status["message"] == f"Pod was rejected: Allocate failed due to {text}, which is unexpected"
    assert len(plugin.allocated) == 1


async def test_devices_of_pods_deleted_during_a_kubelet_outage_are_freed(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=8)
    await kubelet.stop()
    await plugin.stop()
    await cluster.delete("a")
    await kubelet.start()
    async with Plugin(kubelet.socket_dir) as successor:
        await cluster.register(successor)
        await cluster.gone("a")
        await cluster.run("b", chips=8)
    assert set(kubelet.ledger()) == {("default/b", "main")}


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00\xff", b'{"Data":{"PodDeviceEntries":null},"Checksum":1}'])
async def test_a_corrupt_checkpoint_is_ignored(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, content: bytes
) -> None:
    await kubelet.stop()
    await plugin.stop()
    (kubelet.socket_dir / "kubelet_internal_checkpoint").write_bytes(content)
    await kubelet.start()
    assert kubelet.ledger() == {}
    async with Plugin(kubelet.socket_dir) as successor:
        await cluster.register(successor)
        await cluster.run("a", chips=1)


async def test_existing_pods_are_admitted_by_creation_time(cluster: Cluster, kubelet: Kubelet, clock: Clock) -> None:
    await kubelet.stop()
    for name, second in (("a", 30), ("b", 10), ("c", 20)):
        clock.time = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        await cluster.create(pod(name))
    await kubelet.start()
    await kubelet.until(lambda: len(kubelet.pod_keys()) == 3)
    assert kubelet.pod_keys() == ["default/b", "default/c", "default/a"]
