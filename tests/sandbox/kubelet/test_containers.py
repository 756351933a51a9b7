"""Containers: what they get from Allocate responses, and how they restart and end."""

from pathlib import Path

import grpc
import pytest

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import NODE, Cluster, container, pod
from tests.sandbox.kubelet.peer import RESOURCE, Plugin, Refused


def answer(plugin: Plugin, response: pb.ContainerAllocateResponse) -> None:
    async def give(_devices: list[str]) -> pb.ContainerAllocateResponse:
        return response

    plugin.allocate = give


async def test_a_container_gets_everything_in_the_allocate_response(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, directory: Path
) -> None:
    node = directory / "davinci3"
    node.touch()
    answer(
        plugin,
        pb.ContainerAllocateResponse(
            envs={"A": "plugin", "B": "plugin"},
            devices=[pb.DeviceSpec(container_path="/dev/davinci3", host_path=str(node), permissions="rw")],
            mounts=[pb.Mount(container_path="/driver", host_path=str(directory), read_only=True)],
            annotations={"for": "the runtime"},
            cdi_devices=[pb.CDIDevice(name="huawei.com/npu=3")],
        ),
    )
    env = [
        {"name": "B", "value": "pod"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    await cluster.run("a", containers=[container(chips=1, env=env)])
    running = kubelet.container("default/a", "main")
    assert running.env == {"A": "plugin", "B": "pod", "NAME": "a"}
    assert running.devices == {"/dev/davinci3": (str(node), "rw")}
    assert running.mounts == {"/driver": (str(directory), True)}
    assert running.annotations == {"for": "the runtime"}
    assert running.cdi_devices == ("huawei.com/npu=3",)


async def test_one_of_two_resources_that_set_the_same_variable_wins(cluster: Cluster, kubelet: Kubelet) -> None:
    async with (
        Plugin(kubelet.socket_dir, resource="a.com/x") as one,
        Plugin(kubelet.socket_dir, resource="b.com/y") as two,
    ):
        for plugin, value in ((one, "x"), (two, "y")):
            answer(plugin, pb.ContainerAllocateResponse(envs={"SAME": value, value: value}))
            await cluster.register(plugin)
        limits = {"a.com/x": "1", "b.com/y": "1"}
        await cluster.run("a", containers=[{"name": "main", "image": "i", "resources": {"limits": limits}}])
        env = kubelet.container("default/a", "main").env
        assert env["SAME"] in {"x", "y"}
        assert (env["x"], env["y"]) == ("x", "y")


async def test_a_device_missing_on_the_host_fails_the_container_not_the_pod(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, directory: Path
) -> None:
    missing = directory / "davinci9"
    spec = pb.DeviceSpec(container_path="/dev/davinci9", host_path=str(missing), permissions="rw")
    answer(plugin, pb.ContainerAllocateResponse(devices=[spec]))
    await cluster.create(pod("a", chips=1))
    stuck = await cluster.pod("a", lambda each: "CreateContainerError" in str(each.status))
    assert stuck.phase == "Pending"
    waiting = stuck.status["containerStatuses"][0]["state"]["waiting"]
    assert waiting["message"].endswith(f"lstat {missing}: no such file or directory")
    with pytest.raises(NotFound):
        kubelet.container("default/a", "main")
    missing.touch()
    await kubelet.restart_container("default/a", "main")
    await cluster.pod("a", lambda each: each.phase == "Running")
    assert len(plugin.allocated) == 1


async def test_host_paths_are_looked_up_below_the_host_root(client: KubeClient, directory: Path) -> None:
    (directory / "host" / "dev").mkdir(parents=True)
    (directory / "host" / "dev" / "davinci0").touch()
    async with (
        Kubelet(NODE, client, directory, seed=1, host_root=directory / "host") as kubelet,
        Plugin(kubelet.socket_dir) as plugin,
    ):
        spec = pb.DeviceSpec(container_path="/dev/davinci0", host_path="/dev/davinci0", permissions="rw")
        answer(plugin, pb.ContainerAllocateResponse(devices=[spec]))
        cluster = Cluster(client, kubelet)
        await cluster.register(plugin)
        await cluster.run("a", chips=1)
        assert "/dev/davinci0" in kubelet.container("default/a", "main").devices


async def test_a_crashed_container_restarts_with_the_cached_response(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    await cluster.run("a", chips=2)
    first = kubelet.container("default/a", "main")
    await kubelet.restart_container("default/a", "main")
    second = kubelet.container("default/a", "main")
    assert second.id != first.id
    assert (second.env, second.restarts) == (first.env, 1)
    assert len(plugin.allocated) == 1


async def test_pre_start_is_called_at_every_start_and_can_prevent_it(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    plugin.options.pre_start_required = True
    await plugin.register()
    await cluster.run("a", chips=1)
    await kubelet.restart_container("default/a", "main")
    assert len(plugin.pre_started) == 2
    assert set(plugin.pre_started[0]) == kubelet.ledger()["default/a", "main"]
    plugin.pre_start_error = Refused(grpc.StatusCode.INTERNAL, "reset failed")
    await cluster.create(pod("b", chips=1))
    stuck = await cluster.pod("b", lambda each: "CreateContainerConfigError" in str(each.status))
    assert "reset failed" in str(stuck.status["containerStatuses"])
    assert stuck.phase == "Pending"


async def test_a_deleted_pod_is_stopped_and_then_removed(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    await cluster.run("a", chips=8)
    await cluster.delete("a")
    await cluster.gone("a")
    await kubelet.until(lambda: not kubelet.has_container("default/a", "main"))
    assert set(kubelet.ledger()) == {
        ("default/a", "main")
    }  # freed by the next admission or List, which has not happened yet
    await cluster.run("b", chips=8)
    assert set(kubelet.ledger()) == {("default/b", "main")}
    assert len(plugin.allocated) == 2


async def test_a_pod_recreated_with_the_same_name_is_a_different_pod(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    first = await cluster.run("a", chips=8)
    await cluster.delete("a")
    await cluster.gone("a")
    second = await cluster.create(pod("a", chips=8))
    await cluster.pod("a", lambda each: each.phase == "Running")
    assert first.uid != second.uid
    assert kubelet.container("default/a", "main").pod_uid == second.uid
    assert len(plugin.allocated) == 2


@pytest.mark.parametrize(("succeeded", "phase"), [(True, "Succeeded"), (False, "Failed")])
async def test_a_finished_pod_keeps_its_phase_and_frees_its_devices(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin, phase: str, *, succeeded: bool
) -> None:
    await cluster.run("a", chips=8)
    await kubelet.finish("default/a", succeeded=succeeded)
    await cluster.pod("a", lambda each: each.phase == phase)
    await cluster.run("b", chips=8)
    assert set(kubelet.ledger()) == {("default/b", "main")}
    assert kubelet.devices(RESOURCE) == plugin.health
