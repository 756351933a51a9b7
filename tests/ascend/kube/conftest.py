from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import write_kubeconfig


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(tokens={"secret": "admin", "fresh": "admin"}) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server, "secret"))) as connected:
        yield connected
