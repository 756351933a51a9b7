"""The ledgers of this node by type of devices: the requesting pods and their allocations."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ascend.chips import ChipSet, chip_ids
from ascend.daemon.observable import Observable
from ascend.kube.objects import Pod
from ascend.vnpus import SUFFIXES
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType, number_of
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.cores import CoreLedger
from device_plugin.ledger.node_pods import NodePods, read_pod, requested_types

_SIZES: Final = frozenset(SUFFIXES.values())


class Ledgers:
    """All ledgers; a handler for the reflector that watches the node's pods.

    That of a size of vNPUs begins when its first vNPU appears, or a pod that may have one. Each makes the plugin
    register a resource.

    Args:
        pods: the node's pods, as far as whole chips are concerned.
        allocations: the whole chips that they were given.
    """

    def __init__(self, pods: NodePods, allocations: Allocations) -> None:
        self.whole = DeviceLedger(pods, allocations)
        self.vnpus: dict[DeviceType, DeviceLedger] = {}
        """The ledgers of vNPUs, by their type."""
        self.types: Observable[tuple[DeviceType, ...]] = Observable(())
        """The types of vNPUs that have a ledger, in the order they came."""
        self.vnpu_changes: Observable[None] = Observable(None)
        """Set on every change in a ledger of vNPUs."""
        self.cores = CoreLedger(self.vnpu_changes)
        """The ledger of AI cores, by which chips are cut when pods start."""
        self._pods: dict[str, Pod] = {}  # those that request vNPUs

    def _of(self, device_type: DeviceType) -> DeviceLedger | None:
        """Return the ledger of a type; None if that has not begun."""
        return {WHOLE_CHIPS: self.whole, CORES: self.cores}.get(device_type) or self.vnpus.get(device_type)

    def serve(self, device_type: DeviceType) -> DeviceLedger:
        """Return the ledger of a type; it is begun if there is none."""
        if (known := self._of(device_type)) is not None:
            return known
        allocations = Allocations(self.vnpu_changes)
        ledger = self.vnpus[device_type] = DeviceLedger(
            NodePods(allocations.drop, device_type, self.vnpu_changes), allocations
        )
        for pod in self._pods.values():
            if device_type in requested_types(pod):
                ledger.pods.on_apply(pod)
        self.types.set((*self.types.value, device_type))
        return ledger

    def on_apply(self, obj: Pod) -> None:
        """Take over a pod that is new or has changed."""
        requested = requested_types(obj)
        vnpus = {device_type for device_type in requested if device_type.suffix}
        if vnpus:
            self._pods[obj.uid] = obj
        for device_type in requested | {WHOLE_CHIPS}:  # files of jobs and notes about processes are about all pods
            if (ledger := self._of(device_type)) is not None:
                ledger.pods.on_apply(obj)
        for device_type in sorted(vnpus - self.vnpus.keys()):
            if _may_have_one(obj, device_type):
                self.serve(device_type)

    def on_delete(self, obj: Pod) -> None:
        """Remove a pod."""
        self._pods.pop(obj.uid, None)
        for device_type in requested_types(obj) | {WHOLE_CHIPS}:
            if (ledger := self._of(device_type)) is not None:
                ledger.pods.on_delete(obj)

    @property
    def with_cores(self) -> dict[DeviceType, ChipSet]:
        """The vNPUs of pods that request AI cores, by their type and as sets of their numbers."""
        found: dict[DeviceType, ChipSet] = {}
        for vnpu in self.cores.vnpus:
            device_type = DeviceType(vnpu.suffix)
            found[device_type] = found.get(device_type, 0) | 1 << number_of(vnpu)
        return found

    @property
    def without_cores(self) -> ChipSet:
        """The chips that pods hold, or have static vNPUs of, which do not request AI cores."""
        found = self.whole.used
        for device_type, ledger in self.vnpus.items():
            found |= device_type.chips(ledger.used)
        return found

    @property
    def holders(self) -> dict[int, frozenset[str]]:
        """The uids of the holders of each chip, whole or in part, by physical id; includes pods that may have ended."""
        found: dict[int, set[str]] = {}
        for uid, _, chips in self._held_chips():
            for chip in chip_ids(chips):
                found.setdefault(chip, set()).add(uid)
        return {chip: frozenset(uids) for chip, uids in found.items()}

    @property
    def held(self) -> dict[str, ChipSet]:
        """The chips that each pod holds, whole or in part, by ``namespace/name``; includes pods that may have ended."""
        found: dict[str, ChipSet] = {}
        for _, key, chips in self._held_chips():
            found[key] = found.get(key, 0) | chips
        return found

    def _held_chips(self) -> Iterator[tuple[str, str, ChipSet]]:
        """Iterate over uid, name and chips of the pods: the chips allocated, or the chips written on a waiting pod."""
        for allocation in (*self, *self.cores.allocations.kept.values()):
            yield allocation.uid, allocation.pod, allocation.chip_set
        for ledger in (self.whole, *self.vnpus.values(), self.cores):
            for pod in ledger.pods:
                if pod.live and pod.count and pod.uid not in ledger.allocations:
                    yield pod.uid, pod.key, ledger.device_type.chips(pod.held)

    def __iter__(self) -> Iterator[Allocation]:
        """Iterate over all allocations, with the chips that the devices are, or are parts of."""
        yield from self.whole.allocations
        yield from self.cores.allocations
        for device_type, ledger in self.vnpus.items():
            yield from (_on_chips(allocation, device_type) for allocation in ledger.allocations)


def _on_chips(allocation: Allocation, device_type: DeviceType) -> Allocation:
    def chips(numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(map(device_type.chip, numbers)))

    parts = tuple(
        replace(part, chips=chips(part.chips), kubelet_ids=chips(part.kubelet_ids)) for part in allocation.parts
    )
    return replace(allocation, chips=chips(allocation.chips), kubelet_ids=chips(allocation.kubelet_ids), parts=parts)


def _may_have_one(pod: Pod, device_type: DeviceType) -> bool:
    """Return whether a pod may have a vNPU of a size that was removed since.

    One is named on the pod, which the kubelet has admitted or which has a claim. A pod's author can write that too: but
    only the sizes that the driver makes can have had vNPUs.
    """
    if device_type.suffix not in _SIZES:
        return False
    read = read_pod(pod, 0, device_type)
    return read.live and bool(read.real or (read.held and read.past_admission))
