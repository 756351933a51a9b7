"""The pod-resources API: the device manager's ledger for whoever may open its socket (spec/kubernetes.md §2)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc

from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc as services
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.ledger import NO_NUMA_NODE, Ledger
from sandbox.kubelet.podbook import PodBook
from sandbox.pods import FullPod

if TYPE_CHECKING:
    from protos.k8s.podresources.v1.podresources_pb2_grpc import _ServicerContext

QUERIES_PER_S: Final = 100.0
BURST: Final = 10.0


class PodResources(services.PodResourcesListerServicer):
    """Serves who holds what.

    Args:
        book: the pods.
        ledger: what their containers hold.
        devices: frees what finished pods held, before every List.
        monotonic: clock of the rate limit.
    """

    def __init__(
        self, book: PodBook, ledger: Ledger, devices: DeviceManager, *, monotonic: Callable[[], float]
    ) -> None:
        self._book = book
        self._ledger = ledger
        self._devices = devices
        self._monotonic = monotonic
        self._tokens = BURST
        self._filled_s = monotonic()

    async def List(  # noqa: N802 - name of the RPC
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002 - it is empty
        context: "_ServicerContext",
    ) -> pb.ListPodResourcesResponse:
        """What active pods hold. A pod under admission is there already, without devices (server_v1.go, 1.34)."""
        await self._limit(context)
        pods = self._book.active()
        self._devices.free_inactive()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(each) for each in pods])

    async def Get(self, request: pb.GetPodResourcesRequest, context: "_ServicerContext") -> pb.GetPodResourcesResponse:  # noqa: N802 - name of the RPC
        """What one pod holds; an unknown pod is a plain error, not NOT_FOUND."""
        await self._limit(context)
        for pod in self._book.pods.values():
            if (pod.metadata.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError  # abort() raises

    async def GetAllocatableResources(  # noqa: N802 - name of the RPC
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002 - it is empty
        context: "_ServicerContext",
    ) -> pb.AllocatableResourcesResponse:
        """All healthy devices, in use or not."""
        await self._limit(context)
        devices = [
            _device(resource, node, device)
            for resource, ids in self._ledger.healthy.items()
            for node, group in self._ledger.by_numa(resource, ids).items()
            for device in group
        ]
        return pb.AllocatableResourcesResponse(devices=devices)

    def _pod(self, pod: FullPod) -> pb.PodResources:
        # Init containers that end are not listed.
        containers = [*(each for each in pod.init_containers if each.is_sidecar), *pod.containers]
        return pb.PodResources(
            name=pod.name,
            namespace=pod.metadata.namespace,
            containers=[
                pb.ContainerResources(
                    name=container.name,
                    devices=[
                        _device(held.resource, node, device)
                        for held in self._ledger.of_container(pod.uid, container.name)
                        for node, ids in held.devices.items()
                        for device in ids
                    ],
                )
                for container in containers
            ],
        )

    async def _limit(self, context: "_ServicerContext") -> None:
        now_s = self._monotonic()
        self._tokens = min(BURST, self._tokens + (now_s - self._filled_s) * QUERIES_PER_S)
        self._filled_s = now_s
        if self._tokens < 1.0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1.0


def _device(resource: str, node: int, device: str) -> pb.ContainerDevices:
    # Every device has an entry of its own: readers merge by resource name (container_manager.go).
    entry = pb.ContainerDevices(resource_name=resource, device_ids=[device])
    if node != NO_NUMA_NODE:
        entry.topology.nodes.add(ID=node)
    return entry
