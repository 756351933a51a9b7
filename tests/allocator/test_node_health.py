"""Which nodes are fit for chips at all, and which chips for jobs of several pods."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from allocator.app import AllocatorApp
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.settings import Settings
from allocator.state.report import HEALTH_ANNOTATION, NODE_INFO
from ascend.annotations import BASE_DEVICE_INFOS
from ascend.chips import NAME_PREFIX, RESOURCE, chip_set, parse_names
from ascend.deviceinfo import LABELS, SWITCH_INFO, DeviceReport, encode_report
from ascend.errors import InvalidValue, Refusal
from ascend.faults import chip_fault
from ascend.kube.objects import ConfigMap, Metadata, Node, NodeStatus, Pod
from ascend.products import ASCEND_910B_8 as _EIGHT
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World, node, noded_says, pod, report
from tests.allocator.harness import node_manifest, until
from tests.allocator.test_families import CASES


def health(name: str, content: object) -> ConfigMap:
    text = content if isinstance(content, str) else noded_says(content)
    meta = Metadata(name=f"mindx-dl-nodeinfo-{name}", namespace="mindx-dl")
    return ConfigMap(metadata=meta, data={NODE_INFO: text})


def annotated(name: str, status: str) -> Node:
    plain = node(name)
    return Node(
        metadata=Metadata(name=name, annotations={**plain.metadata.annotations, HEALTH_ANNOTATION: status}),
        status=plain.status,
    )


def switches(name: str, status: str) -> ConfigMap:
    data = report(name).data
    return report(name, data={**data, SWITCH_INFO: json.dumps({"FaultLevel": "", "NodeStatus": status})})


def offer(world: World) -> Vacancy | Refusal:
    found = world.cluster.nodes["n1"].offer
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("status", "reason"), [("UnHealthy", "NodeUnhealthy"), ("PreSeparate", "NodeSeparating"), ("Healthy", None)]
)
def test_whoever_says_that_a_node_is_ill_is_believed_and_named(status: str, reason: str | None) -> None:
    for sign, words in (
        (annotated("n1", status), "NodeHealthyStatus"),
        (health("n1", {"FaultDevList": [], "NodeStatus": status}), "node agent"),
        (switches("n1", status), "switches"),
    ):
        world = World()
        world.add(node("n1"))
        if isinstance(sign, ConfigMap) and NODE_INFO in sign.data:
            world.cluster.health_applied(sign)
        else:
            world.add(sign)
        found = offer(world)
        assert (found.reason if isinstance(found, Refusal) else None) == reason
        if isinstance(found, Refusal):
            assert "n1" in found.message
            assert words in found.message


def test_a_node_that_is_well_again_can_be_used_again() -> None:
    world = World()
    ill = health("n1", {"NodeStatus": "UnHealthy"})
    world.cluster.health_applied(ill)
    world.add(node("n1"))
    assert isinstance(offer(world), Refusal)
    world.cluster.health_applied(health("n1", {"NodeStatus": "Healthy"}))
    assert isinstance(offer(world), Vacancy)
    world.cluster.health_applied(ill)
    world.cluster.health_deleted(ill)
    assert isinstance(offer(world), Vacancy)
    world.cluster.node_deleted(node("n1"))
    assert not world.cluster.nodes


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"NodeInfo":7}', noded_says([]), noded_says({"NodeStatus": 7})]
)
def test_what_a_node_s_agent_says_in_a_garbled_way_makes_the_node_unusable(content: str) -> None:
    world = World()
    world.add(node("n1"))
    world.cluster.health_applied(health("n1", content))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InvalidReport"
    assert "mindx-dl/mindx-dl-nodeinfo-n1" in found.message


@pytest.mark.parametrize("code", ["", "x", "0" * 64, "of another", "upper case"])
def test_what_a_node_s_agent_says_counts_only_with_its_check_code(code: str) -> None:
    told = '{"FaultDevList":[],"NodeStatus":"Healthy"}'
    right = hashlib.sha256(told.encode()).hexdigest()
    other = hashlib.sha256(told.replace("Healthy", "UnHealthy").encode()).hexdigest()
    wrong = {"of another": other, "upper case": right.upper()}.get(code, code)
    world = World()
    world.add(node("n1"), node("n2"))
    world.cluster.health_applied(health("n1", f'{{"NodeInfo":{told},"CheckCode":"{wrong}"}}'))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InvalidReport"
    assert (
        f"mindx-dl/mindx-dl-nodeinfo-n1: NodeInfo: CheckCode is {wrong!r}, its content gives {right!r}" in found.message
    )
    assert world.engine.filter(pod("a")).fitting == ["n2"]
    world.cluster.health_applied(health("n1", f'{{"NodeInfo":{told},"CheckCode":"{right}"}}'))
    assert isinstance(offer(world), Vacancy)


def test_the_check_code_of_an_older_agent_that_tells_more_is_right_as_well() -> None:
    # The bytes, and what sha256sum says of the inner ones.
    told = '{"FaultDevList":null,"HeartbeatTime":1700000000,"HeartbeatInterval":5,"NodeStatus":"Healthy"}'
    world = World()
    world.add(node("n1"))
    world.cluster.health_applied(
        health(
            "n1",
            f'{{"NodeInfo":{told},"CheckCode":"9f75b92a9ab192925614fd4f120f0d06393fb15319b4f0bf61591423f0d8f6ca"}}',
        )
    )
    assert isinstance(offer(world), Vacancy)


def test_config_maps_of_others_are_ignored() -> None:
    world = World()
    world.cluster.health_applied(ConfigMap(metadata=Metadata(name="kube-root-ca.crt", namespace="mindx-dl")))
    assert not world.cluster.nodes


@pytest.mark.parametrize("by", ["fault", "switch"])
def test_a_sub_healthy_node_takes_the_jobs_that_put_up_with_it(by: str) -> None:
    slow = chip_fault(chip_id=3, level="SubHealthFault", codes={})
    told = encode_report(DeviceReport(0xFF, 0, 0, update_time_s=1, faults=(slow,)))
    world = World()
    world.add(node("n1"), report("n1", data=told) if by == "fault" else switches("n1", "SubHealthy"), node("n2"))
    assert isinstance(offer(world), Vacancy)
    ignoring, shunning = (
        pod("a"),
        Pod(
            metadata=Metadata(name="b", namespace="default", uid="uid-b", labels={"subHealthyStrategy": "graceExit"}),
            spec=pod("b").spec,
        ),
    )
    assert world.engine.filter(ignoring).fitting == ["n1", "n2"]
    assert world.engine.place(ignoring).node == "n2"
    filtered = world.engine.filter(shunning)
    assert filtered.fitting == ["n2"]
    assert filtered.refused["n1"].reason == "NodeSubHealthy"


def test_chips_with_an_unhealthy_network_are_free_only_for_jobs_of_one_pod() -> None:
    told = encode_report(DeviceReport(0xFF, 0, chip_set([0, 5]), update_time_s=1))
    world = World()
    world.add(node("n1"), report("n1", data=told), pod("holds", 1, node="n1", chips=[5], phase="Running"))
    found = offer(world)
    assert isinstance(found, Vacancy)
    assert (found.healthy, found.cut_off) == (8, 1)
    alone, distributed = judge(found, ChipRequest(4)), judge(found, ChipRequest(8, distributed=True))
    assert isinstance(alone, Fit)
    assert alone.chips == (0, 1, 2, 3)
    assert isinstance(distributed, Refusal)
    assert "7 free of 8 healthy, 1 of them with an unhealthy network" in distributed.message


def test_a_kubelet_that_contradicts_itself_is_not_believed() -> None:
    plain = node("n1")
    status = NodeStatus(allocatable={RESOURCE: "8"}, capacity={RESOURCE: "4"}, conditions=plain.status.conditions)
    world = World()
    world.add(Node(metadata=plain.metadata, status=status))
    found = offer(world)
    assert isinstance(found, Refusal)
    assert found.reason == "InconsistentCapacity"
    assert "allocatable 8 of huawei.com/Ascend910, capacity 4" in found.message


FREE_LISTS = CASES["plugin"]["self_maintained_free_list"]


@pytest.mark.parametrize("case", FREE_LISTS["cases"], ids=lambda case: f"free-{case['free']}")
def test_free_is_what_no_pod_holds(case: dict[str, Any]) -> None:
    world = World()
    world.add(node("n1", chips=FREE_LISTS["node_chips"]))
    for name in ("pod1", "pod2"):
        # The reference's rows name a chip twice in one list; such a list is refused here, in test_offer.
        chips = list(dict.fromkeys(case[name]))
        if chips:
            world.add(pod(name, len(chips), node="n1", chips=chips, phase="Running"))
    found = offer(world)
    assert isinstance(found, Vacancy)
    assert found.free == chip_set(case["free"])


LEFT = CASES["plugin"]["remove_from_node_list"]["cases"]


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_of_the_chips_a_node_reports_those_are_left_that_no_pod_holds(case: dict[str, Any]) -> None:
    names = case["list"]
    infos = None if names is None else json.dumps({name: {"IP": ""} for name in filter(None, names.split(","))})
    reporting = Node(
        metadata=Metadata(name="n1", annotations={} if infos is None else {BASE_DEVICE_INFOS: infos}),
        status=node("n1").status,
    )
    world = World()
    world.add(reporting, pod("holds", len(case["used"]), node="n1", chips=case["used"], phase="Running"))
    found = offer(world)
    if case.get("error"):
        assert isinstance(found, Refusal)
        assert found.reason == ("NotAnNpuNode" if names is None else "InvalidReport")
    else:
        left = found.free if isinstance(found, Vacancy) else 0
        assert left == chip_set(parse_names(case["result"]))


LISTS = CASES["plugin"]["parse_chip_list"]


@pytest.mark.parametrize("case", LISTS["cases"], ids=str)
def test_a_list_of_chips_is_read_as_a_whole_or_not_at_all(case: tuple[str, list[int] | None]) -> None:
    text, ids = case
    # The reference's rows are of another family, whose chips are named otherwise.
    names = text.replace(LISTS["prefix"], NAME_PREFIX)
    if ids is None:
        with pytest.raises(InvalidValue, match=names):
            parse_names(names)
    else:
        assert parse_names(names) == tuple(ids)


# vNPUs are not placed here.
STABLE = [case for case in CASES["plugin"]["resource_stable"] if "job" not in case]


@pytest.mark.parametrize("case", STABLE, ids=str)
def test_counts_of_the_kubelet_and_chips_that_look_free_need_not_agree(case: dict[str, Any]) -> None:
    """Where the reference refuses the node altogether, only as much is given as both have (docs/deviations.md)."""
    if case.get("capability") is None:
        lacking = Node(metadata=Metadata(name="n1", annotations={BASE_DEVICE_INFOS: "{}"}))
        world = World()
        world.add(lacking)
        assert isinstance(offer(world), Refusal)
        return
    chips, idle = case.get("list_len", 1), case["idle"]
    verdict = judge(Vacancy(_EIGHT, 8, (1 << chips) - 1, idle), ChipRequest(chips))
    assert isinstance(verdict, Fit) == (chips <= idle)


@pytest.mark.parametrize("case", CASES["plugin"]["idle_count_check"][1:], ids=str)
def test_the_kubelet_must_have_as_many_to_give(case: dict[str, Any]) -> None:
    idle = case.get("idle", case.get("idle_milli", 0) // 1000)
    verdict = judge(Vacancy(_EIGHT, 8, 0xFF, idle), ChipRequest(case["req"]))
    assert isinstance(verdict, Fit) == case["pass"]


async def test_what_noded_writes_is_watched_where_the_settings_say(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mindx-dl"}})
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(server.kubeconfig()))
        settings = Settings(
            kubeconfig=str(kubeconfig),
            extender_address="127.0.0.1:0",
            grpc_address="127.0.0.1:0",
            node_health_namespace="mindx-dl",
        )
        async with AllocatorApp(settings) as app:
            await app.synced()
            assert isinstance(app.cluster.nodes["n1"].offer, Vacancy)
            info = noded_says({"FaultDevList": None, "NodeStatus": "UnHealthy"})
            meta = {"name": "mindx-dl-nodeinfo-n1", "namespace": "mindx-dl", "labels": LABELS}
            await server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {NODE_INFO: info}})
            await until(lambda: isinstance(app.cluster.nodes["n1"].offer, Refusal))
