"""Hands the kubelet over to another instance of the plugin, so that an upgrade leaves it without devices at no time.

The instance that ends goes on answering the kubelet until its successor is registered. How the kubelet takes the end of
the earlier stream depends on its version (docs/spec/kubelet.md#registration-race):

* From 1.37 it distinguishes two plugins of a resource by their sockets: the successor registers, then the stream ends.
* Before, the stream's end would disconnect whichever plugin it connected to last for the resource. So the instance that
  ends makes a registration that fails, after which the kubelet has no plugin under that name. It then ends its stream,
  of which the kubelet takes no notice, and the successor registers. All the while the devices stay healthy, and calls
  come to the earlier instance's socket, which is served until the end.

If the kubelet behaves in another way than expected, it is without devices until the successor has registered: some
tenths of a second.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from ascend.errors import AscendError
from ascend.kube.client import KubeClient
from device_plugin.pods.admission_matcher import CAP_S
from device_plugin.publish.node_object import OWN_NODE
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.servicer import DevicePluginServicer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BY_SOCKET = (1, 37)
"""The first version of the kubelet that distinguishes two plugins of a resource."""
LIMIT_S = 5.0
"""How long the successor may take to register; a pod's grace period is 10 s."""
POLL_S = 0.02
LOOKS = 2
"""So many looks in a row must not find a successor: one that has just taken the lock writes its name a moment later."""
VERSION_LIMIT_S = 1.0
STREAM_END_S = 0.5
SETTLE_S = 0.05
"""A kubelet notices the end of a stream within a millisecond; a registration takes it ten."""


async def _end_stream(servicer: DevicePluginServicer) -> None:
    """End the stream, and leave the kubelet time to take notice before the successor registers."""
    servicer.end_streams()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STREAM_END_S):
            await servicer.broken.wait()
    await asyncio.sleep(SETTLE_S)


async def kubelet_version(client: KubeClient, node: str) -> str:
    """Read the version of a node's kubelet, such as ``v1.34.4``.

    Raises:
        ApiError: the API server refuses.
        Unreachable: it does not answer.
    """
    return (await client.get(OWN_NODE, node)).status.node_info.kubelet_version


def distinguishes_plugins(kubelet_version: str) -> bool:
    """Return whether a kubelet of this version, such as ``v1.34.4``, knows two plugins of a resource apart."""
    found = re.match(r"v(\d+)\.(\d+)", kubelet_version)
    return found is not None and (int(found[1]), int(found[2])) >= BY_SOCKET


@dataclass(frozen=True, slots=True)
class _Registered:
    """A registration that is handed over.

    Attributes:
        servicer: its service.
        server: its server.
        register_again: registers anew, for a moment; None if the kubelet notices the end of the stream.
    """

    servicer: DevicePluginServicer
    server: AsyncExitStack
    register_again: Callable[[], Awaitable[None]] | None


class Succession:
    """The end of an instance that has a successor; all of its registrations are handed over together.

    Args:
        lock: the lock of this node's instances.
        kubelet_version: reads the version of the kubelet.
    """

    def __init__(self, lock: InstanceLock, kubelet_version: Callable[[], Awaitable[str]]) -> None:
        self._lock = lock
        self._kubelet_version = kubelet_version
        self._successor: str | None = None
        self._registered: list[_Registered] = []

    def keep_lock(self) -> None:
        """Take this node's lock again if its file was deleted.

        Raises:
            LockLost: another instance took it first; this one must end.
        """
        with contextlib.suppress(OSError):  # a folder that is missing belongs to no other instance
            self._lock.renew()

    @property
    def has_begun(self) -> bool:
        """Whether the kubelet is being handed over to a successor."""
        return bool(self._registered)

    async def begin(
        self,
        servicer: DevicePluginServicer,
        server: AsyncExitStack,
        *,
        register_failing: Callable[[], Awaitable[None]],
        register_again: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare the kubelet for the successor of a registration, if there is one; the instance lock is held.

        Args:
            servicer: the registered service.
            server: its server, which is taken over: ``completed`` ends it.
            register_failing: makes a registration that fails.
            register_again: registers anew, for a moment.
        """
        self._successor = self._lock.successor()
        if self._successor is None:
            return
        log.info("handing the kubelet over to another instance")
        is_detached = not await self.distinguishes() and await self.detach(servicer, register_failing)
        self._registered.append(_Registered(servicer, server.pop_all(), register_again if is_detached else None))

    async def distinguishes(self) -> bool:
        """Return whether the kubelet distinguishes two plugins of a resource."""
        return distinguishes_plugins(await self._version())

    async def detach(self, servicer: DevicePluginServicer, register_failing: Callable[[], Awaitable[None]]) -> bool:
        """End the stream of a kubelet that does not distinguish plugins, unnoticed by the kubelet; return success.

        Args:
            servicer: the registered service.
            register_failing: makes a registration that fails.
        """
        try:
            await register_failing()
        except AscendError as error:
            log.warning("the kubelet notices the end of the stream", error=str(error))
            return False
        finally:
            await _end_stream(servicer)
        return True

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """Answer the kubelet after the block until the successor, if any, is registered.

        The instance lock is released within the block.
        """
        try:
            yield
        finally:
            if self._registered:
                async with AsyncExitStack() as servers:
                    for plugin in self._registered:
                        await servers.enter_async_context(plugin.server)
                    # In a task of its own: calls in one that is cancelled end as cancelled.
                    await asyncio.create_task(self._wait())
                    await asyncio.create_task(self._finish_calls())

    async def _finish_calls(self) -> None:
        """Answer the calls that came before the successor was registered: the end of the stream would cut them off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CAP_S):
                for plugin in self._registered:
                    await plugin.servicer.idle.wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                looks = 0
                while looks < LOOKS:
                    looks = 0 if self._is_awaited() else looks + 1
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log.warning("the other instance has not registered in time", limit_s=LIMIT_S)
        try:
            # Only under the lock: an instance that has it registers itself.
            with self._lock.if_free() as is_free:
                if is_free:
                    log.warning("the other instance has ended")
                    for plugin in self._registered:
                        if plugin.register_again is not None:
                            await plugin.register_again()
                else:
                    log.info("another instance has taken over")
        except AscendError as error:
            log.warning("the kubelet does not notice that no instance is left", error=str(error))

    def _is_awaited(self) -> bool:
        """Whether the successor is taking over, or has died and is started again: calls come here until then."""
        successor = self._lock.successor()
        # One that stands by while another has the lock is the successor of that.
        if successor is not None and (successor == self._successor or self._lock.is_held_by(successor)):
            return True
        with self._lock.if_free() as is_free:
            return is_free

    async def _version(self) -> str:
        try:
            async with asyncio.timeout(VERSION_LIMIT_S):
                return await self._kubelet_version()
        except (AscendError, TimeoutError) as error:
            log.info("the kubelet's version is unknown", error=str(error))
            return ""
