"""Reads the kubelet's ledger: which pod holds which device ids.

Pod-resources v1; docs/spec/kubelet.md#pod-resources-api.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ascend.errors import InvalidValue, Unreachable
from device_plugin.device_types import WHOLE_CHIPS, DeviceType, type_of
from device_plugin.kubelet.channel import open_channel, unreachable
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc as pb_grpc

MAX_MESSAGE = 16 * 1024 * 1024
DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class PodResources:
    """The devices of one type that the kubelet's active pods have, called chips here.

    Attributes:
        pods: physical ids, ascending, by ``namespace/name`` and container. Contains every active pod, but no container
            without chips and no regular init container.
        ambiguous: names that two pods have: one of them was deleted by force and still runs.
    """

    pods: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    ambiguous: set[str] = field(default_factory=set)


async def read_ledger(socket: Path, device_type: DeviceType = WHOLE_CHIPS) -> PodResources:
    """Read the kubelet's ledger.

    Args:
        socket: the kubelet's pod-resources socket.
        device_type: the type of devices that is read.

    Raises:
        Unreachable: the kubelet does not answer, or lists device ids that are no names of such devices.
    """
    pods, ledger = await _list(socket), PodResources()
    try:
        for pod in pods:
            key = f"{pod.namespace}/{pod.name}"
            if key in ledger.pods:
                ledger.ambiguous.add(key)
            ledger.pods[key] = _containers(pod, device_type)
    except InvalidValue as error:
        raise Unreachable(f"pod-resources on {socket}: {error}") from error
    return ledger


async def count_holders(socket: Path) -> int:
    """Return how many of the kubelet's active pods have chips, vNPUs or AI cores.

    Raises:
        Unreachable: the kubelet does not answer, or lists device ids that are no names of such devices.
    """
    holders = 0
    try:
        for pod in await _list(socket):
            served = {type_of(devices.resource_name) for container in pod.containers for devices in container.devices}
            holders += any(_containers(pod, device_type) for device_type in served if device_type is not None)
    except InvalidValue as error:
        raise Unreachable(f"pod-resources on {socket}: {error}") from error
    return holders


async def count_healthy(socket: Path, resource: str) -> int:
    """Return how many healthy devices of a resource the kubelet has, in use or not.

    Raises:
        Unreachable: the kubelet does not answer.
    """
    async with _connected(socket) as stub:
        answer = await stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=DEADLINE_S)
    return sum(len(device.device_ids) for device in answer.devices if device.resource_name == resource)


async def _list(socket: Path) -> Iterable[pb.PodResources]:
    async with _connected(socket) as stub:
        answer = await stub.List(pb.ListPodResourcesRequest(), timeout=DEADLINE_S)
    return answer.pod_resources


@asynccontextmanager
async def _connected(socket: Path) -> AsyncIterator["pb_grpc.PodResourcesListerAsyncStub"]:
    """A connection to the kubelet; a call that fails within the block raises Unreachable."""
    async with open_channel(socket, ("grpc.max_receive_message_length", MAX_MESSAGE)) as channel:
        try:
            yield pb_grpc.PodResourcesListerStub(channel)
        except grpc.aio.AioRpcError as error:
            raise unreachable(f"pod-resources on {socket}", error) from error


def _containers(pod: pb.PodResources, device_type: DeviceType) -> dict[str, tuple[int, ...]]:
    held: dict[str, set[int]] = {}
    for container in pod.containers:
        for devices in container.devices:
            # A container has an entry for each NUMA node, or even for each device.
            if devices.resource_name == device_type.resource:
                held.setdefault(container.name, set()).update(map(device_type.parse, devices.device_ids))
    return {name: tuple(sorted(ids)) for name, ids in held.items()}
