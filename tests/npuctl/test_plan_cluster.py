"""``npuctl plan --cluster``: objects of files planned into a cluster as it is."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ascend.annotations import PLACEMENT_GATE
from npuctl.cli import app
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS
from tests.ascend.kube.objects import write_kubeconfig
from tests.npuctl.manifests import Json, as_list, member, node, pod, pod_group

RESOURCE = "huawei.com/Ascend910"


def job(name: str, chips: int, parallelism: int = 1) -> Json:
    containers = [{"name": "main", "resources": {"limits": {RESOURCE: str(chips)}}}]
    spec = {"parallelism": parallelism, "template": {"spec": {"containers": containers}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def gated(manifest: Json, *gates: str) -> Json:
    manifest["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    return manifest


class Live:
    """A cluster, and the command in a thread of its own."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._kubeconfig = str(write_kubeconfig(folder, server, "secret"))

    async def run(self, *arguments: str, files: tuple[Json, ...] = ()) -> Result:
        path = self._folder / "given.json"
        path.write_text(json.dumps(as_list(*files)))
        given = ["-f", str(path)] if files else []
        arguments = (*arguments, "--kubeconfig", self._kubeconfig, *given)
        return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))

    async def plan(self, *files: Json) -> tuple[int, dict[str, Any], str]:
        done = await self.run("plan", "--cluster", "-o", "json", files=files)
        return done.exit_code, json.loads(done.stdout), done.stderr


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with ApiServer(tokens={"secret": "reader"}, resources=(*SERVED, VOLCANO_POD_GROUPS)) as server:
        await server.create(node("n1"))
        yield Live(server, tmp_path)


def names(listed: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in listed]


async def test_new_objects_are_planned_into_the_cluster_as_it_is(live: Live) -> None:
    await live.server.create(pod("busy", "4", node="n1", chips=range(4)))
    status, answer, err = await live.plan(job("new", 4))
    assert (status, names(answer["pods"]), err) == (0, ["new-0"], "")
    assert answer["pods"][0]["chips"] == [f"Ascend910-{chip}" for chip in range(4, 8)]
    assert (await live.plan(job("new", 8)))[0] == 3


async def test_waiting_pods_of_the_cluster_come_first_and_do_not_decide_the_status(live: Live) -> None:
    await live.server.create(pod("waits", "4", creationTimestamp="2026-01-01T00:00:00Z"))
    await live.server.create(pod("never", "16", creationTimestamp="2026-01-01T00:00:00Z"))
    status, answer, _ = await live.plan(job("new", 4))
    assert (status, names(answer["pods"]), names(answer["pending"])) == (0, ["waits", "new-0"], ["never"])
    status, answer, _ = await live.plan()
    assert (status, names(answer["pods"])) == (3, ["waits"])


async def test_what_the_cluster_has_already_is_named_and_not_planned_again(live: Live) -> None:
    await live.server.create(job("old", 4))
    await live.server.create(pod("waits", "4"))
    status, answer, err = await live.plan(job("old", 4), pod("waits", "1"))
    assert (status, names(answer["pods"])) == (0, ["waits"])
    assert len(answer["pods"][0]["chips"]) == 4
    assert "in the cluster already, so not planned again: Job default/old, Pod default/waits" in err


async def test_gated_pods_of_the_cluster_are_not_planned(live: Live) -> None:
    await live.server.create(gated(pod("held", "8"), "kueue.x-k8s.io/admission"))
    await live.server.create(gated(pod("ours", "4"), PLACEMENT_GATE))
    _, answer, err = await live.plan(job("new", 4))
    assert names(answer["pods"]) == ["ours", "new-0"]
    assert "not planned, because of scheduling gates: default/held" in err


async def test_a_given_gang_uses_its_group_in_the_cluster(live: Live) -> None:
    await live.server.create(pod_group("train", 2))
    await live.server.create(node("n2"))
    status, answer, _ = await live.plan(member("a", "train"), member("b", "train"))
    assert (status, names(answer["pods"])) == (0, ["a", "b"])
    assert {each["node"] for each in answer["pods"]} == {"n1", "n2"}


@pytest.mark.parametrize("command", [("topo",), ("explain", "waits"), ("plan", "--cluster")])
async def test_a_group_that_can_not_be_decoded_is_skipped_with_a_warning(live: Live, command: tuple[str, ...]) -> None:
    await live.server.create(pod("waits", "4"))
    broken = pod_group("broken", 2)
    broken["spec"]["minMember"] = "two"
    await live.server.create(broken)
    done = await live.run(*command)
    assert done.exit_code == 0
    assert "PodGroup ignored: the API server's answer about default/broken can't be decoded" in done.stderr


@pytest.mark.parametrize("command", [("topo",), ("explain", "waits")])
async def test_a_group_of_a_file_that_can_not_be_decoded_is_skipped(live: Live, command: tuple[str, ...]) -> None:
    broken = pod_group("broken", 2)
    broken["spec"]["minMember"] = "two"
    files = (node("n1"), pod("waits", "4"), broken)
    done = await live.run(*command, files=files)
    assert done.exit_code == 0
    assert "PodGroup default/broken): spec.minMember: Expected `int`, got `str`; the object is ignored" in done.stderr
    assert (await live.run("plan", files=files)).exit_code == 2


async def test_without_files_and_cluster_there_is_nothing_to_plan(live: Live) -> None:
    done = await live.run("plan")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "give the objects to plan with -f, or plan the waiting pods of a cluster with --cluster" in done.stderr
