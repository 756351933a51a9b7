"""A fault counts once, whichever of the driver's events and list of codes has it first."""

import queue
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_plugin.app import Plugin
from device_plugin.driver import FaultEvent
from device_plugin.driver.dcmi import DcmiDriver
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import ascend_910b
from tests.device_plugin.api import until
from tests.device_plugin.whole import whole_node

TWICE = 0x80A18008  # 2 times in 24 h separate a chip for good
HARMLESS = 0x80CD8003
DELAY_S = 1.5

ORDERS = pytest.mark.parametrize(
    ("event_delay_s", "code_delay_s"),
    [(0.0, DELAY_S), (DELAY_S, 0.0), (DELAY_S, DELAY_S)],
    ids=["event first", "list first", "both late"],
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets, with a short path."""
    with tempfile.TemporaryDirectory(prefix="dp-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def test_an_event_can_be_ahead_of_the_list(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver, events = DcmiDriver(), queue.Queue[FaultEvent]()
    (chip,) = driver.discover().chips
    driver.subscribe(events.put)
    fake.set(code_delay_s=3600.0)
    fake.chip(0).codes = (TWICE,)
    assert events.get(timeout=10) == FaultEvent(0, TWICE, "occur", 2)
    assert driver.read(chip).codes == ()
    fake.set(code_delay_s=0.0)
    assert driver.read(chip).codes == (TWICE,)


def test_an_event_can_be_behind_the_list(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver, events = DcmiDriver(), queue.Queue[FaultEvent]()
    (chip,) = driver.discover().chips
    driver.subscribe(events.put)
    fake.set(event_delay_s=2.0)
    # A fault that ends before the library has looked for it has no event, so the first event comes before the end.
    for codes, assertion in ((TWICE,), "occur"), ((), "recover"):
        fake.chip(0).codes = codes
        assert driver.read(chip).codes == codes
        assert events.empty()
        assert events.get(timeout=10).assertion == assertion


@ORDERS
async def test_one_fault_does_not_separate_a_chip_for_good_and_two_do(
    folder: Path, make_fake: MakeFake, event_delay_s: float, code_delay_s: float
) -> None:
    fake = make_fake(ascend_910b())
    settings = {"driver": "dcmi", "dcmi_library": fake.library, "recovery_hold_s": 0.1}
    async with whole_node(folder) as whole, whole.plugin(**settings) as plugin:
        fake.set(event_delay_s=event_delay_s, code_delay_s=code_delay_s)

        async def comes_and_goes(marked: int) -> None:
            """Let chip 3 have the fault for a while, until its events have come."""
            fake.chip(3).codes = (TWICE,)
            await until(lambda: has(plugin, 3, TWICE))
            fake.chip(3).codes = ()
            fake.event(marked, HARMLESS, 1)  # events keep their order
            await until(lambda: has(plugin, marked, HARMLESS))

        await comes_and_goes(5)
        await until(whole.offers_chips)
        assert separated(plugin) == 0
        await comes_and_goes(6)
        assert separated(plugin) == 0b1000


def has(plugin: Plugin, chip: int, code: int) -> bool:
    snapshot = plugin.snapshots.value
    return snapshot is not None and any(each.code == code for each in snapshot.chips[chip].faults)


def separated(plugin: Plugin) -> int:
    snapshot = plugin.snapshots.value
    assert snapshot is not None
    return snapshot.manually_separated
