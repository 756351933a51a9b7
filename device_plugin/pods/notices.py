"""Tells pods what is wrong with their devices: faults, removed vNPUs, and devices missing or other than written.

Only known faults are told. A chip that is silent, or held back after a fault, may be fine: its pods are not told
(``Snapshot.reported_unhealthy``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.daemon.observable import Observable, wait_for_change
from ascend.fault_codes import meaning_of
from ascend.kube.events import EventRecorder, Regarding
from device_plugin.device_types import DeviceType
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import REMOVED, FaultRecord, Snapshot
from device_plugin.ledger.allocations import Allocations
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MISMATCH: Final = "NPUAllocationMismatch"


WITHOUT: Final = "NPURunsWithoutChips"


Announce = Callable[[NodePod, str, str], None]
"""Receives a pod, a reason (CamelCase), and a sentence."""


def pod_announcer(events: EventRecorder, action: str, *, once: bool = False) -> Announce:
    """Return a callback that publishes Events about a pod: the pod, a reason and a sentence.

    Args:
        events: posts them.
        action: what is being done, a CamelCase word.
        once: whether one that an earlier process posted is enough.
    """

    def announce(pod: NodePod, reason: str, sentence: str) -> None:
        regarding = Regarding("Pod", pod.name, pod.namespace, pod.uid)
        events.publish(regarding, reason, sentence, action=action, once=once)

    return announce


class PodNotices:
    """What pods with one type of devices were told.

    Args:
        pods: the node's pods.
        announce: receives what is told.
        metrics: counts the pods that run without their devices.
    """

    def __init__(self, pods: NodePods, announce: Announce, metrics: Metrics) -> None:
        self._pods = pods
        self.announce = announce
        self._metrics = metrics
        self._told: set[tuple[str, str]] = set()

    def tell(self, pod: NodePod, reason: str, sentence: str) -> None:
        """Tell a pod, unless it was told anything for this reason."""
        if (pod.uid, reason) in self._told:
            return
        self._told.add((pod.uid, reason))
        log.warning("a pod's chips do not match", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
        self.announce(pod, reason, sentence)
        self.look()

    def runs_without(self, uid: str) -> bool:
        """Return whether a pod was told about missing devices."""
        return (uid, WITHOUT) in self._told

    def look(self) -> None:
        """Forget pods that are gone, and count the running pods without their devices."""
        self._told = {(uid, reason) for uid, reason in self._told if self._pods.get(uid) is not None}
        without = (self._pods.get(uid) for uid, reason in self._told if reason == WITHOUT)
        self._metrics.count_without(
            self._pods.device_type.resource, sum(pod is not None and pod.live for pod in without)
        )


FAULT = "NPUFault"
_NO_CODE = -1
"""In the place of a fault's code: the device was removed."""

_REPLACE = "delete the pod, so that the one that replaces it gets other chips"
_NETWORK = "jobs of several pods can't use it, check its link; to move the pod, delete it"


@dataclass(frozen=True, slots=True)
class _Hit:
    """A fault of a chip.

    Attributes:
        chip: its physical id.
        fault: the fault.
        network: whether it is a fault of the chip's network port.
    """

    chip: int
    fault: FaultRecord
    network: bool = False


class FaultNotices:
    """Looks for faults of the chips that pods run with.

    Args:
        snapshots: the node's chips.
        pods: the node's pods.
        allocations: the chips they were given.
        announce: receives what a pod is told.
        device_type: the type by which the chips of the snapshots are named; None for that of the pods.
    """

    def __init__(
        self,
        snapshots: Observable[Snapshot | None],
        pods: NodePods,
        allocations: Allocations,
        announce: Announce,
        device_type: DeviceType | None = None,
    ) -> None:
        self._device_type = device_type if device_type is not None else pods.device_type
        self._snapshots = snapshots
        self._pods = pods
        self._allocations = allocations
        self._announce = announce
        self._present: ChipSet = 0
        """The devices that the driver has had."""
        self._told: set[tuple[str, int, int]] = set()
        """The uid of the pod, the number of the device, and the code of each fault that was told."""

    async def run(self) -> None:
        """Look until cancelled."""
        sources = (self._snapshots, self._pods.changes, self._allocations.changes)
        while True:
            versions = [source.version for source in sources]
            self.look()
            await wait_for_change(sources, versions)

    def look(self) -> None:
        """Tell each pod the faults of its chips that are new to the pod."""
        self._told = {told for told in self._told if told[0] in self._allocations}
        snapshot = self._snapshots.value
        if snapshot is None:
            return
        hits = [*faults_to_tell(snapshot)]
        removed = self._removed_vnpus(snapshot)
        for allocation in self._allocations if hits or removed else ():
            pod = self._pods.get(allocation.uid)
            own = [hit for hit in hits if allocation.chip_set >> hit.chip & 1]
            new = [hit for hit in own if (allocation.uid, hit.chip, hit.fault.code) not in self._told]
            if pod is None:
                continue  # the watch is about to show it
            for code, level in dict.fromkeys((hit.fault.code, hit.fault.level) for hit in new):
                same = [hit for hit in new if (hit.fault.code, hit.fault.level) == (code, level)]
                sentence = _sentence(same, self._device_type)
                log.warning("a chip in use has a fault", pod=pod.key, pod_uid=pod.uid, error=sentence)
                self._announce(pod, FAULT, sentence)
            self._told |= {(allocation.uid, hit.chip, hit.fault.code) for hit in new}
            lost = {
                (allocation.uid, chip_id, _NO_CODE) for chip_id in chip_ids(allocation.chip_set & removed)
            } - self._told
            if lost:
                names = self._device_type.join(sorted(number for _, number, _ in lost))
                log.warning("a device in use was removed", pod=pod.key, pod_uid=pod.uid, devices=names)
                self._announce(pod, WITHOUT, f"it runs with {names}, which the driver no longer has: delete the pod")
            self._told |= lost

    def _removed_vnpus(self, snapshot: Snapshot) -> ChipSet:
        """Return the vNPUs that the driver no longer has: it had them before, or lists others of the chip.

        After a start, a chip without vNPUs may be one whose vNPUs can't be read.
        """
        gone = chip_set(chip.chip_id for chip in snapshot.chips if chip.reason == REMOVED)
        self._present |= snapshot.all_chips & ~gone
        cut = chip_set(
            chip.phy_id for chip in snapshot.server.chips if chip.vnpus and all(vnpu.vnpu for vnpu in chip.vnpus)
        )
        return chip_set(
            chip_id
            for chip_id in chip_ids(gone)
            if self._present >> chip_id & 1 or cut >> self._device_type.chip(chip_id) & 1
        )


def faults_to_tell(snapshot: Snapshot) -> Iterator[_Hit]:
    """Yield the faults that bar a chip, or its network port, from use by new pods."""
    for chip in snapshot.chips:
        yield from (_Hit(chip.chip_id, fault) for fault in chip.faults if fault.level.bars_new_use)
        yield from (
            _Hit(chip.chip_id, fault, network=True) for fault in chip.network_faults if fault.level.bars_network
        )


def _sentence(hits: list[_Hit], device_type: DeviceType) -> str:
    """Return the sentence for a pod about a fault of some of its chips."""
    fault, network, several = hits[0].fault, hits[0].network, len(hits) > 1
    chips = device_type.join(hit.chip for hit in hits)
    who = f"the network port{'s' if several else ''} of {chips}" if network else chips
    meaning = ", ".join(filter(None, (fault.level.wire, meaning_of(fault.name))))
    advice = _NETWORK if network else _advice(fault.level, several=several)
    return f"{who} {'have' if several else 'has'} the fault {fault.name} ({meaning}): {advice}"


def _advice(level: FaultLevel, *, several: bool) -> str:
    it, chip = ("them", "the chips have") if several else ("it", "the chip has")
    match level:
        case FaultLevel.PRE_SEPARATE:
            return f"the pod can go on; no other pod gets {it} while the fault lasts"
        case FaultLevel.SEPARATE:
            return f"{_REPLACE}; {chip} to be repaired or replaced"
        case FaultLevel.MANUALLY_SEPARATE:
            they = "they are" if several else "it is"
            return f"{_REPLACE}; {they} used again once an operator removes {it} from ManuallySeparateNPU"
        case _:
            return f"if its work fails, {_REPLACE}; a reset ends the fault"
