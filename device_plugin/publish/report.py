"""Makes the node's report from a snapshot, and reads back what an earlier plugin reported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from ascend.chips import ChipSet, chip_set, parse_chip_name
from ascend.deviceinfo import DeviceReport
from ascend.errors import InvalidValue
from ascend.fabric_switches import SwitchReport
from ascend.faults import Fault, FaultTime, Upgrade, chip_fault
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, FaultRecord, Snapshot
from device_plugin.health.upgrades import NO_CODE, UpgradeKind, UpgradeReason

AUTOFILL_CODE = "AutofillFaultCode"
"""The fault code of a chip that an operator separated without a fault (docs/spec/faults.md#manual-separation)."""

MAX_CODE_DIGITS = 16

MAX_CODES = 128
"""Codes reported per chip: as many as the driver can report. Keeps the ConfigMap far below its limit of 1 MiB."""

_HARMLESS = FaultLevel.NOT_HANDLE.wire


def make_report(snapshot: Snapshot, update_time_s: int, switches: SwitchReport | None = None) -> DeviceReport:
    """Make the report: free is healthy, whole and not used.

    See docs/spec/affinity-rules.md#free-chips; docs/spec/node-report.md#fault-entries.

    Args:
        snapshot: the node's chips.
        update_time_s: Unix seconds.
        switches: the state of the server's switches; None if it has none, or has not read them yet.
    """
    return DeviceReport(
        free=snapshot.healthy & ~snapshot.used & ~snapshot.cut,
        unhealthy=snapshot.reported_unhealthy,
        recovering=snapshot.recovering | snapshot.closed_cut_chips,
        network_unhealthy=snapshot.reported_network_unhealthy,
        update_time_s=update_time_s,
        faults=tuple(fault for chip in snapshot.chips for fault in _faults(snapshot, chip)),
        super_pod_id=snapshot.server.super_pod_id,
        server_index=snapshot.server.server_index,
        manually_separated=snapshot.manually_separated,
        upgrades={
            phy_id: tuple(map(_upgrade, reasons)) for phy_id, reasons in sorted(snapshot.upgrade_reasons.items())
        },
        switches=switches,
    )


def _upgrade(reason: UpgradeReason) -> Upgrade:
    code = AUTOFILL_CODE if reason.kind == "FaultAutofill" else f"{reason.code:08x}"
    return Upgrade(reason.time_ms, code, reason.level.wire, reason.kind)


def _faults(snapshot: Snapshot, chip: Chip) -> Iterator[Fault]:
    """Return one entry per domain that has codes or is reported as unhealthy, the network's first.

    See docs/spec/node-report.md#fault-entries.
    """
    # The level shows that a chip must not be used even if there is no code: a silent driver, a recovering chip.
    is_barred = bool(snapshot.reported_network_unhealthy >> chip.chip_id & 1)
    if chip.network_faults or is_barred:
        level = chip.network_level
        if is_barred and level <= FaultLevel.NOT_HANDLE:
            level = FaultLevel.PRE_SEPARATE
        yield _entry(chip, level, chip.network_faults, network=True)
    is_barred = bool(snapshot.reported_unhealthy >> chip.chip_id & 1)
    if chip.faults or is_barred:
        level = chip.level
        if is_barred and level <= FaultLevel.SUB_HEALTH:
            level = FaultLevel.SEPARATE
        yield _entry(chip, level, chip.faults, network=False)


def _entry(chip: Chip, level: FaultLevel, records: Sequence[FaultRecord], *, network: bool) -> Fault:
    times = {record.name: FaultTime(record.since_ms, record.level.wire) for record in records[:MAX_CODES]}
    return chip_fault(chip_id=chip.chip_id, level=level.wire, codes=times, network=network)


def read_reasons(upgrades: Mapping[int, Sequence[Upgrade]]) -> dict[int, tuple[UpgradeReason, ...]]:
    """Read the upgrade reasons of an earlier report; unreadable ones are left out."""
    reasons = {}
    for phy_id, written in upgrades.items():
        if readable := tuple(filter(None, map(_reason, written))):
            reasons[phy_id] = readable
    return reasons


def _reason(upgrade: Upgrade) -> UpgradeReason | None:
    kinds = {kind: kind for kind in get_args(UpgradeKind)}
    kind: UpgradeKind | None = kinds.get(upgrade.upgrade_type)
    try:
        level = FaultLevel.of_wire(upgrade.fault_level)
        code = NO_CODE if kind == "FaultAutofill" else int(upgrade.fault_code[:MAX_CODE_DIGITS], 16)
    except (InvalidValue, ValueError):
        return None
    return UpgradeReason(code, level, kind, upgrade.upgrade_time) if kind is not None else None


def read_harmless(faults: Iterable[Fault]) -> dict[int, frozenset[int]]:
    """Read the codes that an earlier report calls NotHandleFault, by physical id; unreadable ones are left out."""
    harmless: dict[int, frozenset[int]] = {}
    for fault in faults:
        names = [
            name for name, fault_time in fault.fault_time_and_level_map.items() if fault_time.fault_level == _HARMLESS
        ]
        try:
            phy_id = parse_chip_name(fault.npu_name)
            codes = frozenset(int(name[:MAX_CODE_DIGITS], 16) for name in names)
        except (InvalidValue, ValueError):
            continue
        if codes:
            harmless[phy_id] = harmless.get(phy_id, frozenset()) | codes
    return harmless


def read_faulty(report: DeviceReport) -> tuple[ChipSet, ChipSet]:
    """Read which chips, and which chips' network ports, were unhealthy by a fault code; unreadable ones are left out.

    A chip that is unhealthy without a code has a silent driver, is recovering, or awaits readmission.
    """
    own = network = 0
    for fault in report.faults:
        try:
            chip = chip_set((parse_chip_name(fault.npu_name),))
            levels = [
                FaultLevel.of_wire(fault_time.fault_level) for fault_time in fault.fault_time_and_level_map.values()
            ]
        except InvalidValue:
            continue
        if fault.of_network:
            network |= chip if any(level.bars_network for level in levels) else 0
        else:
            own |= chip if any(level.bars_new_use for level in levels) else 0
    return own & report.unhealthy, network & report.network_unhealthy
