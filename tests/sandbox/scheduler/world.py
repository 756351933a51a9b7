"""A cluster whose nodes are only objects, its pods, and a clock that the test advances."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, NODES, PODS, JsonObject, KubeObject, Resource
from ascend.kube.reflector import Reflector
from sandbox.pods import ALL_OF_PODS, FullPod

RESOURCE = "huawei.com/Ascend910"


class Event(KubeObject, frozen=True, kw_only=True):
    reason: str = ""
    note: str = ""
    type: str = ""
    regarding: dict[str, Any] = msgspec.field(default_factory=dict)


class ManualClock:
    """A clock for backoffs: a wait ends when the test ends it.

    Attributes:
        ends_new: whether a wait that begins ends at once.
    """

    def __init__(self) -> None:
        self.ends_new = False
        self.waits_s: list[float] = []
        self._waits: list[asyncio.Future[None]] = []
        self._waiting = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        if self.ends_new:
            return
        wait = asyncio.get_running_loop().create_future()
        self._waits.append(wait)
        self._waiting.set()
        await wait

    async def waits(self, times: int) -> None:
        async with asyncio.timeout(10.0):
            while len(self.waits_s) < times:
                self._waiting.clear()
                await self._waiting.wait()

    def end(self) -> None:
        waits, self._waits = self._waits, []
        for each in waits:
            if not each.done():
                each.set_result(None)


def pod(name: str, chips: int = 0, **spec: Any) -> JsonObject:
    limits = {RESOURCE: str(chips)} if chips else {}
    containers = [{"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers, **spec},
    }


class World:
    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._changed = asyncio.Event()
        self._events = Reflector(
            client, Resource(Event, EVENTS.kind, EVENTS.prefix, EVENTS.plural, namespaced=True), self
        )
        self._pods = Reflector(client, ALL_OF_PODS, self)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(each.run()) for each in (self._events, self._pods)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_apply(self, obj: KubeObject) -> None:
        del obj
        self._changed.set()

    def on_delete(self, obj: KubeObject) -> None:
        del obj
        self._changed.set()

    async def node(self, name: str, chips: int | None = 8, *, ready: bool = True, **spec: Any) -> None:
        labels = {"kubernetes.io/hostname": name}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        await self.client.create(NODES, body)
        counts = {} if chips is None else {RESOURCE: str(chips)}
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        await self.set_node(name, capacity=counts, allocatable=counts, conditions=conditions)

    async def set_node(self, name: str, **status: Any) -> None:
        await self.client.patch(NODES, name, {"status": status}, subresource="status")

    async def create(self, body: JsonObject) -> FullPod:
        return await self.client.create(ALL_OF_PODS, body, "default")

    async def delete(self, name: str) -> None:
        path = PODS.path(namespace="default", name=name)
        await self.client.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def set_phase(self, name: str, phase: str) -> None:
        await self.client.patch(PODS, name, {"status": {"phase": phase}}, namespace="default", subresource="status")

    async def pod(self, name: str, condition: Callable[[FullPod], object]) -> FullPod:
        pods = self._pods.objects
        key = f"default/{name}"
        await self._until(lambda: key in pods and condition(pods[key]))
        return pods[key]

    async def bound(self, name: str) -> str:
        return (await self.pod(name, lambda each: each.node_name)).node_name

    async def refused(self, name: str, reason: str = "Unschedulable") -> str:
        found = await self.pod(name, lambda each: scheduled(each).get("reason") == reason)
        return str(scheduled(found)["message"])

    async def event(self, condition: Callable[[Event], object]) -> Event:
        events = self._events.objects
        await self._until(lambda: any(condition(each) for each in events.values()))
        found: Event = next(each for each in events.values() if condition(each))
        return found

    async def _until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def scheduled(each: FullPod) -> JsonObject:
    conditions: list[JsonObject] = each.status.get("conditions", [])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})
