"""The node's allocatable chips follow the chips' health, and running pods are not affected."""

from datetime import UTC, datetime
from typing import Final

import pytest

from ascend.chips import chip_name
from ascend.kube.events import REPEAT_POST_S
from device_plugin.publish.node_conditions import CHIPS, TAINT
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from tests.conformance.chips import SEPARATE
from tests.conformance.node import ALL, PATIENCE_S, PluginNode, restarts
from tests.conformance.wire import pod_resources

TAINTS: Final = ("--taint-from", "SeparateNPU", "--taint-effect", "NoSchedule")


def health(node: PluginNode, pod: str) -> dict[str, str]:
    """The health of a pod's chips in its status."""
    (status,) = node.pod(pod)["status"]["containerStatuses"]
    return {
        device["resourceID"]: device["health"]
        for resource in status.get("allocatedResourcesStatus", ())
        for device in resource["resources"]
    }


def condition(node: PluginNode) -> tuple[str, str, str]:
    """Status, reason and message of the Node's condition about its chips; empty if it has none."""
    conditions = node.cluster.api.get(f"/api/v1/nodes/{node.node.name}")["status"]["conditions"]
    found = next((each for each in conditions if each["type"] == CHIPS), None)
    return (found["status"], found["reason"], found["message"]) if found is not None else ("", "", "")


def taints(node: PluginNode) -> list[str]:
    """The Node's taints about its chips."""
    found = node.cluster.api.get(f"/api/v1/nodes/{node.node.name}")["spec"].get("taints", ())
    return [f"{each['value']}:{each['effect']}" for each in found if each["key"] == TAINT]


def test_a_node_offers_its_chips_and_a_pod_gets_those_written_on_it(node: PluginNode) -> None:
    """Scenario 1."""
    assert node.counts() == (8, 8)
    node.place("train", 6, 5)
    node.check("train", 6, 5)
    assert node.container("train").visible == (6, 5)
    with pod_resources(node.node.pod_resources_socket) as stub:
        listed = stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10).devices
    assert {each for devices in listed for each in devices.device_ids} == {chip_name(chip) for chip in range(8)}


def test_a_chip_that_fails_is_not_offered_until_it_recovers(node: PluginNode) -> None:
    """Scenario F2."""
    node.chips.fail(3)
    node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
    (fault,) = node.report().faults
    assert (fault.npu_name, fault.fault_code, node.report().free) == ("Ascend910-3", SEPARATE, ALL & ~0b1000)
    node.chips.repair(3)
    node.wait_until(lambda: node.counts() == (8, 8), "all chips are allocatable")


def test_the_report_never_has_more_free_chips_than_the_kubelet_offers(node: PluginNode) -> None:
    """A part of F2: Volcano would call such a node "not stable" (docs/spec/node-report.md#stable-device-count)."""
    node.chips.fail(3)

    def is_reported() -> bool:
        allocatable = node.counts()[1]
        assert node.report().free.bit_count() <= allocatable
        return allocatable == 7

    node.wait_until(is_reported, "one chip is not allocatable")


def test_a_pod_with_a_failed_chip_runs_on_and_the_chip_is_not_reused(node: PluginNode) -> None:
    """Scenario F3."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    node.chips.fail(2)
    node.wait_until(lambda: node.report().unhealthy == 0b100, "one chip is unhealthy")
    node.check("holds", 2, 3)
    node.delete("holds")
    node.wait_until(lambda: node.report().free == ALL & ~0b100, "the healthy chip of the pod is free again")
    node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
    node.place("next", 2)
    assert "ChipUnhealthy: Ascend910-2 is unhealthy" in node.failed("next")


@pytest.mark.long
def test_capacity_and_allocatable_follow_chips_that_fail_and_recover(node: PluginNode) -> None:
    """Scenario F4."""
    steps = [((0, 1, 2, 3), ()), ((), (1, 3)), ((7,), (0,)), ((4, 5, 6), ()), ((), (2, 4, 5, 6, 7))]
    failed: set[int] = set()
    for failing, recovering in steps:
        for chip in failing:
            node.chips.fail(chip)
        for chip in recovering:
            node.chips.repair(chip)
        failed = (failed | set(failing)) - set(recovering)
        expected = (8, 8 - len(failed))
        node.wait_until(lambda expected=expected: node.counts() == expected, f"capacity and allocatable are {expected}")
        free = sum(1 << chip for chip in range(8) if chip not in failed)
        node.wait_until(lambda free=free: node.report().free == free, f"the report's free chips are {free:#x}")


def test_the_status_of_a_pod_and_the_node_show_that_its_chip_has_failed(node: PluginNode) -> None:
    """Scenario F8. The kubelet does nothing to the pod, also over its restart."""
    node.place("holds", 4, 5)
    node.check("holds", 4, 5)
    assert health(node, "holds") == {"Ascend910-4": "Healthy", "Ascend910-5": "Healthy"}
    node.chips.fail(4)
    shown = {"Ascend910-4": "Unhealthy", "Ascend910-5": "Healthy"}
    node.wait_until(lambda: health(node, "holds") == shown, "the pod's status shows it")
    node.wait_until(lambda: condition(node)[:2] == ("True", "SeparateNPU"), "the Node's condition shows it")
    assert condition(node)[2] == f"Ascend910-4: {SEPARATE} (SeparateNPU)"
    node.wait_until(lambda: node.counts() == (8, 7), "it is not allocatable")
    node.restart_kubelet()
    node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 7), "the kubelet has the devices again")
    node.check("holds", 4, 5)
    assert sum(restarts(node.pod("holds"))) == 0
    node.wait_until(lambda: health(node, "holds") == shown, "the pod's status shows it still")
    node.chips.repair(4)
    healthy = dict.fromkeys(shown, "Healthy")
    node.wait_until(lambda: health(node, "holds") == healthy, "the pod's status shows that it has recovered")
    node.wait_until(lambda: condition(node)[:2] == ("False", "NoFault"), "the Node's condition shows it")


def test_a_chip_that_fails_in_use_costs_no_other_chip_if_the_kubelet_is_not_told(node: PluginNode) -> None:
    """The kubelet counts it as taken by its pod, and as unhealthy a second time. Also over its restart."""
    usual = node.plugin
    usual.process.stop()
    node.plugin = node.new_plugin("silent", "--faults-in-use", "healthy", *TAINTS)
    try:
        node.start_plugin()
        node.place("holds", 4, 5)
        node.check("holds", 4, 5)
        node.chips.fail(4)
        node.wait_until(lambda: node.report().unhealthy == 0b10000, "it is reported")
        node.wait_until(lambda: taints(node) == ["SeparateNPU:NoSchedule"], "the Node is tainted")
        node.restart_kubelet()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 8), "all chips are allocatable")
        node.check("holds", 4, 5)
        node.place("rest", 0, 1, 2, 3, 6, 7)
        node.check("rest", 0, 1, 2, 3, 6, 7)
        node.delete("holds")
        node.wait_until(lambda: node.counts() == (8, 7), "it is not allocatable any more")
        node.place("next", 5)
        node.check("next", 5)
    finally:
        node.plugin.process.stop()
        node.plugin = usual
    assert taints(node) == []
    assert condition(node)[0] == "Unknown"


@pytest.mark.long
def test_a_recovered_chip_waits_for_a_slow_kubelet(node: PluginNode) -> None:
    """At the default of ten seconds, readers must not count a chip before the Node does: Volcano refuses such a node
    (docs/spec/node-report.md#stable-device-count)."""

    def usable() -> int:
        report = node.report()
        return (ALL & ~report.unhealthy & ~report.recovering).bit_count()

    node.node.status_period_s = 10
    try:
        node.restart_kubelet()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 8), "all chips are allocatable")
        node.chips.fail(3)
        node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
        node.chips.repair(3)
        node.wait_until(lambda: node.report().recovering == 0b1000, "it has recovered")

        def is_usable() -> bool:
            reported = usable()
            assert reported <= node.counts()[1]
            return reported == 8

        node.wait_until(is_usable, "it can be used")
        assert node.report().free == ALL
    finally:
        node.node.status_period_s = 1
        node.restart_kubelet()


def test_a_chip_that_drops_off_the_bus_is_unhealthy_and_comes_back(node: PluginNode) -> None:
    """Scenario A11: the set of ids of the driver changes while the plugin runs."""
    node.place("holds", 6)
    node.check("holds", 6)
    node.chips.drop(6)
    node.wait_until(lambda: node.report().unhealthy == 0b1000000, "it is reported")
    node.check("holds", 6)
    node.delete("holds")
    node.wait_until(lambda: node.counts() == (8, 7), "it is in the capacity, but not allocatable")
    node.chips.repair(6)
    node.wait_until(lambda: node.counts() == (8, 8), "it is allocatable again")


@pytest.mark.long
def test_a_chip_that_was_not_ready_at_the_start_is_offered_once_it_is(node: PluginNode) -> None:
    """Scenario A11 in reverse."""
    node.plugin.process.stop()
    node.chips.drop(7)
    node.plugin.process.start()
    node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 7), "seven chips are allocatable")
    node.chips.repair(7)
    node.wait_until(lambda: node.counts() == (8, 8), "the eighth is allocatable, too")
    node.place("train", 7)
    node.check("train", 7)


@pytest.mark.long
def test_a_chip_off_the_bus_stays_in_the_capacity_over_a_restart(node: PluginNode) -> None:
    """Scenario A11: the driver's set of ids is smaller after a restart. The Node says which chips there were."""
    node.plugin.process.stop()
    node.chips.remove(7)
    node.plugin.process.start()
    node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 7), "seven of eight chips are allocatable")
    node.chips.repair(7)
    node.wait_until(lambda: node.counts() == (8, 8), "the eighth is allocatable again")


def test_a_fault_is_an_event_of_the_node(node: PluginNode) -> None:
    """A part of F2: the API server accepts the plugin's Events."""
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "")
    node.chips.fail(1)

    def is_reported() -> bool:
        events = node.cluster.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return any(
            each["regarding"]["kind"] == "Node" and each["reason"] == "NPUUnhealthy" and "Ascend910-1" in each["note"]
            for each in events
            if ((each.get("series") or {}).get("lastObservedTime") or each["eventTime"] or "") >= started
        )

    # After the same fault in an earlier test this Event is a repetition, which can be delayed.
    node.wait_until(is_reported, "an Event about it", timeout_s=REPEAT_POST_S + PATIENCE_S)
    node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
