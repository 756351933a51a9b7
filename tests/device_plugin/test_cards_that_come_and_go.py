"""The whole plugin on the C library: cards that come late, drop, are lost and come back, in any order."""

import random
from pathlib import Path

import pytest

from ascend.annotations import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import RESOURCE, chip_set
from ascend.kube.objects import NODES
from device_plugin.chips import renewal
from device_plugin.health import lost_contact
from tests.dcmi import compiler
from tests.dcmi.fake import FakeDcmi, ascend_910b
from tests.device_plugin.api import NODE, until
from tests.device_plugin.whole import Whole, whole_node

STATES = ("dropped", "absent", "lost")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.require_compiler()
    monkeypatch.setattr(renewal, "FIRST_S", 0.02)
    monkeypatch.setattr(renewal, "FAST_LIMIT_S", 0.2)
    monkeypatch.setattr(lost_contact, "CONFIRM_S", 0.2)


async def labels_and_chips(whole: Whole) -> tuple[str, int]:
    """The product on the Node, and which chips it has."""
    node = await whole.client.get(NODES, NODE)
    infos = read_base_device_infos(node.metadata.annotations[BASE_DEVICE_INFOS])
    return node.metadata.labels["servertype"], infos.chips


@pytest.mark.parametrize("seed", range(3))
async def test_cards_that_come_and_go_change_no_product_and_come_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    fake = FakeDcmi(tmp_path, ascend_910b())
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    settings = {"driver": "dcmi", "dcmi_library": fake.library, "recovery_hold_s": 0.05, "scan_period_s": 0.05}
    expected = ("Ascend910B-20", 0xFF)
    async with whole_node(folder) as whole:
        async with whole.plugin(**settings):
            assert await labels_and_chips(whole) == expected
        gone: dict[int, str] = {}
        for _ in range(4):
            for phy_id in chance.sample(range(1, 8), 3):  # one chip stays, so that the driver answers
                if state := gone.pop(phy_id, ""):
                    setattr(fake.chip(phy_id), state, False)
                else:
                    gone[phy_id] = chance.choice(STATES)
                    setattr(fake.chip(phy_id), gone[phy_id], True)
            present = 0xFF & ~chip_set(gone)
            async with whole.plugin(present, **settings):
                assert len(whole.node.kubelet.devices(RESOURCE)) == 8
                assert await labels_and_chips(whole) == expected
                # One more drops while the plugin runs, and one comes back.
                victim = chance.choice([each for each in range(1, 8) if each not in gone])
                gone[victim] = chance.choice(STATES)
                setattr(fake.chip(victim), gone[victim], True)
                await until(lambda: whole.offers_chips(0xFF & ~chip_set(gone)))
                back = chance.choice(sorted(gone))
                setattr(fake.chip(back), gone.pop(back), False)
                await until(lambda: whole.offers_chips(0xFF & ~chip_set(gone)))
                assert len(whole.node.kubelet.devices(RESOURCE)) == 8
                assert await labels_and_chips(whole) == expected
        for phy_id, state in gone.items():
            setattr(fake.chip(phy_id), state, False)
        async with whole.plugin(**settings) as plugin:
            assert plugin.snapshots.value is not None
            assert await labels_and_chips(whole) == expected
    assert fake.races() == 0
