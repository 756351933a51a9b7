"""A pod that waits because chips are kept for others is told for whom, and on how many nodes."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, member, node, pod, pod_group

NOW = "2026-01-01T01:00:00Z"
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"


def run(folder: Path, command: str, *objects: Json, name: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit status, the answer as JSON, and the text for people."""
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    arguments = [command, *filter(None, [name]), "-f", str(path), "--now", NOW]
    printed = CliRunner().invoke(app, arguments)
    done = CliRunner().invoke(app, [*arguments, "-o", "json"])
    return done.exit_code, json.loads(done.stdout), " ".join(printed.stdout.split())


def draining() -> list[Json]:
    """Four nodes, two of which are earmarked for a gang of two: it waits for the pods on one of them to end."""
    busy = [pod(f"on-{name}", 8, node=name, chips=range(8)) for name in ("n2", "n3", "n4")]
    gang = [member(f"big-{number}", "big", creationTimestamp=EARLIER) for number in range(2)]
    return [*(node(f"n{number}") for number in range(1, 5)), *busy, pod_group("big", 2), *gang]


def test_explain_names_the_gang_that_nodes_drain_for(tmp_path: Path) -> None:
    train = pod("train", 4, creationTimestamp=LATER)
    status, answer, printed = run(tmp_path, "explain", *draining(), train, name="train")
    assert (status, answer["state"], answer["reason"]) == (3, "waits", "NoNodeFits")
    kept = "4 chips requested, 0 free of 8 healthy; 8 chips are kept for job default/big"
    assert [(each["message"], each["nodes"]) for each in answer["groups"] if "kept" in each["message"]] == [
        (kept, ["n1"])
    ]
    advice = "chips on 2 nodes are kept for job default/big, which waits for these nodes to drain: it comes first"
    assert answer["advice"] == [advice]
    assert advice in printed


def test_plan_places_no_pod_on_nodes_that_drain_for_a_gang(tmp_path: Path) -> None:
    train = pod("train", 4, creationTimestamp=LATER)
    status, answer, printed = run(tmp_path, "plan", *draining(), train)
    assert (status, answer["pods"]) == (3, [])
    assert "1 node ChipsKept: 4 chips requested, 0 free of 8 healthy; 8 chips are kept for job default/big" in printed


def test_a_gang_is_told_of_the_gang_that_comes_first(tmp_path: Path) -> None:
    late = [member(f"late-{number}", "late", 4, creationTimestamp=LATER) for number in range(2)]
    late[0]["metadata"]["labels"] = late[1]["metadata"]["labels"] = {}
    spread = [*draining(), pod_group("late", 1), *late]
    _, answer, printed = run(tmp_path, "explain", *spread, node("n5", cordoned=True), name="late-0")
    assert answer["state"] == "waits"
    assert "job default/big" in printed


def test_explain_names_the_preemptor_that_gets_the_chips(tmp_path: Path) -> None:
    urgent = pod("urgent", 8, creationTimestamp=EARLIER)
    urgent["spec"]["priority"] = 10
    urgent["status"] = {"phase": "Pending", "nominatedNodeName": "n1"}
    victim = pod("victim", 4, node="n1", chips=range(4), deletionTimestamp=EARLIER)
    status, answer, printed = run(tmp_path, "explain", node("n1"), victim, urgent, pod("train", 4), name="train")
    assert (status, answer["state"]) == (3, "waits")
    assert answer["ahead"] == [{"job": "default/urgent", "priority": 10, "pods": 1, "placed": 1, "chips": 8}]
    assert "before it in the queue: job default/urgent: 8 chips for 1 pod, priority 10" in printed


def test_a_pod_of_higher_priority_takes_what_is_kept(tmp_path: Path) -> None:
    train = pod("train", 4, creationTimestamp=LATER)
    train["spec"]["priority"] = 10
    status, answer, _ = run(tmp_path, "explain", *draining(), train, name="train")
    assert (status, answer["state"]) == (0, "fits")
