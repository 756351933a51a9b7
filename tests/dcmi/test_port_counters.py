"""Counters of a port, from a tool that can be missing, fail, hang or belong to another user."""

from pathlib import Path

import pytest

from ascend.errors import DriverError
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.port_tool import PortCounters
from device_plugin.driver.telemetry import NotMeasured, Quantity, Reading
from device_plugin.settings import DriverSettings
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import ascend_910b
from tests.dcmi.test_link import tool, wait_for

ANSWER = (
    "echo '[device 3]current time : Mon'; echo '[device 3]link up count : 12'; echo '[device 3]link change records :'"
)


def test_the_tool_is_asked_for_the_chip(make_fake: MakeFake, tmp_path: Path) -> None:
    make_fake(ascend_910b(4))
    calls = tmp_path / "asked"
    driver = DcmiDriver(counters=PortCounters(tool(tmp_path, f'echo "$*" >> {calls}; {ANSWER}')))
    chip = driver.discover().chips[3]
    assert driver.measure(chip, Reading.LINK_UPS) == {Quantity.LINK_UPS: 12}
    assert calls.read_text() == "-i 3 -link_stat -g\n"


def test_without_the_tool_the_count_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match=f"there is no {tmp_path}/none"):
        PortCounters(tmp_path / "none").link_ups(0)


@pytest.mark.parametrize(
    "script",
    ["", "exit 1", f"{ANSWER}; exit 1", "kill -9 $$", "echo 'link up count : many'", "echo 'link up count : -1'"],
)
def test_only_a_number_of_a_tool_that_succeeds_counts(tmp_path: Path, script: str) -> None:
    with pytest.raises(DriverError, match="exit status"):
        PortCounters(tool(tmp_path, script)).link_ups(3)


@pytest.mark.parametrize(("mode", "problem"), [(0o777, "mode 0777"), (0o644, "can't be run: Permission denied")])
def test_a_tool_that_cannot_or_must_not_be_run_is_a_problem(tmp_path: Path, mode: int, problem: str) -> None:
    with pytest.raises(DriverError, match=problem):
        PortCounters(tool(tmp_path, ANSWER, mode=mode)).link_ups(3)


def test_a_tool_that_hangs_is_killed_and_run_again_later(tmp_path: Path) -> None:
    links = PortCounters(tool(tmp_path, "exec sleep 1000"), deadline_s=0.1)
    with pytest.raises(DriverError, match=r"has not ended within 0\.1 s"):
        links.link_ups(3)
    wait_for(lambda: links._killed[3].poll() is not None)
    tool(tmp_path, ANSWER)
    assert PortCounters(tmp_path / "hccn_tool").link_ups(3) == 12


def test_the_configured_tool_is_asked(make_fake: MakeFake, tmp_path: Path) -> None:
    make_fake(ascend_910b(4))
    driver = DriverSettings(driver="dcmi", link_tool=tool(tmp_path, ANSWER)).make_driver()
    chip = driver.discover().chips[3]
    assert driver.measure(chip, Reading.LINK_UPS) == {Quantity.LINK_UPS: 12}


def test_packets_are_those_sent_and_received(tmp_path: Path) -> None:
    calls = tmp_path / "asked"
    answer = r"printf 'mac_tx_total_pkt_num:5\nroce_rx_all_pkt_num:40\nroce_tx_all_pkt_num:2\n'"
    assert PortCounters(tool(tmp_path, f'echo "$*" > {calls}; {answer}')).packets(3) == 42
    assert calls.read_text() == "-i 3 -stat -g\n"


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo nothing", "echo roce_rx_all_pkt_num:4", "echo roce_rx_all_pkt_num:x; echo roce_tx_all_pkt_num:1"],
)
def test_packets_are_unknown_unless_both_directions_are_counted(tmp_path: Path, script: str) -> None:
    with pytest.raises(DriverError, match="of 2 counts"):
        PortCounters(tool(tmp_path, script)).packets(0)
