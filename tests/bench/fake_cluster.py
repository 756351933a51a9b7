"""Nodes without a kubelet and pods for them, on a real API server (docs/spec/measurements.md#fake-nodes)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE
from ascend.errors import ApiError
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, PODS, JsonObject, Pod
from ascend.kube.reflector import Reflector
from ascend.products import ASCEND_910A
from tests.cluster.manifests import pod

CONNECTIONS: Final = 64
NAMESPACE: Final = "default"
_PATIENCE_S: Final = 600.0
"""For the deletion of thousands of pods on cores that are in use."""


def fake_node(name: str) -> JsonObject:
    """A Ready 910A server. No node controller runs, so it stays as it was created."""
    quantities = {"cpu": "64", "memory": "256Gi", "pods": "110", RESOURCE: str(ASCEND_910A.chips)}
    infos = write_base_device_infos({chip: ChipAddress() for chip in range(ASCEND_910A.chips)})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {BASE_DEVICE_INFOS: infos},
        },
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake"}],
        },
    }


async def create_nodes(client: KubeClient, count: int) -> None:
    """Create fake nodes."""
    await in_order(client.create(NODES, fake_node(fake_name(number))) for number in range(count))


def fake_name(number: int) -> str:
    """The name of a fake node."""
    return f"fake-{number:05}"


class PodWatch:
    """A reflector's handler that has all pods, and when each was first seen bound."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.bound_s: dict[str, float] = {}
        """By pod name, perf_counter."""
        self._changed = asyncio.Event()

    def on_apply(self, obj: Pod) -> None:
        self.pods[obj.uid] = obj
        if obj.spec.node_name and obj.name not in self.bound_s:
            self.bound_s[obj.name] = time.perf_counter()
        self._changed.set()

    def on_delete(self, obj: Pod) -> None:
        self.pods.pop(obj.uid, None)
        self.bound_s.pop(obj.name, None)
        self._changed.set()

    async def bound(self, count: int, *, quiet_s: float) -> None:
        """Wait until that many pods are bound, or none was bound for a while."""
        before = -1
        while len(self.bound_s) < count and len(self.bound_s) != before:
            before = len(self.bound_s)
            try:
                async with asyncio.timeout(quiet_s):
                    while len(self.bound_s) == before:
                        await self._change()
            except TimeoutError:
                continue

    async def empty(self) -> None:
        """Wait until no pod is left."""
        async with asyncio.timeout(_PATIENCE_S):
            while self.pods:
                await self._change()

    async def bound_within(self, name: str, limit_s: float) -> None:
        """Wait until a pod is bound, or this time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while name not in self.bound_s:
                    await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@asynccontextmanager
async def watching_pods(client: KubeClient) -> AsyncIterator[PodWatch]:
    """Watch all pods within the block."""
    watch = PodWatch()
    reflector = Reflector(client, PODS, watch)
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def create_pods(
    client: KubeClient,
    prefix: str,
    requests: Iterable[int],
    annotations: Callable[[int], Mapping[str, str]] = lambda _number: {},
) -> dict[str, float]:
    """Create pods with these requests, and annotations by number; return when each was sent (perf_counter), by name."""
    sent_s: dict[str, float] = {}

    async def create(number: int, chips: int) -> None:
        name = f"{prefix}-{number:05}"
        sent_s[name] = time.perf_counter()
        await client.create(PODS, pod(name, chips, annotations=annotations(number)), NAMESPACE)

    await in_order(create(number, chips) for number, chips in enumerate(requests))
    return sent_s


async def delete_pods(client: KubeClient, watch: PodWatch) -> None:
    """Delete all pods at once, and wait until none is left."""
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    path = PODS.path(namespace=NAMESPACE)
    while True:
        try:
            await client.request("DELETE", path, body=body, timeout_s=_PATIENCE_S)
        except ApiError as error:
            if error.status != HTTPStatus.GATEWAY_TIMEOUT:  # the API server deletes thousands for at most a minute
                raise
        else:
            break
    await watch.empty()


async def in_order(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run coroutines, at most ``CONNECTIONS`` at a time, in order."""
    room = asyncio.Semaphore(CONNECTIONS)
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            await room.acquire()
            tasks.create_task(each).add_done_callback(lambda _: room.release())
