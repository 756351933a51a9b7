"""The checkpoint of the device manager: allocations and registered devices (docs/spec/kubelet.md#checkpoint).

The real checksum is a hash of Go's pretty-printed structure, this one is a hash of the JSON; both are opaque.
"""

import base64
import binascii
import json
import os
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from ascend.errors import AscendError, InvalidValue
from ascend.kube.objects import JsonObject
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet.ledger import NO_NUMA_NODE, ContainerAllocation, ResourceLedger

FILE_NAME = "kubelet_internal_checkpoint"


class CheckpointFailure(AscendError):
    """The checkpoint cannot be written."""


class _Entry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str]] | list[str] | None
    AllocResp: str | None = None


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: list[_Entry] | None = None
    RegisteredDevices: dict[str, list[str] | None] | None = None


class _Checkpoint(msgspec.Struct, frozen=True):
    Data: _Data
    Checksum: int


def write_checkpoint(directory: Path, ledger: ResourceLedger) -> None:
    """Replace the file atomically, as its readers require.

    Raises:
        CheckpointFailure: the file cannot be written.
    """
    data = _data(ledger)
    text = json.dumps({"Data": data, "Checksum": _checksum(data)}, separators=(",", ":"))
    temporary = directory / f".{FILE_NAME}.{os.getpid()}"
    try:
        temporary.write_text(text)
        temporary.replace(directory / FILE_NAME)
    except OSError as error:
        raise CheckpointFailure(f'failed to write checkpoint file "{FILE_NAME}": {error}') from error


def read_checkpoint(directory: Path, into: ResourceLedger) -> bool:
    """Restore a ledger; return whether there is a checkpoint.

    Raises:
        InvalidValue: the file is corrupt; the ledger is unchanged.
    """
    path = directory / FILE_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return False
    try:
        checkpoint = msgspec.json.decode(raw, type=_Checkpoint)
        if checkpoint.Checksum != _checksum(json.loads(raw)["Data"]):
            raise InvalidValue(f"{path}: checkpoint is corrupted: the checksum does not match")
        allocations = [_allocation(entry) for entry in checkpoint.Data.PodDeviceEntries or ()]
    except (msgspec.DecodeError, DecodeError, binascii.Error, ValueError) as error:
        raise InvalidValue(f"{path}: checkpoint is corrupted: {error}") from error
    into.restore(checkpoint.Data.RegisteredDevices or (), allocations)
    return True


def _data(ledger: ResourceLedger) -> JsonObject:
    entries = [
        {
            "PodUID": allocation.pod_uid,
            "ContainerName": allocation.container,
            "ResourceName": allocation.resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in allocation.devices.items()},
            "AllocResp": base64.b64encode(allocation.response.SerializeToString()).decode(),
        }
        for allocation in ledger.allocations
    ]
    registered = {resource: sorted(devices) for resource, devices in ledger.healthy.items()}
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}


def _allocation(entry: _Entry) -> ContainerAllocation:
    # Early kubelet versions wrote a flat list of devices (docs/spec/kubelet.md#checkpoint).
    groups = entry.DeviceIDs if isinstance(entry.DeviceIDs, dict) else {str(NO_NUMA_NODE): entry.DeviceIDs or []}
    response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.AllocResp or "", validate=True))
    devices = {int(node): tuple(ids) for node, ids in groups.items()}
    return ContainerAllocation(entry.PodUID, entry.ContainerName, entry.ResourceName, devices, response)


def _checksum(data: JsonObject) -> int:
    value = 0x811C9DC5
    for byte in json.dumps(data, sort_keys=True, separators=(",", ":")).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
