"""``npuctl chip cordon`` and ``uncordon``: who may do it, what is written, and where it is shown."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ascend.chips import chip_name, chip_set
from ascend.cordons import CORDONED
from ascend.deviceinfo import MANUALLY_SEPARATED, OUR_PLUGIN, WRITTEN_BY
from npuctl.chips import numbers, read_numbers
from npuctl.cli import app
from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import Json, as_list, cut_node, node, pod, report

NOW = ("--now", "2026-01-01T00:00:10Z")
REPORT = "/api/v1/namespaces/kube-system/configmaps/mindx-dl-deviceinfo-n1"


def ours(manifest: Json, listed: str = "") -> Json:
    manifest["metadata"]["annotations"] = {WRITTEN_BY: OUR_PLUGIN}
    manifest["data"][MANUALLY_SEPARATED] = listed
    return manifest


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        await running.create(node("n1"))
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(server.kubeconfig()))
    return path


async def chip(kubeconfig: Path, *words: str) -> tuple[int, str]:
    done = await asyncio.to_thread(CliRunner().invoke, app, ["chip", *words, "--kubeconfig", str(kubeconfig)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


async def stored(server: ApiServer, path: str = REPORT) -> Json:
    async with aiohttp.ClientSession() as session, session.get(server.url + path) as answer:
        found: Json = await answer.json()
        return found


async def events(server: ApiServer) -> list[Json]:
    found: list[Json] = (await stored(server, "/apis/events.k8s.io/v1/events"))["items"]
    return found


async def test_a_cordon_lists_the_chips_and_says_who_when_and_why(server: ApiServer, kubeconfig: Path) -> None:
    await server.create(ours(report("n1"), "Ascend910-6,nonsense"))
    before = datetime.now(UTC).replace(microsecond=0)
    said = await chip(kubeconfig, "cordon", "n1", "2-3", "Ascend910-5", "--reason", "fan  noise\n")
    assert said == (0, "node n1: chips 2-3,5 cordoned: fan noise\n")
    after = await stored(server)
    assert after["data"][MANUALLY_SEPARATED] == "Ascend910-6,nonsense,Ascend910-2,Ascend910-3,Ascend910-5"
    cordons = json.loads(after["metadata"]["annotations"][CORDONED])
    assert cordons.keys() == {"Ascend910-2", "Ascend910-3", "Ascend910-5"}
    assert cordons["Ascend910-2"]["reason"] == "fan noise"
    assert before <= datetime.fromisoformat(cordons["Ascend910-2"]["at"]) <= datetime.now(UTC)
    (event,) = await events(server)
    assert (event["reason"], event["type"], event["regarding"]["kind"], event["regarding"]["name"]) == (
        "NPUCordoned",
        "Warning",
        "Node",
        "n1",
    )
    assert event["note"].startswith("chips 2-3,5 cordoned by ")
    assert event["note"].endswith(": fan noise")


async def test_a_terminal_in_ascii_shows_what_was_done(server: ApiServer, kubeconfig: Path) -> None:
    await server.create(ours(report("n1")))
    words = ("chip", "cordon", "n1", "2", "--reason", "风扇 → out", "--kubeconfig", str(kubeconfig))
    done = await asyncio.to_thread(CliRunner(charset="ascii").invoke, app, words)
    assert (done.exit_code, done.output) == (0, "node n1: chip 2 cordoned: ?? > out\n")
    assert (
        json.loads((await stored(server))["metadata"]["annotations"][CORDONED])["Ascend910-2"]["reason"] == "风扇 → out"
    )


async def test_a_cordon_is_taken_back_chip_by_chip(server: ApiServer, kubeconfig: Path) -> None:
    await server.create(ours(report("n1"), "Ascend910-6"))
    await chip(kubeconfig, "cordon", "n1", "2,3", "--reason", "broken fan")
    await chip(kubeconfig, "cordon", "n1", "3", "--reason", "no fan")
    assert await chip(kubeconfig, "uncordon", "n1", "2", "6") == (0, "node n1: chips 2,6 uncordoned\n")
    after = await stored(server)
    assert after["data"][MANUALLY_SEPARATED] == "Ascend910-3"
    (left,) = json.loads(after["metadata"]["annotations"][CORDONED]).items()
    assert (left[0], left[1]["reason"]) == ("Ascend910-3", "no fan")
    assert (await chip(kubeconfig, "uncordon", "n1", "3", "--reason", "new fan"))[0] == 0
    after = await stored(server)
    assert (after["data"][MANUALLY_SEPARATED], CORDONED in after["metadata"]["annotations"]) == ("", False)
    assert [each["reason"] for each in await events(server)].count("NPUUncordoned") == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cordon", "n1", "8", "--reason", "x"), "node n1 has no Ascend910-8; it has 0-7"),
        (("cordon", "n1", "x", "--reason", "x"), "node n1: 'x' is no chip; write chips as in 0-3,5 or Ascend910-2"),
        (("cordon", "n9", "0", "--reason", "x"), "there is no node n9"),
        (("cordon", "n1", "0", "--reason", " "), "--reason is empty: say why, for whoever finds the chips out of use"),
        (("cordon", "n1", "0", "--reason", "x" * 257), "--reason has 257 characters; 256 are the most"),
        (("uncordon", "n1", "0"), "node n1: Ascend910-0 is not cordoned"),
        (("uncordon", "n1", "1", "0"), "node n1: Ascend910-0 is not cordoned"),
    ],
)
async def test_what_can_not_be_done_names_node_and_chip(
    words: tuple[str, ...], sentence: str, server: ApiServer, kubeconfig: Path
) -> None:
    await server.create(ours(report("n1"), "Ascend910-1"))
    assert await chip(kubeconfig, *words) == (2, f"npuctl: {sentence}\n")
    assert (await stored(server))["data"][MANUALLY_SEPARATED] == "Ascend910-1"
    assert await events(server) == []


async def test_blanks_in_the_list_hide_no_chip_to_put_back(server: ApiServer, kubeconfig: Path) -> None:
    await server.create(ours(report("n1"), "Ascend910-2, Ascend910-5 ,\tAscend910-6"))
    assert (await chip(kubeconfig, "uncordon", "n1", "5-6"))[0] == 0
    assert (await stored(server))["data"][MANUALLY_SEPARATED] == "Ascend910-2"


async def test_a_list_that_no_plugin_of_ours_heeds_is_not_written(server: ApiServer, kubeconfig: Path) -> None:
    missing = "node n1 has no report (kube-system/mindx-dl-deviceinfo-n1): its device plugin has to run first"
    assert await chip(kubeconfig, "cordon", "n1", "0", "--reason", "x") == (2, f"npuctl: {missing}\n")
    await server.create(report("n1"))
    status, said = await chip(kubeconfig, "cordon", "n1", "0", "--reason", "x")
    assert (status, "MindCluster's does not heed" in said) == (2, True)


async def test_chips_that_are_cut_can_be_cordoned(server: ApiServer, kubeconfig: Path) -> None:
    await server.create(cut_node("n2"))
    await server.create(ours(report("n2")))
    assert (await chip(kubeconfig, "cordon", "n2", "0", "--reason", "x"))[0] == 0


def test_topo_doctor_and_explain_say_why_a_chip_is_out_of_use(tmp_path: Path) -> None:
    listed = ours(report("n1", unhealthy=0b101), "Ascend910-0,Ascend910-2")
    said = {"reason": "fan\u202e noise", "by": "ann", "at": "2026-01-01T00:00:00Z"}
    listed["metadata"]["annotations"][CORDONED] = json.dumps({"Ascend910-0": said, "Ascend910-3": said, "x": said})
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1", chips=7), listed, pod("runs", 1, node="n1", chips=(0,)))))
    sentence = "cordoned by ann at 2026-01-01T00:00:00Z: fan\\u202e noise"

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, "-f", str(path), *NOW]).stdout

    for view in ("map", "nodes"):
        assert f"{sentence}: n1/Ascend910-0 (default/runs)" in run("topo", "--view", view)
    assert f"pod default/runs runs on n1/Ascend910-0: {sentence}" in run("doctor", "--cluster")
    assert "n1/Ascend910-2: an operator has taken the chip out of use" in run("doctor", "--cluster")
    assert f"Ascend910-0: {sentence}" in run("explain", "runs")
    chips = {each["name"]: each["cordon"] for each in json.loads(run("topo", "-o", "json"))["nodes"][0]["chips"]}
    assert {name for name, each in chips.items() if each} == {"Ascend910-0"}


@pytest.mark.parametrize("text", ["{", "[]", '{"Ascend910-0": 1}', "\\u0000"])
def test_an_annotation_that_can_not_be_read_hides_nothing(text: str, tmp_path: Path) -> None:
    listed = ours(report("n1", unhealthy=1), "Ascend910-0")
    listed["metadata"]["annotations"][CORDONED] = text
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1", chips=7), listed)))
    done = CliRunner().invoke(app, ["doctor", "--cluster", "-f", str(path), *NOW])
    assert "an operator has taken the chip out of use" in done.stdout


@given(chips=st.sets(st.integers(0, 255)))
def test_chips_are_read_as_they_are_printed(chips: set[int]) -> None:
    names = tuple(map(chip_name, sorted(chips)))
    if chips:
        assert read_numbers(numbers(names)) == chip_set(chips)
    assert ",".join(names) == "" or len(numbers(names)) <= len(",".join(names))


def test_runs_of_chips_are_one_range() -> None:
    assert numbers(tuple(map(chip_name, range(16)))) == "0-15"
    assert numbers(("Ascend910-0", "Ascend910-1", "Ascend910-3")) == "0-1,3"
    assert numbers(("Ascend910-2c-100-0", "Ascend910-2c-101-1")) == "2c-100-0,2c-101-1"
