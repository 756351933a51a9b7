"""``npuctl defragment``: the pods to delete so that rings or servers become free."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ascend.chips import parse_chip_name
from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, member, node, pod, pod_group, report

NOW = "2026-01-01T00:00:10Z"


def owned(manifest: Json, kind: str = "ReplicaSet") -> Json:
    name = manifest["metadata"]["name"]
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"owner-{name}", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def runs(name: str, on: str, *chips: int) -> Json:
    return owned(pod(name, len(chips), node=on, chips=chips))


def invoke(folder: Path, objects: list[Json], *options: str) -> Any:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    return CliRunner().invoke(app, ["defragment", "-f", str(path), "--now", NOW, *options])


def answer(folder: Path, objects: list[Json], *options: str) -> Json:
    done = invoke(folder, objects, *options, "-o", "json")
    assert done.exit_code == 0, done.output
    found: Json = json.loads(done.stdout)
    return found


def counts(found: Json) -> tuple[int, int, list[str]]:
    return found["free_before"], found["free_after"], [move["pod"] for move in found["moves"]]


def obstacles(found: Json) -> dict[str, int]:
    return {obstacle["what"]: obstacle["units"] for obstacle in found["obstacles"]}


def test_the_pod_whose_move_costs_least_frees_a_ring(tmp_path: Path) -> None:
    pods = [
        runs("large", "n1", 0, 1),
        runs("small", "n1", 4),
        runs("other", "n2", 0, 1, 2),
        runs("full", "n2", 4, 5, 6, 7),
    ]
    found = answer(tmp_path, [node("n1"), node("n2"), *pods])
    assert counts(found) == (0, 1, ["default/small"])
    (move,) = found["moves"]
    assert (move["node"], move["chips"], move["to"]) == ("n1", ["Ascend910-4"], "n2")
    assert move["to_chips"] == ["Ascend910-3"]  # the ring that is full then


def test_the_pods_of_a_server_move_together(tmp_path: Path) -> None:
    pods = [runs("a", "n1", 0, 1), runs("b", "n1", 4), runs("c", "n2", 0, 1), runs("d", "n2", 4, 5, 6)]
    found = answer(tmp_path, [node("n1"), node("n2"), *pods], "--servers", "1")
    assert counts(found) == (0, 1, ["default/a", "default/b"])
    assert sorted((move["to"], *move["to_chips"]) for move in found["moves"]) == [
        ("n2", "Ascend910-2", "Ascend910-3"),
        ("n2", "Ascend910-7"),
    ]


def test_no_pod_moves_into_a_ring_that_was_free(tmp_path: Path) -> None:
    found = answer(tmp_path, [node("n1"), runs("a", "n1", 0, 1)], "--rings", "1")
    assert counts(found) == (1, 1, [])
    printed = invoke(tmp_path, [node("n1"), runs("a", "n1", 0, 1)]).stdout
    assert "1 ring is free, no move frees another" in printed
    assert "1 ring more wanted" in printed


def test_what_is_wanted_is_found_and_no_more(tmp_path: Path) -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    pods = [runs(f"p{number}", f"n{number}", 0, 1) for number in range(4)]
    pods += [runs(f"q{number}", f"n{number}", 4, 5) for number in range(4)]
    for wanted in range(1, 5):
        before, after, moved = counts(answer(tmp_path, [*nodes, *pods], "--rings", str(wanted)))
        assert (before, after, len(moved)) == (0, wanted, wanted)
    before, after, moved = counts(answer(tmp_path, [*nodes, *pods], "--rings", "5"))
    assert (before, after, len(moved)) == (0, 4, 4)


def test_pods_that_can_not_move_stay_and_it_is_said_why(tmp_path: Path) -> None:
    gang = [pod_group("train", 2)]
    gang += [member(f"train-{at}", "train", 2, node=f"n{at}", chips=(0, 1)) for at in range(2)]
    pods = [
        pod("bare", 1, node="n0", chips=(4,)),
        owned(pod("agent", 1, node="n1", chips=(4,)), "DaemonSet"),
        owned(pod("other", 1, node="n2", chips=(0,)), "Widget"),
        runs("beside", "n3", 0),
        runs("ends", "n3", 4),
    ]
    pods[-1]["metadata"] |= {"deletionTimestamp": NOW}
    nodes = [node(f"n{number}") for number in range(3)]
    nodes += [node("n3", chips=7), report("n3", unhealthy=0b10)]
    found = answer(tmp_path, [*nodes, *map(owned, gang[1:]), gang[0], *pods])
    assert counts(found)[2] == []
    assert obstacles(found) == {
        "a pod of a job of several pods": 2,
        "a pod that no controller is known to create anew elsewhere": 3,
        "a chip that can't be used, or is reserved": 1,
        "a pod that moves already, or ends": 1,
    }


def test_chips_that_are_kept_for_a_job_that_waits_count_as_free(tmp_path: Path) -> None:
    waits = [pod_group("waits", 2)]
    for number in range(2):
        waits.append(member(f"waits-{number}", "waits", 8, creationTimestamp="2025-12-31T00:00:00Z"))
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "NotEnoughChips"}
        waits[-1]["status"] = {"phase": "Pending", "conditions": [said]}
    pods = [runs("a", "n2", 0, 1), runs("b", "n3", 0, 1), runs("c", "n3", 4, 5, 6, 7)]
    pods += [runs(f"full-{number}", f"n{number}", *range(8)) for number in range(4, 6)]
    nodes = [node(f"n{number}") for number in range(1, 6)]  # so many that two of them may be kept
    found = answer(tmp_path, [*nodes, *pods, *waits], "--servers", "1")
    assert counts(found) == (1, 2, ["default/a"])


def test_only_servers_of_the_product_count(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2"), node("m1", kind="module-910b-8"), node("m2", kind="module-910b-8")]
    pods = [runs("a", "n1", 0), runs("b", "n2", 0), runs("c", "m1", 0), runs("d", "m2", 0)]
    for each in pods[2:]:
        each["spec"]["nodeSelector"] = {"accelerator-type": "module-910b-8"}
    assert counts(answer(tmp_path, [*nodes, *pods], "--servers", "2", "--product", "910b-8"))[:2] == (0, 1)
    refused = invoke(tmp_path, [*nodes, *pods], "--product", "A3")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no usable node is of the product A3; there is 910A, 910B-8" in refused.stderr


@pytest.mark.parametrize("options", [("--rings", "0"), ("--servers", "-1"), ("--rings", "1", "--servers", "1")])
def test_a_number_that_makes_no_sense_is_refused(options: tuple[str, ...], tmp_path: Path) -> None:
    assert invoke(tmp_path, [node("n1")], *options).exit_code == 2


@st.composite
def clusters(draw: st.DrawFn) -> list[Json]:
    """Servers in part used by pods of which some can't move, perhaps with broken chips, and pods that wait."""
    kind = draw(st.sampled_from(["module", "module-910b-8"]))
    made: list[Json] = []
    for number in range(draw(st.integers(1, 5))):
        name = f"n{number}"
        sick = draw(st.sets(st.integers(0, 7), max_size=1))
        made += [
            node(name, chips=8 - len(sick), kind=kind),
            report(name, unhealthy=sum(1 << chip for chip in sick)),
        ]
        at = 0
        while at < 8:
            size = draw(st.sampled_from([0, 0, 1, 2, 4]))
            held = [chip for chip in range(at, at + max(size, 2)) if chip not in sick][:size]
            if size and len(held) == size and not at % max(size, 2):
                made_pod = pod(f"p-{number}-{at}", size, node=name, chips=held)
                made.append(made_pod if draw(st.integers(0, 4)) == 0 else owned(made_pod))
            at += max(size, 2)
    if draw(st.booleans()):
        made.append(owned(pod("waits", draw(st.sampled_from([4, 8])), creationTimestamp="2025-12-31T00:00:00Z")))
    return made


def moved(objects: list[Json], moves: list[Json]) -> list[Json]:
    """The objects after the moves."""
    chips = {move["pod"].partition("/")[2]: move for move in moves}
    changed = json.loads(json.dumps(objects))
    for each in changed:
        if (move := chips.get(each["metadata"]["name"])) is not None:
            each["spec"]["nodeName"] = move["to"]
            names = ",".join(move["to_chips"])
            each["metadata"]["annotations"] |= {"huawei.com/Ascend910": names, "huawei.com/AscendReal": names}
    found: list[Json] = changed
    return found


@settings(max_examples=30, deadline=None)
@given(objects=clusters(), unit=st.sampled_from(["rings", "servers"]), wanted=st.integers(1, 3))
def test_after_the_moves_as_many_are_free_as_was_said(
    tmp_path_factory: pytest.TempPathFactory, objects: list[Json], unit: str, wanted: int
) -> None:
    folder = tmp_path_factory.mktemp("defragment")
    found = answer(folder, objects, f"--{unit}", str(wanted))
    before, after, names = counts(found)
    event(f"moves: {min(len(names), 3)}")
    assert before <= after
    assert (after == before) == (not names)
    assert len(names) == len(set(names))
    later = moved(objects, found["moves"])
    assert counts(answer(folder, later, f"--{unit}", "1"))[0] == after
    held = [
        (each["spec"]["nodeName"], parse_chip_name(chip))
        for each in later
        if each["kind"] == "Pod" and each["spec"].get("nodeName")
        for chip in each["metadata"]["annotations"]["huawei.com/Ascend910"].split(",")
    ]
    assert len(held) == len(set(held))
    can_move = {each["metadata"]["name"] for each in objects if each["metadata"].get("ownerReferences")}
    assert {name.partition("/")[2] for name in names} <= can_move
