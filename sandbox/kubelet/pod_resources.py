"""The pod-resources API: lists the devices that containers hold (docs/spec/kubelet.md#pod-resources-api)."""

import time
from typing import TYPE_CHECKING, Final

import grpc

from ascend.rate_limiters import TokenBucket
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc as services
from sandbox.kubelet.allocation import DeviceManager
from sandbox.kubelet.ledger import NO_NUMA_NODE, ResourceLedger
from sandbox.kubelet.pod_store import PodStore
from sandbox.pods import FullPod

if TYPE_CHECKING:
    from protos.k8s.podresources.v1.podresources_pb2_grpc import _ServicerContext

QUERIES_PER_S: Final = 100.0
BURST: Final = 10.0


class PodResources(services.PodResourcesListerServicer):
    """Serves the devices of pods, at a limited rate.

    Args:
        pod_store: the pods.
        ledger: the devices that their containers hold.
        devices: frees the devices of finished pods before every List.
    """

    def __init__(self, pod_store: PodStore, ledger: ResourceLedger, devices: DeviceManager) -> None:
        self._pod_store = pod_store
        self._ledger = ledger
        self._devices = devices
        self._tokens = TokenBucket(BURST, 1.0 / QUERIES_PER_S, time.monotonic)

    async def List(  # noqa: N802 - name of the RPC
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002 - it has no fields
        context: "_ServicerContext",
    ) -> pb.ListPodResourcesResponse:
        """Return the devices of active pods. A pod under admission is listed without devices (server_v1.go, 1.34)."""
        await self._limit(context)
        pods = self._pod_store.active()
        self._devices.free_inactive()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    async def Get(self, request: pb.GetPodResourcesRequest, context: "_ServicerContext") -> pb.GetPodResourcesResponse:  # noqa: N802 - name of the RPC
        """Return the devices of one pod; an unknown pod is an error UNKNOWN, not NOT_FOUND."""
        await self._limit(context)
        for pod in self._pod_store.pods.values():
            if (pod.metadata.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError  # abort() raises

    async def GetAllocatableResources(  # noqa: N802 - name of the RPC
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002 - it has no fields
        context: "_ServicerContext",
    ) -> pb.AllocatableResourcesResponse:
        """Return all healthy devices, in use or not."""
        await self._limit(context)
        devices = [
            _device(resource, node, device)
            for resource, ids in self._ledger.healthy.items()
            for node, group in self._ledger.by_numa(resource, ids).items()
            for device in group
        ]
        return pb.AllocatableResourcesResponse(devices=devices)

    def _pod(self, pod: FullPod) -> pb.PodResources:
        # Init containers that are no sidecars are not listed.
        containers = [*(container for container in pod.init_containers if container.is_sidecar), *pod.containers]
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
        if self._tokens.left() < 1.0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens.spend()


def _device(resource: str, node: int, device: str) -> pb.ContainerDevices:
    # Every device has its own entry; clients merge them by resource name (container_manager.go).
    entry = pb.ContainerDevices(resource_name=resource, device_ids=[device])
    if node != NO_NUMA_NODE:
        entry.topology.nodes.add(ID=node)
    return entry
