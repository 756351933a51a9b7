"""What is looked at, withheld and remembered for each group of chips, on a virtual clock."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
import structlog

from ascend.annotations import RESET_INFO, RESETS
from ascend.chips import ChipSet, chip_set
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, DriverError
from ascend.vnpus import Vnpu
from device_plugin.chips.call_thread import CallThread
from device_plugin.device_types import CORES, DeviceType, number_of
from device_plugin.driver import NO_CARD, ChipFacts, ChipType, Inventory, VirtualNpu
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import Moment
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.allocations import Allocation, Allocations
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.reset import hot_reset
from device_plugin.reset.host import Knowledge
from device_plugin.reset.hot_reset import HotReset
from device_plugin.reset.steps import ResetOptions
from tests.device_plugin.api import running
from tests.device_plugin.builders import fault, judged_chip, pod, snapshot

pytestmark = pytest.mark.looptime

R = TypeVar("R")
RING = 0b1111
IDLE_S = 60.0
START_MS = 1_790_000_000_000


def inventory(kind: ChipType = "Ascend910", chips: int = 8, *, per_card: int = 1) -> Inventory:
    return Inventory(kind, tuple(ChipFacts(each, each, each // per_card, each % per_card) for each in range(chips)))


def without_card(server: Inventory, card: int) -> Inventory:
    """The server while the driver does not list a card."""
    chips = tuple(replace(chip, card_id=NO_CARD) if chip.card_id == card else chip for chip in server.chips)
    return replace(server, chips=chips, problems=("a card is missing",))


@dataclass
class Driver:
    """A driver that answers at once.

    Attributes:
        partners: the cards that are reset together.
        processes: the chips that processes use.
        down: the chips that have not started.
        goes_down: whether a reset chip has to start again.
        on_reset: called in the middle of a reset.
        resets: the chips that it was asked to reset.
    """

    partners: dict[int, int | None] = field(default_factory=dict)
    processes: ChipSet = 0
    down: ChipSet = 0
    goes_down: bool = False
    on_reset: Callable[[], None] = lambda: None
    resets: list[int] = field(default_factory=list)
    problem: str = ""

    def partner_cards(self, server: Inventory) -> Mapping[int, int | None]:
        if self.problem:
            raise DriverError(self.problem)
        listed = {chip.card_id for chip in server.chips if chip.is_listed}
        return {card: partner for card, partner in self.partners.items() if card in listed}

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        return (4711,) if self.processes >> chip.phy_id & 1 else ()

    def has_started(self, chip: ChipFacts) -> bool:
        return not self.down >> chip.phy_id & 1

    def reset(self, chip: ChipFacts) -> None:
        self.resets.append(chip.phy_id)
        self.on_reset()


class Site:
    """A node whose chips are read every second, and judged and sent to the kubelet at once.

    Attributes:
        driver: resets its chips.
        driver_hangs: whether it can't be initialized again.
        kubelet_lags: whether the kubelet is sent no list.
        writes: whether the Node can be written.
        judged_late: whether withheld chips are still judged as they are by themselves.
        initialized: how often the driver was initialized again.
        forgotten: the chips whose announcements were forgotten after a reset.
        said: the Events.
    """

    def __init__(self, server: Inventory, *, per_hour: int = 2, dry_run: bool = False) -> None:
        self.driver = Driver()
        self.server = server
        self.faults: dict[int, FaultLevel] = {}
        self.kubelet_lags = False
        self.judged_late = False
        self.driver_hangs = False
        self.initialized = 0
        self.forgotten: ChipSet = 0
        self.said: list[str] = []
        self.annotations: Mapping[str, str] = {}
        self.withheld: ChipSet = 0
        self.allocations = Allocations()
        self.pods = NodePods(self.allocations.drop)
        self.ledgers = Ledgers(self.pods, self.allocations)
        self.written: Observable[Mapping[str, str]] = Observable({})
        self.writes = True
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.advertised: Observable[ChipSet] = Observable(0)
        self.matcher = SimpleNamespace(is_admitting=False)
        self.read_s: dict[int, float] = {}
        self.scanner = SimpleNamespace(
            muted=0, keeps_table=False, initialize=self._initialize, read_since=self._read_since
        )
        self.options = ResetOptions(dry_run, IDLE_S, per_hour, Path("nowhere"))
        self.judge()

    @property
    def health(self) -> "Site":
        return self

    # The rest of the plugin.

    def announce(self, reason: str, _sentence: str, _warning: bool) -> None:  # noqa: FBT001 - a callback's plain word
        self.said.append(reason)

    def withhold(self, chips: ChipSet, annotations: Mapping[str, str]) -> None:
        self.withheld, self.annotations = chips, annotations
        if self.writes and annotations != self.written.value:
            self.written.set(annotations)
        self.judge()

    def was_reset(self, chips: ChipSet) -> None:
        self.forgotten |= chips

    async def _initialize(self) -> None:
        self.initialized += 1
        if self.driver_hangs:
            await asyncio.Event().wait()

    async def _read(self) -> None:
        while True:
            for chip in self.server.chips:
                if not self.scanner.muted >> chip.phy_id & 1:
                    self.read_s[chip.phy_id] = self.moment().mono_s
            await asyncio.sleep(1.0)

    def _read_since(self, since_s: float) -> ChipSet:
        return chip_set(phy_id for phy_id, read_s in self.read_s.items() if read_s >= since_s)

    def moment(self) -> Moment:
        now_s = asyncio.get_running_loop().time()
        return Moment(now_s, START_MS + round(now_s * 1000))

    def judge(self) -> None:
        chips = {
            chip: judged_chip(healthy=not level.bars_use, level=level, faults=(fault("80A18008", level),))
            for chip, level in self.faults.items()
        }
        withheld = 0 if self.judged_late else self.withheld
        judged = snapshot(of=self.server, chips=chips).withholding(withheld, self.annotations)
        if judged != self.snapshots.value:
            self.snapshots.set(judged)
        if not self.kubelet_lags and judged.healthy != self.advertised.value:
            self.advertised.set(judged.healthy)

    def has(self, **faults: FaultLevel) -> None:
        """Let chips have faults: ``chip_3`` is chip 3; the others have none."""
        self.faults = {int(name.removeprefix("chip_")): level for name, level in faults.items()}
        self.judge()

    def lists(self, server: Inventory) -> None:
        """Let the driver list other chips."""
        self.server = server
        self.judge()

    @property
    def times(self) -> dict[str, list[int]]:
        """How often each group was reset, as written on the Node."""
        return dict(json.loads(self.annotations.get(RESETS, "{}")))

    @asynccontextmanager
    async def resetting(self, *, earlier: Mapping[str, str] | None = None) -> AsyncIterator[HotReset]:
        known = Knowledge(
            self.snapshots, self.advertised, self.ledgers, lambda: self.matcher.is_admitting, self.written
        )
        made = HotReset(
            self.driver,  # type: ignore[arg-type]  # it reads no chips
            self,
            known,
            options=self.options,
            metrics=Metrics(),
            earlier=earlier or {},
            moment=self.moment,
        )
        await made.prepare()
        async with running(self._read()), running(made.run()):
            yield made


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> PodResources:
    """The kubelet's ledger; calls of the driver return at once, because threads don't follow the virtual clock."""
    found = PodResources()

    async def read(_socket: Path) -> PodResources:
        return found

    def call(_thread: CallThread, function: Callable[[], R]) -> "asyncio.Future[R]":
        outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        try:
            outcome.set_result(function())
        except AscendError as error:
            outcome.set_exception(error)
        return outcome

    monkeypatch.setattr(hot_reset, "read_ledger", read)
    monkeypatch.setattr(CallThread, "call", call)
    return found


def ends_its_fault(site: Site) -> None:
    """Let each reset end the faults."""

    def end() -> None:
        site.faults.clear()

    site.driver.on_reset = end


async def passes(seconds: float) -> None:
    """Let time pass on the virtual clock."""
    await asyncio.sleep(seconds)


async def test_each_faulty_chip_is_reset_if_the_driver_resets_it_alone() -> None:
    site = Site(inventory(), per_hour=1)

    def end_its_own() -> None:
        del site.faults[site.driver.resets[-1]]

    site.driver.on_reset = end_its_own
    async with site.resetting():
        site.has(chip_1=FaultLevel.RESTART, chip_3=FaultLevel.RESTART)
        await passes(100.0)
        assert (site.driver.resets, site.said[-1], site.withheld) == ([1, 3], "NPUReset", 0)
        assert (site.initialized, site.forgotten) == (2, 0b1010)
        assert len(site.times["0"]) == 1


async def test_one_call_is_made_if_the_driver_resets_the_whole_ring() -> None:
    site = Site(inventory())
    ends_its_fault(site)
    async with site.resetting():
        site.has(chip_1=FaultLevel.RESTART, chip_3=FaultLevel.RESTART)
        await passes(100.0)
        assert (site.driver.resets, site.said[-1]) == ([1], "NPUReset")


async def test_every_step_has_a_line_in_the_log_with_its_event() -> None:
    site = Site(inventory(), per_hour=1)
    with structlog.testing.capture_logs() as logs:
        async with site.resetting():
            site.driver.processes = 0b0010
            site.has(chip_3=FaultLevel.RESTART)
            await passes(100.0)
            site.driver.processes = 0
            site.kubelet_lags = True
            await passes(150.0)
            site.kubelet_lags = False
            site.judge()
            site.driver.on_reset = lambda: setattr(site.driver, "down", 0b0100)
            await passes(400.0)
            site.driver.down = 0
            ends_its_fault(site)
            await passes(3600.0)
    lines = [line for line in logs if line["event"] == "hot reset"]
    assert [line["reason"] for line in lines] == site.said
    assert {"NPUResetWaiting", "NPUWithheld", "NPUResetCancelled", "NPUResetStarted"} <= {*site.said}
    assert {"NPUResetFailed", "NPUReset"} <= {*site.said}
    for line in lines:
        assert "Ascend910-3" in line["step"]
        assert line["log_level"] == ("warning" if line["reason"] == "NPUResetFailed" else "info")


async def test_the_limit_of_two_cards_is_kept_while_one_of_them_is_not_listed() -> None:
    a3 = inventory("Ascend910A3", 16, per_card=2)
    site = Site(a3, per_hour=1)
    site.driver.partners = {card: (card + 4) % 8 for card in range(8)}
    ends_its_fault(site)
    async with site.resetting():
        site.has(chip_8=FaultLevel.RESTART)
        await passes(200.0)
        assert (site.driver.resets, site.said[-1]) == ([8], "NPUReset")
        before = site.times
        assert [*before] == ["0"]
        site.lists(without_card(a3, 4))
        await passes(100.0)
        site.lists(a3)
        assert site.times == before
        site.has(chip_8=FaultLevel.RESTART)
        await passes(1000.0)
        assert (site.driver.resets, site.said[-1]) == ([8], "NPUResetWaiting")
        await passes(3600.0)
        assert site.driver.resets == [8, 8]


async def test_cards_whose_partner_is_unknown_are_not_reset() -> None:
    site = Site(inventory("Ascend910A3", 16, per_card=2))
    site.driver.problem = "no answer"
    async with site.resetting():
        site.has(chip_8=FaultLevel.RESTART)
        await passes(1000.0)
        assert (site.driver.resets, site.said) == ([], [])
        site.driver.problem = ""
        site.driver.partners = {card: (card + 4) % 8 for card in range(8)}
        site.pods.changes.set(None)
        await passes(100.0)
        assert site.driver.resets == [8]


def holds(site: Site, _ledger: PodResources, chip: int) -> None:
    site.pods.on_apply(pod("holder", 1, chip, time=1))


def holds_cores(site: Site, _ledger: PodResources, chip: int) -> None:
    """A pod has the whole chip by its AI cores, since before they were no longer offered."""
    site.ledgers.cores.allocations.add(Allocation("uid", "default/by-cores", (chip,), (20,), device_type=CORES))


def holds_vnpu(site: Site, _ledger: PodResources, chip: int) -> None:
    vnpus = site.ledgers.serve(DeviceType("2c"))
    number = number_of(Vnpu("2c", chip, 100))
    vnpus.allocations.add(Allocation("uid", "default/with-vnpu", (number,), (number,)))


def uses(site: Site, _ledger: PodResources, chip: int) -> None:
    site.driver.processes = 1 << chip


def is_counted(_site: Site, ledger: PodResources, chip: int) -> None:
    ledger.pods["default/unseen"] = {"main": (chip,)}


@pytest.mark.parametrize("occupy", [holds, holds_cores, holds_vnpu, uses, is_counted])
async def test_a_user_of_any_chip_of_the_group_prevents_the_reset(
    occupy: Callable[[Site, PodResources, int], None], ledger: PodResources
) -> None:
    site = Site(inventory())
    occupy(site, ledger, 0)
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(1000.0)
        assert (site.driver.resets, site.withheld, site.said) == ([], 0, ["NPUResetWaiting"])
        site.has(chip_5=FaultLevel.RESTART)
        await passes(100.0)
        assert site.driver.resets == [5]


async def test_a_group_with_a_chip_that_is_cut_is_not_reset() -> None:
    whole = inventory()
    cut = tuple(replace(each, vnpus=(VirtualNpu(100, 0),)) if each.phy_id == 0 else each for each in whole.chips)
    site = Site(replace(whole, chips=cut))
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(1000.0)
    assert (site.driver.resets, site.withheld) == ([], 0)


async def test_the_whole_group_is_withheld_muted_and_the_faulty_chip_is_reset() -> None:
    site = Site(inventory())
    found: list[object] = []
    site.driver.on_reset = lambda: found.append((site.withheld, site.scanner.muted, site.scanner.keeps_table))
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(100.0)
        assert (site.driver.resets, found) == ([3], [(RING, RING, True)])
        assert (site.withheld, site.scanner.muted, site.scanner.keeps_table) == (0, 0, False)
        assert (site.initialized, site.forgotten) == (1, 0b1000)


async def test_a_group_is_not_reset_while_the_kubelet_still_offers_one_of_its_chips() -> None:
    site = Site(inventory())
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        site.kubelet_lags = True
        site.advertised.set(0b0001)
        await passes(100.0)
        assert (site.driver.resets, site.withheld) == ([], RING)
        site.kubelet_lags = False
        site.judge()
        await passes(10.0)
        assert site.driver.resets == [3]


async def test_a_group_is_not_reset_while_a_pod_could_get_one_of_its_chips() -> None:
    site = Site(inventory())
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        site.kubelet_lags = site.judged_late = True
        site.advertised.set(0)
        await passes(100.0)
        assert (site.driver.resets, site.withheld) == ([], RING)
        site.judged_late = False
        site.judge()
        await passes(10.0)
        assert site.driver.resets == [3]


async def test_a_group_is_not_reset_while_a_pod_is_being_admitted() -> None:
    site = Site(inventory())
    site.matcher.is_admitting = True
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(IDLE_S + 30.0)
        assert (site.driver.resets, site.withheld) == ([], RING)
        site.matcher.is_admitting = False
        await passes(10.0)
        assert site.driver.resets == [3]


async def test_a_group_is_not_reset_while_the_node_can_not_be_written() -> None:
    site = Site(inventory())
    ends_its_fault(site)
    async with site.resetting():
        site.writes = False
        site.has(chip_3=FaultLevel.RESTART)
        await passes(1000.0)
        assert (site.driver.resets, site.said.count("NPUResetStarted")) == ([], 0)
        site.writes = True
        await passes(1000.0)
        assert site.driver.resets == [3]
        assert {chip: len(times) for chip, times in json.loads(site.written.value[RESETS]).items()} == {"0": 1}


async def test_one_group_is_reset_after_the_other_has_started() -> None:
    site = Site(inventory())

    def goes_down() -> None:
        site.driver.down = RING if site.driver.resets[-1] < 4 else 0
        site.faults.pop(site.driver.resets[-1])

    site.driver.on_reset = goes_down
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART, chip_5=FaultLevel.RESTART)
        await passes(150.0)
        assert (site.driver.resets, site.withheld, site.scanner.keeps_table) == ([3], RING, True)
        site.driver.down = 0
        await passes(100.0)
        assert site.driver.resets == [3, 5]
        assert site.withheld == 0


async def test_a_restart_forgets_neither_the_limit_nor_what_people_have_to_reset() -> None:
    site = Site(inventory(), per_hour=1)
    ends_its_fault(site)
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(100.0)
        site.has(chip_5=FaultLevel.SEPARATE)
        written = site.annotations
    assert site.driver.resets == [3]
    async with site.resetting(earlier=written):
        assert site.times == json.loads(written[RESETS])
        site.has(chip_3=FaultLevel.RESTART)
        await passes(1000.0)
        assert site.driver.resets == [3]
        assert '"PhyID":3' in site.annotations[RESET_INFO]
        await passes(2700.0)
        assert site.driver.resets == [3, 3]


async def test_what_people_have_to_reset_is_known_over_a_restart() -> None:
    site = Site(inventory())
    device = {"CardId": 3, "DeviceId": 0, "AssociatedCardId": 0, "PhyID": 3, "LogicID": 3}
    site.has(chip_3=FaultLevel.RESTART)
    earlier = {RESET_INFO: json.dumps({"ThirdPartyResetDevs": None, "ManualResetDevs": [device]})}
    async with site.resetting(earlier=earlier):
        assert json.loads(site.annotations[RESET_INFO])["ManualResetDevs"] == [device]
        ends_its_fault(site)
        await passes(100.0)
        assert json.loads(site.annotations[RESET_INFO])["ManualResetDevs"] is None


async def test_a_driver_that_hangs_when_it_is_initialized_again_withholds_no_chip_for_ever() -> None:
    site = Site(inventory())
    site.driver_hangs = True
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(80.0)
        assert (site.driver.resets, site.withheld) == ([3], RING)
        await passes(70.0)
        assert (site.withheld, site.said[-1]) == (0, "NPUResetFailed")


async def test_a_chip_that_does_not_start_is_left_to_people_although_it_had_no_fault() -> None:
    site = Site(inventory())

    def does_not_start() -> None:
        site.faults.clear()
        site.driver.down = 0b0001

    site.driver.on_reset = does_not_start
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART)
        await passes(400.0)
        assert (site.driver.resets, site.withheld) == ([3], 0b0001)
        assert [each["PhyID"] for each in json.loads(site.annotations[RESET_INFO])["ManualResetDevs"]] == [0]


async def test_the_driver_is_not_initialized_for_one_group_while_another_is_being_reset() -> None:
    site = Site(inventory())
    site.driver.down = 0b0010_0000
    async with site.resetting():
        assert site.withheld == 0b0010_0000

        def goes_down() -> None:
            site.driver.down |= RING

        site.driver.on_reset = goes_down
        site.has(chip_3=FaultLevel.RESTART)
        await passes(100.0)
        assert (site.driver.resets, site.initialized) == ([3], 0)
        site.driver.down = RING
        await passes(20.0)
        assert site.initialized == 0
        site.driver.down = 0
        await passes(5.0)
        assert site.initialized > 0


async def test_chips_that_have_not_started_are_withheld_from_the_start_on_unless_pods_use_them() -> None:
    site = Site(inventory())
    site.driver.down = 0b0110_0011
    site.pods.on_apply(pod("holder", 1, 0, time=1))
    async with site.resetting():
        assert site.withheld == 0b0110_0010
        await passes(1000.0)
        assert site.withheld == 0b0110_0010
        site.driver.down = 0b0000_0010
        await passes(100.0)
        assert site.withheld == 0b0000_0010
        assert (site.driver.resets, site.forgotten) == ([], 0)


async def test_a_chip_that_is_listed_again_is_withheld_until_it_has_started() -> None:
    site = Site(inventory())
    async with site.resetting():
        site.lists(without_card(site.server, 2))
        await passes(10.0)
        assert site.withheld == 0
        site.driver.down = 0b0100
        site.lists(inventory())
        await passes(10.0)
        assert site.withheld == 0b0100
        site.driver.down = 0
        await passes(20.0)
        assert site.withheld == 0


async def test_a_dry_run_withholds_and_writes_nothing() -> None:
    site = Site(inventory(), dry_run=True)
    site.driver.down = 0b0011
    async with site.resetting():
        site.has(chip_3=FaultLevel.RESTART, chip_5=FaultLevel.SEPARATE)
        site.lists(without_card(site.server, 6))
        await passes(1000.0)
        site.lists(inventory())
        await passes(1000.0)
    assert (site.driver.resets, site.withheld, site.annotations) == ([], 0, {})
    assert site.said == ["NPUResetPlanned"]


async def test_two_cards_stay_withheld_while_one_of_them_is_not_listed_during_their_reset() -> None:
    a3 = inventory("Ascend910A3", 16, per_card=2)
    site = Site(a3)
    site.driver.partners = {card: (card + 4) % 8 for card in range(8)}
    cards = 0x0303

    def goes_down() -> None:
        site.driver.down = cards

    site.driver.on_reset = goes_down
    async with site.resetting():
        site.has(chip_8=FaultLevel.RESTART)
        await passes(100.0)
        assert (site.driver.resets, site.withheld) == ([8], cards)
        site.lists(without_card(a3, 4))
        await passes(50.0)
        assert (site.driver.resets, site.withheld) == ([8], cards)
        site.faults.clear()
        site.driver.down = 0
        site.lists(a3)
        await passes(60.0)
        assert site.withheld == 0
