"""The switches of an A3 server, read through a library in C."""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ascend.daemon.observable import Observable
from ascend.errors import DriverError
from ascend.fabric_switches import UNREADABLE_SWITCHES, SwitchReport
from device_plugin.chips import switch_monitor
from device_plugin.chips.switch_monitor import SwitchMonitor
from device_plugin.driver.dcmi.lingqu import MAX_FAULTS, LingquDriver, LingquEvent, fault_of
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.snapshot import Snapshot
from device_plugin.health.switch_faults import SwitchLevel
from tests.dcmi import compiler
from tests.device_plugin.api import running, until
from tests.device_plugin.builders import server, snapshot

LINK_DOWN = 0x08520003  # to a chip: Separate; to the second layer: NotHandle
MINUTE = 60.0
NONE = 0xFFFFFFFF


class FakeSwitches:
    """The fake library, as the test controls it; the driver loads the same file."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def list(self, event: LingquEvent) -> None:
        self._library.fake_list(ctypes.byref(event))

    def announce(self, event: LingquEvent) -> None:
        self._library.fake_announce(ctypes.byref(event))

    def fail(self, *, init: int = 0, subscribe: int = 0, read: int = 0) -> None:
        self._library.fake_codes(init, subscribe, read)

    def claim(self, number: int) -> None:
        self._library.fake_claim(ctypes.c_uint(number))

    def block(self, *, on: bool) -> None:
        self._library.fake_block(on)

    @property
    def reads(self) -> int:
        return int(self._library.fake_reads())

    @property
    def misuse(self) -> int:
        return int(self._library.fake_misuse())


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSwitches]:
    library = compiler.build_switch_library()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    fake = FakeSwitches(library)
    yield fake
    fake.block(on=False)
    assert fake.misuse == 0


def event(
    kind: int = LINK_DOWN, *, sub: int = NONE, peer: int = 1, chip: int = 0, port: int = 0, on: int = 1
) -> LingquEvent:
    return LingquEvent(
        event_type=kind,
        sub_type=sub,
        peer_port_device=peer,
        switch_chip_id=chip,
        switch_port_id=port,
        severity=2,
        assertion=on,
        alarm_raised_time=1_744_167_455_784,
    )


class Rig:
    """A monitor of the switches of an A3 server."""

    def __init__(
        self, *, chip_type: str = "Ascend910A3", poll_s: float = MINUTE, settle_s: float = 0.2, deadline_s: float = 10.0
    ) -> None:
        of = server(chip_type="Ascend910A3") if chip_type == "Ascend910A3" else server()
        self.snapshots: Observable[Snapshot | None] = Observable(snapshot(of=of))
        self.announced: list[str] = []
        self.monitor = SwitchMonitor(
            LingquDriver(),
            self.snapshots,
            lambda reason, sentence, warning: self.announced.append(f"{reason} {warning} {sentence}"),
            poll_s=poll_s,
            settle_s=settle_s,
            deadline_s=deadline_s,
        )

    @property
    def report(self) -> SwitchReport | None:
        return self.monitor.report.value

    @property
    def status(self) -> str | None:
        return self.report.node_status if self.report is not None else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(self.monitor.run()):
            yield


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (event(), "[0x08520003,na,npu,na]"),
        (event(0xF1FEF5, sub=155912, peer=0), "[0x00f1fef5,155912,cpu,na]"),
        (event(0xF1FEF5, sub=155912, peer=2), "[0x00f1fef5,155912,L2,na]"),
        (event(0xF103B0, sub=155907, peer=0xFFFF), "[0x00f103b0,155907,na,na]"),
        (event(0xF103B0, sub=155907, peer=0, port=0xFFFF), "[0x00f103b0,155907,na,na]"),
    ],
)
def test_a_fault_has_the_code_of_the_fault_rules(found: LingquEvent, code: str) -> None:
    assert fault_of(found).assembled_fault_code == code
    assert code in default_rules().switches


def test_the_structure_has_the_size_of_the_interface() -> None:
    assert ctypes.sizeof(LingquEvent) == 112


async def test_the_present_faults_are_reported_and_announced(switches: FakeSwitches) -> None:
    switches.list(event(chip=3, port=4))
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.status == "UnHealthy")
        assert rig.report is not None
        assert rig.report.level == "Separate"
        assert [(fault.switch_chip_id, fault.switch_port_id) for fault in rig.report.faults] == [(3, 4)]
        switches.list(event(chip=3, port=4, on=0))
        switches.announce(event(chip=3, port=4, on=0))
        await until(lambda: rig.status == "Healthy")
    by = "by the faults of its switches the node is"
    assert rig.announced == [
        f"NPUSwitchHealthChanged True {by} UnHealthy, before it was Healthy; faults: [0x08520003,na,npu,na]",
        f"NPUSwitchHealthChanged False {by} Healthy, before it was UnHealthy; faults: none",
    ]


async def test_an_event_is_reported_at_once_although_the_list_lags_behind(switches: FakeSwitches) -> None:
    rig = Rig(poll_s=0.01, settle_s=0.3)
    async with rig.running():
        await until(lambda: rig.status == "Healthy")
        switches.announce(event())
        seen = switches.reads
        await until(lambda: switches.reads > seen + 3)  # lists without the fault
        assert rig.status == "UnHealthy"
        switches.list(event())
        await asyncio.sleep(0)
        seen = switches.reads
        await until(lambda: switches.reads > seen + 3)
        switches.announce(event(on=0))
        await until(lambda: rig.status == "Healthy")
        seen = switches.reads
        await until(lambda: switches.reads > seen + 3)  # lists that still have it
        assert rig.status == "Healthy"
        switches.list(event(on=0))
    assert len(rig.announced) == 2


async def test_the_list_wins_once_an_event_has_settled(switches: FakeSwitches) -> None:
    rig = Rig(settle_s=0.05)
    async with rig.running():
        await until(lambda: rig.status == "Healthy")
        switches.announce(event())  # its recovery will be lost
        await until(lambda: rig.status == "UnHealthy")
        await until(lambda: rig.status == "Healthy")


async def test_a_fault_keeps_the_time_at_which_it_was_first_seen(switches: FakeSwitches) -> None:
    rig = Rig(poll_s=0.01)
    first = event()
    async with rig.running():
        await until(lambda: rig.status == "Healthy")
        switches.announce(first)
        first.alarm_raised_time = 0  # the list has it without
        switches.list(first)
        seen = switches.reads
        await until(lambda: switches.reads > seen + 3)
        assert rig.report is not None
        assert [fault.alarm_raised_time for fault in rig.report.faults] == [1_744_167_455_784]


async def test_switches_that_announce_nothing_are_read_more_often(
    switches: FakeSwitches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch_monitor, "UNANNOUNCED_POLL_S", 0.01)
    switches.fail(subscribe=-8255)
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.status == "Healthy")
        switches.list(event())
        await until(lambda: rig.status == "UnHealthy")


async def test_a_chip_with_all_ports_to_the_second_layer_down_separates_the_node(switches: FakeSwitches) -> None:
    for port in range(15):
        switches.list(event(peer=2, chip=1, port=port))
    switches.list(event(peer=2, chip=2, port=15))
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.report is not None and rig.report.level == "NotHandle")
        assert rig.status == "Healthy"
        switches.list(event(peer=2, chip=1, port=15))
        switches.announce(event(peer=2, chip=1, port=15))
        await until(lambda: rig.status == "UnHealthy")


async def test_levels_of_the_site_apply_at_once(switches: FakeSwitches) -> None:
    switches.list(event())
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.status == "UnHealthy")
        rig.monitor.configure({"[0x08520003,na,npu,na]": SwitchLevel.SUB_HEALTH})
        assert rig.status == "SubHealthy"
        rig.monitor.configure({})
        assert rig.report == SwitchReport((), "NotHandle", "Healthy", {})


async def test_a_server_without_the_library_says_so_once_and_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.report is not None)
    assert rig.report == UNREADABLE_SWITCHES
    assert capsys.readouterr().out.count("this server has no library for them") == 1


async def test_other_servers_are_not_read(switches: FakeSwitches) -> None:
    rig = Rig(chip_type="Ascend910B")
    async with rig.running():
        rig.snapshots.set(snapshot(1))
        for _ in range(10):
            await asyncio.sleep(0)
    assert rig.report is None
    assert switches.reads == 0


async def test_a_library_that_starts_late_is_tried_again(switches: FakeSwitches) -> None:
    switches.fail(init=-8012)
    rig = Rig()
    async with rig.running():
        await until(lambda: rig.report == UNREADABLE_SWITCHES)
        switches.fail()
        await until(lambda: rig.status == "Healthy")


async def test_a_library_that_hangs_at_its_start_is_named(
    switches: FakeSwitches, capsys: pytest.CaptureFixture[str]
) -> None:
    switches.block(on=True)
    rig = Rig(deadline_s=0.01)
    async with rig.running():
        await until(lambda: rig.report == UNREADABLE_SWITCHES)
        switches.block(on=False)
        await until(lambda: rig.status == "Healthy")
    assert "no answer within 0.01 s" in capsys.readouterr().out


async def test_failing_reads_keep_what_was_read_before(switches: FakeSwitches) -> None:
    switches.list(event())
    switches.fail(subscribe=-8255)
    rig = Rig(poll_s=0.01)
    async with rig.running():
        await until(lambda: rig.status == "UnHealthy")
        switches.fail(read=-8012)
        seen = switches.reads
        await until(lambda: switches.reads > seen + 2)
        switches.fail()
        switches.claim(MAX_FAULTS + 1)
        seen = switches.reads
        await until(lambda: switches.reads > seen + 2)
        assert rig.status == "UnHealthy"
        switches.claim(0)
        switches.list(event(on=0))
        await until(lambda: rig.status == "Healthy")


async def test_a_read_that_hangs_neither_stops_events_nor_the_end(switches: FakeSwitches) -> None:
    rig = Rig(poll_s=0.01)
    async with rig.running():
        await until(lambda: rig.status == "Healthy")
        switches.block(on=True)
        switches.announce(event())
        await until(lambda: rig.status == "UnHealthy")


def test_reading_before_opening_and_a_library_without_a_function_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(DriverError, match="before the library is loaded"):
        LingquDriver().read()
    library = compiler.build("int lq_dcmi_init(void) { return 0; }")
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "liblingqu-dcmi.so").write_bytes(library.read_bytes())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    driver = LingquDriver()
    driver.open()
    with pytest.raises(DriverError, match="no function lq_dcmi_get_fault_info"):
        driver.read()
