"""How containers get their chips by default, by the versions of the node's kubelet and container runtime."""

from pathlib import Path

import pytest

from ascend.chips import RESOURCE
from ascend.kube.objects import NODES
from device_plugin.app import Plugin
from device_plugin.pods.container_edits import CDI_FILE, RUNTIME_MARK
from tests.device_plugin.api import NODE, running, until
from tests.device_plugin.whole import Whole, whole_node


async def report_runtime(whole: Whole, version: str) -> None:
    """Write the container runtime's version to the Node, as its kubelet does."""
    info = {"containerRuntimeVersion": version, "kubeletVersion": "v1.34.4"}
    path = f"{NODES.path(name=NODE)}/status"
    body = {"status": {"nodeInfo": info}}
    await whole.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")


async def gets(whole: Whole, name: str, *chips: int) -> tuple[str, ...]:
    """Run a pod, and return the ways in which its container got the chips."""
    await whole.bind(name, *chips)
    await whole.claimed(name)
    container = whole.node.kubelet.container(f"default/{name}", "main")
    ways = {"runtime": "ASCEND_VISIBLE_DEVICES" in container.env, "cdi": container.cdi_devices}
    ways["devices"] = any("davinci" in str(each) for each in container.devices) and not container.cdi_devices
    return tuple(way for way, used in ways.items() if used)


@pytest.mark.parametrize(
    ("version", "way"),
    [("containerd://2.1.4", "cdi"), ("containerd://1.7.28", "devices"), ("", "devices")],
)
async def test_containers_get_cdi_devices_where_the_node_supports_them(folder: Path, version: str, way: str) -> None:
    async with whole_node(folder) as whole:
        (folder / "cdi").mkdir()
        await report_runtime(whole, version)
        async with whole.plugin(injection="auto", cdi_dir=folder / "cdi"):
            assert await gets(whole, "one", 0, 1) == (way,)
        assert (folder / "cdi" / CDI_FILE).exists() == (way == "cdi")


@pytest.mark.parametrize("folder_is", ["missing", "a file"])
async def test_without_the_nodes_folder_of_cdi_files_containers_get_device_nodes(folder: Path, folder_is: str) -> None:
    async with whole_node(folder) as whole:
        if folder_is == "a file":
            (folder / "cdi").touch()
        await report_runtime(whole, "containerd://2.1.4")
        async with whole.plugin(injection="auto", cdi_dir=folder / "cdi"):
            assert await gets(whole, "one", 0, 1) == ("devices",)


async def test_where_ascend_docker_runtime_runs_the_containers_the_chips_are_left_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_MARK, "True")
    async with whole_node(folder) as whole:
        (folder / "cdi").mkdir()
        await report_runtime(whole, "containerd://2.1.4")
        async with whole.plugin(injection="auto", cdi_dir=folder / "cdi"):
            assert await gets(whole, "one", 0, 1) == ("runtime",)


async def test_an_upgraded_container_runtime_is_noticed_while_the_plugin_runs(folder: Path) -> None:
    async with whole_node(folder) as whole:
        (folder / "cdi").mkdir()
        await report_runtime(whole, "containerd://1.7.28")
        plugin = Plugin(whole.settings(injection="auto", cdi_dir=folder / "cdi"))
        async with running(plugin.run()):
            await until(lambda: whole.node.kubelet.allocatable(RESOURCE) == 8)
            assert await gets(whole, "before", 0, 1) == ("devices",)
            await report_runtime(whole, "containerd://2.1.4")
            await until(lambda: plugin._injector.injection == "cdi")
            assert await gets(whole, "after", 2, 3) == ("cdi",)
            await report_runtime(whole, "containerd://1.7.28")
            await until(lambda: plugin._injector.injection == "devices")
            assert await gets(whole, "back", 4, 5) == ("devices",)
