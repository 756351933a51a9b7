"""Pods that no allocator has placed, on a real kubelet: the plugin chooses their chips."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import ChipSet, chip_set, parse_names
from ascend.products import ASCEND_910A
from sandbox.cluster import full_server, save_server
from tests.cluster.manifests import pod as pod_manifest
from tests.conformance.node import PluginNode


@pytest.fixture
def choosing(node: PluginNode, tmp_path: Path) -> Iterator[PluginNode]:
    """The node as a 910A server, with a plugin that chooses chips."""
    state = tmp_path / "chips.json"
    save_server(full_server(ASCEND_910A), state)
    usual = node.plugin
    usual.process.stop()
    simulated = ("--driver", "simulated", "--simulated-state", str(state))
    node.plugin = node.new_plugin("choosing", "--choose-chips", "true", *simulated)
    node.start_plugin()
    yield node
    node.plugin.process.stop()
    node.plugin = usual
    node.start_plugin()


def given(node: PluginNode, name: str) -> ChipSet:
    """Check that claim, kubelet and container of a running pod have the same chips of one ring; return them."""
    annotations = node.running(name)["metadata"]["annotations"]
    chips = chip_set(parse_names(annotations[REAL]))
    assert ALLOCATED not in annotations
    assert annotations[PREDICATE_TIME] == str(CLAIMED)
    assert chip_set(parse_names(annotations[KUBELET_IDS])) == node.ledger()[name, "main"] == chips
    assert chip_set(node.container(name).visible or ()) == chips
    assert any(not chips & ~ring for ring in ASCEND_910A.rings)
    return chips


def test_pods_of_a_scheduler_that_only_counts_get_chips_of_one_ring(choosing: PluginNode) -> None:
    held = 0
    for name, count in (("one", 1), ("four", 4), ("two", 2)):
        choosing.create(name, count)
        choosing.bind(name)
        chips = given(choosing, name)
        assert chips.bit_count() == count
        assert not chips & held
        held |= chips
    choosing.delete("two")
    choosing.create("too-large", 4)
    choosing.bind("too-large")
    assert "devices unavailable" in choosing.failed("too-large")
    choosing.delete("one", "too-large")
    choosing.create("again", 4)
    choosing.bind("again")
    assert given(choosing, "again") == 0xFF & ~given(choosing, "four")


@pytest.mark.long
def test_pods_of_kube_scheduler_alone_get_chips_beside_a_pod_that_was_placed(choosing: PluginNode) -> None:
    """Without an extender it only counts, and binds them at once."""
    choosing.cluster.restart_scheduler()
    choosing.place("placed", 4, 5)
    names = ("a", "b", "c")
    for name in names:
        choosing.cluster.api.create(pod_manifest(name, 2))
    chips = [given(choosing, name) for name in names]
    choosing.check("placed", 4, 5)
    assert sum(chips) == 0b1100_1111  # each once
