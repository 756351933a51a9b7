"""The leader is stopped during Bindings: the other allocator takes over, and no chip is allocated twice.

tests/deploy/test_handover.py shows the same on a real cluster, with the admission policy itself.
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
import pytest

from ascend.annotations import FENCE, MIN_AVAILABLE
from ascend.kube.client import KubeClient
from ascend.kube.objects import LEASES, PODS
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import PODS as POD_RESOURCE
from sandbox.apiserver.status import forbidden
from tests.allocator.builders import GROUP
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
        return str((await self._call("bind", args))["Error"])

    async def schedule(self, pod: dict[str, Any], nodes: list[str]) -> str:
        """Filter and bind a pod; why it is not bound."""
        answer = await self._call("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        fitting = answer["NodeNames"]
        return await self.bind(pod, fitting[0]) if fitting else str(answer["FailedAndUnresolvableNodes"])

    async def _call(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{self.address}/scheduler/{verb}"
        async with aiohttp.ClientSession() as http, http.post(url, json=args) as response:
            answer: dict[str, Any] = await response.json()
            return answer


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


@pytest.mark.long
@pytest.mark.parametrize("asked", [3, 4], ids=["held", "posted in part"])
async def test_a_gang_whose_leader_is_stopped_is_started_whole_by_the_next(tmp_path: Path, asked: int) -> None:
    """The leader is stopped while it holds three Bindings of four, or while two of four are on their way."""
    nodes = ["n1", "n2", "n3", "n4"]
    async with two(tmp_path) as (server, client, first, second):
        denied = fence(server, client)
        for name in nodes[1:]:
            await server.create(node_manifest(name))
        annotations = {GROUP: "train", MIN_AVAILABLE: "4"}
        pods = [await server.create(pod_manifest(f"train-{rank}", 8, annotations=annotations)) for rank in range(4)]
        single = await server.create(pod_manifest("single", 8))

        async def bound() -> dict[str, str]:
            read = [await client.get(PODS, pod["metadata"]["name"], "default") for pod in (*pods, single)]
            return {pod.name: pod.spec.node_name for pod in read if pod.spec.node_name}

        async with first.api.gate("POST", "/pods/train-[23]/binding") as in_flight:
            calls = [asyncio.create_task(first.schedule(pod, nodes)) for pod in pods[:asked]]
            if asked == len(pods):
                await in_flight.reached.wait()
            while asked == len(pods) and len(await bound()) < 2:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            first.signal(signal.SIGSTOP)
            begun = await bound()
            await until_ready(second)
            rest = [pod for pod in pods if pod["metadata"]["name"] not in begun]
            if begun:
                assert "NotEnoughChips" in await second.schedule(single, nodes)
            assert not any(await asyncio.gather(*(second.schedule(pod, nodes) for pod in rest)))
            whole = await bound()
            assert denied.empty()
        # The gate is open: the Bindings that were on their way arrive after others were made in their place.
        late = {await asyncio.wait_for(denied.get(), 10) for _ in begun}
        assert late == ({"train-2", "train-3"} if begun else set())
        first.signal(signal.SIGCONT)
        assert await first.ended() == 1
        await asyncio.gather(*calls, return_exceptions=True)
        assert denied.empty()
        assert await bound() == whole
        assert sorted(whole.values()) == nodes
        assert "single" not in whole
