"""``npuctl selftest`` for a node of a cluster: its driver, and the five books about the chips of pods."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ascend.chips import chip_ids
from ascend.errors import InvalidValue
from ascend.kube.objects import PODS
from device_plugin.kubelet.pod_resources import read_ledger
from npuctl.output import Output
from npuctl.reading.source import Source
from npuctl.selftest import pods
from npuctl.selftest.command import COMPONENT, PLUGIN, NodeCommandFailed, selftest
from npuctl.selftest.pods import PodTrial
from tests.cluster import binaries
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.manifests import STAY
from tests.e2e.programs import BIN
from tests.e2e.real import RealWorld, real_world
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.test_main_job import REAL
from tests.e2e.world import Setup, World, annotated


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sandbox", pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])],
)
async def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("world")
    if request.param == "sandbox":
        async with sandbox_world(folder, Setup()) as world:
            yield world
    else:
        async with real_world(request.getfixturevalue("cluster"), folder, Setup()) as world:
            yield world
            await finalize_namespaces(world)


async def finalize_namespaces(world: World) -> None:
    """End the namespaces of trials, which the cluster has no controller for."""
    for each in json.loads(await world.client.request("GET", "/api/v1/namespaces"))["items"]:
        if each["metadata"]["name"].startswith("npu-selftest-"):
            each["spec"]["finalizers"] = []
            await world.client.request("PUT", f"/api/v1/namespaces/{each['metadata']['name']}/finalize", body=each)


@dataclass(frozen=True)
class WorldTrial(PodTrial):
    """Pods on a node of a world: without a network of pods, and without logs on the sandbox."""

    world: World

    def manifest(self, name: str, chips: int) -> dict[str, Any]:
        made = PodTrial.manifest(self, name, chips)
        made["spec"] |= {"hostNetwork": True, "terminationGracePeriodSeconds": 0}
        return made

    async def container_output(self, path: str) -> str:
        if isinstance(self.world, RealWorld):
            return await PodTrial.container_output(self, path)
        *_, namespace, _, name = path.split("/")
        pod = await self.client.get(PODS, name, namespace)
        view = await self.world.node(self.node).container(pod)
        devices = "".join(f"/dev/{each}\n" for each in view.devices if each != "davinci_manager")
        return f"visible={view.env.get('ASCEND_VISIBLE_DEVICES', '')}\n{devices}"


def command(world: World, node: str, *words: str) -> list[str]:
    """The command, which runs on the machine of the node with the settings of its device plugin."""
    there = world.node(node)
    settings = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ASCEND_DP_DRIVER": "simulated",
        "ASCEND_DP_SIMULATED_STATE": str(there.state_file),
        "ASCEND_DP_POD_RESOURCES_SOCKET": str(there.pod_resources_socket),
    }
    run = " ".join(("env", *(f"{name}={value}" for name, value in settings.items())))
    given = ("--kubeconfig", str(world.kubeconfig), "--node", node, "--run", run, "-o", "json")
    return [str(BIN / "npuctl"), "selftest", *given, *words]


async def output(*words: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def trial(world: World, scheduler: str = "", kind: type[WorldTrial] = WorldTrial) -> WorldTrial:
    node = world.nodes[0]

    async def held(pod: str) -> Sequence[int]:
        containers = (await read_ledger(node.pod_resources_socket)).pods.get(pod, {})
        return [chip for chips in containers.values() for chip in chips]

    return kind(world.client, node.name, node.name, BUSYBOX_IMAGE, scheduler, held, world)


async def leftovers(world: World) -> list[str]:
    """Pods in namespaces of trials that are not about to end."""
    found = json.loads(await world.client.request("GET", "/api/v1/pods"))["items"]
    metadata = (each["metadata"] for each in found)
    return [each["name"] for each in metadata if each["namespace"] != "default" and "deletionTimestamp" not in each]


async def test_the_books_about_the_chips_of_pods_agree(world: World) -> None:
    found = await trial(world).run()
    assert [(each.chips, each.agree, each.problem) for each in found] == [(size, True, "") for size in (1, 2, 4, 8)]
    assert [{len(ids) for ids in each.books.values()} for each in found] == [{1}, {2}, {4}, {8}]
    assert {frozenset(each.books) for each in found} == {
        frozenset({"kubelet", "assigned", "given", "report", "container"})
    }
    assert not await leftovers(world)


async def test_a_node_of_a_cluster_is_examined_where_its_plugin_runs(world: World) -> None:
    name = world.nodes[1].name
    status, out, err = await output(*command(world, name))
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["schema"], len(report["node"]["server"]["chips"])) == ("npuctl/selftest/v1", 8)
    assert {"npuctl", "kernel"} <= report["node"]["versions"].keys()
    assert name not in out


async def test_pods_are_where_the_charts_scheduler_gets_them_unless_another_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "SIZES", (1,))
    labels: list[dict[str, str]] = []

    class Looking(WorldTrial):
        async def container_output(self, path: str) -> str:
            namespace = "/".join(path.split("/")[:5])
            labels.append(json.loads(await self.client.request("GET", namespace))["metadata"].get("labels", {}))
            return await WorldTrial.container_output(self, path)

    for scheduler in ("", "default-scheduler"):
        (found,) = await trial(world, scheduler, Looking).run()
        assert found.agree
    chosen, named = labels[0], labels[-1]
    assert chosen["ascend-affinity.io/scheduler"] == "ascend-scheduler"
    assert "ascend-affinity.io/scheduler" not in named
    assert "schedulerName" not in trial(world).manifest("one", 1)["spec"]


@pytest.mark.long
async def test_a_book_that_differs_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "SIZES", (2,))
    monkeypatch.setattr(pods, "PATIENCE_S", 10.0)

    class Lying(WorldTrial):
        async def container_output(self, _path: str) -> str:
            return "visible=6,7\n"

    (found,) = await trial(world, kind=Lying).run()
    assert not found.agree
    assert found.books["container"] == [6, 7]
    assert len({tuple(ids) for ids in found.books.values()}) == 2


async def test_a_pod_that_nobody_places_is_told_and_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "SIZES", (1, 16))
    monkeypatch.setattr(pods, "PATIENCE_S", 1.0)
    found = await trial(world, "nobody").run()
    assert [each.problem for each in found] == [
        "Pending: no reason",
        "not tried: the report lists 8 free chips",
    ]
    assert not await leftovers(world)


async def test_pods_are_deleted_when_the_command_is_interrupted(world: World) -> None:
    running = asyncio.create_task(trial(world, "nobody").run())

    async def is_there() -> bool:
        return bool(await leftovers(world))

    await world.eventually(is_there, "a pod was created")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await leftovers(world)


async def test_the_command_on_the_node_says_what_the_kubelet_has_given_a_pod(world: World) -> None:
    await world.create("holds", 2, nodeSelector={"kubernetes.io/hostname": world.nodes[0].name})
    pod = await world.running("holds")
    words = command(world, world.nodes[0].name)
    run = words[words.index("--run") + 1].split()
    status, out, err = await output(*run, "npuctl", "selftest", "--devices-of", pod.key)
    assert (status, err) == (0, "")
    assert json.loads(out) == list(chip_ids(annotated(pod, REAL)))


async def test_a_command_that_fails_on_the_node_is_told(world: World) -> None:
    with pytest.raises(NodeCommandFailed) as raised:
        await examined(world, run="sh -c 'echo no such host >&2; exit 255'")
    assert str(raised.value) == "sh … npuctl selftest -o json: no such host"


async def test_a_node_without_the_device_plugins_pod_is_told(world: World) -> None:
    with pytest.raises(InvalidValue, match="no pod of the device plugin runs on node"):
        await examined(world, run="")


@pytest.mark.parametrize(
    "shared_world",
    [pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])],  # the sandbox runs no commands in pods
    indirect=True,
    scope="module",
)
async def test_the_command_runs_in_the_pod_of_the_device_plugin(
    request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{binaries.path('kubectl').parent}:{os.environ['PATH']}")
    said = {"node": {"versions": {"npuctl": "1"}, "problem": "a stand-in without a driver"}, "pods": []}
    script = f"printf '%s\\n' '#!/bin/sh' \"echo '$0'\" > /bin/npuctl; chmod +x /bin/npuctl; {STAY}"
    await world.create(
        "plugin",
        0,
        labels={COMPONENT: PLUGIN},
        command=("sh", "-c", script, json.dumps(said)),
        nodeSelector={"kubernetes.io/hostname": world.nodes[0].name},
    )

    async def runs() -> bool:
        return (await world.pod("plugin")).status.phase == "Running"

    await world.eventually(runs, "the pod runs")
    # The proxy of the programs can't forward a connection that becomes another protocol's.
    kubeconfig = request.getfixturevalue("cluster").kubeconfig_path
    assert await examined(world, run="", kubeconfig=kubeconfig) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["node"]["problem"] == "a stand-in without a driver"
    assert answer["node"]["versions"].keys() > {"npuctl", "kubelet"}


async def examined(world: World, *, run: str, kubeconfig: Path | None = None) -> int:
    source = Source.of(kubeconfig=str(kubeconfig or world.kubeconfig))
    node = world.nodes[0].name
    return await selftest(source, node, pods=False, run=run, image="", scheduler="", output=Output.JSON)
