"""The kubelet's HTTP server: ``/pods``, its own list of pods, with the faults that tests inject, and ``/metrics``."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from ascend.kube.objects import JsonObject
from sandbox.kubelet.pod_store import PodStore


@dataclass(slots=True)
class PodsAnswer:
    """How ``GET /pods`` is answered; tests change it.

    Attributes:
        token: the required bearer token; empty for none.
        forbidden: answer 403, as without access to ``nodes/proxy``.
        rewrite: changes the list before it is sent, to simulate a faulty kubelet.
        status_overlay: return the statuses that the kubelet determined. The real kubelet returns those of the API
            server, so for a moment a pod that it has just rejected is still Pending (kubelet.go GetPods).
        requests: the number of requests received.
    """

    token: str = ""
    forbidden: bool = False
    rewrite: Callable[[list[JsonObject]], list[JsonObject]] | None = None
    status_overlay: bool = False
    requests: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._released.set()

    def hold(self) -> None:
        """Do not answer requests until ``release``."""
        self._released.clear()

    def release(self) -> None:
        """Answer the waiting requests, and later ones at once."""
        self._released.set()

    async def wait(self) -> None:
        """Wait until requests may be answered."""
        await self._released.wait()


class PodServer:
    """Serves ``/pods``, and the ``/metrics`` that the plugin reads, on 127.0.0.1.

    Args:
        pod_store: the pods.
        answer: how to answer.
        rng: shuffles the list, because the real one comes from a Go map.
        registrations: how often each resource was registered.
        changed: called for every request.
    """

    def __init__(
        self,
        pod_store: PodStore,
        answer: PodsAnswer,
        rng: random.Random,
        *,
        registrations: Mapping[str, int],
        changed: Callable[[], None],
    ) -> None:
        self._pod_store = pod_store
        self._answer = answer
        self._rng = rng
        self._registrations = registrations
        self._changed = changed
        self._started_s = time.time()
        app = web.Application()
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/pods/", self._pods)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)

    async def start(self, port: int) -> int:
        """Listen on a port and return it; with ``port`` 0 the system chooses one."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    def _refusal(self, request: web.Request) -> web.Response | None:
        answer = self._answer
        if answer.token and request.headers.get("Authorization") != f"Bearer {answer.token}":
            return web.Response(status=401, text="Unauthorized")
        if answer.forbidden:
            return web.Response(
                status=403, text="Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[proxy])"
            )
        return None

    async def _metrics(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        await self._answer.wait()
        lines = [
            "# TYPE kubelet_device_plugin_registration_total counter",
            *(
                f'kubelet_device_plugin_registration_total{{resource_name="{resource}"}} {total}'
                for resource, total in sorted(self._registrations.items())
            ),
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_s:.11e}",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _pods(self, request: web.Request) -> web.Response:
        answer = self._answer
        answer.requests += 1
        self._changed()
        if (refusal := self._refusal(request)) is not None:
            return refusal
        await answer.wait()
        pods = list(self._pod_store.pods.values())
        self._rng.shuffle(pods)
        items = [pod.as_json(self._pod_store.status(pod.uid) if answer.status_overlay else None) for pod in pods]
        if answer.rewrite is not None:
            items = answer.rewrite(items)
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
