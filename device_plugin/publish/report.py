"""What the node reports of its chips."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from ascend.chips import ChipSet, chip_set, parse_chip_name
from ascend.deviceinfo import DeviceReport, Upgrade
from ascend.errors import InvalidValue
from ascend.faults import Fault, FaultTime, chip_fault
from device_plugin.health.levels import Level
from device_plugin.health.snapshot import NO_CODE, Chip, FaultRecord, Snapshot, UpgradeKind, UpgradeReason

AUTOFILL_CODE = "AutofillFaultCode"
"""Stands for the fault of a chip that an operator has separated without one (spec/node-agent.md §4.8)."""

MAX_CODE_DIGITS = 16

_HARMLESS = Level.NOT_HANDLE.wire

MAX_CODES = 128
"""Codes told of one chip: as many as the driver can report; keeps the ConfigMap far below its limit of 1 MiB."""


def make_report(snapshot: Snapshot, update_time_s: int) -> DeviceReport:
    """The report: free is healthy and not used (seed 002, step 1; spec/node-agent.md §5.2).

    Args:
        snapshot: the node's chips.
        update_time_s: Unix seconds.
    """
    return DeviceReport(
        free=snapshot.healthy & ~snapshot.used,
        unhealthy=snapshot.all_chips & ~snapshot.healthy,
        network_unhealthy=snapshot.network_unhealthy,
        update_time_s=update_time_s,
        faults=tuple(fault for chip in snapshot.chips for fault in _faults(chip)),
        super_pod_id=snapshot.server.super_pod_id,
        server_index=snapshot.server.server_index,
        manually_separated=snapshot.manually_separated,
        upgrades={
            phy_id: tuple(map(_upgrade, reasons)) for phy_id, reasons in sorted(snapshot.upgrade_reasons.items())
        },
        has_switches=snapshot.server.chip_type == "Ascend910A3",
    )


def _upgrade(reason: UpgradeReason) -> Upgrade:
    code = AUTOFILL_CODE if reason.kind == "FaultAutofill" else f"{reason.code:08x}"
    return Upgrade(reason.time_ms, code, reason.level.wire, reason.kind)


def read_upgrades(upgrades: Mapping[int, Sequence[Upgrade]]) -> dict[int, tuple[UpgradeReason, ...]]:
    """The upgrades of a report as reasons, after a restart; what can't be understood is left out."""
    reasons = {}
    for phy_id, written in upgrades.items():
        understood = tuple(filter(None, map(_reason, written)))
        if understood:
            reasons[phy_id] = understood
    return reasons


def read_harmless(faults: Iterable[Fault]) -> dict[int, frozenset[int]]:
    """The codes of a report that nothing has to be done about, by physical id; what can't be understood is left out."""
    harmless: dict[int, frozenset[int]] = {}
    for fault in faults:
        names = [name for name, each in fault.fault_time_and_level_map.items() if each.fault_level == _HARMLESS]
        try:
            phy_id = parse_chip_name(fault.npu_name)
            codes = frozenset(int(name[:MAX_CODE_DIGITS], 16) for name in names)
        except (InvalidValue, ValueError):
            continue
        if codes:
            harmless[phy_id] = harmless.get(phy_id, frozenset()) | codes
    return harmless


def read_faulty(report: DeviceReport) -> tuple[ChipSet, ChipSet]:
    """The chips that are unhealthy by a fault code, and those whose networks are; what can't be understood is left out.

    A chip without a code is unhealthy because its driver is silent, or it recovers or waits for an operator.
    """
    own = network = 0
    for fault in report.faults:
        try:
            chip = chip_set((parse_chip_name(fault.npu_name),))
            levels = [Level.of_wire(each.fault_level) for each in fault.fault_time_and_level_map.values()]
        except InvalidValue:
            continue
        if fault.of_network:
            network |= chip if any(level.bars_network for level in levels) else 0
        else:
            own |= chip if any(level.bars_new_use for level in levels) else 0
    return own & report.unhealthy, network & report.network_unhealthy


def _reason(upgrade: Upgrade) -> UpgradeReason | None:
    kinds = {kind: kind for kind in get_args(UpgradeKind)}
    kind: UpgradeKind | None = kinds.get(upgrade.upgrade_type)
    try:
        level = Level.of_wire(upgrade.fault_level)
        code = NO_CODE if kind == "FaultAutofill" else int(upgrade.fault_code[:MAX_CODE_DIGITS], 16)
    except (InvalidValue, ValueError):
        return None
    return UpgradeReason(code, level, kind, upgrade.upgrade_time) if kind is not None else None


def _faults(chip: Chip) -> Iterator[Fault]:
    """One entry per domain that has codes or is unhealthy, the network's first (spec/node-agent.md §5.2)."""
    verdict = chip.verdict
    # What must not be used says so by its level, also where no code does: a silent driver, a chip that recovers.
    if verdict.network_faults or not verdict.network_healthy:
        level = verdict.network_level
        if not verdict.network_healthy and level <= Level.NOT_HANDLE:
            level = Level.PRE_SEPARATE
        yield _entry(chip, level, verdict.network_faults, network=True)
    if verdict.faults or not verdict.healthy:
        level = verdict.level
        if not verdict.healthy and level <= Level.SUB_HEALTH:
            level = Level.SEPARATE
        yield _entry(chip, level, verdict.faults, network=False)


def _entry(chip: Chip, level: Level, records: Sequence[FaultRecord], *, network: bool) -> Fault:
    times = {record.name: FaultTime(record.since_ms, record.level.wire) for record in records[:MAX_CODES]}
    return chip_fault(chip_id=chip.chip_id, level=level.wire, codes=times, network=network)
