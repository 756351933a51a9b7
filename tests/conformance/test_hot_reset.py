"""Resets on a real kubelet: one that does not return, beside pods on the other ring, and over a restart."""

from collections.abc import Iterator

import pytest

from tests.conformance.chips import Chips
from tests.conformance.node import PluginNode
from tests.dcmi.fake import ascend_910a
from tests.written_nodes import removal

pytestmark = pytest.mark.long

RESTART = "80A18008"
"""A fault that ends with a reset."""
RESET = ("--hot-reset", "on", "--hot-reset-idle-s", "1")


@pytest.fixture
def rings(node: PluginNode) -> Iterator[PluginNode]:
    """The node as a 910A, whose chips are reset by rings of four."""
    usual, path = node.chips, f"/api/v1/nodes/{node.node.name}"
    node.plugin.process.stop()
    node.cluster.api.patch(path, removal())
    node.chips = Chips(node.node.folder, ascend_910a())
    yield node
    node.clear()
    node.plugin.process.stop()
    node.cluster.api.patch(path, removal())
    node.chips = usual
    node.start_plugin()


def test_a_reset_that_hangs_costs_its_ring_only_and_ends_with_a_restart_of_the_plugin(rings: PluginNode) -> None:
    node = rings
    with node.plugin_instead("resetting", *RESET):
        node.wait_until_allocatable()
        node.place("other-ring", 4, 5)
        node.check("other-ring", 4, 5)
        node.place("partner", 0)
        node.check("partner", 0)
        node.chips.hang(2, "dcmi_set_device_reset")
        node.chips.fail(2, RESTART)
        node.wait_until(lambda: node.counts() == (8, 7), "the chip is not allocatable")
        node.check("partner", 0)  # and so nothing is reset
        node.delete("partner")
        node.wait_until(lambda: node.chips.count("dcmi_set_device_reset") == 1, "the reset has begun", 60)
        node.wait_until(lambda: node.counts() == (8, 4), "its ring is withheld")
        node.check("other-ring", 4, 5)
        node.place("beside", 6)
        node.check("beside", 6)
        node.place("into-it", 1)
        assert "ChipResetting" in node.failed("into-it")
        node.restart_kubelet()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 4), "its ring stays withheld")
        node.check("beside", 6)
        node.plugin.process.kill()
        node.chips.repair_all()
        node.plugin.process.start()
        node.wait_until_allocatable()
        node.check("other-ring", 4, 5)
        node.place("next", 0, 1, 2, 3)
        node.check("next", 0, 1, 2, 3)
