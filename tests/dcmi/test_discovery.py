"""Discovery by the real driver: a call that fails costs only its own fact."""

import threading
from pathlib import Path

import pytest
import structlog

from ascend.annotations import UNKNOWN
from ascend.base_device_infos import ChipAddress
from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, Inventory, VirtualNpu
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.survey import chip_type
from tests.dcmi import compiler
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, ascend_910a, ascend_910b, ascend_a3


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    for node, cpus in enumerate(("0-1", "2-3")):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return root


def readable(inventory: Inventory) -> list[ChipFacts]:
    return [chip for chip in inventory.chips if chip.is_listed]


@pytest.mark.shows("driver", "910B-8")
def test_a_910b_server_is_discovered_completely(make_fake: MakeFake, sysfs: Path) -> None:
    make_fake(ascend_910b(8))
    inventory = DcmiDriver(sysfs=sysfs).discover()
    assert inventory.chip_type == "Ascend910B"
    assert (inventory.driver_version, inventory.ai_cores, inventory.board_id) == ("24.1.0", 20, 0x30)
    assert (inventory.super_pod_id, inventory.server_index) == (UNKNOWN, UNKNOWN)
    assert inventory.chips == tuple(
        ChipFacts(
            phy_id=number,
            logic_id=number,
            card_id=number,
            device_id=0,
            chip_name="910B3",
            address=ChipAddress(f"10.20.0.{number + 1}", 0),
            numa_node=0,
            hbm_mb=65536,
        )
        for number in range(8)
    )


@pytest.mark.shows("driver", "910A")
def test_a_910a_server_is_recognized_by_its_chips_name(make_fake: MakeFake) -> None:
    make_fake(ascend_910a())
    inventory = DcmiDriver().discover()
    assert (inventory.chip_type, inventory.ai_cores, len(inventory.chips)) == ("Ascend910", 32, 8)


@pytest.mark.shows("driver", "A3-16")
def test_each_die_of_an_a3_server_is_a_chip_with_its_superpod_place(make_fake: MakeFake) -> None:
    make_fake(ascend_a3())
    inventory = DcmiDriver().discover()
    assert inventory.chip_type == "Ascend910A3"
    assert (inventory.super_pod_id, inventory.server_index) == (7, 2)
    assert [(chip.phy_id, chip.card_id, chip.device_id) for chip in inventory.chips] == [
        (number, number // 2, number % 2) for number in range(16)
    ]
    assert [chip.address.super_device_id for chip in inventory.chips] == [0x0200_0000 + number for number in range(16)]


def test_a_superpod_id_of_all_ones_is_minus_one(make_fake: MakeFake) -> None:
    make_fake([FakeChip(sdid=0xFFFF_FFFE, pod=0xFFFF_FFFF, server=0xFFFF_FFFF)])
    inventory = DcmiDriver().discover()
    assert (inventory.super_pod_id, inventory.server_index) == (-1, -1)
    assert inventory.chips[0].address.super_device_id == 0xFFFF_FFFE


def test_chips_are_ordered_by_physical_id_whatever_the_cards_are(make_fake: MakeFake) -> None:
    ids = [(9, 3, 2), (4, 0, 7), (2, 5, 0)]
    make_fake([FakeChip(card=card, logic=logic, phy=phy) for card, logic, phy in ids])
    inventory = DcmiDriver().discover()
    assert [(chip.phy_id, chip.logic_id, chip.card_id) for chip in inventory.chips] == [(0, 5, 2), (2, 3, 9), (7, 0, 4)]


@pytest.mark.parametrize(
    ("address", "ip"),
    [
        ("10.20.0.1", "10.20.0.1"),
        ("2001:db8::7", "2001:db8::7"),
        ("fe80::1", ""),
        ("169.254.3.4", ""),
        ("0.0.0.0", ""),
        ("::", ""),
        ("", ""),
    ],
)
def test_the_address_is_ipv4_or_else_ipv6_and_never_link_local(make_fake: MakeFake, address: str, ip: str) -> None:
    make_fake([FakeChip(ip=address)])
    assert DcmiDriver().discover().chips[0].address.ip == ip


@pytest.mark.parametrize(
    ("chip", "node"),
    [
        (FakeChip(affinity="2-3"), 1),
        (FakeChip(affinity="0-3"), None),
        (FakeChip(bdf="0000:C1:00.0"), 1),
        (FakeChip(affinity="0-3", bdf="0000:c1:00.0"), 1),
        (FakeChip(affinity="0-1", bdf="0000:c1:00.0"), 0),
        (FakeChip(bdf="0000:c2:00.0"), None),
        (FakeChip(bdf="0000:c3:00.0"), None),
        (FakeChip(), None),
    ],
)
def test_the_numa_node_is_that_of_the_cpus_or_else_of_the_pci_bus(
    make_fake: MakeFake, sysfs: Path, chip: FakeChip, node: int | None
) -> None:
    for bdf, text in (("0000:c1:00.0", "1"), ("0000:c2:00.0", "-1")):
        (sysfs / "bus/pci/devices" / bdf).mkdir(parents=True)
        (sysfs / "bus/pci/devices" / bdf / "numa_node").write_text(f"{text}\n")
    make_fake([chip])
    assert DcmiDriver(sysfs=sysfs).discover().chips[0].numa_node == node


def test_virtual_npus_have_their_template_and_their_chip(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    fake.chip(1).vnpus = {100: "vir05_1c_16g", 101: "vir10_3c_32g"}
    plain, cut = DcmiDriver().discover().chips
    assert plain.vnpus == ()
    assert cut.vnpus == (VirtualNpu(100, 1, "vir05_1c_16g"), VirtualNpu(101, 1, "vir10_3c_32g"))


@pytest.mark.parametrize(
    ("board", "name", "kind"),
    [
        (0xB0, "", "Ascend910A3"),
        (0xD3, "910B3", "Ascend910A3"),
        (0x30, "910B3", "Ascend910B"),
        (0x30, "910B", "Ascend910"),  # as in the reference: the name of a 910B has a digit
        (0, "A2G1", "Ascend910B"),
        (0, "910A", "Ascend910"),
        (0, "Ascend910ProB", "Ascend910"),
        (0, "Ascend950PR", None),
        (0, "310P3", None),
        (0, "", None),
    ],
)
def test_the_type_of_a_chip_follows_its_board_or_else_its_name(board: int, name: str, kind: str | None) -> None:
    assert chip_type(board, name) == kind


@pytest.mark.parametrize(("function", "calls"), [("dcmi_get_device_board_info", 1), ("dcmi_get_device_hbm_info", 0)])
def test_what_decides_the_use_of_a_chip_is_read_again_at_once(make_fake: MakeFake, function: str, calls: int) -> None:
    fake = make_fake(ascend_a3(1))
    with fake.fail(function, -8006, card=0, device=0):
        DcmiDriver().discover()
    assert fake.calls()[function] == 2 + 2 * calls  # two chips


def test_a_server_of_another_family_is_refused_with_its_chip_names(make_fake: MakeFake) -> None:
    make_fake([FakeChip(name="310P3", board=0x11)])
    with pytest.raises(DriverError, match="no chip of the 910 family: '310P3' on board 0x11"):
        DcmiDriver().discover()


OPTIONAL = {
    "dcmi_get_dcmi_version",
    "dcmi_get_device_chip_info_v2",
    "dcmi_get_device_board_info",
    "dcmi_get_device_hbm_info",
    "dcmi_get_device_ip",
    "dcmi_get_device_info",
    "dcmi_get_affinity_cpu_info_by_device_id",
    "dcmi_get_device_pcie_info_v2",
}


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (function, code)
        for function in sorted(OPTIONAL)
        for code in (-8255, -8006, -1, 7)
        # The product depends on the board, so it is only dispensable if the driver has none.
        if function != "dcmi_get_device_board_info" or code == -8255
    ],
)
def test_a_call_that_fails_leaves_only_its_fact_unknown(make_fake: MakeFake, function: str, code: int) -> None:
    fake = make_fake([FakeChip(ip="10.20.0.1", vnpus={100: "vir02"}, sdid=5, pod=1, server=3)])
    with fake.fail(function, code):
        inventory = DcmiDriver().discover()
    chip = inventory.chips[0]
    facts = {
        "dcmi_get_dcmi_version": inventory.driver_version == "24.1.0",
        "dcmi_get_device_chip_info_v2": True,  # the older call is used instead
        "dcmi_get_device_board_info": inventory.board_id == 0x30,
        "dcmi_get_device_hbm_info": chip.hbm_mb == 65536,
        "dcmi_get_device_ip": chip.address.ip == "10.20.0.1",
        "dcmi_get_device_info": bool(chip.vnpus) and chip.address.super_device_id == 5 and inventory.server_index == 3,
        "dcmi_get_affinity_cpu_info_by_device_id": True,
        "dcmi_get_device_pcie_info_v2": True,
    }
    standing_in = {name for name, known in facts.items() if known} & {function}
    assert {name for name, known in facts.items() if not known} == {function} - standing_in
    assert (inventory.chip_type, chip.chip_name, inventory.ai_cores) == ("Ascend910B", "910B3", 20)


def test_a_library_with_only_the_required_functions_is_enough(make_fake: MakeFake) -> None:
    library = compiler.build_library(
        (
            "dcmi_init",
            "dcmi_get_card_list",
            "dcmi_get_device_num_in_card",
            "dcmi_get_device_logic_id",
            "dcmi_get_device_phyid_from_logicid",
            "dcmi_get_device_chip_info",
            "dcmi_get_device_health",
            "dcmi_get_device_errorcode_v2",
        )
    )
    fake = make_fake(ascend_910b(2), library=library)
    driver = DcmiDriver()
    inventory = driver.discover()
    assert [(chip.phy_id, chip.chip_name) for chip in inventory.chips] == [(0, "910B3"), (1, "910B3")]
    assert (inventory.driver_version, inventory.ai_cores) == ("", 20)
    fake.chip(1).codes = (0x80E18402,)
    assert driver.read(inventory.chips[1]).codes == (0x80E18402,)
    with pytest.raises(DriverError, match=r"dcmi_subscribe_fault_event: -99998 \(this driver has no such function\)"):
        driver.subscribe(lambda _event: None)


@pytest.mark.parametrize("function", ["dcmi_init", "dcmi_get_card_list"])
def test_a_driver_that_is_not_ready_is_initialized_again(make_fake: MakeFake, function: str) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    with fake.fail(function, -8005), pytest.raises(DriverError, match=rf"^{function}: -8005 \(internal error\)$"):
        driver.discover()
    assert len(driver.discover().chips) == 1
    assert fake.calls()["dcmi_init"] == 2
    driver.discover()
    assert fake.calls()["dcmi_init"] == 2


def test_a_driver_without_cards_is_an_error_and_initialized_again(make_fake: MakeFake) -> None:
    fake = make_fake([])
    driver = DcmiDriver()
    for _ in range(2):
        with pytest.raises(DriverError, match=r"^the driver lists no card$"):
            driver.discover()
    assert fake.calls()["dcmi_init"] == 2


@pytest.mark.parametrize(
    "function",
    ["dcmi_get_device_num_in_card", "dcmi_get_device_logic_id", "dcmi_get_device_phyid_from_logicid"],
)
def test_a_card_without_readable_ids_affects_no_other_card(make_fake: MakeFake, function: str) -> None:
    fake = make_fake(ascend_910b(3))
    fresh, experienced = DcmiDriver(), DcmiDriver()
    before = experienced.discover()
    with fake.fail(function, -8012, card=1):
        with structlog.testing.capture_logs() as logs:
            found = fresh.discover()
            assert [chip.phy_id for chip in readable(found)] == [0, 2]
            assert [problem.rpartition(": ")[2] for problem in found.problems] == ["-8012 (the device is not ready)"]
            fresh.discover()
        assert experienced.discover().chips == before.chips
    warnings = [line for line in logs if line["event"] == "a card can't be read"]
    assert [line["card"] for line in warnings] == [1]
    assert "-8012 (the device is not ready)" in warnings[0]["error"]
    assert fresh.discover() == before


def test_a_die_without_readable_ids_does_not_affect_the_other(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3(2))
    with fake.fail("dcmi_get_device_logic_id", -8012, card=1, device=0):
        inventory = DcmiDriver().discover()
    assert [chip.phy_id for chip in inventory.chips] == [0, 1, 2, 3]
    assert [chip.phy_id for chip in readable(inventory)] == [0, 1, 3]


def test_if_no_card_can_be_read_the_error_says_why(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    with (
        fake.fail("dcmi_get_device_logic_id", -8009),
        pytest.raises(DriverError, match=r"no card can be read: .* of card 0 device 0: -8009 \(the ioctl failed\)"),
    ):
        driver.discover()
    assert len(driver.discover().chips) == 2


def test_an_id_out_of_range_is_refused(make_fake: MakeFake) -> None:
    make_fake([FakeChip(card=0, phy=0), FakeChip(card=1, logic=1, phy=256)])
    assert [chip.phy_id for chip in DcmiDriver().discover().chips] == [0]


def test_of_two_chips_with_one_physical_id_one_is_kept_and_logged(make_fake: MakeFake) -> None:
    make_fake([FakeChip(card=0, logic=0, phy=4), FakeChip(card=1, logic=1, phy=4)])
    with structlog.testing.capture_logs() as logs:
        assert [(chip.phy_id, chip.card_id) for chip in DcmiDriver().discover().chips] == [(4, 0)]
    assert "two chips have the same physical id" in {line["event"] for line in logs}


@pytest.mark.parametrize("function", ["dcmi_get_device_logic_id", "dcmi_get_device_ip", "dcmi_get_device_num_in_card"])
def test_a_card_that_hangs_does_not_prevent_the_others_discovery(make_fake: MakeFake, function: str) -> None:
    fake = make_fake(ascend_910b(3))
    driver = DcmiDriver(card_deadline_s=0.3)
    with fake.hang(function, card=2):
        assert [chip.phy_id for chip in readable(driver.discover())] == [0, 1]
        hung = fake.calls()[function]
        assert [chip.phy_id for chip in readable(driver.discover())] == [0, 1]
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("card 2") == 1  # no second call while the first one hangs
        assert hung < fake.calls()[function] < 2 * hung
    for thread in threading.enumerate():
        if thread.name.startswith("card "):
            thread.join(10)
    assert [chip.phy_id for chip in readable(driver.discover())] == [0, 1, 2]


def test_an_unreadable_fact_keeps_its_value_and_is_logged_once(make_fake: MakeFake) -> None:
    fake = make_fake([FakeChip(ip="10.20.0.1")])
    driver = DcmiDriver()
    before = driver.discover()
    with structlog.testing.capture_logs() as logs, fake.fail("dcmi_get_device_ip", -8006):
        assert driver.discover() == before
        assert driver.discover() == before
    assert [line["fact"] for line in logs if line["log_level"] == "warning"] == ["RoCE address"]
    fake.chip(0).ip = "10.20.0.9"
    assert driver.discover().chips[0].address.ip == "10.20.0.9"


def test_every_call_is_observed_with_its_duration(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    lock = threading.Lock()
    durations: dict[str, list[float]] = {}

    def observe(call: str, seconds: float) -> None:
        with lock:
            durations.setdefault(call, []).append(seconds)

    with fake.delay("dcmi_get_device_hbm_info", 0.05, card=1):
        DcmiDriver(observe=observe).discover()
    assert {call: len(times) for call, times in durations.items()} == {
        call: count for call, count in fake.calls().items() if count
    }
    assert max(durations["dcmi_get_device_hbm_info"]) >= 0.05
