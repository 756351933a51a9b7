"""``npuctl explain`` of jobs with blocks: in which SuperPods these are, and why not in others."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ascend.annotations import BLOCK, BLOCK_SUPER_POD, MIN_AVAILABLE, RANK
from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, pod, super_pod_node

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "superpod-job.yaml"
ROOM = {0: 1, 1: 4, 2: 3, 3: 9, 4: 4}
TIGHT = {0: 1, 1: 2, 2: 1}
PLACED = [
    "block 0 in SuperPod 1: 2 of its 4 free servers, its reserve of 2 is kept",
    "block 1 in SuperPod 4: 2 of its 4 free servers, its reserve of 2 is kept",
    "not SuperPod 0 (1 free): fewer free servers than the 2 of a block",
    "not SuperPod 2 (3 free): a block there would use the reserve of 2",
    "not SuperPod 3 (9 free): more servers would be left over there, or its room is larger than the job needs",
]


def servers(sizes: dict[int, int]) -> list[Json]:
    return [super_pod_node(at, index) for at, number in sizes.items() for index in range(number)]


def member(rank: int, node: str = "", *, labels: dict[str, str] | None = None) -> Json:
    """A pod of a job of 4 in 2 blocks; one on a node has what its Binding has written."""
    block = {BLOCK: str(rank // 2), BLOCK_SUPER_POD: node.partition("-")[0]} if node else {}
    made = pod(
        f"train-{rank}", 16, node=node, chips=range(16) if node else (), phase="Running" if node else "",
        selector={"accelerator-type": "module-a3-16-super-pod"}, labels=labels or {},
        ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
        ],
    )  # fmt: skip
    made["metadata"].setdefault("annotations", {}).update(
        {MIN_AVAILABLE: "4", "sp-block": "32", RANK: str(rank), **block}
    )
    return made


def run(folder: Path, objects: list[Json], name: str, *flags: str, example: bool = False) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    files = ["-f", str(path), *(["-f", str(EXAMPLE)] if example else [])]
    given = ["explain", name, *files, "--now", "2026-01-01T00:00:00Z", *flags]
    return CliRunner().invoke(app, given, terminal_width=200).stdout


def answer(folder: Path, objects: list[Json], name: str, *, example: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(folder, objects, name, "-o", "json", example=example))
    return found


def test_a_job_that_fits_has_its_blocks_once_and_nodes_of_their_super_pods(tmp_path: Path) -> None:
    printed = run(tmp_path, servers(ROOM), "job/train", example=True)
    lines = [line.strip() for line in printed.splitlines()]
    assert [line for line in lines if line in PLACED] == PLACED
    assert "pod default/train-0 requests 16 chips and fits on 4 nodes of the SuperPod of its block now" in printed
    assert "the same for 1 other pod: default/train-1" in printed
    assert "the same for 1 other pod: default/train-3" in printed
    best = [line.split()[1] for line in lines if line.startswith("1. ")]
    assert best == ["1-0", "1-1", "1-2", "4-0", "4-1", "4-2"]


@pytest.mark.parametrize(("rank", "block", "super_pod"), [(1, 0, "1"), (2, 1, "4")])
def test_a_pod_that_fits_has_its_own_block(tmp_path: Path, rank: int, block: int, super_pod: str) -> None:
    found = answer(tmp_path, servers(ROOM), f"train-{rank}", example=True)
    assert (found["state"], found["block"], found["blocks"]) == ("fits", block, PLACED)
    assert {each["node"].partition("-")[0] for each in found["candidates"]} == {super_pod}
    printed = run(tmp_path, servers(ROOM), f"train-{rank}", example=True)
    assert f"blocks of job default/train (its own is block {block}):" in printed


def test_a_job_that_waits_has_the_room_of_each_super_pod(tmp_path: Path) -> None:
    expected = [
        "2 blocks of 2 servers, each of which must be in one SuperPod",
        "SuperPod 1 (2 free): room for 1 block",
        "not SuperPod 0 (1 free), 2 (1 free): fewer free servers than the 2 of a block",
    ]
    found = answer(tmp_path, servers(TIGHT), "train-0", example=True)
    assert (found["state"], found["block"], found["blocks"], found["candidates"]) == ("waits", None, expected, [])
    printed = [line.strip() for line in run(tmp_path, servers(TIGHT), "job/train", example=True).splitlines()]
    assert [line for line in printed if line in expected] == expected


def test_a_job_that_may_be_split_has_room_for_parts(tmp_path: Path) -> None:
    soft = [member(rank, labels={"super-pod-affinity": "soft"}) for rank in range(4)]
    assert answer(tmp_path, [*servers({0: 2, 1: 1}), *soft], "train-0")["blocks"][:3] == [
        "2 blocks of 2 servers, each of which may be split among SuperPods",
        "SuperPod 0 (2 free): room for 1 block",
        "SuperPod 1 (1 free): room for a part of a block",
    ]


def test_the_successor_of_a_pod_joins_those_of_its_block_that_run(tmp_path: Path) -> None:
    pods = [member(0, "1-0"), member(1), member(2, "4-0"), member(3, "4-1")]
    found = answer(tmp_path, [*servers(ROOM), *pods], "train-1")
    assert (found["state"], found["block"]) == ("fits", 0)
    assert found["blocks"] == [
        "block 0 in SuperPod 1: pods of it run there",
        "block 1 in SuperPod 4: pods of it run there",
        "block 0 in SuperPod 1: 1 of its 3 free servers, its reserve of 2 is kept",
        "not SuperPod 0 (1 free), 2 (3 free), 3 (9 free), 4 (2 free): the other pods of the block run elsewhere",
    ]
    assert {each["node"] for each in found["candidates"]} == {"1-1", "1-2", "1-3"}


def test_a_successor_that_waits_has_the_super_pod_where_its_block_runs(tmp_path: Path) -> None:
    pods = [member(0, "1-0"), member(1), member(2, "4-0"), member(3, "4-1")]
    for each in pods:
        del each["metadata"]["annotations"][RANK]
        each["metadata"]["annotations"].pop(BLOCK, None)  # another scheduler has placed them
    found = answer(tmp_path, [*servers({0: 4, 1: 1, 4: 2}), *pods], "train-1")
    assert (found["state"], found["reason"]) == ("waits", "GangDoesNotFit")
    assert found["blocks"] == [
        "2 blocks of 2 servers, each of which must be in one SuperPod",
        "block 0 in SuperPod 1: pods of it run there",
        "block 1 in SuperPod 4: pods of it run there",
        "SuperPod 0 (4 free): room for 2 blocks",
    ]


def test_a_pod_without_blocks_has_none(tmp_path: Path) -> None:
    alone = pod("alone", 16, selector={"accelerator-type": "module-a3-16-super-pod"})
    found = answer(tmp_path, [*servers(TIGHT), alone], "alone")
    assert (found["state"], found["block"], found["blocks"]) == ("fits", None, [])


def test_plan_and_explain_say_that_a_job_has_more_blocks_than_advised(tmp_path: Path) -> None:
    told = "it has 2 blocks, and the cluster 2 SuperPods with usable servers: the makers advise fewer blocks than"
    for sizes, has_many in (({0: 4, 1: 4}, True), ({0: 4, 1: 4, 2: 4}, False)):
        assert (
            any(told in each for each in answer(tmp_path, servers(sizes), "train-0", example=True)["blocks"])
            is has_many
        )
        files = ["-f", str(tmp_path / "objects.json"), "-f", str(EXAMPLE)]
        done = CliRunner().invoke(app, ["plan", *files, "--now", "2026-01-01T00:00:00Z", "-o", "json"])
        assert (told in done.stdout) is has_many
