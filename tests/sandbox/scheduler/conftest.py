"""A cluster whose nodes are only objects, an extender that is controlled by the test, and a manual clock."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from tests.sandbox.scheduler.extender import FakeExtender
from tests.sandbox.scheduler.world import ManualClock, World


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as connected:
            yield connected


@pytest.fixture
async def extender(client: KubeClient) -> AsyncIterator[FakeExtender]:
    async with FakeExtender(client) as serving:
        yield serving


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def world(client: KubeClient) -> AsyncIterator[World]:
    async with World(client) as watched:
        yield watched
