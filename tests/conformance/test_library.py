"""The driver's library is replaced, removed or overwritten while the plugin runs, as by an upgrade of the driver."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.node import ALL, PluginNode

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
