"""The health of nodes, as annotations, NodeD and switches report it."""

import hashlib
import json
import re

import pytest

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.state.offers import assess
from allocator.state.promises import Promise
from allocator.state.report import HEALTH_ANNOTATION, NODE_INFO
from ascend.chips import ChipSet, chip_set
from ascend.deviceinfo import SWITCH_INFO, DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.faults import chip_fault
from ascend.kube.objects import ConfigMap, Metadata, Node
from ascend.reasons import Reason
from tests.allocator.builders import World, node, noded_says, pod, report


def health(name: str, content: object) -> ConfigMap:
    """NodeD's ConfigMap of a node."""
    text = content if isinstance(content, str) else noded_says(content)
    meta = Metadata(name=f"mindx-dl-nodeinfo-{name}", namespace="mindx-dl")
    return ConfigMap(metadata=meta, data={NODE_INFO: text})


def annotated(name: str, status: str) -> Node:
    """A node with the annotation of its health."""
    plain = node(name)
    return Node(
        metadata=Metadata(name=name, annotations={**plain.metadata.annotations, HEALTH_ANNOTATION: status}),
        status=plain.status,
    )


def promised(chips: ChipSet) -> list[Promise]:
    """What a pod has been promised of a node."""
    return [Promise("uid-high", "pod default/high", 9, {"n1": chips}, 60.0)]


def switches(name: str, status: str) -> ConfigMap:
    """The device-info ConfigMap of a node, with the health of its switches."""
    data = report(name).data
    return report(name, data={**data, SWITCH_INFO: json.dumps({"FaultLevel": "", "NodeStatus": status})})


@pytest.mark.parametrize(
    ("status", "reason"),
    [("UnHealthy", Reason.NODE_UNHEALTHY), ("PreSeparate", Reason.NODE_SEPARATING), ("Healthy", None)],
)
def test_every_source_of_node_health_is_used_and_named(status: str, reason: str | None) -> None:
    for source, words in (
        (annotated("n1", status), "NodeHealthyStatus"),
        (health("n1", {"FaultDevList": [], "NodeStatus": status}), "agent"),
        (switches("n1", status), "switches"),
    ):
        world = World()
        world.add(node("n1"))
        if isinstance(source, ConfigMap) and NODE_INFO in source.data:
            world.cluster.reports.health_applied(source)
        else:
            world.add(source)
        if reason is None:
            world.vacancy()
            continue
        refusal = world.node_refusal()
        assert refusal.reason == reason
        assert "n1" in refusal.message
        assert words in refusal.message


def test_a_recovered_node_is_usable_again() -> None:
    world = World()
    unhealthy = health("n1", {"NodeStatus": "UnHealthy"})
    world.cluster.reports.health_applied(unhealthy)
    world.add(node("n1"))
    world.node_refusal()
    world.cluster.reports.health_applied(health("n1", {"NodeStatus": "Healthy"}))
    world.vacancy()
    world.cluster.reports.health_applied(unhealthy)
    world.cluster.reports.health_deleted(unhealthy)
    world.vacancy()
    world.cluster.node_deleted(node("n1"))
    assert not world.cluster.nodes


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"NodeInfo":7}', noded_says([]), noded_says({"NodeStatus": 7})]
)
def test_a_malformed_noded_report_makes_the_node_unusable(content: str) -> None:
    world = World()
    world.add(node("n1"))
    world.cluster.reports.health_applied(health("n1", content))
    found = world.node_refusal()
    assert found.reason is Reason.INVALID_REPORT
    assert "mindx-dl/mindx-dl-nodeinfo-n1" in found.message


@pytest.mark.parametrize("code", ["", "x", "0" * 64, "of another", "upper case"])
def test_a_noded_report_with_a_wrong_check_code_is_invalid(code: str) -> None:
    info = '{"FaultDevList":[],"NodeStatus":"Healthy"}'
    right = hashlib.sha256(info.encode()).hexdigest()
    other = hashlib.sha256(info.replace("Healthy", "UnHealthy").encode()).hexdigest()
    wrong = {"of another": other, "upper case": right.upper()}.get(code, code)
    world = World()
    world.add(node("n1"), node("n2"))
    world.cluster.reports.health_applied(health("n1", f'{{"NodeInfo":{info},"CheckCode":"{wrong}"}}'))
    found = world.node_refusal()
    assert found.reason is Reason.INVALID_REPORT
    for words in ("mindx-dl/mindx-dl-nodeinfo-n1", "CheckCode", repr(wrong), repr(right)):
        assert words in found.message
    assert world.engine.filter(pod("a")).fitting == ["n2"]
    world.cluster.reports.health_applied(health("n1", f'{{"NodeInfo":{info},"CheckCode":"{right}"}}'))
    world.vacancy()


def test_the_check_code_of_an_older_noded_is_accepted() -> None:
    # The bytes as written, and the sha256sum of the inner ones.
    info = '{"FaultDevList":null,"HeartbeatTime":1700000000,"HeartbeatInterval":5,"NodeStatus":"Healthy"}'
    world = World()
    world.add(node("n1"))
    world.cluster.reports.health_applied(
        health(
            "n1",
            f'{{"NodeInfo":{info},"CheckCode":"9f75b92a9ab192925614fd4f120f0d06393fb15319b4f0bf61591423f0d8f6ca"}}',
        )
    )
    world.vacancy()


def test_other_config_maps_are_ignored() -> None:
    world = World()
    world.cluster.reports.health_applied(ConfigMap(metadata=Metadata(name="kube-root-ca.crt", namespace="mindx-dl")))
    assert not world.cluster.nodes


@pytest.mark.parametrize("by", ["fault", "switch"])
def test_a_sub_healthy_node_takes_jobs_that_ignore_it(by: str) -> None:
    slow = chip_fault(chip_id=3, level="SubHealthFault", codes={})
    data = encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1, faults=(slow,)))
    world = World()
    world.add(node("n1"), report("n1", data=data) if by == "fault" else switches("n1", "SubHealthy"), node("n2"))
    world.vacancy()
    ignoring, avoiding = pod("a"), pod("b", labels={"subHealthyStrategy": "graceExit"})
    assert world.engine.filter(ignoring).fitting == ["n1", "n2"]
    assert world.engine.place(ignoring).node == "n2"
    filtered = world.engine.filter(avoiding)
    assert filtered.fitting == ["n2"]
    assert filtered.refused["n1"].reason is Reason.NODE_SUB_HEALTHY


def test_chips_without_a_network_are_free_only_for_single_pods() -> None:
    data = encode_report(DeviceReport(0xFF, 0, chip_set([0, 5]), update_time_s=1))
    world = World()
    world.add(node("n1"), report("n1", data=data), pod("holds", 1, node="n1", chips=[5], phase="Running"))
    found = world.vacancy()
    assert (found.healthy, found.cut_off) == (8, 1)
    alone, distributed = (
        judge(found, ChipRequest(4)),
        judge(found, ChipRequest(8, distributed=True, needs_network=True)),
    )
    assert isinstance(alone, Fit)
    assert alone.take.chips == (0, 1, 2, 3)
    assert isinstance(distributed, Refusal)
    assert re.search("7 free of 8 healthy.* 1 .*network", distributed.message)


def test_kept_chips_without_a_network_are_not_why_a_pod_of_a_job_waits() -> None:
    world = World()
    world.add(node("n1"), report("n1", data=encode_report(DeviceReport(0xFF, 0, chip_set([0]), update_time_s=1))))
    found = assess(world.cluster.nodes["n1"], {}, promised(0xFF))
    assert isinstance(found, Vacancy)
    for distributed, reason in ((False, Reason.CHIPS_KEPT), (True, Reason.NOT_ENOUGH_CHIPS)):
        refused = judge(found, ChipRequest(8, distributed=distributed, needs_network=distributed))
        assert isinstance(refused, Refusal)
        sentence = "8 chips requested, 0 free of 8 healthy; 8 chips are kept for pod default/high"
        assert (refused.reason, refused.message) == (reason, sentence)


def test_kept_chips_that_the_kubelet_would_not_admit_are_not_why_a_pod_waits() -> None:
    world = World()
    world.add(node("n1", allocatable=2), report("n1", data=encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1))))
    found = assess(world.cluster.nodes["n1"], {}, promised(chip_set(range(4))))
    assert isinstance(found, Vacancy)
    for chips, reason in ((2, Reason.CHIPS_KEPT), (4, Reason.NO_ROOM_AT_KUBELET)):
        refused = judge(found, ChipRequest(chips))
        assert isinstance(refused, Refusal)
        assert refused.reason is reason
        assert "the kubelet would admit 0; 4 chips are kept" in refused.message
