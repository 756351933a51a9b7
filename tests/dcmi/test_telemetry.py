"""What the real driver measures, and what becomes of calls that fail, hang, or have absurd answers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from ascend.daemon.observable import Observable
from ascend.errors import DriverError
from device_plugin.driver import ChipState
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.port_tool import LinkTool
from device_plugin.driver.telemetry import Label, NotMeasured, Quantity, Reading
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.telemetry.collector import ChipMetrics
from device_plugin.telemetry.meter import Meter
from tests.dcmi import compiler
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910a, ascend_910b
from tests.dcmi.test_link import tool
from tests.device_plugin.api import until

BUSY = {
    "utilization": 87,
    "vector": 31,
    "overall": 91,
    "hbm_used": 60123,
    "hbm_temp": 55,
    "hbm_rate": 44,
    "temperature": 63,
    "power": 3124,
    "voltage": 87,
    "frequency": 1800,
    "hbm_percent": 92,
    "bdf": "0000:c1:00.0",
    "die": "6E40C1A2",
}


BEHIND = (Reading.POWER, Reading.VOLTAGE, Reading.FREQUENCY, Reading.HEALTH)
"""The reading of power, and those after it in its thread."""


OF_THE_LIBRARY = [each for each in Reading if each is not Reading.LINK_UPS]
"""The readings that are calls of the library; another one is that of a tool, which this machine does not have."""


class Rig:
    """Measures the fake's chips at the test's time."""

    def __init__(self, fake: FakeDcmi, *, wait_s: float = 5.0, links: LinkTool | None = None) -> None:
        self.fake = fake
        self.driver = DcmiDriver(links=links)
        self.metrics = Metrics()
        self.time_s = 0.0
        self.off_limits = 0
        self.snapshots: Observable[Snapshot | None] = Observable(Snapshot(self.driver.discover(), ()))
        self.meter = Meter(
            self.driver,
            self.snapshots,
            self.metrics,
            interval_s=5.0,
            off_limits=lambda: self.off_limits,
            wait_s=wait_s,
            now_s=lambda: self.time_s,
        )
        self._registry = CollectorRegistry()
        self._chips = {chip.phy_id: chip for chip in self.driver.discover().chips}
        self._registry.register(ChipMetrics(self.meter, lambda phy_id: self.driver.read(self._chips[phy_id]), ()))

    @property
    def wait_s(self) -> float:
        """How long a scrape waits, in real time."""
        return self.meter._wait_s

    @wait_s.setter
    def wait_s(self, value: float) -> None:
        self.meter._wait_s = value

    def pending(self) -> set[tuple[int, str]]:
        """The calls that have not returned: chip and reading."""
        return {
            (chip.facts.phy_id, item) for chip in self.meter.chips for lane in chip.lanes for item in lane.remaining
        }

    async def scrape(self, at_s: float) -> None:
        self.time_s = at_s
        await self.meter.refresh()

    def exposition(self) -> str:
        """The metrics as a scrape gets them."""
        return generate_latest(self._registry).decode()

    def values(self, name: str) -> dict[int, float]:
        """The values of a metric by chip."""
        return {
            int(sample.labels["id"]): sample.value
            for metric in self._registry.collect()
            for sample in metric.samples
            if sample.name == name
        }

    def machine(self, name: str) -> float | None:
        return self._registry.get_sample_value(name)

    def failures(self, value: str) -> float:
        found = self.metrics.registry.get_sample_value("ascend_dp_telemetry_failures_total", {"value": value})
        return found or 0.0


@contextmanager
def rig(fake: FakeDcmi, *, wait_s: float = 5.0, links: LinkTool | None = None) -> Iterator[Rig]:
    made = Rig(fake, wait_s=wait_s, links=links)
    try:
        yield made
    finally:
        made.meter.close()


async def test_the_samples_are_those_of_npu_exporter_on_the_same_library(make_fake: MakeFake) -> None:
    # Recorded from npu-exporter (docs/spec/README.md#words has its version), built from its source and run with this
    # library, extended by functions that only npu-exporter calls; without the timestamps and what is not here.
    recorded = (Path(__file__).parent / "npu_exporter.prom").read_text()
    chips = [
        FakeChip(
            card=number,
            logic=number,
            phy=number,
            utilization=10 + number,
            vector=20 + number,
            overall=30 + number,
            hbm_used=40000 + number,
            hbm_temp=50 + number,
            hbm_rate=60 + number,
            temperature=70 + number,
            power=3000 + number,
            voltage=80 + number,
            frequency=1000 + number,
            hbm_percent=90 + number,
            bdf=f"0000:{0xC0 + number:02x}:00.0",
            die="6E40C1A2",
            codes=(0x80E18402, 0x81078603) if number == 2 else (),
            network=3 if number == 3 else 0,
        )
        for number in range(4)
    ]
    with rig(make_fake(chips)) as measured:
        await measured.scrape(0.0)
        assert samples(measured.exposition()) == samples(recorded)


def samples(exposition: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels, except those of the link, which needs a tool of the driver."""
    return {
        (each.name, frozenset(each.labels.items())): round(each.value, 4)  # theirs are single-precision numbers
        for family in text_string_to_metric_families(exposition)
        for each in family.samples
        if each.name != "npu_chip_info_link_status"
    }


def test_every_reading_has_the_drivers_values(make_fake: MakeFake) -> None:
    make_fake([FakeChip(**BUSY)])  # type: ignore[arg-type]  # each value has its field's type
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    values: dict[Quantity, float] = {}
    for reading in OF_THE_LIBRARY:
        values |= driver.measure(chip, reading)
    assert values == {
        Quantity.UTILIZATION: 87,
        Quantity.VECTOR_UTILIZATION: 31,
        Quantity.OVERALL_UTILIZATION: 91,
        Quantity.HBM_USED_MEMORY: 60123,
        Quantity.HBM_TOTAL_MEMORY: 65536,
        Quantity.HBM_TEMPERATURE: 55,
        Quantity.HBM_BANDWIDTH_UTILIZATION: 44,
        Quantity.TEMPERATURE: 63,
        Quantity.POWER: 312.4,
        Quantity.VOLTAGE: 0.87,
        Quantity.FREQUENCY: 1800,
        Quantity.HBM_UTILIZATION: 92,
        Quantity.HEALTH: 1,
        Quantity.NETWORK: 1,
    }
    assert {label: driver.describe(chip, label) for label in Label} == {
        Label.MODEL_NAME: "910B3-Ascend-V1",
        Label.VDIE_ID: "6E40C1A2-20809424-01108C10-00060123-00000000",
        Label.PCIE_BUS_INFO: "0000:C1:00.0",
    }


def test_each_reading_and_each_label_is_one_call(make_fake: MakeFake) -> None:
    fake = make_fake([FakeChip(**BUSY)])  # type: ignore[arg-type]  # each value has its field's type
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    for reading in OF_THE_LIBRARY:
        before = sum(fake.calls().values())
        driver.measure(chip, reading)
        assert sum(fake.calls().values()) == before + 1
    for label in Label:
        before = sum(fake.calls().values())
        driver.describe(chip, label)
        assert sum(fake.calls().values()) == before + 1


@pytest.mark.parametrize(("result", "status"), [(0, 1), (6, 1), (1, 0), (3, 0), (5, 0), (8, 0), (255, 0)])
def test_a_network_that_is_still_being_probed_counts_as_healthy(make_fake: MakeFake, result: int, status: int) -> None:
    make_fake([FakeChip(network=result)])
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    assert driver.measure(chip, Reading.NETWORK) == {Quantity.NETWORK: status}


@pytest.mark.parametrize("health", [1, 2, 3])
def test_a_chip_with_any_alarm_is_not_healthy(make_fake: MakeFake, health: int) -> None:
    make_fake([FakeChip(health=health)])
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    assert driver.measure(chip, Reading.HEALTH) == {Quantity.HEALTH: 0}


def test_a_dropped_chip_is_not_healthy_and_its_other_values_are_missing(make_fake: MakeFake) -> None:
    fake = make_fake([FakeChip()])
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    with fake.fail("*", -8012):
        assert driver.measure(chip, Reading.HEALTH) == {Quantity.HEALTH: 0}
        with pytest.raises(DriverError, match="dcmi_get_device_temperature of card 0 device 0: -8012"):
            driver.measure(chip, Reading.TEMPERATURE)


def test_a_function_that_the_library_lacks_is_not_measured(make_fake: MakeFake) -> None:
    functions = ("dcmi_init", "dcmi_get_card_list", "dcmi_get_device_num_in_card", "dcmi_get_device_logic_id")
    names = ("dcmi_get_device_phyid_from_logicid", "dcmi_get_device_chip_info", "dcmi_get_device_temperature")
    make_fake([FakeChip()], library=compiler.build_library((*functions, *names)))
    driver = DcmiDriver()
    (chip,) = driver.discover().chips
    assert driver.measure(chip, Reading.TEMPERATURE) == {Quantity.TEMPERATURE: 41}
    assert driver.describe(chip, Label.MODEL_NAME) == "910B3-Ascend-V1"
    for reading in (Reading.UTILIZATION, Reading.HBM, Reading.POWER, Reading.NETWORK):
        with pytest.raises(NotMeasured):
            driver.measure(chip, reading)
    with pytest.raises(NotMeasured):
        driver.describe(chip, Label.VDIE_ID)


async def test_a_910a_is_not_asked_for_what_it_does_not_have(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910a(2))
    with rig(fake) as measured:
        await measured.scrape(0.0)
        assert measured.values("npu_chip_info_utilization") == {0: 0, 1: 0}
        assert measured.values("npu_chip_info_overall_utilization") == {}
        assert measured.values("npu_chip_info_vector_utilization") == {}
        assert fake.calls()["dcmi_get_device_utilization_rate"] == 2 * 2  # AI cores and memory


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ('echo "link status: UP"', 1),
        ('echo "link status: DOWN"', 0),
        ('echo "link status: SLEEPY"', None),
        ("exit 1", None),
    ],
)
async def test_the_link_is_that_of_the_health_scan(
    make_fake: MakeFake, tmp_path: Path, script: str, status: int | None
) -> None:
    links = LinkTool(tool(tmp_path, script), wait_s=10.0)
    with rig(make_fake(ascend_910b(1)), links=links) as measured:
        await measured.scrape(0.0)
        assert measured.values("npu_chip_info_link_status") == ({} if status is None else {0: status})


async def test_an_unsupported_value_is_absent_said_once_and_not_asked_for_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(4))
    with rig(fake) as measured, capture_logs() as logs:
        with fake.fail("dcmi_get_device_power_info", -8255):
            for number in range(10):
                await measured.scrape(10.0 * number)
        assert measured.values("npu_chip_info_power") == {}
        assert len(measured.values("npu_chip_info_temperature")) == 4
        assert fake.calls()["dcmi_get_device_power_info"] == 4
        said = [each["value"] for each in logs if each["event"] == "the driver does not have a value"]
        assert sorted(said) == ["link_up_num", "pcie_bus_info", "power"]  # there are no tool and no PCI address here
        assert measured.failures("power") == 0
        await measured.scrape(700.0)  # it is asked for again in the end: the driver may have been upgraded
        assert measured.values("npu_chip_info_power") == dict.fromkeys(range(4), 92.5)


async def test_a_value_that_fails_is_absent_counted_and_back_with_the_driver(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    with rig(fake) as measured, capture_logs() as logs:
        await measured.scrape(0.0)
        assert measured.values("npu_chip_info_temperature") == {0: 41, 1: 41}
        with fake.fail("dcmi_get_device_temperature", -8006, card=1):
            await measured.scrape(4.9)  # within the interval: nothing is read
            assert measured.values("npu_chip_info_temperature") == {0: 41, 1: 41}
            for number in range(1, 4):
                await measured.scrape(5.0 * number)
                assert measured.values("npu_chip_info_temperature") == {0: 41}
        assert measured.failures("temperature") == 3
        said = [each for each in logs if each["log_level"] == "warning"]
        assert [(each["chip"], each["value"]) for each in said] == [("Ascend910-1", "temperature")]
        await measured.scrape(20.0)
        assert measured.values("npu_chip_info_temperature") == {0: 41, 1: 41}


@pytest.mark.parametrize(
    ("absurd", "missing"),
    [
        ({"utilization": 101}, {"utilization"}),
        ({"utilization": 0xFFFFFFFF}, {"utilization"}),
        ({"overall": 1 << 31}, {"overall_utilization"}),
        ({"temperature": 0x7FFD}, {"temperature"}),
        ({"temperature": 0x7FFF}, {"temperature"}),
        ({"temperature": -275}, {"temperature"}),
        ({"power": -1}, {"power"}),
        ({"voltage": 0xFFFFFFFF}, {"voltage"}),
        ({"frequency": 0x80000000}, {"aicore_current_freq"}),
        ({"hbm_percent": 101}, {"hbm_utilization"}),
        ({"power": 0x7FFFFFFF}, {"power"}),
        ({"hbm_used": 70000}, {"hbm_used_memory", "hbm_total_memory"}),
        ({"hbm_used": (1 << 64) - 1}, {"hbm_used_memory"}),
        ({"hbm": 0, "hbm_used": 0}, {"hbm_total_memory"}),
        ({"hbm_temp": -32768}, {"hbm_temperature"}),
        ({"hbm_rate": 0xFFFFFFFF}, {"hbm_bandwidth_utilization"}),
    ],
)
async def test_an_absurd_value_is_absent_and_counted(
    make_fake: MakeFake, absurd: dict[str, int], missing: set[str]
) -> None:
    fake = make_fake(ascend_910b(2))
    for name, value in absurd.items():
        setattr(fake.chip(1), name, value)
    with rig(fake) as measured:
        await measured.scrape(0.0)
        for quantity in set(Quantity) - {Quantity.LINK_UPS}:
            found = measured.values(f"npu_chip_info_{quantity}")
            assert found.keys() == ({0} if quantity in missing else {0, 1}), quantity
        name = next(iter(missing))
        reading = Reading(name) if name in set(Reading) else Reading.HBM
        assert measured.failures(reading) == 1


async def test_a_call_that_hangs_costs_only_the_values_behind_it(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(3))
    with rig(fake) as measured:
        await measured.scrape(0.0)
        assert measured.values("npu_chip_info_power").keys() == {0, 1, 2}
        measured.wait_s = 0.0
        with fake.hang("dcmi_get_device_power_info", card=1):
            for number in range(1, 6):
                await measured.scrape(5.0 * number)
                await until(lambda: measured.pending() <= {(1, each) for each in BEHIND})
                assert measured.values("npu_chip_info_power").keys() == {0, 2}
                assert measured.values("npu_chip_info_network_status").keys() == {0, 1, 2}
                # The call before the hanging one was made once; afterwards there is none for this chip.
                assert measured.values("npu_chip_info_temperature").keys() == ({0, 1, 2} if number == 1 else {0, 2})
                assert measured.machine("machine_npu_nums") == 3
                assert measured.machine("machine_unknown_npu_nums") == 1
            assert fake.calls()["dcmi_get_device_power_info"] == 3 + 3 + 4 * 2
            assert measured.failures("power") == 4
            # A scrape does not wait for calls of an earlier round.
            measured.wait_s = 3600.0
            await measured.scrape(30.0)
            assert measured.values("npu_chip_info_power").keys() == {0, 2}
        await until(lambda: not measured.pending())
        await measured.scrape(100.0)
        assert measured.values("npu_chip_info_power").keys() == {0, 1, 2}


async def test_a_network_probe_that_hangs_costs_only_its_own_value(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    with rig(fake, wait_s=0.0) as measured, fake.hang("dcmi_get_device_network_health"):
        for number in range(3):
            await measured.scrape(5.0 * number)
            await until(lambda: measured.pending() == {(0, Reading.NETWORK), (1, Reading.NETWORK)})
            assert measured.values("npu_chip_info_network_status") == {}
            for quantity in set(Quantity) - {Quantity.NETWORK, Quantity.LINK_UPS}:
                assert measured.values(f"npu_chip_info_{quantity}").keys() == {0, 1}
        assert fake.calls()["dcmi_get_device_network_health"] == 2


async def test_a_hanging_call_does_not_delay_the_health_scan_or_the_exit(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    others = set(threading.enumerate())
    with rig(fake, wait_s=0.0) as measured:
        chips = measured.driver.discover().chips
        with fake.hang("dcmi_get_device_utilization_rate"), fake.hang("dcmi_get_device_network_health"):
            await measured.scrape(0.0)
            await until(lambda: fake.calls()["dcmi_get_device_utilization_rate"] == 2)
            assert [measured.driver.read(chip) for chip in chips] == [ChipState(), ChipState()]
            measured.meter.close()
            running = telemetry_threads(others)
            assert len(running) == 4
            assert all(each.daemon for each in running)
        for thread in running:
            thread.join(10.0)
            assert not thread.is_alive()


async def test_nothing_is_measured_while_the_driver_is_initialized_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(4))  # the fixture fails if the library is used while it is initialized
    with rig(fake) as measured:
        await measured.scrape(0.0)
        with fake.delay("dcmi_init", 0.2):
            initialized = asyncio.create_task(asyncio.to_thread(measured.driver.discover, anew=True))
            scrapes = 0
            while not initialized.done():
                scrapes += 1
                await measured.scrape(5.0 * scrapes)
            await initialized
        assert scrapes >= 1
        await measured.scrape(1000.0)
        assert len(measured.values("npu_chip_info_power")) == 4
    assert fake.calls()["dcmi_init"] == 2


async def test_a_card_that_the_driver_does_not_list_has_no_values_until_it_does(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(3))
    with rig(fake) as measured:
        await measured.scrape(0.0)
        fake.chip(1).dropped = True
        measured.snapshots.set(Snapshot(measured.driver.discover(anew=True), ()))
        before = fake.calls()
        await measured.scrape(5.0)
        assert measured.values("npu_chip_info_power").keys() == {0, 2}
        assert fake.calls()["dcmi_get_device_power_info"] == before["dcmi_get_device_power_info"] + 2
        counts = ("machine_npu_nums", "machine_unknown_npu_nums", "machine_card_nums")
        assert [measured.machine(each) for each in counts] == [3, 1, 2]
        assert measured.failures("power") == 0
        fake.chip(1).dropped = False
        measured.snapshots.set(Snapshot(measured.driver.discover(anew=True), ()))
        await measured.scrape(10.0)
        assert measured.values("npu_chip_info_power").keys() == {0, 1, 2}


async def test_a_chip_that_is_being_reset_is_left_alone(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(3))
    with rig(fake) as measured:
        measured.off_limits = 0b010
        for number in range(3):
            await measured.scrape(5.0 * number)
            assert measured.values("npu_chip_info_power").keys() == {0, 2}
        assert fake.calls()["dcmi_get_device_power_info"] == 3 * 2
        assert fake.calls()["dcmi_get_device_die_v2"] == 2
        assert measured.machine("machine_unknown_npu_nums") == 1
        assert measured.failures("power") == 0
        measured.off_limits = 0
        await measured.scrape(15.0)
        assert measured.values("npu_chip_info_power").keys() == {0, 1, 2}


async def test_however_many_scrape_each_value_is_read_once_in_an_interval(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    with rig(fake) as measured:
        before = fake.calls()
        for number in range(3):
            measured.time_s = 5.0 * number
            await asyncio.gather(*(measured.meter.refresh() for _ in range(20)))
            measured.time_s += 4.9
            await asyncio.gather(*(measured.meter.refresh() for _ in range(20)))
        after = fake.calls()
        rounds = {name: (after[name] - before[name]) / 8 for name in after if after[name] != before[name]}
        assert rounds == {
            "dcmi_get_device_utilization_rate": 12,  # of four kinds
            "dcmi_get_device_hbm_info": 3,
            "dcmi_get_device_temperature": 3,
            "dcmi_get_device_power_info": 3,
            "dcmi_get_device_voltage": 3,
            "dcmi_get_device_frequency": 3,
            "dcmi_get_device_health": 3,
            "dcmi_get_device_network_health": 3,
            "dcmi_get_device_chip_info_v2": 1,
            "dcmi_get_device_die_v2": 1,
            "dcmi_get_device_pcie_info_v2": 1,
        }


async def test_nothing_is_read_unless_somebody_scrapes(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    others = set(threading.enumerate())
    with rig(fake) as measured:
        before = fake.calls()
        measured.time_s = 1000.0
        assert measured.values("npu_chip_info_power") == {}
        assert fake.calls() == before
        assert not telemetry_threads(others)


def telemetry_threads(others: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that measure, except those of earlier tests."""
    return [each for each in threading.enumerate() if each.name.startswith("telemetry") and each not in others]
