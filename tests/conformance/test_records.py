"""Records that were wrong with the reference (docs/spec/measurements.md#wrong-books).

The other rows are in `test_restarts` and `test_devices`.
"""

import json

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, PREDICATE_TIME, REAL
from ascend.base_device_infos import BASE_DEVICE_INFOS
from tests.cluster.api import HTTPError
from tests.conformance.node import ALL, GatedNode, PluginNode
from tests.conformance.wire import exceed_rate_limit


def test_a_plugin_killed_before_its_answer_consumes_no_predicate_time(node: PluginNode) -> None:
    """First row: the kubelet fails such a pod (it can't do otherwise), and its chips are free for the next."""
    node.plugin.process.pause()
    node.place("admitted", 2, 3)
    # The kubelet lists a pod right before it admits it, so it calls the plugin now.
    node.wait_until(lambda: "admitted" in node.listed(), "the kubelet admits the pod")
    node.plugin.process.kill()
    assert "UnexpectedAdmissionError" in node.failed("admitted")
    assert node.annotations("admitted")[PREDICATE_TIME] != str(CLAIMED)
    node.start_plugin()
    assert REAL not in node.annotations("admitted")
    node.wait_until(lambda: node.report().free == ALL, "its chips are free")
    node.place("next", 2, 3)
    node.check("next", 2, 3)


def test_a_plugin_killed_after_its_answer_writes_the_claim_once_restarted(node: GatedNode) -> None:
    """Second row: the reference never wrote it, and reported the pod's chips as free."""
    with node.proxy.gate("PATCH", "/pods/admitted") as claiming:
        node.place("admitted", 2, 3)
        claiming.wait_until_reached()
        node.plugin.process.kill()
    assert REAL not in node.annotations("admitted")
    node.start_plugin()
    node.check("admitted", 2, 3)
    assert node.report().free == ALL & ~0b1100


def test_a_node_that_was_deleted_has_its_annotations_again(node: PluginNode) -> None:
    path = f"/api/v1/nodes/{node.node.name}"

    def written() -> tuple[str | None, str | None]:
        try:
            metadata = node.cluster.api.get(path)["metadata"]
        except HTTPError:
            return None, None
        return metadata.get("annotations", {}).get(BASE_DEVICE_INFOS), metadata.get("labels", {}).get("accelerator")

    before = written()
    assert all(before)
    node.cluster.api.delete(path)
    node.wait_until(lambda: "was deleted" in node.plugin.problems(), "the plugin says that the Node is gone")
    node.restart_kubelet()  # a kubelet makes its Node when it starts
    node.wait_until(lambda: written() == before, "the Node has what the plugin writes")
    node.wait_until_allocatable()


def test_a_whole_node_pod_of_a_fresh_plugin_is_claimed_with_all_chips(node: PluginNode) -> None:
    """Fourth row: the reference wrote nothing."""
    node.plugin.process.restart()
    node.wait_until_allocatable()
    node.place("whole", *range(8))
    node.check("whole", *range(8))
    configuration = json.loads(node.annotations("whole")[CONFIGURATION])
    assert [each["device_id"] for each in configuration["devices"]] == [str(chip) for chip in range(8)]
    node.wait_until(lambda: node.report().free == 0, "no chip is free")


@pytest.mark.long
def test_a_whole_node_pod_after_smaller_ones_is_claimed_with_all_chips(node: PluginNode) -> None:
    """Fifth row: the reference wrote 5 of the 8, and reported the other 3 as free."""
    for round_, sizes in enumerate([((7,), (1, 0), (2, 3)), ((4, 5, 6, 7), (3,))]):
        pods = [f"small-{round_}-{number}" for number in range(len(sizes))]
        for name, chips in zip(pods, sizes, strict=True):
            node.place(name, *chips)
        for name, chips in zip(pods, sizes, strict=True):
            node.check(name, *chips)
        node.delete(*pods)
    node.wait_until(lambda: node.report().free == ALL, "all chips are free")
    node.place("whole", *range(8))
    node.check("whole", *range(8))
    node.wait_until(lambda: node.report().free == 0, "no chip is free")


def test_the_ledger_is_read_despite_the_kubelets_rate_limit(node: PluginNode) -> None:
    """Scenario F9: the kubelet's rate limit rejects calls; a plugin that starts then still restores all hand-overs."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    node.plugin.process.kill()
    with exceed_rate_limit(node.node.pod_resources_socket) as readers:
        node.wait_until(lambda: readers.rejected > 0, "the kubelet rejects by rate limit")
        node.start_plugin()
    node.check("holds", 2, 3)
    assert node.report().free == ALL & ~0b1100
