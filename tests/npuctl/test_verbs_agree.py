"""``plan``, ``explain``, ``doctor``, ``queue`` and ``whatif`` say the same of every pod, whatever waits and runs."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, member, node, pod, pod_group, report, with_nodes

NOW = "2026-01-01T00:00:10Z"


def run(path: Path, *arguments: str) -> Any:
    return json.loads(CliRunner().invoke(app, [*arguments, "-f", str(path), "--now", NOW, "-o", "json"]).stdout)


@st.composite
def clusters(draw: st.DrawFn) -> list[Json]:
    """Nodes, some unusable or with sick chips; pods of several priorities that run, and that wait, some as gangs."""
    priorities = st.sampled_from([0, 0, 0, 10, 20])
    made: list[Json] = []
    for number in range(draw(st.integers(1, 3))):
        name, sick = f"n{number}", draw(st.sets(st.integers(0, 7), max_size=2))
        free = [chip for chip in range(8) if chip not in sick]
        made += [
            node(name, chips=len(free), cordoned=draw(st.booleans()) and number == 2, pool=str(number % 2)),
            report(name, unhealthy=sum(1 << chip for chip in sick)),
        ]
        for at in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from([1, 2, 4]))
            chips, free = free[:size], free[size:]
            if len(chips) == size:
                ends: Json = {"deletionTimestamp": NOW} if draw(st.integers(0, 4)) == 0 else {}
                runs = pod(f"runs-{number}-{at}", size, node=name, chips=chips, **ends)
                runs["spec"]["priority"] = draw(priorities)
                made.append(runs)
    for number in range(draw(st.integers(1, 6))):
        stamp = f"2026-01-01T00:00:0{draw(st.integers(0, 9))}Z"
        size, kind = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from(["alone", "gang", "gated"]))
        waits = [pod(f"waits-{number}", size, creationTimestamp=stamp, uid=f"uid-{number}")]
        if kind == "gang":
            minimum = draw(st.integers(1, 3))
            made.append(pod_group(f"gang-{number}", minimum))
            waits = [
                member(
                    f"waits-{number}-{at}", f"gang-{number}", size, creationTimestamp=stamp, uid=f"uid-{number}-{at}"
                )
                for at in range(draw(st.integers(1, 3)))
            ]
        priority, never = draw(priorities), draw(st.booleans())
        nominated, pool = draw(st.sampled_from(["", "", "n0", "n1"])), draw(st.sampled_from(["", "", "", "0", "1"]))
        for each in waits:
            each["status"] = {"phase": "Pending", "nominatedNodeName": nominated}
            each["spec"] |= {"nodeSelector": {"pool": pool}} if pool else {}
            each["spec"] |= {"priority": priority, "preemptionPolicy": "Never" if never else "PreemptLowerPriority"}
            if kind == "gated":
                each["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        made += waits
    return made


@settings(max_examples=60, deadline=None)
@given(objects=clusters())
def test_no_verb_contradicts_another(tmp_path_factory: pytest.TempPathFactory, objects: list[Json]) -> None:
    path = tmp_path_factory.mktemp("verbs") / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    plan, doctor = with_nodes(run(path, "plan")), run(path, "doctor", "--cluster")
    placed = {each["name"]: each for each in plan["pods"]}
    pending = {each["name"]: each for each in plan["pending"]}
    waiting = [each for each in objects if each["metadata"]["name"].startswith("waits") and each["kind"] == "Pod"]
    gated = {each["metadata"]["name"] for each in waiting if each["spec"].get("schedulingGates")}
    assert {each["metadata"]["name"] for each in waiting} == placed.keys() | pending.keys() | gated
    for name in placed | pending:
        answer = run(path, "explain", name)
        if name in pending:
            said = answer["reason"], answer["message"], answer["nodes"]
            assert answer["state"] == "waits"
            assert said == tuple(pending[name][key] for key in ("reason", "message", "nodes"))
            continue
        assert answer["state"] == ("preempts" if placed[name]["preempts"] else "fits")
        assert answer["preempts"] == placed[name]["preempts"]
        assert placed[name]["node"] in {answer["node"], *(each["node"] for each in answer["candidates"])}
    for group in (each["metadata"]["name"] for each in objects if each["kind"] == "PodGroup"):
        for answer in run(path, "explain", f"job/{group}")["pods"]:
            alone = run(path, "explain", answer["name"])
            assert (answer["state"], answer["reason"]) == (alone["state"], alone["reason"])
    told = Counter(
        (key.removeprefix("default/"), each["reason"])
        for each in doctor["findings"]
        if each["check"] == "waiting" and each["reason"]
        for key in each["pods"]
    )
    assert told == Counter((name, each["reason"]) for name, each in pending.items())
    queue = run(path, "queue")
    queued = [each for entry in queue["entries"] for each in entry["pods"]]
    decided = [each["name"] for each in queued]
    assert sorted(decided) == sorted(placed.keys() | pending.keys())
    assert [name for name in decided if name in pending] == list(pending)
    assert [name for name in decided if name in placed] == list(placed)
    for each in queued:
        name = each["name"]
        found = each["state"], each["node"], each["preempts"], each["reason"], each["message"]
        if name in pending:
            assert found == ("waits", "", [], pending[name]["reason"], pending[name]["message"])
        else:
            state = "preempts" if placed[name]["preempts"] else "fits"
            assert found == (state, placed[name]["node"], placed[name]["preempts"], "", "")
    _check_what_is_next(queue["entries"], placed)
    whatif = run(path, "whatif")
    assert whatif["before"] == whatif["after"]
    assert whatif["before"]["queue"] == queue["entries"]
    assert whatif["before"]["waiting"] == len(pending)
    assert whatif["jobs"] == []


def _check_what_is_next(entries: list[Json], placed: dict[str, Json]) -> None:
    """An entry that starts has no pod that waits; what is before one that waits gets, or keeps, chips."""
    jobs = [entry["job"] for entry in entries]
    for entry in entries:
        waits = [each for each in entry["pods"] if each["state"] == "waits"]
        assert (entry["next"] in {"starts", "preempts"}) == (not waits)
        assert entry["starting"] == sum(each["name"] in placed for each in entry["pods"])
        assert bool(entry["behind"]) == (entry["next"] == "behind")
        assert set(entry["behind"]) <= set(jobs) - {entry["job"]}
        assert entry["reason"] == (waits[0]["reason"] if waits else "")
