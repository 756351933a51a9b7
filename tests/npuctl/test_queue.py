"""``npuctl queue``: what waits, in its order, for what, and behind whom."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuctl.cli import app
from npuctl.queue.command import age
from tests.npuctl.manifests import Json, as_list, member, node, parts, pod, pod_group

NOW = ("--now", "2026-01-01T12:00:00Z")


def created(number: int) -> dict[str, Any]:
    return {"creationTimestamp": f"2026-01-01T0{number}:00:00Z"}


def with_priority(manifest: Json, priority: int) -> Json:
    manifest["spec"]["priority"] = priority
    return manifest


def entries(folder: Path, *objects: Json, namespace: str = "") -> list[Json]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    space = ("-n", namespace) if namespace else ()
    done = CliRunner().invoke(app, ["queue", "-f", str(path), *NOW, "-o", "json", *space])
    assert done.exit_code == 0, done.output
    found: list[Json] = json.loads(done.stdout)["entries"]
    return found


def short(entry: Json) -> tuple[str, str]:
    return entry["job"].removeprefix("default/"), entry["next"]


def gang(name: str, size: int, chips: int = 8, number: int = 1, *, minimum: int | None = None) -> list[Json]:
    made = [member(f"{name}-{at}", name, chips, **created(number)) for at in range(size)]
    return [pod_group(name, minimum or size), *made]


def test_priority_comes_before_age(tmp_path: Path) -> None:
    waiting = [
        pod("old", 8, **created(1)),
        with_priority(pod("urgent", 8, **created(3)), 10),
        pod("young", 8, **created(2)),
    ]
    found = entries(tmp_path, node("n1"), *waiting)
    assert [(entry["position"], entry["job"], entry["priority"]) for entry in found] == [
        (1, "default/urgent", 10),
        (2, "default/old", 0),
        (3, "default/young", 0),
    ]
    assert [entry["since"] for entry in found] == [f"2026-01-01T0{hour}:00:00Z" for hour in (3, 1, 2)]


def test_what_would_fit_but_for_those_before_it_is_behind_these(tmp_path: Path) -> None:
    waiting = [*gang("first", 2, number=1), pod("second", 8, **created(2)), pod("small", 1, **created(3))]
    found = entries(tmp_path, node("n1"), node("n2"), *waiting)
    assert list(map(short, found)) == [("first", "starts"), ("second", "behind"), ("small", "behind")]
    assert (found[0]["gang"], found[0]["starting"], found[0]["requests"]) == (True, 2, {"8 chips": 2})
    assert found[0]["chips"] == 16
    assert found[1]["behind"] == ["default/first"]


def test_what_would_fit_but_for_chips_that_are_kept_is_behind_their_owner(tmp_path: Path) -> None:
    running = [pod(f"runs-{at}", 8, node=f"n{at}", chips=range(8)) for at in range(2, 6)]
    waiting = [*gang("large", 2, number=1), pod("small", 8, **created(2))]
    found = entries(tmp_path, *(node(f"n{at}") for at in range(1, 6)), *running, *waiting)
    assert list(map(short, found)) == [("large", "chips"), ("small", "behind")]
    assert found[1]["behind"] == ["default/large"]
    assert "ChipsKept" in found[1]["message"]


def test_what_fits_once_running_pods_have_ended_waits_for_chips(tmp_path: Path) -> None:
    running = pod("runs", 8, node="n1", chips=range(8))
    (entry,) = entries(tmp_path, node("n1"), running, pod("waits", 4))
    assert (entry["next"], entry["behind"], entry["starting"]) == ("chips", [], 0)
    assert entry["message"].startswith("pod default/waits: 4 chips fit on none of 1 node")


def test_what_would_not_fit_on_empty_nodes_waits_for_nodes(tmp_path: Path) -> None:
    running = pod("runs", 8, node="n1", chips=range(8))
    found = entries(tmp_path, node("n1"), node("n2", cordoned=True), running, *gang("large", 2))
    assert list(map(short, found)) == [("large", "nodes")]
    assert list(map(short, entries(tmp_path, node("n1", ready=False), pod("waits", 1)))) == [("waits", "nodes")]


def test_an_invalid_request_never_starts(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, node("n1"), pod("bad", 3))
    assert (entry["next"], entry["reason"]) == ("never", "InvalidRequest")


def test_an_incomplete_gang_waits_for_its_pods(tmp_path: Path) -> None:
    found = entries(tmp_path, node("n1"), *gang("part", 1, minimum=2))
    assert [(*short(entry), entry["reason"]) for entry in found] == [("part", "pods", "GangIncomplete")]


def test_pods_of_lower_priority_end_for_an_important_one(tmp_path: Path) -> None:
    running = pod("runs", 8, node="n1", chips=range(8))
    (entry,) = entries(tmp_path, node("n1"), running, with_priority(pod("urgent", 8), 10))
    assert (entry["next"], entry["starting"]) == ("preempts", 1)
    assert entry["pods"] == [
        {
            "name": "urgent",
            "state": "preempts",
            "node": "n1",
            "preempts": ["default/runs"],
            "reason": "",
            "message": "",
        }
    ]


def test_pods_of_a_deployment_are_one_entry_of_which_some_start(tmp_path: Path) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve", "uid": "u", "controller": True}
    pods = [pod(f"serve-{at}", 4, uid=f"u{at}", ownerReferences=[owner]) for at in range(3)]
    (entry,) = entries(tmp_path, node("n1"), *pods)
    assert (entry["starting"], len(entry["pods"]), entry["next"], entry["gang"]) == (2, 3, "chips", False)
    assert [each["state"] for each in entry["pods"]] == ["fits", "fits", "waits"]


def test_positions_are_those_among_all_namespaces(tmp_path: Path) -> None:
    waiting = [pod("a", 8, **created(1)), pod("b", 8, namespace="team", **created(2))]
    found = entries(tmp_path, node("n1"), *waiting, namespace="team")
    assert [(entry["position"], entry["namespace"]) for entry in found] == [(2, "team")]


def test_pods_with_gates_are_not_in_the_queue_but_are_named(tmp_path: Path) -> None:
    gated = pod("gated", 1)
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert entries(tmp_path, node("n1"), gated) == []
    assert printed(tmp_path, node("n1"), gated) == (
        "no pod waits for chips\nnot in the queue: 1 pod with scheduling gates: default/gated\n"
    )


def printed(folder: Path, *objects: Json, **environment: str) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    plain = {key: text for key, text in os.environ.items() if key not in {"COLUMNS", "LC_ALL"}}
    command = [sys.executable, "-m", "npuctl.cli", "queue", "-f", str(path), *NOW]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain | environment)
    return done.stdout


def test_a_line_in_a_pipe_says_all_of_a_job_and_a_screen_has_two(tmp_path: Path) -> None:
    running = pod("runs", 8, node="n1", chips=range(8))
    waiting = [*gang("large", 2, number=1), pod("bad", 3, **created(2))]
    objects = [node("n1"), node("n2"), running, *waiting]
    header, large, bad, summary = printed(tmp_path, *objects).splitlines()
    assert re.split(r"\s{2,}", header) == ["#", "JOB", "PRIORITY", "REQUESTS", "CHIPS", "AGE", "NEXT", "WHY"]
    assert re.split(r"\s{2,}", large)[:7] == [
        "1", "default/large", "0", "2 x 8 chips", "16", "11h", "when pods end"
    ]  # fmt: skip
    assert "GangDoesNotFit: " in large
    assert "never          InvalidRequest: " in bad
    assert summary.startswith("3 pods of 2 jobs, 19 chips: 0 of them start now, 3 wait: ")
    for columns in (80, 120):
        lines = printed(tmp_path, *objects, COLUMNS=str(columns)).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[2].startswith("     GangDoesNotFit: ")


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        ("", "-"),
        ("2026-01-01T12:00:30Z", "0s"),
        ("2026-01-01T11:58:30Z", "90s"),
        ("2026-01-01T11:58:00Z", "2m"),
        ("2026-01-01T09:30:00Z", "150m"),
        ("2026-01-01T09:00:00Z", "3h"),
        ("2025-12-30T12:00:00Z", "2d"),
    ],
)
def test_ages_are_as_people_say_them(since: str, shown: str) -> None:
    assert age(since, 1_767_268_800 * 10**9) == shown


def test_a_vnpu_is_requested_as_such(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, node("n1"), parts("serve", "1"))
    assert (entry["requests"], entry["chips"]) == ({"1 vNPU Ascend910-2c": 1}, 0)
