"""``npuctl history``: what it says of a job."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from npuctl.cli import app
from npuctl.history import command
from npuctl.history.intervals import WAITING, IntervalKind, Key, KeyState, WaitDetail, WaitReason
from npuctl.history.reader import HistoryReader, HistoryUnreadable
from npuctl.history.store import HistoryStore
from npuctl.web.past import PastCluster
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig
from tests.npuctl.manifests import node, pod, report
from tests.npuctl.web.conftest import served

NOW = 1_800_000_000  # 2027-01-15T08:00:00Z
WAIT = Key(IntervalKind.WAITS, "team/train")


def waits(next_: str, reason: str = "", behind: tuple[str, ...] = (), message: str = "") -> KeyState:
    told = WaitDetail(2, "2 x 8 chips", "2027-01-15T06:00:00Z", message)
    return KeyState(msgspec.json.encode(WaitReason(next_, reason, behind)).decode(), msgspec.json.encode(told).decode())


def runs(job: str, node_name: str, pod_name: str) -> Key:
    return Key(IntervalKind.RUNS, job, node_name, pod_name)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A gang that waits, runs and ends; a pause; another job of its name; a fault."""
    monkeypatch.setattr(command, "clock", lambda: NOW)
    path = tmp_path / "history.db"
    store = HistoryStore(path)
    first = {WAIT: waits("chips", "NoNodeFits", message="NoNodeFits: 8 chips fit on none of 9 nodes: 9 NotEnoughChips")}
    store.record(NOW - 3_600, {WAITING: first})
    store.record(NOW - 3_550, {WAITING: {WAIT: waits("behind", "NoNodeFits", ("team/big", "b/c"))}})
    gang = {f"n{at}": {runs("team/train", f"n{at}", f"team/train-{at}"): KeyState("0,1,2,3")} for at in range(2)}
    store.record(NOW - 3_500, {WAITING: {}, **gang})
    store.record(
        NOW - 3_450,
        {"n0": {**gang["n0"], Key(IntervalKind.FAULT, node="n0", name="3"): KeyState("unhealthy: 80E18402")}},
    )
    store.record(NOW - 1_800, {})
    store.record(NOW - 1_790, {"n2": {runs("other/train", "n2", "other/train-0"): KeyState("7")}})
    store.record(NOW - 10, {"n2": {runs("other/train", "n2", "other/train-0"): KeyState("7")}})
    store.close()
    return str(path)


def asked(history: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["history", *arguments, "--history", history])


def test_a_job_waited_and_behind_whom_ran_and_ended(history: str) -> None:
    done = asked(history, "job/train", "-n", "team", "--since", "2h")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "team/train since 2027-01-15T06:00:00Z",
        "FROM                  TO                    LASTED  WHAT",
        "2027-01-15T06:00:00Z  2027-01-15T07:00:00Z     60m  nothing was recorded",
        "2027-01-15T07:00:00Z  2027-01-15T07:00:50Z     50s  waited, 2 x 8 chips: when pods end",
        "     NoNodeFits: 8 chips fit on none of 9 nodes: 9 NotEnoughChips",
        "2027-01-15T07:00:50Z  2027-01-15T07:01:40Z     50s  waited, 2 x 8 chips: behind team/big, b/c",
        "2027-01-15T07:01:40Z  2027-01-15T07:02:31Z     51s  ran: 2 pods with 8 chips on n0, n1",
        "2027-01-15T07:02:30Z  2027-01-15T07:02:31Z      1s  chip 3 of n0: unhealthy: 80E18402",
        "2027-01-15T07:02:30Z  2027-01-15T07:30:00Z     27m  nothing was recorded",
        "2027-01-15T07:30:10Z  2027-01-15T07:59:50Z     29m  nothing was recorded",
    ]


def test_for_programs_everything_has_its_own_fields(history: str) -> None:
    answer = json.loads(asked(history, "team/train", "--since", "1d", "-o", "json").stdout)
    assert (answer["schema"], answer["job"], answer["since"]) == (
        "npuctl/history/v1",
        "team/train",
        "2027-01-14T08:00:00Z",
    )
    assert msgspec.convert(answer, command.HistoryAnswer).job == "team/train"
    found = {part["kind"]: part for part in answer["intervals"]}
    assert found["waits"] == {
        "kind": "waits", "began": "2027-01-15T07:00:50Z", "ended": "2027-01-15T07:01:40Z", "next": "behind",
        "reason": "NoNodeFits", "message": "", "behind": ["team/big", "b/c"], "position": 2, "requests": "2 x 8 chips",
        "since": "2027-01-15T06:00:00Z",
    }  # fmt: skip
    assert (found["runs"]["pod"], found["runs"]["node"], found["runs"]["chips"]) == ("team/train-1", "n1", [0, 1, 2, 3])
    assert (found["fault"]["chip"], found["fault"]["fault"]) == (3, "unhealthy: 80E18402")


def test_what_goes_on_has_no_end(history: str) -> None:
    answer = json.loads(asked(history, "other/train", "-o", "json").stdout)
    assert [(part["kind"], part["ended"]) for part in answer["intervals"]][-2:] == [
        ("runs", ""),
        ("gap", "2027-01-15T07:59:50Z"),
    ]


def test_of_what_is_recorded_no_longer_it_is_known_how_long_it_lasted_at_least(
    history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "clock", lambda: NOW + 7_200)
    done = asked(history, "other/train", "--since", "2h")
    assert done.stdout.splitlines()[2:] == [
        "2027-01-15T07:30:10Z  -     >29m  ran: other/train-0 on n2, chips 7",
        "2027-01-15T07:59:50Z  -     120m  nothing was recorded",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train",), "there are several train: other/train, team/train; name the namespace with -n"),
        (("job/none",), "nothing is recorded of a job or pod none"),
        (("none", "-n", "team"), "nothing is recorded of a job or pod none in the namespace team"),
        (("train", "--since", "soon"), "--since: 'soon' is not a time like 30s, 2m or 1h30m"),
    ],
)
def test_what_can_not_be_answered_says_why(arguments: tuple[str, ...], said: str, history: str) -> None:
    done = asked(history, *arguments)
    assert (done.exit_code, done.stderr) == (2, f"npuctl: {said}\n")


@pytest.mark.parametrize(("column", "value"), [("state", "nonsense"), ("detail", "[1, 2]"), ("kind", "dreams")])
def test_an_entry_that_others_have_changed_is_one_line_and_no_traceback(column: str, value: str, history: str) -> None:
    with closing(sqlite3.connect(history)) as database, database:
        database.execute(f"UPDATE intervals SET {column} = ? WHERE kind = 'waits'", [value])
    done = asked(history, "team/train", "--since", "2h")
    assert isinstance(done.exception, HistoryUnreadable), done.exception
    assert str(done.exception).startswith(f"history {history} has an entry that can't be read: ")
    with pytest.raises(HistoryUnreadable):
        PastCluster.read(HistoryReader(Path(history)), NOW - 3_580)


def test_a_pod_is_found_by_its_name(history: str) -> None:
    assert asked(history, "train-1").stdout.startswith("team/train since")
    assert asked(history, "pod/train-1", "-n", "team").stdout.startswith("team/train since")


def test_without_a_history_it_says_where_one_comes_from() -> None:
    done = CliRunner().invoke(app, ["history", "train"], env={"NPUCTL_HISTORY": ""})
    assert (done.exit_code, done.stderr) == (2, "npuctl: which history? --history FILE, as given to npuctl web\n")


async def test_the_history_goes_on_after_a_restart_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with ApiServer(tokens=TOKENS) as server:
        for made in (node("n1"), report("n1"), pod("train", "16", uid="uid-train")):
            await server.create(made)
        begun = []
        kubeconfig = str(write_kubeconfig(tmp_path, server, "secret"))
        for _ in range(2):
            async with served("--kubeconfig", kubeconfig, "--history", str(path)):
                _, waited = await answer(path)
            assert (waited["kind"], waited["reason"], waited["ended"]) == ("waits", "InvalidRequest", "")
            begun.append(waited["began"])
        assert begun[0] == begun[1]


async def answer(path: Path) -> list[Any]:
    """What is recorded of the job, once something is."""
    async with asyncio.timeout(60):
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "npuctl.cli", "history", "train", "--history", str(path), "-o", "json"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            if process.returncode == 0:
                return list(json.loads(out)["intervals"])
