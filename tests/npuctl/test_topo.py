"""``npuctl topo``: health and holders of chips."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console
from typer.testing import CliRunner

from allocator.settings import Settings
from ascend.chips import chip_set
from ascend.daemon.settings import fixed_settings
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.faults import FaultTime, chip_fault
from ascend.kube.objects import KubeObject, Metadata, Node
from npuctl.cli import app
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import Source
from npuctl.topo.chip_map import node_map
from npuctl.topo.choice import TopologyOptions
from npuctl.topo.command import watch_topo
from npuctl.topo.nodes import ChipView, NodeView, node_views
from sandbox.apiserver import ApiServer
from tests.allocator.builders import node, pod, report
from tests.npuctl import manifests


def show(*views: NodeView, width: int = 100) -> str:
    console = Console(width=width, color_system=None, record=True)
    with console.capture() as captured:
        console.print(node_map(views))
    return captured.get()


def views(*objects: KubeObject) -> list[NodeView]:
    """The views at the time of the reports."""
    return node_views(ClusterObjects.of(objects), fixed_settings(Settings, None, {}), 10**9)


def test_a_chip_has_ring_health_and_holder() -> None:
    (view,) = views(node("n1"), pod("train", 2, node="n1", chips=(4, 5)), report("n1", unhealthy=(1,)))
    assert (view.node, view.product, view.reason) == ("n1", "910A", None)
    assert view.chips[1] == ChipView("Ascend910-1", 0, healthy=False, holders=(), health="unhealthy")
    assert view.chips[4] == ChipView("Ascend910-4", 1, healthy=True, holders=("default/train",))


def test_nodes_without_npus_are_not_shown() -> None:
    assert views(Node(metadata=Metadata(name="plain"))) == []


def test_a_node_known_only_from_its_report_is_shown() -> None:
    plain = structs.replace(node("n1"), metadata=Metadata(name="n1"))
    held = pod("train", 1, node="n1", chips=(3,))
    (view,) = views(plain, report("n1", data=encode_report(DeviceReport(0xF7, 0, 0, update_time_s=1))), held)
    assert (view.product, view.reason, len(view.chips)) == ("910A", None, 8)
    (view,) = views(plain, report("n1", data=encode_report(DeviceReport(0xF7, 0, 0, update_time_s=1))))
    assert (view.product, view.reason, len(view.chips)) == ("910A", "NoBaseDeviceInfos", 7)


def test_an_unusable_node_shows_its_reason() -> None:
    (view,) = views(node("n1"), report("n1", data={"DeviceInfoCfg": "{}"}))
    assert view.reason == "InvalidReport"
    assert "not used: ConfigMap kube-system/mindx-dl-deviceinfo-n1" in show(view)


def test_the_map_has_a_line_per_ring() -> None:
    shown = views(node("n1"), pod("train", 2, node="n1", chips=(4, 5)), report("n1", unhealthy=(1,)))
    lines = show(*shown).splitlines()
    assert "n1  910A  5 of 8 free  1 unhealthy" in lines[0]
    assert "ring 0 [0 ·] [1 ✗] [2-3 ·]" in lines[1]
    assert "ring 1 [4-5 train] [6-7 ·]" in lines[2]


def test_two_holders_of_one_chip_are_a_conflict() -> None:
    holders = [pod("a", 1, node="n1", chips=(3,)), pod("b", 1, node="n1", chips=(3,))]
    shown = show(*views(node("n1"), *holders))
    assert "[3 CONFLICT]" in shown
    assert "Ascend910-3 is held by default/a and default/b" in shown


def test_unhealthy_chips_have_marks_and_fault_codes() -> None:
    made = DeviceReport(
        free=0xF0,
        unhealthy=chip_set([0]),
        recovering=chip_set([1]),
        manually_separated=chip_set([2]),
        network_unhealthy=chip_set([3]),
        update_time_s=1,
        faults=(chip_fault(chip_id=0, level="SeparateNPU", codes={"80E18402": FaultTime(0, "SeparateNPU")}),),
    )
    (view,) = views(node("n1"), report("n1", data=encode_report(made)))
    assert [chip.health for chip in view.chips[:5]] == [
        "unhealthy",
        "recovering",
        "separated",
        "network-unhealthy",
        "healthy",
    ]
    assert view.chips[0].faults == ("80E18402",)
    shown = show(view)
    assert "[0 ✗] [1 ↻] [2 ⊘] [3 · ≁]" in shown
    assert "Ascend910-0 unhealthy: 80E18402" in shown
    meaning = "64 rows of its memory have had uncorrectable errors, the most that can be isolated"
    assert f"80E18402 ({meaning}): n1/Ascend910-0" in " ".join(shown.split())
    assert "1 node, 5 of 8 chips free, 3 unhealthy; ✗ unhealthy; ⊘ separated: removed from use" in shown


def test_a_separating_chip_has_a_mark_and_is_not_free() -> None:
    fault = chip_fault(chip_id=3, level="PreSeparateNPU", codes={})
    stale = report("n1", data=encode_report(DeviceReport(0xF7, 0, 0, update_time_s=1, faults=(fault,))))
    (view,) = views(node("n1"), stale, pod("train", 1, node="n1", chips=(3,)))
    assert (view.chips[3].health, view.chips[3].healthy, view.chips[3].holders) == (
        "separating",
        False,
        ("default/train",),
    )
    assert "[3 train ⊖]" in show(view)
    assert "⊖ separating: only for the pod that holds it" in show(view)


@pytest.mark.parametrize(
    ("labels", "chips", "lines"),
    [
        ({"accelerator-type": "module-910b-16"}, 16, ["ring 0", "ring 1"]),
        ({"accelerator-type": "module-a3-8"}, 8, ["card 0", "card 1", "card 2", "card 3"]),
        ({"accelerator-type": "chip4-node8"}, 8, ["mesh 0", "mesh 1"]),
        ({"accelerator-type": "module-910b-8"}, 8, ["[0-7 ·]"]),
        ({"accelerator-type": "chip1-node16"}, 16, ["[0-7 ·]", "[8-15 ·]"]),
    ],
)
def test_the_map_has_a_line_per_group_of_linked_chips(labels: dict[str, str], chips: int, lines: list[str]) -> None:
    shown = show(*views(node("n1", labels=labels, chips=range(chips), allocatable=chips))).splitlines()
    assert [line.strip("│ ")[: len(start)] for line, start in zip(shown[1:-2], lines, strict=True)] == lines


def test_chips_of_unusable_nodes_do_not_count_as_free() -> None:
    shown = show(*views(node("n1"), node("n2", ready=False), pod("train", 2, node="n2", chips=(4, 5))))
    assert "2 nodes, 8 of 16 chips free, 1 node not used" in shown
    assert "[4-5 train]" in shown


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    infos = json.dumps({f"Ascend910-{chip_id}": {"IP": "", "SuperDeviceID": 0} for chip_id in range(8)})
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"huawei.com/Ascend910": "8"}}
    metadata = {"name": "n1", "annotations": {"baseDeviceInfos": infos}}
    await server.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(server.kubeconfig()))
    return path


async def npuctl(*arguments: str) -> tuple[int, str, str]:
    """Run the command in a thread; return exit status, standard output and error."""
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return done.exit_code, done.stdout, done.stderr


async def program(*arguments: str) -> tuple[int | None, str, str]:
    """Run the command as a process; return exit status, standard output and error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "npuctl.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_prints_json_for_programs(kubeconfig: Path) -> None:
    status, out, _ = await program("topo", "-o", "json", "--kubeconfig", str(kubeconfig))
    assert status == 0
    (view,) = json.loads(out)["nodes"]
    assert (view["node"], len(view["chips"]), view["chips"][7]["name"]) == ("n1", 8, "Ascend910-7")


async def test_the_command_prints_a_map_for_people(kubeconfig: Path) -> None:
    status, out, _ = await npuctl("topo", "n1", "--kubeconfig", str(kubeconfig))
    assert status == 0
    assert "n1  910A  8 of 8 free" in out


async def test_an_unknown_node_is_named(kubeconfig: Path) -> None:
    status, _, err = await npuctl("topo", "n7", "--kubeconfig", str(kubeconfig))
    assert (status, err) == (2, "npuctl: there is no node n7\n")


async def test_a_cluster_that_can_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = await program("topo", "--kubeconfig", str(tmp_path / "none"))
    assert status == 1
    assert err == f"npuctl: no usable access to the API server: there is no file {tmp_path / 'none'}\n"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nor this"))
    assert (await program("topo"))[2].endswith(f": there is no file {tmp_path / 'nor this'}\n")
    (tmp_path / "half").write_text("current-context: a\n")
    several = f"{tmp_path / 'none'}:{tmp_path / 'half'}"
    status, _, err = await program("topo", "--kubeconfig", several)
    assert status == 1
    assert err.startswith(f"npuctl: no usable access to the API server from {several}: ")
    assert err.count("\n") == 1


ODD_NAMES = ("n[/]x", "n[red]y", ":smile:")
"""Names that are markup to rich; files may have them."""


def odd(folder: Path) -> str:
    """A file with these names, and unhealthy chips."""
    path = folder / "odd.json"
    nodes = [manifests.node(name, chips=7) for name in ODD_NAMES]
    reports = [manifests.report(name, unhealthy=0b10) for name in ODD_NAMES]
    pods = [manifests.pod(f"[bold]{name}", 1, node=name, chips=[0]) for name in ODD_NAMES]
    waiting = [manifests.pod(f"[/{name}", 1) for name in ODD_NAMES]
    path.write_text(json.dumps(manifests.as_list(*nodes, *reports, *pods, *waiting)))
    return str(path)


@pytest.mark.parametrize(
    "command",
    [("topo",), ("plan", "--candidates"), ("explain", "default/[/n[/]x"), ("doctor", "--cluster")],
    ids=lambda command: command[0],
)
def test_names_are_printed_unchanged_on_any_terminal(command: tuple[str, ...], tmp_path: Path) -> None:
    out, plain = (on_a_terminal(encoding, *command, "-f", odd(tmp_path)) for encoding in ("utf-8", "ascii"))
    assert all(name in out for name in ODD_NAMES)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in out.splitlines()]
    assert "?" not in plain


def test_marks_have_different_substitute_ids_in_ascii(tmp_path: Path) -> None:
    plain = on_a_terminal("ascii", "topo", "-f", odd(tmp_path))
    assert "[1 x] [2-3 .]" in plain
    assert plain.rstrip().endswith("; x unhealthy")


def test_unknown_characters_become_question_marks_but_json_is_utf_8(tmp_path: Path) -> None:
    path, name = tmp_path / "greek.json", "node-\N{GREEK SMALL LETTER ALPHA}"
    path.write_text(json.dumps(manifests.as_list(manifests.node(name))))
    assert "node-?" in on_a_terminal("ascii", "topo", "-f", str(path))
    for output in ("json", "yaml"):
        done = CliRunner(charset="ascii").invoke(app, ["topo", "-f", str(path), "-o", output])
        assert name in done.stdout_bytes.decode()


def on_a_terminal(encoding: str, *arguments: str) -> str:
    done = CliRunner(charset=encoding).invoke(app, [*arguments, "--now", "2026-01-01T00:00:00Z"])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stderr == ""
    return done.stdout_bytes.decode(encoding)


def test_names_and_cells_are_never_split_on_a_narrow_terminal() -> None:
    holders = [pod(f"train-{chip:03}", 1, node="n1", chips=(chip,)) for chip in range(7)]
    shown = show(*views(node("n1"), *holders, report("n1", unhealthy=(7,))), width=38).splitlines()
    assert max(map(len, shown)) <= 38
    text = " ".join(shown)
    assert all(f"[{chip} train-{chip:03}]" in text for chip in range(7))
    assert "[7 ✗]" in text
    assert [line[2:8] for line in shown if "ring" in line] == ["ring 0", "ring 1"]
    assert shown[0].startswith("╭─ n1 ─")
    assert "910A  0 of 8 free  1 unhealthy" in text
    assert len(show(*views(node("n1")), width=40).splitlines()) == 5


def test_a_name_longer_than_the_terminal_is_cut_and_not_wrapped() -> None:
    shown = show(*views(node("n1"), pod("a" * 60, 1, node="n1", chips=(0,))), width=40).splitlines()
    (line,) = (line for line in shown if "aaa" in line)
    assert "[0 aaaa" in line
    assert "…" in line


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A file with a cluster of 60 nodes of two products: one chip is held, one is unhealthy, and a node is cordoned."""
    path = tmp_path / "large.json"
    nodes = [manifests.node(f"a{number:02}", zone="x" if number % 2 else "y") for number in range(40)]
    nodes += [manifests.node(f"b{number:02}", kind="module-910b-8") for number in range(19)]
    nodes.append(manifests.node("b19", kind="module-910b-8", cordoned=True))
    nodes[7] = manifests.node("a07", chips=7, zone="x", disk="ssd")
    held = manifests.pod("held", 1, node="a00", chips=[0])
    path.write_text(json.dumps(manifests.as_list(*nodes, held, manifests.report("a07", unhealthy=0b1))))
    return str(path)


def topo(file: str, *flags: str) -> str:
    done = CliRunner().invoke(app, ["topo", "-f", file, "--now", "2026-01-01T00:00:00Z", *flags])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def words(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_nodes_beyond_a_screen_are_summed_up_by_product(large: str) -> None:
    lines = topo(large, "--view", "products").splitlines()
    assert words("\n".join(lines))[:3] == [
        ["PRODUCT", "NODES", "USABLE", "EMPTY", "CHIPS", "FREE", "UNHEALTHY", "LARGEST"],
        ["910A", "40", "40", "38", "320", "318", "1", "4"],
        ["910B-8", "20", "19", "19", "160", "152", "0", "8"],
    ]
    assert lines[3] == "1 node NodeCordoned: b19"
    assert lines[4] == "60 nodes, 470 of 480 chips free, 1 unhealthy, 1 node not used"


def test_many_nodes_are_a_wall_and_more_a_line_per_product(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = topo(large).splitlines()
    assert wall[0] == "910A: 40 nodes, 318 of 320 chips free"
    assert wall[1].startswith("a00 A··· ····  ···· ····  ")
    assert "A default/held (1)" in wall
    assert len(wall) <= 50
    monkeypatch.setenv("COLUMNS", "20")
    assert topo(large).splitlines()[-1].endswith("line per node")


def test_a_node_has_a_line_with_its_jobs(large: str) -> None:
    lines = words(topo(large, "--view", "nodes"))
    assert lines[0] == ["NODE", "PRODUCT", "FREE", "CHIPS", "UNHEALTHY", "LARGEST", "STATUS", "JOBS"]
    assert lines[1] == ["a00", "910A", "7", "8", "0", "4", "ok", "default/held"]
    assert lines[8] == ["a07", "910A", "7", "8", "1", "4", "ok", "-"]
    assert len(lines) == 1 + 60 + 2
    assert lines[60] == ["b19", "910B-8", "8", "8", "0", "8", "NodeCordoned", "-"]


def test_named_nodes_and_the_map_view_show_chips(large: str) -> None:
    assert "[0 held] [1-3 ·]" in topo(large, "a00")
    assert topo(large, "--view", "map").count("910A") == 40
    many = [f"a{number:02}" for number in range(40)]
    assert topo(large, *many).count("910A") == 40


def test_nodes_of_the_map_are_side_by_side_as_far_as_the_screen_is_wide(large: str) -> None:
    (head, *_) = topo(large, "a00", "a01", "a02").splitlines()
    assert head.count("╭─") == 3
    console = Console(width=60, color_system=None)
    with console.capture() as captured:
        console.print(node_map(views(node("n1"), node("n2"), node("n3"))))
    assert [line.count("╭─") for line in captured.get().splitlines() if "╭" in line] == [2, 1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--unhealthy",), ["a07", "b19"]),
        (("-l", "disk=ssd"), ["a07"]),
        (("-l", "disk,zone!=y"), ["a07"]),
        (("-l", "accelerator-type in (module-910b-8),!zone", "--unhealthy"), ["b19"]),
        (("-l", "zone notin (x,y)", "--unhealthy"), ["b19"]),
        (("-l", "zone==x", "--sort", "free", "--unhealthy"), ["a07"]),
        (("--sort", "unhealthy", "-l", "zone in (x)"), ["a07", "a01", "a03"]),
        (("--sort", "free"), ["a01", "a02", "a03"]),
        (("a00", "a01", "--sort", "free"), ["a01", "a00"]),
    ],
)
def test_nodes_are_selected_and_sorted(large: str, flags: tuple[str, ...], expected: list[str]) -> None:
    found = [each["node"] for each in json.loads(topo(large, "-o", "json", *flags))["nodes"]]
    assert found[: len(expected)] == expected
    assert len(found) == len(expected) or "--sort" in flags


@pytest.mark.parametrize("selector", ["=", "a b", "a in x", "a>1", "a=b,", "a in (b"])
def test_an_invalid_selector_is_named(large: str, selector: str) -> None:
    done = CliRunner().invoke(app, ["topo", "-f", large, "-l", selector])
    assert done.exit_code == 2
    assert done.stderr.startswith("npuctl: --selector: ")
    assert done.stderr.count("\n") == 1


async def test_a_watched_cluster_is_printed_again_when_it_changes(
    kubeconfig: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("npuctl.topo.command.WATCH_S", 0.01)
    out = ""

    async def printed(text: str) -> None:
        nonlocal out
        async with asyncio.timeout(20):
            while text not in out:
                await asyncio.sleep(0.01)
                out += capsys.readouterr().out

    watching = asyncio.create_task(watch_topo(TopologyOptions(), Source.of(kubeconfig=str(kubeconfig))))
    await printed("8 of 8 free")
    server.fail_next("GET", "/nodes", 500, times=3)
    await server.create(manifests.pod("late", "2", node="n1", chips=[0, 1]))
    await printed("[0-1 late]")
    assert out.count("8 of 8 free") == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("flags", [("-f", "none.yaml"), ("-o", "json")])
def test_watch_needs_a_cluster_and_a_table(flags: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["topo", "--watch", *flags])
    assert done.exit_code == 2
    assert done.stderr.startswith("npuctl: --watch ")
