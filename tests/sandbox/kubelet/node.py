"""A cluster of one node as the tests use it: they change objects and wait for the results in the API server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, NODES, PODS, JsonObject, KubeObject, Resource
from ascend.kube.reflector import Reflector
from sandbox.kubelet import Kubelet
from sandbox.pods import ALL_OF_PODS, FullPod
from tests.sandbox.kubelet.peer import RESOURCE, Plugin

NODE = "node-1"


class Clock:
    """The clock of the API server; tests set its time."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


class Event(KubeObject, frozen=True, kw_only=True):
    reason: str = ""
    note: str = ""
    type: str = ""
    regarding: dict[str, Any] = msgspec.field(default_factory=dict)


ALL_OF_EVENTS = Resource(Event, EVENTS.kind, EVENTS.prefix, EVENTS.plural, namespaced=True)


def container(name: str = "main", chips: int = 0, **more: Any) -> JsonObject:
    limits = {RESOURCE: str(chips)} if chips else {}
    return {"name": name, "image": "busybox", "resources": {"limits": limits, "requests": limits}, **more}


def pod(name: str, chips: int = 0, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container(chips=chips)], "nodeName": NODE, **spec},
    }


class Watcher:
    """Waits for a condition on the objects of one kind."""

    def __init__(self, client: KubeClient, resource: Resource[Any]) -> None:
        self.reflector = Reflector(client, resource, self)
        self._changed = asyncio.Event()

    def on_apply(self, obj: KubeObject) -> None:
        del obj
        self._changed.set()

    def on_delete(self, obj: KubeObject) -> None:
        del obj
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Cluster:
    def __init__(self, client: KubeClient, kubelet: Kubelet) -> None:
        self.client = client
        self.kubelet = kubelet

    async def create(self, body: JsonObject) -> FullPod:
        return await self.client.create(ALL_OF_PODS, body, "default")

    async def run(self, name: str, chips: int = 0, **spec: Any) -> FullPod:
        created = await self.create(pod(name, chips, **spec))
        await self.kubelet.until(lambda: self.kubelet.has_container(created.key, "main"))
        return created

    async def register(self, plugin: Plugin) -> None:
        """Register and wait until the Node shows the devices; earlier pods would run without devices or be rejected."""
        await plugin.register()
        await self.kubelet.until(lambda: self.kubelet.allocatable(plugin.resource) == len(plugin.health))

    async def delete(self, name: str) -> None:
        await self.client.delete(PODS, name, "default")

    async def pod(self, name: str, condition: Callable[[FullPod], object]) -> FullPod:
        key = f"default/{name}"
        async with self.watch(ALL_OF_PODS) as watcher:
            pods = watcher.reflector.objects
            await watcher.until(lambda: key in pods and condition(pods[key]))
            found: FullPod = pods[key]
            return found

    async def gone(self, name: str) -> None:
        async with self.watch(ALL_OF_PODS) as watcher:
            await watcher.reflector.synced.wait()
            await watcher.until(lambda: f"default/{name}" not in watcher.reflector.objects)

    async def node(self, condition: Callable[[dict[str, str], dict[str, str]], object]) -> None:
        async with self.watch(NODES) as watcher:
            nodes = watcher.reflector.objects
            await watcher.until(
                lambda: NODE in nodes and condition(nodes[NODE].status.capacity, nodes[NODE].status.allocatable)
            )

    async def event(self, condition: Callable[[Event], object]) -> Event:
        async with self.watch(ALL_OF_EVENTS) as watcher:
            events = watcher.reflector.objects
            await watcher.until(lambda: any(condition(each) for each in events.values()))
            found: Event = next(each for each in events.values() if condition(each))
            return found

    @asynccontextmanager
    async def watch(self, resource: Resource[Any]) -> AsyncIterator[Watcher]:
        watcher = Watcher(self.client, resource)
        task = asyncio.create_task(watcher.reflector.run())
        try:
            yield watcher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextmanager
    def admission_held(self) -> Iterator[None]:
        self.kubelet.hold_admission()
        try:
            yield
        finally:
            self.kubelet.release_admission()
