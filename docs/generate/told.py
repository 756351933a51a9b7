"""The table of what the device plugin tells to whom of a fault: what its own code says for a chip of each level."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ascend.deviceinfo import DeviceReport
from device_plugin.driver import LINK_DOWN, ChipFacts, ChipState, Inventory
from device_plugin.health.fault_rules import NO_RULES
from device_plugin.health.health_book import HealthBook
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import Moment
from device_plugin.health.snapshot import Snapshot
from device_plugin.pods.notices import faults_to_tell
from device_plugin.publish.node_conditions import CHIPS, PORTS, TaintRule, node_conditions
from device_plugin.publish.report import make_report
from device_plugin.serving.servicer import device_list

CODE: Final = 0xA1
"""Any code that no table lists."""
LATE_S: Final = 60.0


@dataclass(frozen=True)
class Case:
    """A chip with a fault.

    Attributes:
        name: of the row.
        idle: the chip while no pod runs with it.
        used: while one does.
    """

    name: str
    idle: Snapshot
    used: Snapshot


def told_table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| a chip | kubelet | in use | report | Event on the Node | on its pod | condition of the Node | taint |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in _cases():
        yield f"| {case.name} | {' | '.join(_cells(case))} |"


def _cells(case: Case) -> Iterator[str]:
    for snapshot in (case.idle, case.used):
        yield device_list(snapshot).devices[0].health
    yield _listed(make_report(case.idle, 0), make_report(case.used, 0))
    (chip,) = case.idle.chips
    told = [
        reason
        for reason, well in (("NPUUnhealthy", chip.healthy), ("NPUNetworkUnhealthy", chip.network_healthy))
        if not well
    ]
    yield f"`{told[0]}`" if told else "-"
    yield "`NPUFault`" if any(faults_to_tell(case.used)) else "-"
    conditions = {each.type: each for each in node_conditions(case.used)}
    true = [each for kind in (CHIPS, PORTS) if (each := conditions[kind]).status == "True"]
    yield f"`{true[0].type}`, `{true[0].reason}`" if true else "-"
    taints = [level for level in FaultLevel if TaintRule(level, "NoSchedule").taint(case.used, None) is not None]
    worst = max(taints)
    yield f"`{worst.wire}`" if worst >= FaultLevel.SUB_HEALTH else "-"


def _listed(idle: DeviceReport, used: DeviceReport) -> str:
    def lists(report: DeviceReport) -> str:
        named = (
            ("Unhealthy", report.unhealthy),
            ("NetworkUnhealthy", report.network_unhealthy),
            ("Fault", report.faults),
        )
        return ", ".join(f"`-{name}`" for name, found in named if found) or "-"

    return lists(idle) if lists(idle) == lists(used) else f"{lists(idle)}; in use {lists(used)}"


def _cases() -> Iterator[Case]:
    for level in FaultLevel:
        if level is FaultLevel.NORMAL:
            continue
        book = _book(level, CODE)
        if level is FaultLevel.MANUALLY_SEPARATE:
            book.separate(1, Moment(0.0, 0))
        yield _case(
            f"`{level.wire}`"
            + (", or listed in `ManuallySeparateNPU`" if level is FaultLevel.MANUALLY_SEPARATE else ""),
            book,
        )
    yield _case("fault of its network port (`PreSeparateNPU`)", _book(FaultLevel.PRE_SEPARATE, LINK_DOWN))
    yield _case("not read for `stale_s`", _book(None, CODE), at_s=LATE_S)


def _book(level: FaultLevel | None, code: int) -> HealthBook:
    """Return the book of a server with one chip, which was read with this fault; None: without a fault."""
    levels = {code: level} if level is not None else {}
    book = HealthBook(replace(NO_RULES, chip=levels, network=levels))
    book.on_discovery(Inventory("Ascend910B", (ChipFacts(0, 0),)), Moment(0.0, 0))
    book.on_reading(0, ChipState(codes=tuple(levels)), Moment(0.0, 0))
    return book


def _case(name: str, book: HealthBook, at_s: float = 0.0) -> Case:
    at = Moment(at_s, 0)
    return Case(name, book.judge(at), book.judge(at, used=1, running=1))
