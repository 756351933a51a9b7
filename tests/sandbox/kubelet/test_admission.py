"""Admission of pods, and which devices their containers get."""

import asyncio
from pathlib import Path

import grpc
import pytest

from ascend.kube.client import KubeClient
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import NODE, Cluster, container, pod
from tests.sandbox.kubelet.peer import RESOURCE, Plugin, Refused


async def test_a_pod_gets_the_devices_it_requests_and_runs(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    await cluster.run("a", chips=2)
    running = await cluster.pod("a", lambda each: each.phase == "Running")
    (held,) = kubelet.ledger().values()
    assert len(held) == 2
    assert set(plugin.allocated[0]) == held
    visible = kubelet.container("default/a", "main").env["ASCEND_VISIBLE_DEVICES"]
    assert {f"Ascend910-{number}" for number in visible.split(",")} == held
    (status,) = running.status["containerStatuses"]
    assert status["containerID"] == kubelet.container("default/a", "main").id
    assert status["ready"]


async def test_the_plugins_preference_is_what_is_allocated(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.prefer = lambda _available, _chosen, size: ["Ascend910-6", "Ascend910-7", "Ascend910-1"][:size]
    await cluster.run("a", chips=2)
    assert kubelet.ledger() == {("default/a", "main"): {"Ascend910-6", "Ascend910-7"}}
    assert set(plugin.available[0]) == set(plugin.health)


async def test_a_preference_is_limited_to_free_devices_and_completed(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    plugin.prefer = lambda _available, _chosen, _size: ["Ascend910-3"]
    await cluster.run("a", chips=1)
    plugin.prefer = lambda _available, _chosen, _size: ["Ascend910-3", "no such device", "Ascend910-5"]
    await cluster.run("b", chips=2)
    held = kubelet.ledger()["default/b", "main"]
    assert len(held) == 2
    assert "Ascend910-5" in held
    assert "Ascend910-3" not in held


async def test_the_preference_of_a_plugin_without_the_option_is_not_requested(
    cluster: Cluster, kubelet: Kubelet
) -> None:
    async with Plugin(kubelet.socket_dir, prefers=False) as plugin:
        await cluster.register(plugin)
        await cluster.run("a", chips=2)
        assert not plugin.available
        assert len(plugin.allocated) == 1


async def test_the_default_policy_requests_a_preference_without_a_choice(cluster: Cluster, plugin: Plugin) -> None:
    await cluster.run("a", chips=8)
    assert len(plugin.available) == 1


async def test_another_policy_requests_a_preference_only_with_a_choice(client: KubeClient, directory: Path) -> None:
    async with Kubelet(NODE, client, directory, seed=1, topology_policy="best-effort") as kubelet:
        cluster = Cluster(client, kubelet)
        async with Plugin(kubelet.socket_dir) as plugin:
            await cluster.register(plugin)
            await cluster.run("a", chips=6)
            await cluster.run("b", chips=2)
            assert len(plugin.available) == 1


@pytest.mark.parametrize("call", ["prefer", "allocate"])
async def test_an_error_of_the_plugin_fails_the_pod_with_its_message(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, call: str
) -> None:
    def refuse(*_: object) -> list[str]:
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "chip 3 is held by default/other")

    setattr(plugin, call, refuse)
    await cluster.create(pod("a", chips=1))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == "UnexpectedAdmissionError"
    prefix = "device plugin GetPreferredAllocation rpc failed with err: " if call == "prefer" else ""
    text = (
        f"Allocate failed due to {prefix}rpc error: code = FailedPrecondition desc = chip 3 is held by default/other,"
        " which is unexpected"
    )
    assert failed.status["message"] == f"Pod was rejected: {text}"
    event = await cluster.event(lambda each: each.reason == "UnexpectedAdmissionError")
    assert (event.note, event.type, event.regarding["name"]) == (text, "Warning", "a")
    assert kubelet.ledger() == {}


async def test_a_response_for_no_container_fails_the_pod(cluster: Cluster, plugin: Plugin) -> None:
    plugin.answers_for_no_container = True
    await cluster.create(pod("a", chips=1))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == "UnexpectedAdmissionError"
    assert "no containers return in allocation response" in failed.status["message"]


async def test_a_checkpoint_that_cannot_be_written_fails_the_pod(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    checkpoint = kubelet.socket_dir / "kubelet_internal_checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    await cluster.create(pod("a", chips=1))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert "failed to write checkpoint file" in failed.status["message"]
    assert len(plugin.allocated) == 1


async def test_a_rejected_pods_earlier_container_holds_devices_until_freed(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    async def once(devices: list[str]) -> pb.ContainerAllocateResponse:
        if len(plugin.allocated) == 2:
            raise Refused(grpc.StatusCode.INTERNAL, "enough")
        return await plugin._allocate(devices)

    plugin.allocate = once
    both = [container("one", chips=2), container("two", chips=2)]
    await cluster.create(pod("a", containers=both))
    await cluster.pod("a", lambda each: each.phase == "Failed")
    assert set(kubelet.ledger()) == {("default/a", "one")}
    await cluster.run("b", chips=8)
    assert set(kubelet.ledger()) == {("default/b", "main")}


async def test_pods_are_listed_right_before_admission_one_at_a_time(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    seen: list[list[str]] = []
    called, go_on = asyncio.Event(), asyncio.Event()

    async def slow(devices: list[str]) -> pb.ContainerAllocateResponse:
        seen.append(kubelet.pod_keys())
        called.set()
        await go_on.wait()
        return await plugin._allocate(devices)

    plugin.allocate = slow
    for name in ("z", "y", "x"):
        await cluster.create(pod(name, chips=1))
    await called.wait()
    go_on.set()
    await kubelet.until(lambda: kubelet.has_container("default/x", "main"))
    assert seen == [["default/z"], ["default/z", "default/y"], ["default/z", "default/y", "default/x"]]


async def test_held_pods_are_neither_listed_nor_admitted(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    with cluster.admission_held():
        await cluster.create(pod("a", chips=1))
        await cluster.create(pod("b"))
        await cluster.pod("b", lambda each: each)
        assert kubelet.pod_keys() == []
        assert not plugin.allocated
    await kubelet.until(lambda: kubelet.has_container("default/b", "main"))
    assert len(plugin.allocated) == 1


async def test_a_node_with_too_few_devices_rejects_before_any_allocation(cluster: Cluster, plugin: Plugin) -> None:
    await cluster.run("a", chips=6)
    await cluster.create(pod("b", chips=4))
    failed = await cluster.pod("b", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == f"OutOf{RESOURCE}"
    assert failed.status["message"] == (
        f"Pod was rejected: Node didn't have enough resource: {RESOURCE}, requested: 4, used: 6, capacity: 8"
    )
    assert len(plugin.allocated) == 1


async def test_an_explicit_zero_rejects_the_pod(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    await plugin.stop()
    await kubelet.until(lambda: set(kubelet.devices(RESOURCE).values()) == {"Unhealthy"})
    await cluster.node(lambda _capacity, allocatable: allocatable.get(RESOURCE) == "0")
    await cluster.create(pod("a", chips=1))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == f"OutOf{RESOURCE}"


async def test_a_request_for_an_unregistered_resource_is_ignored(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.run("a", chips=4)
    assert kubelet.ledger() == {}
    assert "ASCEND_VISIBLE_DEVICES" not in kubelet.container("default/a", "main").env


async def test_a_device_that_fails_during_admission_fails_the_pod(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=7)
    spare = next(each for each in plugin.health if each not in kubelet.ledger()["default/a", "main"])

    async def fail_meanwhile(devices: list[str]) -> pb.ContainerAllocateResponse:
        plugin.health[spare] = "Unhealthy"
        plugin.send()
        await kubelet.until(lambda: kubelet.devices(RESOURCE)[spare] == "Unhealthy")
        return await plugin._allocate(devices)

    await cluster.delete("a")
    await cluster.gone("a")
    plugin.allocate = fail_meanwhile
    plugin.prefer = lambda available, _chosen, size: sorted(set(available) - {spare})[:size]
    await cluster.create(pod("b", containers=[container("one", chips=7), container("two", chips=1)]))
    failed = await cluster.pod("b", lambda each: each.phase == "Failed")
    assert (
        f"requested number of devices unavailable for {RESOURCE}. Requested: 1, Available: 0"
        in (failed.status["message"])
    )


async def test_later_containers_reuse_a_finished_init_containers_devices(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=4, initContainers=[container("prepare", chips=2)])
    ledger = kubelet.ledger()
    assert ledger["default/a", "prepare"] < ledger["default/a", "main"]
    assert [len(each) for each in plugin.allocated] == [2, 4]


async def test_a_sidecar_does_not_share_its_devices(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    sidecar = container("beside", chips=2, restartPolicy="Always")
    await cluster.run("a", chips=4, initContainers=[sidecar])
    ledger = kubelet.ledger()
    assert not ledger["default/a", "beside"] & ledger["default/a", "main"]
    assert len(plugin.allocated) == 2


async def test_a_pod_whose_node_selector_does_not_match_is_rejected(cluster: Cluster, kubelet: Kubelet) -> None:
    await cluster.create(pod("a", nodeSelector={"accelerator-type": "card"}))
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert failed.status["reason"] == "NodeAffinity"
    assert not kubelet.has_container("default/a", "main")


async def test_the_same_seed_makes_the_same_choices(client: KubeClient, directory: Path) -> None:
    chosen = []
    for number in range(2):
        async with (
            Kubelet(f"n{number}", client, directory / str(number), seed=7) as kubelet,
            Plugin(kubelet.socket_dir, prefers=False) as plugin,
        ):
            cluster = Cluster(client, kubelet)
            await cluster.register(plugin)
            await cluster.run(f"a{number}", chips=3, nodeName=f"n{number}")
            chosen.append(plugin.allocated)
    assert chosen[0] == chosen[1]


async def test_a_plugin_that_disconnects_during_a_call_fails_only_that_pod(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    called = asyncio.Event()

    async def hang(_devices: list[str]) -> pb.ContainerAllocateResponse:
        called.set()
        await asyncio.Event().wait()
        raise AssertionError

    plugin.allocate = hang
    await cluster.create(pod("a", chips=2))
    await called.wait()
    plugin.end_streams()
    failed = await cluster.pod("a", lambda each: each.phase == "Failed")
    assert "code = Canceled desc = grpc: the client connection is closing" in failed.status["message"]
    await cluster.run("b")
    async with Plugin(kubelet.socket_dir) as successor:
        await cluster.register(successor)
        await cluster.run("c", chips=2)
