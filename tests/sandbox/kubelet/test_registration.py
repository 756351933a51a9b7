"""Registration of device plugins, their ListAndWatch streams, and the devices that the Node then shows."""

from pathlib import Path

import grpc
import pytest

from ascend.errors import InvalidValue
from ascend.kube.client import KubeClient
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import NODE, Cluster
from tests.sandbox.kubelet.peer import RESOURCE, Plugin, Refused


async def test_a_node_shows_no_resource_before_a_plugin_registers(cluster: Cluster) -> None:
    await cluster.node(lambda capacity, _allocatable: capacity and RESOURCE not in capacity)


async def test_capacity_counts_all_devices_and_allocatable_healthy_ones(cluster: Cluster, plugin: Plugin) -> None:
    await cluster.node(lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("8", "8"))
    plugin.health["Ascend910-5"] = "Unhealthy"
    plugin.health["Ascend910-6"] = "healthy"
    plugin.send()
    await cluster.node(lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("8", "6"))
    del plugin.health["Ascend910-5"]
    plugin.send()
    await cluster.node(lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("7", "6"))


async def test_an_unsupported_version_is_refused(kubelet: Kubelet) -> None:
    async with Plugin(kubelet.socket_dir) as plugin:
        with pytest.raises(grpc.aio.AioRpcError, match='requested API version "v1" is not supported by kubelet'):
            await plugin.register(version="v1")
        assert kubelet.registrations == 1
        assert plugin.streams == 0


@pytest.mark.parametrize("name", ["Ascend910", "kubernetes.io/npu", "x.kubernetes.io/npu", "requests.huawei.com/npu"])
async def test_a_resource_name_that_is_not_extended_is_refused(kubelet: Kubelet, name: str) -> None:
    async with Plugin(kubelet.socket_dir, resource=name) as plugin:
        with pytest.raises(grpc.aio.AioRpcError, match="is invalid"):
            await plugin.register()


async def test_a_plugin_whose_options_call_fails_is_not_registered(kubelet: Kubelet) -> None:
    async with Plugin(kubelet.socket_dir) as plugin:
        plugin.options_error = Refused(grpc.StatusCode.INTERNAL, "not yet")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await plugin.register()
        text = caught.value.details()
        assert text == "failed to get device plugin options: rpc error: code = Internal desc = not yet"
        assert plugin.streams == 0
        assert kubelet.devices(RESOURCE) == {}


async def test_a_registration_fails_if_nothing_listens_on_the_socket(kubelet: Kubelet) -> None:
    async with Plugin(kubelet.socket_dir) as plugin:
        with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin"):
            await plugin.register(endpoint="unused.sock")


async def test_the_end_of_a_stream_makes_all_devices_unhealthy_for_good(
    cluster: Cluster, kubelet: Kubelet, plugin: Plugin
) -> None:
    plugin.end_streams()
    await kubelet.until(lambda: set(kubelet.devices(RESOURCE).values()) == {"Unhealthy"})
    await cluster.node(lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("8", "0"))
    assert plugin.streams == 1


async def test_a_plugin_that_registers_again_can_allocate(cluster: Cluster, kubelet: Kubelet, plugin: Plugin) -> None:
    await plugin.stop()
    await kubelet.until(lambda: set(kubelet.devices(RESOURCE).values()) == {"Unhealthy"})
    async with Plugin(kubelet.socket_dir, devices=4) as successor:
        await successor.register()
        await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)
        await cluster.run("a", chips=4)
        assert len(successor.allocated) == 1
        assert not plugin.allocated


async def test_the_late_end_of_the_old_stream_disconnects_the_new_plugin(kubelet: Kubelet, plugin: Plugin) -> None:
    async with Plugin(kubelet.socket_dir) as successor:
        await successor.register()
        await kubelet.until(lambda: successor.streams)
        await plugin.stop()
        await kubelet.until(lambda: set(kubelet.devices(RESOURCE).values()) == {"Unhealthy"})
        await successor.cancelled.wait()


async def test_kubelet_1_37_distinguishes_the_old_and_the_new_plugin(client: KubeClient, directory: Path) -> None:
    async with (
        Kubelet(NODE, client, directory, seed=1, reregistration_race=False) as kubelet,
        Plugin(kubelet.socket_dir, devices=8) as plugin,
        Plugin(kubelet.socket_dir, devices=4) as successor,
    ):
        await plugin.register()
        await kubelet.until(lambda: len(kubelet.devices(RESOURCE)) == 8)
        await successor.register()
        await kubelet.until(lambda: len(kubelet.devices(RESOURCE)) == 4)
        await plugin.stop()
        await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)
        await Cluster(client, kubelet).run("a", chips=4)
        assert len(successor.allocated) == 1


async def test_a_resource_without_its_plugin_becomes_an_explicit_zero(client: KubeClient, directory: Path) -> None:
    async with Kubelet(NODE, client, directory, seed=1, stop_grace_s=0.05) as kubelet:
        async with Plugin(kubelet.socket_dir) as plugin:
            await plugin.register()
            await kubelet.until(lambda: kubelet.devices(RESOURCE))
        cluster = Cluster(client, kubelet)
        await cluster.node(
            lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("0", "0")
        )
        assert kubelet.devices(RESOURCE) == {}


async def test_the_kubelet_removes_only_sockets_at_its_start(client: KubeClient, directory: Path) -> None:
    kubelet = Kubelet(NODE, client, directory, seed=1)
    kubelet.socket_dir.mkdir()
    (kubelet.socket_dir / "DEPRECATION").write_text("kept")
    (kubelet.socket_dir / "folder").mkdir()
    async with Plugin(kubelet.socket_dir) as plugin, kubelet:
        names = {each.name for each in kubelet.socket_dir.iterdir()}
        assert names == {"DEPRECATION", "folder", "kubelet.sock"}
        assert plugin.endpoint not in names


async def test_a_restart_creates_kubelet_sock_with_a_new_inode(kubelet: Kubelet, plugin: Plugin) -> None:
    before = kubelet.plugin_socket.stat()
    await kubelet.restart()
    after = kubelet.plugin_socket.stat()
    assert before.st_ino != after.st_ino
    await plugin.cancelled.wait()
    assert not (kubelet.socket_dir / plugin.endpoint).exists()


async def test_a_directory_with_a_path_too_long_for_sockets_is_refused(client: KubeClient) -> None:
    with pytest.raises(InvalidValue, match="107 bytes"):
        Kubelet(NODE, client, Path("/tmp") / ("x" * 100), seed=1)


async def test_a_stream_that_fails_at_once_leaves_an_explicit_zero(cluster: Cluster, kubelet: Kubelet) -> None:
    # Kubernetes' own test of a broken plugin (docs/spec/kubelet.md#conformance-scenarios, F5): the registration itself
    # succeeds.
    async with Plugin(kubelet.socket_dir) as plugin:
        plugin.list_error = Refused(grpc.StatusCode.INTERNAL, "broken")
        await plugin.register()
        await cluster.node(
            lambda capacity, allocatable: (capacity.get(RESOURCE), allocatable.get(RESOURCE)) == ("0", "0")
        )
        assert kubelet.devices(RESOURCE) == {}
        assert (kubelet.registrations, plugin.streams) == (1, 1)
