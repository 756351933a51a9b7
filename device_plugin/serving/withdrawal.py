"""Withdraws resources that the Node has from an earlier device plugin, and that no plugin offers any more.

After a change of settings, or after vNPUs were removed, the kubelet may go on offering what the plugin before offered:
devices whose plugin it did not see end, or capacity that it has forgotten (docs/spec/kubelet.md#leftovers). Schedulers
would send pods to such devices, and the allocator trusts no node that offers its chips in two ways. So each such
resource is registered once more, without any device, after which the Node has 0 of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import grpc
import structlog

from ascend.daemon.observable import Observable
from ascend.errors import Unreachable
from device_plugin.device_types import DeviceType, type_of
from device_plugin.kubelet.channel import raise_if_cancelled, unreachable
from device_plugin.kubelet.node_info import KubeletNodeStatus
from device_plugin.serving.plugin_socket import register, served
from device_plugin.serving.servicer import NoDevicesServicer
from device_plugin.serving.sockets import socket_name

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LIMIT_S = 10.0
"""How long the kubelet may take to register a resource, and to take its list of devices."""
AGAIN_S = 12.0
"""The time until the next look while something is left: more than the kubelet's status period, 10 s by default."""


class Withdrawal:
    """Withdraws what is left of earlier plugins. The instance lock is held.

    Args:
        directory: the kubelet's device-plugin folder.
        instance: distinguishes the sockets of this process from those of others.
        node: the status of the Node as last read.
        refresh: reads it again.
    """

    def __init__(
        self,
        directory: Path,
        instance: str,
        node: Observable[KubeletNodeStatus],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._instance = instance
        self._node = node
        self._refresh = refresh

    async def run(self, offered: Callable[[], Collection[DeviceType]], other_plugin: Callable[[], str | None]) -> None:
        """Withdraw it until cancelled.

        Args:
            offered: what this plugin offers now.
            other_plugin: the sentence about another plugin on this node, which may offer the rest.
        """
        while True:
            version = self._node.version
            if not (left := leftovers(self._node.value.capacity, offered())):
                await self._node.newer_than(version)
                continue
            for device_type in left if other_plugin() is None else ():
                try:
                    await self._withdraw(device_type)
                except (Unreachable, OSError) as error:
                    log.warning("can't withdraw a resource", resource=device_type.resource, error=str(error))
                raise_if_cancelled()
            await asyncio.sleep(AGAIN_S)
            await self._refresh()

    async def _withdraw(self, device_type: DeviceType) -> None:
        servicer, resource = NoDevicesServicer(), device_type.resource
        path = self._directory / socket_name(self._instance, device_type.suffix, 0)
        async with served(servicer, path):
            try:
                async with asyncio.timeout(LIMIT_S):
                    await register(path, resource, LIMIT_S)
                    await servicer.listed.wait()
            except grpc.aio.AioRpcError as error:
                raise unreachable(f"the kubelet did not register {resource}", error) from error
            except TimeoutError:
                raise Unreachable("the kubelet did not open the stream") from None
        log.info("withdrew a resource that no plugin offers any more", resource=resource)


def leftovers(capacity: Mapping[str, str], offered: Collection[DeviceType]) -> list[DeviceType]:
    """Return the types of devices that a Node has without an offer of them.

    Args:
        capacity: the capacity of the Node.
        offered: the types that are offered.
    """
    found = (type_of(resource) for resource, quantity in capacity.items() if quantity != "0")
    return [device_type for device_type in found if device_type is not None and device_type not in offered]
