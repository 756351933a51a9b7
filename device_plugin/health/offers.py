"""The devices offered to the kubelet after the judgement of health: whole chips, and vNPUs of each size.

A chip that is cut contributes its vNPUs only, and these have its health (docs/spec/vnpu.md#static-vnpus).
"""

from dataclasses import replace

from ascend.chips import chip_ids, chip_set
from ascend.daemon.observable import Observable
from ascend.vnpus import Vnpu
from device_plugin.device_types import DeviceType
from device_plugin.driver import NO_CARD, ChipFacts
from device_plugin.health.snapshot import CUT, IN_USE, REMOVED, Chip, Snapshot, Vnpus

_GONE = Chip(ChipFacts(0), reason=REMOVED, sentence="the driver does not list it any more")


class OfferedDevices(Observable[Snapshot | None]):
    """The devices of a type, as the snapshots of the chips have them at any moment.

    Args:
        chips: the snapshots of the chips.
        device_type: the type.
    """

    def __init__(self, chips: Observable[Snapshot | None], device_type: DeviceType) -> None:
        super().__init__(None)
        self._chips = chips
        self._device_type = device_type
        self._seen = -1
        self.waiters = chips.waiters

    @property
    def value(self) -> Snapshot | None:
        """The present devices."""
        if self._seen != self._chips.version:
            self._seen, chips = self._chips.version, self._chips.value
            self._value = offered(chips, self._device_type) if chips is not None else None
        return self._value

    @property
    def version(self) -> int:
        """How often the chips were judged."""
        return self._chips.version


def offered(snapshot: Snapshot, device_type: DeviceType) -> Snapshot:
    """Return the devices of a type in the form of a snapshot, whose chips they are."""
    return _vnpus(snapshot, device_type) if device_type.suffix else _whole_chips(snapshot)


def _whole_chips(snapshot: Snapshot) -> Snapshot:
    if not snapshot.cut:
        return snapshot
    with_vnpus = 0
    for device_type, found in snapshot.vnpus.items():
        with_vnpus |= device_type.chips(found.running & found.offered)
    chips = (chip for chip in snapshot.chips if not snapshot.left_out >> chip.chip_id & 1)
    judged = tuple(_cut(chip) if snapshot.cut >> chip.chip_id & 1 else chip for chip in chips)
    return replace(snapshot, chips=judged, running=snapshot.running & ~with_vnpus)


def _cut(chip: Chip) -> Chip:
    """Return a chip that was advertised whole before it was cut: always unhealthy."""
    if not (chip.healthy or chip.in_doubt):
        return chip
    return replace(chip, reason=CUT, sentence="it is cut into vNPUs", in_doubt=False)


def _vnpus(snapshot: Snapshot, device_type: DeviceType) -> Snapshot:
    found = snapshot.vnpus.get(device_type, Vnpus())
    chips = {chip.chip_id: chip for chip in snapshot.chips}
    numbers, held = chip_ids(found.offered), _held(snapshot)
    return Snapshot(
        snapshot.server,
        tuple(
            _under_other_names(_vnpu(snapshot, found, number, chips.get(device_type.chip(number))), device_type, held)
            for number in numbers
        ),
        used=found.used,
        running=found.running,
        tells_faults_in_use=snapshot.tells_faults_in_use,
        under_other_ids=found.under_other_ids,
        recovering=chip_set(number for number in numbers if snapshot.recovering >> device_type.chip(number) & 1),
    )


def _vnpu(snapshot: Snapshot, found: Vnpus, number: int, chip: Chip | None) -> Chip:
    if chip is None or not found.present >> number & 1:
        return replace(_GONE, facts=ChipFacts(number, NO_CARD, NO_CARD, NO_CARD))
    vnpu = replace(chip, facts=replace(chip.facts, phy_id=number, vnpus=()))
    if snapshot.held_whole >> chip.chip_id & 1 and vnpu.healthy:
        return replace(vnpu, reason=IN_USE, sentence="a pod holds its chip as a whole")
    if found.with_cores >> number & 1 and vnpu.healthy:
        return replace(vnpu, reason=IN_USE, sentence="a pod that requests AI cores has it")
    if vnpu.healthy and vnpu.level.bars_new_use and not found.running >> number & 1:
        # The chip counts as healthy for the sake of a pod with another vNPU.
        return replace(vnpu, reason="Fault", sentence=", ".join(map(str, vnpu.faults)))
    return vnpu


def _held(snapshot: Snapshot) -> dict[int, list[Vnpu]]:
    """Return the vNPUs of pods by the driver's id; a removed vNPU and its successor share the id."""
    held: dict[int, list[Vnpu]] = {}
    for device_type, found in snapshot.vnpus.items():
        for vnpu in map(device_type.vnpu, chip_ids(found.given)):
            held.setdefault(vnpu.vdev_id, []).append(vnpu)
    return held


def _under_other_names(chip: Chip, device_type: DeviceType, held: dict[int, list[Vnpu]]) -> Chip:
    """Return a vNPU as unhealthy if a pod has its device node, which the driver's id names, under another name."""
    vnpu = device_type.vnpu(chip.chip_id)
    others = [other.name for other in held.get(vnpu.vdev_id, ()) if other != vnpu]
    if not others or not chip.healthy:
        return chip
    return replace(chip, reason=IN_USE, sentence=f"a pod holds the vNPU {vnpu.vdev_id} as {others[0]}")
