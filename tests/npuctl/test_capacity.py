"""``npuctl capacity``: how many pods, gangs and blocks fit now."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, core_node, node, pod, super_pod_node

NOW = ("--now", "2026-01-01T00:00:00Z")


def run(folder: Path, objects: list[Json], *options: str) -> Any:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    return CliRunner().invoke(app, ["capacity", "-f", str(path), *NOW, *options])


def products(folder: Path, *objects: Json) -> dict[str, Any]:
    done = run(folder, list(objects), "-o", "json")
    assert done.exit_code == 0, done.output
    return {each["product"]: each for each in json.loads(done.stdout)["products"]}


def sizes(product: Json) -> dict[int, tuple[int, int | None]]:
    return {each["chips"]: (each["pods"], each["gang"]) for each in product["sizes"]}


def test_pods_of_each_size_fit_as_the_rules_say(tmp_path: Path) -> None:
    # Rings of 2 + 3 free chips, and an empty server: a pod stays within one ring.
    held = pod("held", 3, node="n1", chips=(0, 1, 4))
    found = products(tmp_path, node("n1"), node("n2"), held)["910A"]
    assert sizes(found) == {1: (13, None), 2: (6, None), 4: (2, None), 8: (1, 1)}
    assert (found["nodes"], found["servers"], found["rings"], found["chips"]) == (2, 1, 2, 13)


def test_every_size_of_a_server_whose_chips_are_alike_is_there(tmp_path: Path) -> None:
    kind = "module-910b-8"
    found = products(tmp_path, node("n1", kind=kind), pod("held", 1, node="n1", chips=(0,)))["910B-8"]
    assert {size: fit[0] for size, fit in sizes(found).items()} == {1: 7, 2: 3, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1, 8: 0}


def test_a_gang_has_room_on_one_model_of_chips_and_on_unknown_ones(tmp_path: Path) -> None:
    nodes = [node(f"n{number}", kind="module-910b-8") for number in range(6)]
    for made, model in zip(nodes, ("910B3", "910B3", "910B4", "910B4", "910B4"), strict=False):
        made["metadata"]["labels"]["node.kubernetes.io/npu.chip.name"] = model
    assert sizes(products(tmp_path, *nodes)["910B-8"])[8] == (6, 4)


def test_nodes_that_can_not_be_used_have_no_room(tmp_path: Path) -> None:
    done = run(tmp_path, [node("n1", cordoned=True)])
    assert (done.exit_code, done.stdout) == (0, "no node with chips can be used\n")


def test_chips_that_are_offered_as_cores_count(tmp_path: Path) -> None:
    (found,) = products(tmp_path, core_node("n1")).values()
    assert sizes(found)[1][0] == found["chips"] == 8


def test_blocks_are_within_one_super_pod(tmp_path: Path) -> None:
    nodes = [super_pod_node(number, index) for number, size in ((0, 5), (1, 3)) for index in range(size)]
    busy = pod("held", 16, node="0-0", chips=range(16))
    found = products(tmp_path, *nodes, busy)["A3-16"]
    assert {each["servers"]: each["blocks"] for each in found["blocks"]} == {2: 3, 4: 1, 8: 0, 16: 0, 32: 0, 64: 0}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--product", "910C"), "no usable node is of the product 910C; there is 910A"),
        (("--chips", "3"), "no server here takes a pod with 3 chips"),
    ],
)
def test_what_no_server_has_is_an_error(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    done = run(tmp_path, [node("n1")], *options)
    assert (done.exit_code, done.stderr) == (2, f"npuctl: {sentence}\n")


def test_a_size_is_shown_alone(tmp_path: Path) -> None:
    done = run(tmp_path, [node("n1")], "--chips", "8", "--product", "910a")
    lines = done.stdout.splitlines()
    assert lines[0] == "910A: 8 chips free, 1 server of 1 usable node with all chips free"
    assert [line.split() for line in lines[1:3]] == [
        ["PRODUCT", "CHIPS", "PODS", "ONE", "JOB"],
        ["910A", "8", "1", "1"],
    ]
