"""The leader is stopped during a Binding: the other allocator takes over, and no chip is allocated twice.

tests/deploy/test_admission.py shows the same on a real cluster, with the admission policy itself.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from ascend.annotations import FENCE
from ascend.kube.client import KubeClient
from ascend.kube.lease import LEASES
from ascend.kube.objects import PODS
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import PODS as POD_RESOURCE
from sandbox.apiserver.status import forbidden
from tests.allocator.harness import node_manifest, pod_manifest
from tests.cluster.api import free_ports
from tests.e2e.programs import is_ready
from tests.e2e.proxy import ApiProxy

LEASE_S = 3


class Candidate:
    """One of two allocators, as a process with a proxy of its own."""

    def __init__(self, folder: Path, name: str, api: ApiProxy) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.api = api
        self._folder = folder
        self._name = name
        self._process: asyncio.subprocess.Process

    async def start(self, kubeconfig: dict[str, Any]) -> None:
        kubeconfig["clusters"][0]["cluster"]["server"] = self.api.url
        path = self._folder / f"{self._name}.kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        command = (
            *(str(Path(sys.executable).with_name("ascend-allocator")), f"--kubeconfig={path}"),
            *(f"--extender-address={self.address}", "--grpc-address=127.0.0.1:0"),
            *("--leader-election=true", f"--lease-duration-s={LEASE_S}"),
        )
        with (self._folder / f"{self._name}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
            )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 20)

    async def stop(self) -> None:
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    async def is_ready(self) -> bool:
        return await is_ready(f"http://{self.address}")

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        url = f"http://{self.address}/scheduler/bind"
        async with aiohttp.ClientSession() as http, http.post(url, json=args) as response:
            error: str = (await response.json())["Error"]
            return error


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[ApiServer, KubeClient, Candidate, Candidate]]:
    """An API server with one node, and two allocators of which the first leads."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        await server.create(node_manifest("n1"))
        (folder / "admin").write_text(json.dumps(server.kubeconfig()))
        client = await stack.enter_async_context(await KubeClient.connect(str(folder / "admin")))
        candidates: list[Candidate] = []
        for name in ("first", "second"):
            proxy = await stack.enter_async_context(ApiProxy(server.url))
            candidate = Candidate(folder, name, proxy)
            await candidate.start(server.kubeconfig())
            stack.push_async_callback(candidate.stop)
            if not candidates:
                await until_ready(candidate)
            candidates.append(candidate)
        yield server, client, candidates[0], candidates[1]


async def until_ready(candidate: Candidate) -> None:
    async with asyncio.timeout(30):
        while not await candidate.is_ready():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


def fence(server: ApiServer, client: KubeClient) -> asyncio.Queue[str]:
    """Add the rule of the chart's admission policy as a hook; it queues the names of the pods that it denies."""
    denied: asyncio.Queue[str] = asyncio.Queue()

    async def hook(_operation: str, _resource: object, subresource: str, document: dict[str, Any]) -> dict[str, Any]:
        if subresource == "binding":
            lease = await client.get(LEASES, "ascend-allocator", "kube-system")
            if document["metadata"]["annotations"].get(FENCE) != lease.spec.holder_identity:
                denied.put_nowait(document["metadata"]["name"])
                raise forbidden(POD_RESOURCE, document["metadata"]["name"], "its allocator is not the leader")
        return document

    server.admission.append(hook)
    return denied


async def test_a_stopped_leaders_binding_is_denied_after_a_failover(tmp_path: Path) -> None:
    async with two(tmp_path) as (server, client, first, second):
        denied = fence(server, client)
        late, taken = [await server.create(pod_manifest(name, 8)) for name in ("late", "taken")]
        async with first.api.gate("POST", "/pods/late/binding") as in_flight:
            binding = asyncio.create_task(first.bind(late, "n1"))
            await in_flight.reached.wait()
            first.signal(signal.SIGSTOP)
            await until_ready(second)
            assert await second.bind(taken, "n1") == ""
            assert denied.empty()
        # The gate is open: the Binding arrives after its chips were allocated to another pod.
        assert await asyncio.wait_for(denied.get(), 10) == "late"
        first.signal(signal.SIGCONT)
        assert await first.ended() == 1
        await asyncio.gather(binding, return_exceptions=True)
        bound = [await client.get(PODS, name, "default") for name in ("late", "taken")]
        assert [pod.spec.node_name for pod in bound] == ["", "n1"]
        assert "NotEnoughChips" in await second.bind(late, "n1")
