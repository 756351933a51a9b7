"""A node changes from MindCluster's device plugin to this one and back while pods run."""

import pytest

from ascend.annotations import KUBELET_IDS, REAL
from ascend.chips import chip_set
from tests.conformance.node import ALL, PluginNode, restarts, written_set
from tests.conformance.reference_plugin import reference_plugin


def has(node: PluginNode, name: str, chips: tuple[int, ...], ids: tuple[int, ...]) -> None:
    """Check what a running pod has: its chips, and the ids in the kubelet's ledger; it was never restarted."""
    pod = node.running(name)
    annotations = pod["metadata"]["annotations"]
    assert written_set(annotations, REAL) == chip_set(chips), annotations
    assert written_set(annotations, KUBELET_IDS) == chip_set(ids), annotations
    assert node.ledger()[name, "main"] == chip_set(ids)
    assert node.container(name).visible == chips
    assert restarts(pod) == [0]


@pytest.mark.long
def test_new_pods_get_the_free_chips_beside_pods_of_mindclusters_plugin(node: PluginNode) -> None:
    with reference_plugin(node) as reference:
        reference.place("old", (0, 1), (2, 3))
    node.start_plugin()
    has(node, "old", (0, 1), (2, 3))
    node.wait_until(lambda: node.report().free == ALL & ~0b11, "the old pod's chips alone are used")
    node.place("new", 2, 3)
    has(node, "new", (2, 3), (0, 1))
    node.place("large", 4, 5, 6, 7)
    has(node, "large", (4, 5, 6, 7), (4, 5, 6, 7))
    node.plugin.process.kill()
    node.start_plugin()
    node.delete("old")
    node.wait_until(lambda: node.report().free == 0b11, "the old pod's chips are free")
    node.place("next", 0, 1)
    has(node, "next", (0, 1), (2, 3))
    has(node, "new", (2, 3), (0, 1))
    node.delete("new", "next")
    node.place("last", 0, 1, 2, 3)
    node.check("last", 0, 1, 2, 3)


@pytest.mark.long
def test_a_node_goes_back_to_mindclusters_plugin_and_comes_again(node: PluginNode) -> None:
    node.place("ours", 4, 5)
    node.check("ours", 4, 5)
    with reference_plugin(node) as reference:
        has(node, "ours", (4, 5), (4, 5))
        reference.place("theirs", (0, 1, 2, 3), (0, 1, 6, 7))
        has(node, "ours", (4, 5), (4, 5))
    node.start_plugin()
    node.place("again", 6, 7)
    has(node, "again", (6, 7), (2, 3))
    has(node, "theirs", (0, 1, 2, 3), (0, 1, 6, 7))
    has(node, "ours", (4, 5), (4, 5))
