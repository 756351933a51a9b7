"""An allocator on the sandbox's API server, reached over real HTTP and gRPC."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import grpc
import pytest
import yaml
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from allocator.app import AllocatorApp
from allocator.settings import Settings
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE
from ascend.daemon.settings import fixed_settings
from ascend.kube.lease import boot_time
from ascend.templates import RESOURCE_CORES
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import NODES
from sandbox.apiserver.selectors import Selection

if TYPE_CHECKING:
    from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorAsyncStub

Json = dict[str, Any]


async def until(condition: Callable[[], object], *, timeout_s: float = 30.0) -> None:
    """Wait for a condition; the longer it takes, the less often it is tried."""
    begin_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(min(max(0.001, 0.05 * (time.monotonic() - begin_s)), 0.005))


class Allocator:
    """A running allocator, and the calls of schedulers and users."""

    def __init__(
        self, server: ApiServer, app: AllocatorApp, http: aiohttp.ClientSession, stub: "AllocatorAsyncStub"
    ) -> None:
        self.server = server
        self.app = app
        self.stub = stub
        self._http = http

    async def post(self, verb: str, body: object) -> Any:
        """Call a verb of the extender; the answer is always 200 and JSON."""
        data = io.BytesIO(body) if isinstance(body, bytes) else None
        async with self._http.post(
            f"http://{self.app.extender_address}/scheduler/{verb}", data=data, json=None if data is not None else body
        ) as response:
            assert response.status == 200
            return await response.json()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the daemon."""
        async with self._http.get(f"http://{self.app.extender_address}{path}") as response:
            return response.status, await response.text()

    async def filter(self, pod: Json, nodes: Iterable[str]) -> Json:
        answer: Json = await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        return answer

    async def bind(self, pod: Json, node: str, *, uid: str | None = None) -> str:
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": uid or meta["uid"], "Node": node}
        error: str = (await self.post("bind", args))["Error"]
        return error

    async def schedule(self, pod: Json, nodes: Iterable[str]) -> str:
        """Filter and bind a pod as kube-scheduler does; the node, or nothing if none fits."""
        fitting = (await self.filter(pod, nodes))["NodeNames"]
        if not fitting:
            return ""
        (node,) = fitting
        assert await self.bind(pod, node) == ""
        return str(node)

    async def reset(self) -> None:
        """Delete all nodes and pods, end what a test has made the API server do, and wait until that is seen."""
        self.server.admission.clear()
        self.server.resume_watches()
        store, cluster = self.server.store, self.app.cluster
        for entry in (*store.objects_in("default"), *store.select(Selection(NODES))):
            store.remove(entry)
        await until(lambda: not (cluster.pods or cluster.nodes or cluster.jobs.owners.by_key))
        await until(lambda: not (len(cluster.plain) or len(self.app.ledger)))

    async def node(self, name: str, **more: Any) -> None:
        """Create a 910A server and wait until it is seen."""
        await self.server.create(node_manifest(name, **more))
        await until(lambda: name in self.app.cluster.nodes)

    async def pod(self, name: str, count: int | None, **metadata: Any) -> Json:
        """Create a pod and wait until it is seen."""
        created = await self.server.create(pod_manifest(name, count, **metadata))
        uid, cluster = created["metadata"]["uid"], self.app.cluster
        await until(lambda: uid in cluster.pods or uid in cluster.plain)
        return created

    async def read(self, name: str) -> Json:
        """Read a pod from the API server."""
        async with self._http.get(f"{self.server.url}/api/v1/namespaces/default/pods/{name}") as response:
            answer: Json = await response.json()
            return answer

    async def patch(self, name: str, body: Json, *, subresource: str = "") -> Json:
        """Patch a pod as another client, with a merge patch."""
        path = f"{self.server.url}/api/v1/namespaces/default/pods/{name}" + (f"/{subresource}" if subresource else "")
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._http.patch(path, json=body, headers=headers) as response:
            assert response.status == 200
            answer: Json = await response.json()
            return answer

    async def bind_as_another(self, name: str, uid: str, node: str, annotations: dict[str, str]) -> None:
        """Bind a pod as a scheduler that posts the Binding itself."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        url = f"{self.server.url}/api/v1/namespaces/default/pods/{name}/binding"
        async with self._http.post(url, json=body) as response:
            assert response.status == 201

    async def remove_node(self, name: str) -> None:
        """Delete a node and wait until that is seen."""
        async with self._http.delete(f"{self.server.url}/api/v1/nodes/{name}") as response:
            assert response.status == 200
        await until(lambda: name not in self.app.cluster.nodes)

    async def delete(self, name: str, *, grace_s: int = 0) -> str:
        """Delete a pod, by default at once; return its uid."""
        url = f"{self.server.url}/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds={grace_s}"
        async with self._http.delete(url) as response:
            assert response.status == 200
            return str((await response.json())["metadata"]["uid"])


async def failure(call: Awaitable[Any]) -> tuple[grpc.StatusCode, error_details_pb2.ErrorInfo]:
    """The status code of a failed call, and its error details."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    status = rpc_status.from_call(cast("Any", failed.value))  # its type requires more than is read
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    (detail,) = status.details
    assert detail.Unpack(info)
    assert status.message.startswith(f"{info.reason}: ")
    assert info.domain == "ascend.allocator.v1"
    return failed.value.code(), info


async def review(allocator: Allocator, path: str, document: Json, **more: Any) -> Json:
    """Call a webhook as the API server does."""
    metadata = document.get("metadata", {})
    request = {"uid": "r1", "object": document, "namespace": metadata.get("namespace", "default"), **more}
    request.setdefault("name", metadata.get("name", ""))
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    url = f"http://{allocator.app.extender_address}/webhook/{path}"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        assert response.status == 200
        answer: Json = (await response.json())["response"]
        assert answer["uid"] == "r1"
        return answer


async def events_of(allocator: Allocator) -> list[Json]:
    """The allocator's Events, once there is at least one."""
    url = f"{allocator.server.url}/apis/events.k8s.io/v1/namespaces/default/events"
    async with aiohttp.ClientSession() as http, asyncio.timeout(10.0):
        while True:
            async with http.get(url) as response:
                listed = (await response.json())["items"]
            if listed:
                return [each for each in listed if each["reportingController"] == "ascend-allocator"]
            await asyncio.sleep(0.01)


def node_manifest(name: str, *, chips: int = 8, npu: bool = True) -> Json:
    """A Ready 910A server, or one without chips."""
    infos = {BASE_DEVICE_INFOS: write_base_device_infos({chip: ChipAddress() for chip in range(chips)})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": infos if npu else {}},
        "status": {
            "allocatable": {RESOURCE: str(chips)} if npu else {},
            "capacity": {RESOURCE: str(chips)} if npu else {},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_manifest(name: str, count: int | None, *, priority: int = 0, **metadata: Any) -> Json:
    """A pod with one container that requests so many chips."""
    quantities = {RESOURCE: str(count)} if count is not None else {}
    resources = {"limits": quantities, "requests": quantities}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"priority": priority, "containers": [{"name": "main", "image": "none", "resources": resources}]},
    }


def ref(pod: Json) -> pb.PodRef:
    """The pod as the gRPC API names it."""
    meta = pod["metadata"]
    return pb.PodRef(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])


def write_kubeconfig(folder: Path, server: ApiServer) -> Path:
    """Write a kubeconfig file for a server."""
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(server.kubeconfig()))
    return path


@asynccontextmanager
async def running(
    server: ApiServer,
    folder: Path,
    *,
    synced: bool = True,
    grpc_address: str = "127.0.0.1:0",
    now_ns: Callable[[], int] = time.time_ns,
    boot_s: Callable[[], float] = boot_time,
    monotonic: Callable[[], float] = time.monotonic,
    **more: Any,
) -> AsyncIterator[Allocator]:
    """An allocator for this server; ``more`` are settings."""
    kubeconfig = write_kubeconfig(folder, server)
    fields = {"extender_address": "127.0.0.1:0", "grpc_address": grpc_address}
    webhooks = ["bindings", "pods", "schedulers", "explanations"]
    given = {"kubeconfig": str(kubeconfig), **fields, "webhooks": webhooks, **more}
    settings = fixed_settings(Settings, None, given)
    async with (
        AllocatorApp(settings, now_ns=now_ns, boot_s=boot_s, monotonic=monotonic) as app,
        aiohttp.ClientSession() as http,
    ):
        if synced:
            await app.wait_until_synced()
        async with grpc.aio.insecure_channel(app.grpc_address) as channel:
            yield Allocator(server, app, http, AllocatorStub(channel))


async def core_node(allocator: Allocator, name: str) -> None:
    """Create a 910B3 server that offers its AI cores, and wait until it is seen."""
    made = node_manifest(name)
    made["metadata"]["labels"] = {
        "accelerator-type": "module-910b-8", "servertype": "Ascend910B-20", "mind-cluster/npu-chip-memory": "64G"
    }  # fmt: skip
    quantities = {RESOURCE_CORES: "160"}
    made["status"] |= {"allocatable": quantities, "capacity": quantities}
    await allocator.server.create(made)
    await until(lambda: name in allocator.app.cluster.nodes)
