"""Reads the kubelet's own ledger: which pod holds which device ids (pod-resources v1; spec/kubernetes.md §2)."""

from pathlib import Path

import grpc

from ascend.chips import RESOURCE, parse_chip_name
from ascend.errors import InvalidValue, Unreachable
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from protos.k8s.podresources.v1 import podresources_pb2_grpc as pb_grpc

CHANNEL_OPTIONS = (
    # A percent-encoded path as authority is refused by some kubelets (spec/kubernetes.md §8.3).
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)
MAX_MESSAGE = 16 * 1024 * 1024
DEADLINE_S = 2.0


async def read_ledger(socket: Path) -> dict[str, tuple[int, ...]]:
    """The kubelet's ledger: ``namespace/name`` to physical ids, for active pods that hold chips.

    Raises:
        Unreachable: the kubelet does not answer, or names devices we don't know.
    """
    options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE))
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=options) as channel:
        try:
            answer = await pb_grpc.PodResourcesListerStub(channel).List(
                pb.ListPodResourcesRequest(), timeout=DEADLINE_S
            )
        except grpc.aio.AioRpcError as error:
            raise Unreachable(f"pod-resources on {socket}: {error.details()}") from error
    ledger: dict[str, list[int]] = {}
    try:
        for pod in answer.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    if devices.resource_name == RESOURCE:
                        ids = ledger.setdefault(f"{pod.namespace}/{pod.name}", [])
                        ids.extend(map(parse_chip_name, devices.device_ids))
    except InvalidValue as error:
        raise Unreachable(f"pod-resources on {socket}: {error}") from error
    return {pod: tuple(sorted(ids)) for pod, ids in ledger.items()}
