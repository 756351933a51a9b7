"""The driver's library is replaced, by another version too, removed or overwritten while the plugin runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_plugin.driver.dcmi.calls import Calls
from tests.conformance.node import ALL, PluginNode
from tests.dcmi.compiler import build_library

pytestmark = pytest.mark.long


@pytest.fixture
def library(node: PluginNode, tmp_path: Path) -> Iterator[Path]:
    """The library, which is restored."""
    path = node.chips.library
    kept = tmp_path / "kept.so"
    shutil.copy(path, kept)
    yield path
    replace(path, kept)


def replace(library: Path, by: Path) -> None:
    """Put another file in its place."""
    fresh = library.with_name("fresh")
    shutil.copy(by, fresh)
    fresh.replace(library)


def works(node: PluginNode, name: str, *chips: int) -> None:
    """Check that faults are noticed, and that a pod gets its chips."""
    node.chips.fail(7)
    node.wait_until(lambda: node.report().unhealthy == 0b10000000, "the fault is reported")
    node.chips.repair(7)
    node.wait_until_allocatable()
    node.place(name, *chips)
    node.check(name, *chips)


def test_a_library_that_is_replaced_is_used_from_the_next_start_on(node: PluginNode, library: Path) -> None:
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    replace(library, library)
    works(node, "before", 2, 3)
    (node.chips.library.parent / "nothing").write_bytes(b"no library")
    replace(library, library.parent / "nothing")
    works(node, "between", 4, 5)
    node.plugin.process.stop()
    node.plugin.process.start()
    node.wait_until(lambda: "can't be loaded" in node.plugin.problems(), "the plugin says why it can't work")
    assert node.phase("holds") == "Running"


def test_a_library_that_is_removed_is_waited_for_after_the_next_start(node: PluginNode, library: Path) -> None:
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    hidden = library.rename(library.with_name("hidden"))
    works(node, "before", 2, 3)
    node.plugin.process.kill()
    node.plugin.process.start()
    node.wait_until(lambda: "no libdcmi.so" in node.plugin.problems(), "the plugin says what is missing")
    hidden.rename(library)
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    node.check("before", 2, 3)
    assert node.report().free == ALL & ~0b1111
    works(node, "after", 4, 5)


def test_a_library_that_is_overwritten_costs_a_restart_of_the_plugin_and_no_pod(
    node: PluginNode, library: Path
) -> None:
    """The kernel ends a program whose code is cut off (SIGBUS)."""
    node.plugin.process.restart()  # so that it has loaded the file of this test
    node.wait_until_allocatable()
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    content = library.read_bytes()
    with library.open("r+b") as file:
        file.truncate(0)
    node.wait_until(lambda: not node.plugin.process.alive, "the plugin has ended")
    library.write_bytes(content)
    node.plugin.process.start()
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    assert node.report().free == ALL & ~0b11
    works(node, "after", 2, 3)


def test_a_library_of_an_older_interface_is_used_with_the_functions_that_it_has(
    node: PluginNode, library: Path
) -> None:
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    newer = {"dcmi_get_device_chip_info_v2", "dcmi_get_device_pcie_info_v2", "dcmi_subscribe_fault_event"}
    replace(library, build_library(sorted(Calls.prototypes.keys() - newer)))
    works(node, "before", 2, 3)
    node.plugin.process.restart()
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    works(node, "after", 4, 5)
    node.wait_until(lambda: node.report().free == 0b11000000, "the other chips are free")


def test_a_library_without_a_needed_function_costs_no_pod_its_chips_and_is_told(
    node: PluginNode, library: Path, tmp_path: Path
) -> None:
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    needed = {"dcmi_get_device_health", "dcmi_get_device_errorcode_v2"}
    replace(library, build_library(sorted(Calls.prototypes.keys() - needed)))
    node.plugin.process.restart()
    node.wait_until(lambda: node.counts() == (8, 2), "only the chips in use, which are in doubt, are allocatable")
    node.check("holds", 0, 1)
    assert "this driver has no such function" in node.plugin.process.log.read_text()
    replace(library, tmp_path / "kept.so")
    node.plugin.process.restart()
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    assert node.report().free == ALL & ~0b11
