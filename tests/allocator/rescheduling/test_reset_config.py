"""The processes of a job are told, in its ConfigMap, what rescheduling does to it; the ConfigMap is on a sandbox."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from allocator.rescheduling.reset_config import ResetConfigs
from ascend.errors import ApiError, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, Pod
from sandbox.cluster import SandboxCluster
from tests.allocator.builders import report
from tests.allocator.rescheduling.scene import Scene, anew, job, scene

NAME = "reset-config-train"
BEFORE = {
    "RankList": [{"RankId": 3, "Status": "fault"}],
    "UpdateTime": 1,
    "RetryTime": 3,
    "FaultFlushing": True,
    "GracefulExit": 0,
    "RestartFaultProcess": True,
}


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with SandboxCluster(tmp_path, ()) as cluster:
        yield cluster.client


async def write(client: KubeClient, text: str) -> None:
    metadata = {"name": NAME, "namespace": "default", "labels": {"reset": "true"}}
    data = {"reset.json": text, "restartType": "hotReset", "mine": "stays"}
    await client.create(CONFIG_MAPS, {"metadata": metadata, "data": data}, "default")


async def read(client: KubeClient) -> dict[str, Any]:
    """What ``reset.json`` says, after a check of the rest."""
    found = await client.get(CONFIG_MAPS, NAME, "default")
    assert found.metadata.labels == {"reset": "true"}
    assert found.data["mine"] == "stays"
    text = found.data["reset.json"]
    assert found.data.get("checkCode", "") in {"", hashlib.sha256(text.encode()).hexdigest()}
    said: dict[str, Any] = json.loads(text)
    return said | {"restartType": found.data["restartType"]}


def telling(pods: list[Pod], client: KubeClient) -> Scene:
    stage = scene(pods)
    stage.reset_configs = ResetConfigs(client)
    stage.rescheduler = stage.start()
    return stage


async def replace_pods(stage: Scene, pods: list[Pod], after_s: float = 1.0) -> None:
    stage.world.add(*map(anew, pods))
    await stage.look(after_s)


async def test_processes_that_stay_are_told_that_a_pod_was_replaced_and_only_once(client: KubeClient) -> None:
    await write(client, json.dumps(BEFORE))
    pods = job(3, pod_rescheduling="on", deploy_name="train")
    stage = telling(pods, client)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    assert (await read(client))["RetryTime"] == 3
    stage.world.add(report("n2"))
    await replace_pods(stage, [pods[1]])
    told = await read(client)
    expected = {"RankList": [], "UpdateTime": int(stage.world.now_s), "RetryTime": 4, "restartType": "podReschedule"}
    assert told == {**BEFORE, **expected}
    await stage.look(1.0)
    await stage.succeed()
    await stage.look(1.0)
    assert await read(client) == told


async def test_processes_of_a_job_whose_pods_were_all_replaced_begin_to_count_again(client: KubeClient) -> None:
    await write(client, json.dumps(BEFORE))
    pods = job(2, pod_rescheduling="on", deploy_name="train")
    stage = telling(pods, client)
    stage.world.add(report("n1", unhealthy=[5]))  # the master
    assert await stage.settle() == ["train-0", "train-1"]
    stage.world.add(report("n1"))
    await replace_pods(stage, pods)
    assert (await read(client))["RetryTime"] == 0


async def test_processes_save_their_state_before_their_pods_leave_a_sub_healthy_node(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(client, json.dumps(BEFORE))
    pods = job(2, deploy_name="train", subHealthyStrategy="graceExit")
    stage = telling(pods, client)
    delete, told = stage.delete, list[int]()

    async def note(pod: Pod, why: str, grace_s: int | None) -> None:
        told.append((await read(client))["GracefulExit"])
        await delete(pod, why, grace_s)

    monkeypatch.setattr(stage, "delete", note)
    healthy = report("n1")
    stage.world.add(report("n1", data={**healthy.data, "SwitchInfoCfg": '{"NodeStatus": "SubHealthy"}'}))
    assert await stage.settle() == ["train-0", "train-1"]
    assert told == [1, 1]
    stage.world.add(healthy)
    await replace_pods(stage, pods)
    assert await read(client) == {**BEFORE, "restartType": "hotReset"}


@pytest.mark.parametrize("labels", [{}, {"pod_rescheduling": "on", "process_recover_enable": "on"}])
async def test_processes_that_nobody_has_to_tell_are_told_nothing(client: KubeClient, labels: dict[str, Any]) -> None:
    await write(client, json.dumps(BEFORE))
    pods = job(2, deploy_name="train", **labels)
    stage = telling(pods, client)
    stage.world.add(report("n2", unhealthy=[5]))
    deleted = await stage.settle()
    assert deleted
    stage.world.add(report("n2"))
    await replace_pods(stage, [each for each in pods if each.name in deleted])
    assert await read(client) == {**BEFORE, "restartType": "hotReset"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"RetryTime": "x"}'])
async def test_what_can_not_be_read_is_left_and_delays_nothing(client: KubeClient, text: str) -> None:
    await write(client, text)
    pods = job(2, pod_rescheduling="on", deploy_name="train")
    stage = telling(pods, client)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n2"))
    await replace_pods(stage, [pods[1]])
    assert [each.is_open for each in stage.rescheduler.memory.jobs.values()] == [False]
    assert (await client.get(CONFIG_MAPS, NAME, "default")).data["reset.json"] == text


@pytest.mark.parametrize("labels", [{}, {"deploy_name": "train"}])
async def test_a_job_without_the_config_map_gets_none(client: KubeClient, labels: dict[str, Any]) -> None:
    pods = job(2, pod_rescheduling="on", **labels)
    stage = telling(pods, client)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n2"))
    await replace_pods(stage, [pods[1]])
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, NAME, "default")


async def test_a_refusal_of_the_api_server_delays_nothing(client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(client, json.dumps(BEFORE))
    pods = job(2, pod_rescheduling="on", deploy_name="train")
    stage = telling(pods, client)

    async def refuse(*_args: object, **_more: object) -> None:
        raise ApiError("forbidden", status=403)

    monkeypatch.setattr(client, "patch", refuse)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n2"))
    await replace_pods(stage, [pods[1]])
    assert [each.is_open for each in stage.rescheduler.memory.jobs.values()] == [False]
