"""The wall of ``npuctl topo``: many nodes on one screen, a letter for each job."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from ascend.kube.objects import KubeObject
from npuctl.cli import app
from npuctl.reading.objects import ClusterObjects
from npuctl.topo.nodes import NodeView, node_views
from npuctl.topo.wall import Wall
from tests.allocator.builders import node, pod, report
from tests.npuctl import manifests

NOW = ("--now", "2026-01-01T00:05:00Z")
ALIKE = {"accelerator-type": "module-910b-8"}


def views(*objects: KubeObject) -> list[NodeView]:
    return node_views(ClusterObjects.of(objects), fixed_settings(Settings, None, {}), 10**9)


def lines(*shown: NodeView, width: int = 80, limit: int | None = None) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(Wall(shown, width, limit))
    return captured.get().splitlines()


def named(number: int) -> str:
    return f"npu-{number // 16:03d}-{number % 16:02d}.prod.example.com"


def large(nodes: int) -> list[NodeView]:
    """A cluster with as many jobs as nodes, of which the first has all chips of two nodes."""
    made: list[KubeObject] = [node(named(at), labels=ALIKE) for at in range(nodes)]
    made += [pod(f"big-{at}", 8, node=named(at), chips=range(8)) for at in range(2)]
    made += [pod(f"small-{at}", 1 + at % 3, node=named(at), chips=range(1 + at % 3)) for at in range(2, nodes)]
    return views(*made)


def test_a_chip_is_the_letter_of_its_job() -> None:
    wall = lines(*views(node("n1"), pod("train", 3, node="n1", chips=(0, 1, 4)), pod("a", 1, node="n1", chips=(5,))))
    assert wall[:3] == ["910A: 1 node, 4 of 8 chips free", "n1 AA·· AB··", "A default/train (3)  B default/a (1)"]
    assert wall[-1] == "1 node, 4 of 8 chips free"


def test_marks_tell_chips_that_no_pod_gets() -> None:
    cordoned = node("n2", cordoned=True)
    holders = [pod("a", 1, node="n1", chips=(3,)), pod("b", 1, node="n1", chips=(3,))]
    broken = pod("c", 1, node="n1", chips=(4,))
    wall = lines(*views(node("n1"), report("n1", unhealthy=(1, 4)), *holders, broken, cordoned))
    assert wall[0] == "910A: 2 nodes, 5 of 16 chips free"
    assert wall[1] == "n1 ·✗·! #···  ____ ____"
    assert "! held by several pods; # held, though it is not healthy; ✗ unhealthy" in "".join(wall[-3:-1])


@pytest.mark.parametrize("width", [80, 120, 200])
def test_300_nodes_are_on_one_screen_of_50_lines(width: int) -> None:
    wall = lines(*large(300), width=width, limit=50)
    assert len(wall) <= 50
    assert max(map(len, wall)) <= width
    rows = [line for line in wall if line[3:4] == "-"]
    assert sum(len(row.split()) - 1 for row in rows) == 300
    assert wall[0] == "910B-8: 300 nodes, npu-*.prod.example.com, 1787 of 2400 chips free"
    assert rows[0].startswith("000-00 AAAAAAAA BBBBBBBB ")


def test_jobs_without_a_letter_are_counted() -> None:
    wall = lines(*large(300), width=120, limit=50)
    (said,) = [line for line in wall if " other jobs (" in line]
    assert said.startswith("+ ")
    letters = sum(line.count(" default/") for line in wall)
    assert int(said.split()[1]) + letters == 300


def test_nodes_of_each_product_are_together() -> None:
    wall = lines(*views(node("a"), node("b", labels=ALIKE), node("c")))
    assert [line for line in wall if line.startswith("910")] == [
        "910A: 2 nodes, 16 of 16 chips free",
        "910B-8: 1 node, 8 of 8 chips free",
    ]
    assert wall[1] == "a ···· ····  ···· ····"


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "objects.json"
    objects = [manifests.node(f"n{at}") for at in range(1, 5)]
    objects[3]["metadata"]["labels"] = {"accelerator-type": "module-910b-8"}
    objects += [
        manifests.pod("train", 8, node="n1", chips=range(8)),
        manifests.pod("tune", 3, node="n2", chips=(0, 1, 4), namespace="team"),
        manifests.pod("eval", 1, node="n3", chips=(0,)),
    ]
    path.write_text(json.dumps(manifests.as_list(*objects)))
    return str(path)


def shown(cluster: str, *options: str) -> list[str]:
    done = CliRunner().invoke(app, ["topo", "-f", cluster, *NOW, "-o", "json", *options])
    assert done.exit_code == 0, done.output
    return [each["node"] for each in json.loads(done.stdout)["nodes"]]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["--job", "train"], ["n1"]),
        (["--job", "team/tune"], ["n2"]),
        (["--job", "tune", "-n", "default"], []),
        (["-n", "team"], ["n2"]),
        (["-n", "team", "-A"], ["n1", "n2", "n3", "n4"]),
        (["--product", "910b-8"], ["n4"]),
        (["--free", "5"], ["n2", "n3", "n4"]),
        (["--free", "8"], ["n4"]),
        (["--fault", "80E18402"], []),
        (["--sort", "fragmented"], ["n3", "n2", "n4", "n1"]),
    ],
)
def test_nodes_are_chosen_by_what_is_on_them(cluster: str, options: list[str], nodes: list[str]) -> None:
    assert shown(cluster, *options) == nodes


def test_a_choice_without_nodes_says_so(cluster: str) -> None:
    done = CliRunner().invoke(app, ["topo", "-f", cluster, *NOW, "-l", "accelerator=typo"])
    assert (done.exit_code, done.stderr) == (0, "npuctl: none of 4 NPU nodes is as the options say\n")


def test_programs_get_totals_and_the_time(cluster: str) -> None:
    done = CliRunner().invoke(app, ["topo", "-f", cluster, *NOW, "-o", "json"])
    topology = json.loads(done.stdout)
    assert (topology["schema"], topology["time"]) == ("npuctl/topo/v1", "2026-01-01T00:05:00Z")
    totals = topology["totals"]
    assert (totals["nodes"], totals["chips"], totals["free"], totals["used"], totals["empty"]) == (4, 32, 20, 12, 1)
    assert [each["product"] for each in topology["products"]] == ["910A", "910B-8"]
    assert topology["nodes"][1]["jobs"] == {"team/tune": "team/tune"}
    assert (topology["nodes"][1]["free"], topology["nodes"][1]["largest"]) == (5, 3)
