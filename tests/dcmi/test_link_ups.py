"""How often a port has got a link, from a tool that can be missing, fail, hang or belong to another user."""

from pathlib import Path

import pytest

from ascend.errors import DriverError
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.link_ups import LinkUps
from device_plugin.driver.telemetry import NotMeasured, Quantity, Reading
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import ascend_910b
from tests.dcmi.test_link import tool, wait_for

ANSWER = (
    "echo '[device 3]current time : Mon'; echo '[device 3]link up count : 12'; echo '[device 3]link change records :'"
)


def test_the_tool_is_asked_for_the_chip(make_fake: MakeFake, tmp_path: Path) -> None:
    make_fake(ascend_910b(4))
    calls = tmp_path / "asked"
    driver = DcmiDriver(link_ups=LinkUps(tool(tmp_path, f'echo "$*" >> {calls}; {ANSWER}')))
    chip = driver.discover().chips[3]
    assert driver.measure(chip, Reading.LINK_UPS) == {Quantity.LINK_UPS: 12}
    assert calls.read_text() == "-i 3 -link_stat -g\n"


def test_without_the_tool_the_count_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match=f"there is no {tmp_path}/none"):
        LinkUps(tmp_path / "none").count(0)


@pytest.mark.parametrize(
    "script",
    ["", "exit 1", f"{ANSWER}; exit 1", "kill -9 $$", "echo 'link up count : many'", "echo 'link up count : -1'"],
)
def test_only_a_number_of_a_tool_that_succeeds_counts(tmp_path: Path, script: str) -> None:
    with pytest.raises(DriverError, match="exit status"):
        LinkUps(tool(tmp_path, script)).count(3)


@pytest.mark.parametrize(("mode", "problem"), [(0o777, "mode 0777"), (0o644, "can't be run: Permission denied")])
def test_a_tool_that_cannot_or_must_not_be_run_is_a_problem(tmp_path: Path, mode: int, problem: str) -> None:
    with pytest.raises(DriverError, match=problem):
        LinkUps(tool(tmp_path, ANSWER, mode=mode)).count(3)


def test_a_tool_that_hangs_is_killed_and_run_again_later(tmp_path: Path) -> None:
    links = LinkUps(tool(tmp_path, "exec sleep 1000"), deadline_s=0.1)
    with pytest.raises(DriverError, match=r"has not ended within 0\.1 s"):
        links.count(3)
    wait_for(lambda: links._killed[3].poll() is not None)
    tool(tmp_path, ANSWER)
    assert LinkUps(tmp_path / "hccn_tool").count(3) == 12
