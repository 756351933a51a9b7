"""Clients of the node's unix sockets: the kubelet's pod-resources API and the plugin's service."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from ascend.chips import RESOURCE, ChipSet, chip_set, parse_chip_name
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import DevicePluginStub
    from protos.k8s.podresources.v1.podresources_pb2_grpc import PodResourcesListerStub

DEADLINE_S: Final = 30.0
_CHANNEL: Final = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))


@contextmanager
def pod_resources(socket: Path) -> Iterator["PodResourcesListerStub"]:
    """The kubelet's pod-resources API."""
    with grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL) as channel:
        yield podresources_pb2_grpc.PodResourcesListerStub(channel)


@contextmanager
def plugin_service(socket: Path) -> Iterator["DevicePluginStub"]:
    """The plugin's service, called as the kubelet calls it."""
    with grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL) as channel:
        yield deviceplugin_pb2_grpc.DevicePluginStub(channel)


def read_ledger(socket: Path, namespace: str = "default") -> dict[tuple[str, str], ChipSet]:
    """The chips of each container, by (pod, container); those without chips are left out."""
    with pod_resources(socket) as stub:
        return list_ledger(stub, namespace)


def list_ledger(stub: "PodResourcesListerStub", namespace: str = "default") -> dict[tuple[str, str], ChipSet]:
    """The same over a connection that is kept."""
    answer = _list(stub)
    held: dict[tuple[str, str], ChipSet] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == RESOURCE and pod.namespace == namespace:
                    ids = chip_set(map(parse_chip_name, devices.device_ids))
                    held[pod.name, container.name] = held.get((pod.name, container.name), 0) | ids
    return held


def _list(stub: "PodResourcesListerStub") -> pb.ListPodResourcesResponse:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return stub.List(pb.ListPodResourcesRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)  # the kubelet's rate limit


@dataclass(slots=True)
class BusyReaders:
    """Counts the calls that the kubelet rejects by its rate limit."""

    rejected: int = 0


@contextmanager
def exceed_rate_limit(socket: Path) -> Iterator[BusyReaders]:
    """Read the kubelet's ledger more often than it allows (100 times a second) until the block ends."""
    readers, ending = BusyReaders(), threading.Event()

    def read() -> None:
        with pod_resources(socket) as stub:
            while not ending.wait(0.004):
                try:
                    stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=DEADLINE_S)
                except grpc.RpcError as error:
                    readers.rejected += error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield readers
    finally:
        ending.set()
        thread.join()
