"""A client that records its requests, and waits for conditions."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject
from device_plugin.metrics import Metrics
from sandbox.cluster import pod_manifest

NODE = "n1"


async def until(condition: Callable[[], object], *, timeout_s: float = 30.0) -> None:
    """Poll until a condition holds; the longer it takes, the less often."""
    begin_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(min(max(0.001, 0.05 * (time.monotonic() - begin_s)), 0.005))


def sample(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float:
    """The value of a metric, 0 if it has none; polls must not collect all metrics, which takes 10 ms."""
    return next(
        (
            found.value
            for metric in metrics.registry.restricted_registry([name]).collect()
            for found in metric.samples
            if (found.name, found.labels) == (name, labels or {})
        ),
        0.0,
    )


V = TypeVar("V")


async def seen(read: Callable[[], Awaitable[V]], condition: Callable[[V], bool]) -> V:
    """Wait until what the API server has meets a condition; return it."""
    async with asyncio.timeout(10.0):
        while True:
            if condition(found := await read()):
                return found
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run an endless coroutine while the block runs; the block raises its error."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True, slots=True)
class Request:
    """A request as sent; ``at_s`` is the loop's time."""

    method: str
    path: str
    body: Any
    content_type: str
    at_s: float


class RecordingClient(KubeClient):
    """A client that records its requests.

    Attributes:
        answers_lost: of which bodies of requests no answer is read, although the server executes the requests.
    """

    answers_lost: Callable[[Any], bool] = staticmethod(lambda _body: False)

    @property
    def sent(self) -> list[Request]:
        return self.__dict__.setdefault("_sent", [])  # type: ignore[no-any-return]  # a list of its own

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | list[JsonObject] | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        limits_server: bool = False,
        most_bytes: int | None = None,
    ) -> bytes:
        self.sent.append(Request(method, path, body, content_type, asyncio.get_running_loop().time()))
        self.__dict__["_in_flight"] = self.in_flight + 1
        try:
            answer = await super().request(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                timeout_s=timeout_s,
                limits_server=limits_server,
                most_bytes=most_bytes,
            )
            if self.answers_lost(body):
                await asyncio.get_running_loop().create_future()
            return answer
        finally:
            self.__dict__["_in_flight"] -= 1

    @property
    def in_flight(self) -> int:
        """The number of requests that have no answer yet."""
        return self.__dict__.get("_in_flight", 0)  # type: ignore[no-any-return]  # a count of its own

    def to(self, part: str, method: str = "PATCH") -> list[Request]:
        """The requests with this method to paths that contain this."""
        return [each for each in self.sent if each.method == method and part in each.path]


def bound_pod(name: str, chips: int, annotations: Mapping[str, str] | None = None, **spec: Any) -> JsonObject:
    """A manifest of a pod on the node, with annotations of the allocator or of somebody else."""
    body = pod_manifest(name, chips, nodeName=NODE, **spec)
    body["metadata"]["annotations"] = dict(annotations or {})
    return body


def node_manifest() -> JsonObject:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
