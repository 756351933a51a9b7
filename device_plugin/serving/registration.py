"""Keeps the plugin registered with the kubelet, whatever happens to either.

One loop, one registration at a time::

    wait for kubelet.sock ─► serve on a socket with a new name ─► Register ─► watched
            ▲                                                                   │
            └──── stop the server (its streams first) ◄──── one of: ────────────┘
                    kubelet.sock was recreated · our socket is gone · the stream ended or failed · never watched

The name is new every time because a second server on the same path would have its socket removed by the first. The old
server stops first because a kubelet before 1.37 takes the end of an old stream for the end of the new one
(docs/spec/kubelet.md#registration-race, docs/spec/kube-api.md#grpc-over-unix-sockets).

inotify says at once that a socket has come or gone, and costs an idle plugin nothing. A look at the files every
``LOOK_S`` also sees a folder that was replaced or mounted again (docs/spec/kubelet.md#kubelet-start).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import structlog

from ascend.errors import Unreachable
from ascend.rate_limiters import Backoff
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.kubelet.channel import raise_if_cancelled, unreachable
from device_plugin.metrics import Metrics
from device_plugin.serving.folder_watch import first_of, watch_folder
from device_plugin.serving.plugin_socket import (
    KUBELET_SOCKET,
    Identity,
    identity,
    new_instance,
    register,
    remove_stale_sockets,
    served,
    socket_name,
)
from device_plugin.serving.servicer import DevicePluginServicer
from device_plugin.serving.succession import Succession
from device_plugin.serving.unknown_plugin import OtherPlugins

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S = 0.1
LOOK_S = 1.0
"""The time between two looks while inotify says what changes in the folder."""
REGISTER_DEADLINE_S = 2.0
"""A kubelet registers a plugin within milliseconds. A busy one gets more time with every attempt."""
REGISTER_DEADLINE_LIMIT_S = 10.0
"""As long as the kubelet itself takes to connect back at most (docs/spec/kubelet.md#registration)."""
WATCH_DEADLINE_S = 0.5
"""After the registration a kubelet opens the stream at once. One that does not gets more time with every attempt."""
WATCH_DEADLINE_LIMIT_S = 8.0
STEADY_S = 10.0
"""A registration that lasted this long resets the waiting time before the next one."""
FIRST_WAIT_S = 0.05
WAIT_LIMIT_S = 4.0
"""The longest wait between attempts with the same kubelet; a new kubelet is registered with at once."""

KUBELET_RESTARTED = "the kubelet has restarted"


class Registration:
    """The registration state machine.

    Args:
        directory: the kubelet's device-plugin folder.
        make_servicer: makes the service of one registration.
        metrics: counts registrations.
        on_new_kubelet: called before the plugin registers with a kubelet that has restarted.
        succession: hands the kubelet over when this instance ends.
        others: other plugins of the resource: this one gives way to MindCluster's, and is not ready beside any.
        device_type: the type of devices to register.
        instance: distinguishes the sockets of this process from those of others.
    """

    def __init__(
        self,
        directory: Path,
        make_servicer: Callable[[], DevicePluginServicer],
        metrics: Metrics,
        *,
        on_new_kubelet: Callable[[], Awaitable[None]],
        succession: Succession,
        others: OtherPlugins,
        device_type: DeviceType = WHOLE_CHIPS,
        instance: str = "",
    ) -> None:
        self._directory = directory
        self._kubelet_socket = directory / KUBELET_SOCKET
        self._make_servicer = make_servicer
        self._metrics = metrics
        self._on_new_kubelet = on_new_kubelet
        self._succession = succession
        self.others = others
        self._device_type = device_type
        self._instance = instance or new_instance()
        self._generation = 0
        self._watch_deadline_s = WATCH_DEADLINE_S
        self._register_deadline_s = REGISTER_DEADLINE_S
        self._servicer: DevicePluginServicer | None = None
        self._problem = "not registered with the kubelet yet"

    @property
    def problem(self) -> str | None:
        """Why the kubelet does not see our devices; None while it does."""
        watched = self._servicer is not None and self._servicer.watched.is_set()
        return (self.others.problem or self.others.uncertain) if watched else self._problem

    async def run(self) -> None:
        """Stay registered until cancelled. The instance lock is held.

        Raises:
            LockLost: its file was deleted, and another instance took it first.
        """
        loop = asyncio.get_running_loop()
        remove_stale_sockets(self._directory, self._instance)
        # Two plugins for one resource end each other's streams: without a pause they would do nothing else.
        backoff = Backoff(first_s=FIRST_WAIT_S, limit_s=WAIT_LIMIT_S)
        known: Identity | None = None
        while True:
            raise_if_cancelled()
            gave_way = False
            while await self.others.mindcluster.serves():
                gave_way = True
                self._problem = self.others.mindcluster.problem or self.others.uncertain or ""
                self.others.unknown.forget()
                await asyncio.sleep(POLL_S)
            kubelet = await self._present_kubelet()
            started_s = loop.time()
            try:
                if known is not None and kubelet != known:
                    backoff.reset()
                    self._watch_deadline_s = WATCH_DEADLINE_S
                    self._register_deadline_s = REGISTER_DEADLINE_S
                    self.others.unknown.meet_new_kubelet(others_count=not gave_way)
                    await self._on_new_kubelet()
                known = kubelet
                cause = await self._hold(kubelet)
            except (Unreachable, OSError) as error:  # descriptors, the disk or the folder may be back later
                cause = str(error)
                self._metrics.registrations.labels(result="failed").inc()
            if loop.time() - started_s > STEADY_S:
                backoff.reset()
            if self.others.mindcluster.problem is not None:
                continue
            wait_s = backoff.next_s()
            self._problem = cause
            log.warning("registering again", error=cause, retry_s=round(wait_s, 2))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while identity(self._kubelet_socket) == kubelet:  # noqa: ASYNC110 - files send no notification
                        await asyncio.sleep(POLL_S)

    async def _present_kubelet(self) -> Identity:
        while (found := identity(self._kubelet_socket)) is None:
            self._problem = f"waiting for {self._kubelet_socket}"
            await asyncio.sleep(POLL_S)
        return found

    async def _hold(self, kubelet: Identity) -> str:
        """Register and stay registered as long as possible; return why it ended."""
        servicer = self._make_servicer()
        async with AsyncExitStack() as server:
            path = await server.enter_async_context(self._server(servicer))
            server.callback(servicer.end_streams)
            own = identity(path)
            if not await self._register(path.name, kubelet):
                return KUBELET_RESTARTED
            self._metrics.registrations.labels(result="registered").inc()
            log.info("registered", socket=path.name)
            self._servicer = servicer
            try:
                self._problem = await self._wait_until_lost(servicer, kubelet, path, own)
            except asyncio.CancelledError:
                # In a task of its own: calls in one that is cancelled end as cancelled.
                begin = self._succession.begin(
                    servicer, server, register_failing=self._register_failing, register_again=self._register_again
                )
                await asyncio.create_task(begin)
                raise
            finally:
                self._servicer = None
            return self._problem

    async def _wait_until_lost(
        self, servicer: DevicePluginServicer, kubelet: Identity, path: Path, own: Identity | None
    ) -> str:
        """Wait until the registration no longer works; return why."""
        loop = asyncio.get_running_loop()
        open_by_s = loop.time() + self._watch_deadline_s
        with watch_folder(self._directory) as folder:
            while True:
                folder.changed.clear()
                present = identity(self._kubelet_socket)
                # Without its socket the kubelet can't be registered with, but the stream to it may still work.
                if present not in {kubelet, None}:
                    return KUBELET_RESTARTED
                self._succession.keep_lock()
                if identity(path) != own and present is not None:
                    return "our socket is gone"
                if await self.others.mindcluster.serves() and await self._lets_go(servicer):
                    return "another plugin serves the resource"
                if servicer.broken.is_set():
                    return "the stream to the kubelet has ended"
                if servicer.watched.is_set() and await self._was_replaced(servicer):
                    return "the kubelet has lost the devices: another plugin had registered the resource, and has ended"
                wait_s = LOOK_S if folder.is_complete else POLL_S
                if servicer.opened.is_set():
                    self._watch_deadline_s = WATCH_DEADLINE_S
                elif (left_s := open_by_s - loop.time()) <= 0:
                    self._watch_deadline_s = min(2 * self._watch_deadline_s, WATCH_DEADLINE_LIMIT_S)
                    return "the kubelet did not open the stream"
                else:
                    wait_s = min(POLL_S, left_s)
                await first_of(folder.changed, servicer.broken, wait_s=wait_s)

    async def _lets_go(self, servicer: DevicePluginServicer) -> bool:
        """Return whether the kubelet needs this plugin no longer, as MindCluster's serves."""
        # Without a plugin that takes over, the kubelet has to notice the end of the devices.
        if not self.others.mindcluster.takes_over:
            return True
        # A plugin serves before it registers; until then the kubelet has this one alone.
        if not self.others.unknown.may_let_go:
            return False
        if not await self._succession.distinguishes():
            await self._succession.detach(servicer, self._register_failing)
        return True

    async def _was_replaced(self, servicer: DevicePluginServicer) -> bool:
        """Return whether another plugin has ended with which the kubelet has lost the devices."""

        async def stays() -> bool:
            """Whether the kubelet keeps this plugin; the kubelet has the list of devices that was sent last."""
            if is_kept := await self._succession.distinguishes():
                servicer.send_again()
            return is_kept

        return await self.others.unknown.has_ended(has_healthy=servicer.has_healthy, stays=stays)

    @asynccontextmanager
    async def _server(self, servicer: DevicePluginServicer) -> AsyncIterator[Path]:
        self._generation += 1
        path = self._directory / socket_name(self._instance, self._device_type.suffix, self._generation)
        async with served(servicer, path):
            yield path

    async def _register_failing(self) -> None:
        servicer = self._make_servicer()
        servicer.failure = "another instance takes over"
        async with self._server(servicer) as path:
            try:
                await self._call_register(path.name)
            except Unreachable as error:
                if servicer.failure in error.message:
                    return
                raise
        raise Unreachable("the kubelet accepted a registration that fails")

    async def _register_again(self) -> None:
        servicer = self._make_servicer()
        async with AsyncExitStack() as server:
            path = await server.enter_async_context(self._server(servicer))
            server.callback(servicer.end_streams)
            await self._call_register(path.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._watch_deadline_s):
                    await servicer.opened.wait()

    async def _register(self, endpoint: str, kubelet: Identity) -> bool:
        """Register; return False if the kubelet restarts before it has answered."""
        call = asyncio.ensure_future(self._call_register(endpoint))
        try:
            while not call.done():
                if identity(self._kubelet_socket) != kubelet:
                    return False
                await asyncio.wait((call,), timeout=POLL_S)
            call.result()
            return True
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def _call_register(self, endpoint: str) -> None:
        try:
            await register(self._directory / endpoint, self._device_type.resource, self._register_deadline_s)
            self.others.unknown.count_own()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                self.others.unknown.count_own()
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._register_deadline_s = min(2 * self._register_deadline_s, REGISTER_DEADLINE_LIMIT_S)
            raise unreachable("the kubelet did not register us", error) from error
