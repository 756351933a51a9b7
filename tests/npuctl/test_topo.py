"""Who holds which chip, for people and for programs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from ascend.kube.objects import Metadata, Node
from npuctl.render import node_map
from npuctl.view import ChipView, NodeView, node_views
from sandbox.apiserver import ApiServer
from tests.allocator.builders import node, pod, report


def show(*views: NodeView) -> str:
    console = Console(width=100, color_system=None, record=True)
    with console.capture() as captured:
        console.print(node_map(views))
    return captured.get()


def test_chips_are_told_with_ring_health_and_holder() -> None:
    (view,) = node_views([node("n1")], [pod("train", 2, node="n1", chips=(4, 5))], [report("n1", unhealthy=(1,))])
    assert (view.node, view.product, view.reason) == ("n1", "910A", None)
    assert view.chips[1] == ChipView("Ascend910-1", 0, healthy=False, holders=())
    assert view.chips[4] == ChipView("Ascend910-4", 1, healthy=True, holders=("default/train",))


def test_nodes_without_npus_are_left_out() -> None:
    assert node_views([Node(metadata=Metadata(name="plain"))], [], []) == []


def test_a_node_that_can_not_be_used_says_why() -> None:
    (view,) = node_views([node("n1")], [], [report("n1", data={"DeviceInfoCfg": "{}"})])
    assert view.reason == "InvalidReport"
    assert "not used: ConfigMap kube-system/mindx-dl-deviceinfo-n1" in show(view)


def test_the_map_shows_a_line_per_ring() -> None:
    views = node_views([node("n1")], [pod("train", 2, node="n1", chips=(4, 5))], [report("n1", unhealthy=(1,))])
    lines = show(*views).splitlines()
    assert "n1  910A  5 of 8 free  1 unhealthy" in lines[0]
    assert lines[1].split()[1:8] == ["ring", "0", "[0", "·]", "[1", "✗]", "[2"]
    assert "[4 train] [5 train]" in lines[2]


def test_two_holders_of_one_chip_are_a_conflict() -> None:
    holders = [pod("a", 1, node="n1", chips=(3,)), pod("b", 1, node="n1", chips=(3,))]
    assert "[3 CONFLICT default/a default/b]" in show(*node_views([node("n1")], holders, []))


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with ApiServer() as server:
        infos = json.dumps({f"Ascend910-{chip_id}": {"IP": "", "SuperDeviceID": 0} for chip_id in range(8)})
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"huawei.com/Ascend910": "8"}}
        metadata = {"name": "n1", "annotations": {"baseDeviceInfos": infos}}
        await server.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        path = tmp_path / "kubeconfig.json"
        path.write_text(json.dumps(server.kubeconfig()))
        yield path


async def npuctl(*arguments: str) -> tuple[int, str, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "npuctl.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await program.communicate()
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()


async def test_the_command_prints_json_for_programs(kubeconfig: Path) -> None:
    status, out, _ = await npuctl("topo", "-o", "json", "--kubeconfig", str(kubeconfig))
    assert status == 0
    (view,) = json.loads(out)["nodes"]
    assert (view["node"], len(view["chips"]), view["chips"][7]["name"]) == ("n1", 8, "Ascend910-7")


async def test_the_command_prints_a_map_for_people(kubeconfig: Path) -> None:
    status, out, _ = await npuctl("topo", "n1", "--kubeconfig", str(kubeconfig))
    assert status == 0
    assert "n1  910A  8 of 8 free" in out


async def test_an_unknown_node_is_an_error_that_names_it(kubeconfig: Path) -> None:
    status, _, err = await npuctl("topo", "n7", "--kubeconfig", str(kubeconfig))
    assert status == 2
    assert "n7" in err


async def test_a_cluster_that_can_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    status, _, err = await npuctl("topo", "--kubeconfig", str(tmp_path / "none"))
    assert status == 1
    assert err.startswith("npuctl: no usable access to the API server")
    assert err.count("\n") == 1
