"""A cluster of one node with the sandbox's kubelet, and a device plugin that is controlled by the test."""

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from sandbox.kubelet import Kubelet
from tests.sandbox.kubelet.node import NODE, Clock, Cluster
from tests.sandbox.kubelet.peer import Plugin


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def server(clock: Clock) -> AsyncIterator[ApiServer]:
    async with ApiServer(clock=clock) as running:
        yield running


@pytest.fixture
def directory() -> Iterator[Path]:
    # The paths of pytest's temporary directories are too long for sockets.
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
async def client(server: ApiServer, directory: Path) -> AsyncIterator[KubeClient]:
    path = directory / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig()))
    async with await KubeClient.connect(str(path)) as connected:
        yield connected


@pytest.fixture
async def kubelet(client: KubeClient, directory: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(NODE, client, directory, seed=1, dial_timeout_s=0.2) as running:
        await running.until(lambda: running.is_synced)
        yield running


@pytest.fixture
async def cluster(client: KubeClient, kubelet: Kubelet) -> Cluster:
    return Cluster(client, kubelet)


@pytest.fixture
async def plugin(cluster: Cluster, kubelet: Kubelet) -> AsyncIterator[Plugin]:
    async with Plugin(kubelet.socket_dir) as serving:
        await cluster.register(serving)
        yield serving
