"""The pods of ``npuctl selftest --pods`` leave nothing behind, whatever the user may not do and others do meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from npuctl.selftest import pods
from npuctl.selftest.pods import PodTrial
from sandbox.apiserver import ApiServer
from tests.device_plugin.api import seen
from tests.npuctl.manifests import Json, node, report


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig()))
    async with await KubeClient.connect(str(path)) as client:
        yield client


def trial(client: KubeClient) -> PodTrial:
    async def held(_pod: str) -> list[int]:
        return []

    return PodTrial(client, "n1", "n1", "busybox", "nobody", held)


async def items(client: KubeClient, path: str) -> list[Json]:
    found: list[Json] = json.loads(await client.request("GET", path))["items"]
    return found


async def namespaces(client: KubeClient) -> list[str]:
    """The namespaces of trials that are not about to end."""
    metadata = (each["metadata"] for each in await items(client, "/api/v1/namespaces"))
    return [each["name"] for each in metadata if "selftest" in each["name"] and "deletionTimestamp" not in each]


async def test_without_the_right_to_delete_collections_the_namespace_is_deleted(
    server: ApiServer, client: KubeClient
) -> None:
    server.fail_next("DELETE", "/pods$", 403)
    with pytest.raises(NotFound):  # the node has no report
        await trial(client).run()
    assert await namespaces(client) == []


async def test_a_pod_that_somebody_deletes_is_told(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "SIZES", (1,))
    for each in (node("n1"), report("n1")):
        await server.create(each)
    trying = asyncio.create_task(trial(client).run())
    pod, *_ = await seen(lambda: items(client, PODS.path()), bool)
    metadata = pod["metadata"]
    await client.request("DELETE", PODS.path(namespace=metadata["namespace"], name=metadata["name"]))
    (tried,) = await trying
    assert tried.problem == "somebody else deleted it"
    assert await namespaces(client) == []
