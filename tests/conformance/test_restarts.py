"""Restarts of kubelet, plugin, container or node: running pods keep their chips, freed chips can be used again."""

import json
import time

import pytest

from ascend.annotations import ALLOCATED, KUBELET_IDS, PREDICATE_TIME, REAL
from tests.conformance.node import ALL, PATIENCE_S, PODS, PluginNode, restarts, written_set
from tests.conformance.reference_plugin import SLOW_RESOURCE, SlowPlugin

STALE_S = 3
"""Seconds after which the plugin believes no reading."""


def test_a_restarted_container_has_the_same_chips(node: PluginNode) -> None:
    """Scenario 3."""
    node.place("crashes", 0, 1, restartPolicy="Always")
    node.check("crashes", 0, 1)
    crash(node, "crashes")
    node.check("crashes", 0, 1)
    node.place("other", 2, 3)
    node.check("other", 2, 3)


def test_after_a_kubelet_restart_a_running_pod_has_its_chips(node: PluginNode) -> None:
    """Scenario 4."""
    node.place("holds", 5, 4)
    node.check("holds", 5, 4)
    before, ledger = container_ids(node, "holds"), node.ledger()
    node.restart_kubelet()
    node.wait_until_allocatable()
    node.check("holds", 5, 4)
    assert (container_ids(node, "holds"), node.ledger()) == (before, ledger)
    node.place("next", 6, 7)
    node.check("next", 6, 7)


def test_a_container_restarted_after_the_kubelet_has_the_same_chips(node: PluginNode) -> None:
    """Scenario 5."""
    node.place("crashes", 0, 1, restartPolicy="Always")
    node.check("crashes", 0, 1)
    node.restart_kubelet()
    node.wait_until_allocatable()
    crash(node, "crashes")
    node.check("crashes", 0, 1)


@pytest.mark.long
def test_a_plugin_that_was_suspended_refuses_no_pod_for_chips_that_are_well(node: PluginNode) -> None:
    old = node.plugin
    node.plugin = node.new_plugin("device-plugin-suspended", "--stale-s", str(STALE_S))
    old.process.stop()
    node.start_plugin()
    with node.plugin.process.paused():
        node.place("waits", 2, 3)
        time.sleep(2 * STALE_S)  # in which nobody reads the chips
        assert node.phase("waits") == "Pending"
    node.check("waits", 2, 3)
    assert node.plugin.metric("ascend_dp_health_transitions_total", to="unhealthy", reason="DriverSilent") == 0
    node.plugin.process.stop()
    node.plugin = old


def test_a_kubelet_without_the_plugin_offers_nothing(
    node: PluginNode,
) -> None:
    """Scenario 6."""
    node.place("done", 0, 1, command=["true"])
    node.wait_until(lambda: node.phase("done") == "Succeeded", "the pod has finished")
    node.plugin.process.stop()
    node.restart_kubelet()
    node.wait_until(lambda: node.counts()[1] == 0, "no chip is allocatable")
    assert node.phase("done") == "Succeeded"
    node.start_plugin()
    assert node.phase("done") == "Succeeded"
    node.wait_until(lambda: node.report().free == ALL, "its chips are free")
    node.place("next", *range(8))
    node.check("next", *range(8))


def test_after_a_plugin_restart_a_running_pod_has_its_chips(node: PluginNode) -> None:
    """Scenario 7."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    node.plugin.process.restart()
    node.wait_until_allocatable()
    node.check("holds", 2, 3)
    assert node.report().free == ALL & ~0b1100
    node.place("next", *(0, 1, 4, 5))
    node.check("next", *(0, 1, 4, 5))


def test_after_a_restart_of_both_a_running_pod_has_its_chips(node: PluginNode) -> None:
    """Scenario 8."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    node.plugin.process.kill()
    node.restart_kubelet()
    node.start_plugin()
    node.check("holds", 2, 3)
    assert node.report().free == ALL & ~0b1100
    node.place("next", 0, 1)
    node.check("next", 0, 1)


def test_chips_of_a_pod_deleted_while_the_kubelet_was_down_are_reused(node: PluginNode) -> None:
    """Scenario 9."""
    node.place("orphan", 2, 3)
    node.check("orphan", 2, 3)
    node.node.kubelet.kill()
    node.cluster.api.delete("/api/v1/namespaces/default/pods/orphan", grace_s=0)
    node.node.start_kubelet()
    node.wait_until_allocatable()
    # A kubelet frees no chips before its first list of pods, which it has received once it knows this pod.
    node.place("seen")
    node.wait_until(lambda: node.phase("seen") == "Running", "the kubelet knows its pods")
    assert ("orphan", "main") not in node.ledger()
    node.place("next", *range(8))
    node.check("next", *range(8))


@pytest.mark.long
def test_after_a_reboot_a_pod_admitted_too_early_fails_and_a_new_one_works(node: PluginNode) -> None:
    """Scenario 11: all containers are gone, and the plugin starts late."""
    node.place("before", 2, 3)
    node.check("before", 2, 3)
    node.plugin.process.kill()
    node.node.kubelet.kill()
    node.end_all_containers()
    node.node.kubelet.start()
    assert "UnexpectedAdmissionError" in node.failed("before")
    node.node.kubelet.wait_until(lambda: node.node.server.answers("/healthz"), timeout_s=30)
    node.start_plugin()
    node.wait_until(lambda: node.report().free == ALL, "its chips are free")
    node.place("after", 2, 3)
    node.check("after", 2, 3)


def test_a_container_restarted_after_an_upgrade_gets_the_earlier_answer(node: PluginNode) -> None:
    """Scenario A12: the kubelet reuses the stored answer, so its content must stay valid."""
    node.place("crashes", 0, 1, restartPolicy="Always")
    node.check("crashes", 0, 1)
    seen = node.container("crashes")
    old = node.plugin
    node.plugin = node.new_plugin("device-plugin-reconfigured", "--injection", "runtime")
    old.process.stop()
    node.start_plugin()
    crash(node, "crashes")
    node.check("crashes", 0, 1)
    assert node.container("crashes").devices == seen.devices == (0, 1)
    node.plugin.process.stop()
    node.plugin = old


def test_a_plugin_killed_while_a_pod_runs_restores_its_chips(node: PluginNode) -> None:
    """docs/spec/measurements.md#wrong-books, third row."""
    node.place("holds", 6, 7)
    node.check("holds", 6, 7)
    claimed = {key: written_set(node.annotations("holds"), key) for key in (REAL, KUBELET_IDS)}
    node.plugin.process.kill()
    node.wait_until(lambda: node.counts() == (8, 0), "no chip is allocatable")
    node.start_plugin()
    assert node.report().free == ALL & ~0b11000000
    assert {key: written_set(node.annotations("holds"), key) for key in (REAL, KUBELET_IDS)} == claimed
    node.create("second", 2)
    node.bind("second", 6, 7, predicate_time=time.time_ns())
    assert "ChipHeld: Ascend910-6,Ascend910-7 are held by pod default/holds" in node.failed("second")


def crash(node: PluginNode, name: str) -> None:
    """Kill a pod's container and wait until it was restarted."""
    (before,) = restarts(node.pod(name))
    node.signal_main(name)

    def was_restarted() -> bool:
        (count,) = restarts(node.pod(name))
        return count > before and node.phase(name) == "Running" and started(node, name)

    node.wait_until(was_restarted, f"the container of {name} was restarted", timeout_s=60)


def started(node: PluginNode, name: str) -> bool:
    (status,) = node.pod(name)["status"]["containerStatuses"]
    return bool(status["started"])


def container_ids(node: PluginNode, name: str) -> list[str]:
    return [json.dumps(each["containerID"]) for each in node.pod(name)["status"]["containerStatuses"]]


def test_a_pod_recreated_under_the_same_name_does_not_inherit_an_entry_of_the_ledger(node: PluginNode) -> None:
    """The kubelet's ledger has names only, and the kubelet may not have seen yet that the pod is another one."""
    node.place("same", 0, 1)
    node.check("same", 0, 1)
    slow = SlowPlugin()
    with slow.serving(node.node.device_plugin_dir):
        status = f"/api/v1/nodes/{node.node.name}"
        node.wait_until(
            lambda: node.cluster.api.get(status)["status"]["allocatable"].get(SLOW_RESOURCE) == "8",
            "the other resource is allocatable",
        )
        node.create("slow", 1, resource=SLOW_RESOURCE)
        node.bind("slow")
        assert slow.called.wait(PATIENCE_S)
        node.cluster.api.delete(f"{PODS}/same", grace_s=0)
        node.place("same", 0, 1)
        node.plugin.process.stop()
        node.plugin.process.start()
        node.wait_until(lambda: node.plugin.is_ready, "the plugin is ready")
        slow.answers.set()
        node.check("same", 0, 1)


def test_a_kubelet_that_lost_its_checkpoint_gives_no_pod_the_chips_of_a_running_one(node: PluginNode) -> None:
    node.place("old", 0, 1)
    node.check("old", 0, 1)
    node.node.kubelet.kill()
    (node.node.device_plugin_dir / "kubelet_internal_checkpoint").unlink()
    node.node.start_kubelet()
    node.wait_until_allocatable()
    node.plugin.process.kill()
    node.start_plugin()
    node.running("old")
    assert ("old", "main") not in node.ledger()
    node.wait_until(lambda: node.report().free == ALL & ~0b11, "the old pod's chips are used")
    node.create("forged", 2)
    node.cluster.api.request("POST", f"{PODS}/forged/binding", node.binding("forged", 0, 1))
    assert "held by pod default/old" in node.failed("forged")
    node.place("next", 2, 3)
    node.check("next", 2, 3)
    assert node.container("old").visible == (0, 1)
    # It was told before if the kubelet had not chosen the ids of its chips.
    kept = "it keeps Ascend910-0,Ascend910-1"
    node.wait_until(lambda: any(kept in note for note in node.notes("old", "NPUAllocationMismatch")), "it is told")
    assert not node.notes("old", "NPURunsWithoutChips")
    node.delete("old")
    node.place("last", 0, 1)
    node.check("last", 0, 1)


def test_a_forged_annotation_on_a_running_pod_changes_nothing_and_is_put_right(node: PluginNode) -> None:
    node.place("tenant", 0)
    node.check("tenant", 0)
    node.wait_until(lambda: node.report().free == ALL & ~0b1, "its chip is used")
    forged = {ALLOCATED: ",".join(f"Ascend910-{chip}" for chip in range(8)), PREDICATE_TIME: "1"}
    for change in (forged, {ALLOCATED: None}, {ALLOCATED: "nonsense", REAL: None}):
        node.cluster.api.patch(f"{PODS}/tenant", {"metadata": {"annotations": change}})
        node.wait_until(lambda: node.annotations("tenant").get(ALLOCATED) == "Ascend910-0", "it is put right")
        assert node.report().free == ALL & ~0b1
        node.check("tenant", 0)
    node.wait_until(lambda: node.notes("tenant", "NPUAnnotationRepaired"), "it is told")
    node.place("large", *range(1, 8))
    node.check("large", *range(1, 8))
