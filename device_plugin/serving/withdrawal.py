"""Withdraws resources that the Node has from an earlier device plugin, and that no plugin offers any more.

After a change of settings, or after vNPUs were removed, the kubelet may go on offering what the plugin before offered:
devices whose plugin it did not see end, or capacity that it has forgotten (docs/spec/kubelet.md#leftovers). Schedulers
would send pods to such devices, and the allocator trusts no node that offers its chips in two ways. So each such
resource is registered once more, without any device, after which the Node has 0 of it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import grpc
import structlog

from ascend.daemon.observable import Observable
from ascend.errors import Unreachable
from device_plugin.device_types import DeviceType, type_of
from device_plugin.kubelet.channel import raise_if_cancelled, unreachable
from device_plugin.publish.node_object import OwnNode
from device_plugin.serving.plugin_socket import register, served, socket_name
from device_plugin.serving.servicer import NoDevicesServicer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NOTICE_S = 3.0
"""How long after a change of the Node another plugin that offers a resource there is certainly noticed."""
LIMIT_S = 10.0
"""How long the kubelet may take to register a resource, and to take its list of devices."""
AGAIN_S = 12.0
"""The time until something that is left is withdrawn again: more than the kubelet's status period, 10 s by default."""


class Withdrawal:
    """Withdraws what is left of earlier plugins. The instance lock is held.

    Args:
        directory: the kubelet's device-plugin folder.
        instance: distinguishes the sockets of this process from those of others.
        node: the Node as last seen.
    """

    def __init__(self, directory: Path, instance: str, node: Observable[OwnNode]) -> None:
        self._directory = directory
        self._instance = instance
        self._node = node

    async def run(self, offered: Callable[[], Collection[DeviceType]], other_plugin: Callable[[], str | None]) -> None:
        """Withdraw it until cancelled.

        Args:
            offered: what this plugin offers now.
            other_plugin: the sentence about another plugin on this node, which may offer the rest.
        """
        while True:
            version = self._node.version
            if not (left := leftovers(self._node.value.status.capacity, offered())):
                await self._node.newer_than(version)
                await asyncio.sleep(NOTICE_S)
                continue
            for device_type in left if other_plugin() is None else ():
                try:
                    await self._withdraw(device_type)
                except (Unreachable, OSError) as error:
                    log.warning("can't withdraw a resource", resource=device_type.resource, error=str(error))
                raise_if_cancelled()
            # A change of the Node for another reason must not make a resource be withdrawn again before it can be gone.
            await asyncio.sleep(AGAIN_S)

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
