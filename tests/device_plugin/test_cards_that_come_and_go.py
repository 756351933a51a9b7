"""The whole plugin on the C library: cards that come late, drop, are lost and come back, in any order."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ascend.chips import ChipSet, chip_name, chip_set
from device_plugin.app import Plugin
from device_plugin.chips import scanner
from device_plugin.health import lost_contact
from tests.dcmi import compiler
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910a, ascend_910b
from tests.device_plugin.api import running, until
from tests.device_plugin.whole import whole_node
from tests.device_plugin.writes import Writes, recorded

STATES = ("dropped", "absent", "lost")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.require_compiler()
    monkeypatch.setattr(scanner, "RENEW_FIRST_S", 0.02)
    monkeypatch.setattr(scanner, "RENEW_LIMIT_S", 0.2)
    monkeypatch.setattr(lost_contact, "CONFIRM_S", 0.2)


@dataclass(frozen=True)
class Machine:
    """A server of the C library.

    Attributes:
        chips: makes its chips.
        servertype: the label that the plugin writes.
        count: how many there are.
    """

    chips: Callable[[], list[FakeChip]]
    servertype: str
    count: int

    @property
    def all(self) -> ChipSet:
        return (1 << self.count) - 1

    def check(self, writes: Writes) -> None:
        """Check that nothing that was ever written or sent is about another product, or about fewer chips."""
        assert {*writes.products} <= {(None, 0), (self.servertype, self.all)}
        assert {*writes.lists} == {frozenset(map(chip_name, range(self.count)))}


MACHINES = {
    "910B": Machine(ascend_910b, "Ascend910B-20", 8),
    "910B of 16 chips": Machine(lambda: ascend_910b(16), "Ascend910B-20", 16),
    "910A": Machine(ascend_910a, "Ascend910-32", 8),
}
EACH = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def made(folder: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeDcmi, dict[str, Any]]:
    """A library with the chips of a machine, and the settings of a plugin that uses it."""
    fake = FakeDcmi(folder, machine.chips())
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake, {"driver": "dcmi", "dcmi_library": fake.library, "recovery_hold_s": 0.05, "scan_period_s": 0.05}


@EACH
async def test_cards_that_come_late_to_a_new_node_are_no_other_product_for_a_moment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    fake, settings = made(tmp_path, machine, monkeypatch)
    half = machine.count // 2
    for chip in range(half, machine.count):
        fake.chip(chip).dropped = True
    async with (
        whole_node(folder) as whole,
        recorded(whole, monkeypatch) as writes,
        running(Plugin(whole.settings(**settings)).run()),
    ):
        for chip in reversed(range(half, machine.count)):
            fake.chip(chip).dropped = False
            await until(lambda expected=machine.count - chip: fake.calls().get("dcmi_init", 0) > expected)  # type: ignore[misc]
        await until(lambda: whole.offers_chips(machine.all), timeout_s=30.0)
        await until(lambda: bool(writes.products) and writes.products[-1] == (machine.servertype, machine.all))
        machine.check(writes)
    assert fake.races() == 0


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(machine, id=name, marks=pytest.mark.long if machine.count > 8 else ())
        for name, machine in MACHINES.items()
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_cards_that_come_and_go_change_no_product_and_come_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, machine: Machine
) -> None:
    chance = random.Random(seed)
    fake, settings = made(tmp_path, machine, monkeypatch)
    async with whole_node(folder) as whole, recorded(whole, monkeypatch) as writes:
        async with whole.plugin(machine.all, **settings):
            await until(lambda: bool(writes.products) and writes.products[-1] == (machine.servertype, machine.all))
        gone: dict[int, str] = {}
        for _ in range(4):
            for phy_id in chance.sample(range(1, machine.count), 3):  # one chip stays, so that the driver answers
                if state := gone.pop(phy_id, ""):
                    setattr(fake.chip(phy_id), state, False)
                else:
                    gone[phy_id] = chance.choice(STATES)
                    setattr(fake.chip(phy_id), gone[phy_id], True)
            present = machine.all & ~chip_set(gone)
            async with whole.plugin(present, **settings):
                # One more drops while the plugin runs, and one comes back.
                victim = chance.choice([each for each in range(1, machine.count) if each not in gone])
                gone[victim] = chance.choice(STATES)
                setattr(fake.chip(victim), gone[victim], True)
                await until(lambda: whole.offers_chips(machine.all & ~chip_set(gone)))
                back = chance.choice(sorted(gone))
                setattr(fake.chip(back), gone.pop(back), False)
                await until(lambda: whole.offers_chips(machine.all & ~chip_set(gone)))
        for phy_id, state in gone.items():
            setattr(fake.chip(phy_id), state, False)
        async with whole.plugin(machine.all, **settings):
            await until(lambda: writes.products[-1] == (machine.servertype, machine.all))
    machine.check(writes)
    assert fake.races() == 0
