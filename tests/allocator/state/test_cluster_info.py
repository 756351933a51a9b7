"""ClusterD's ConfigMaps: faults that only it knows count too, and those that it filters make no pod faulty."""

import json
from typing import Any

import pytest

from allocator.rescheduling.faults import read_node
from allocator.rules.vacancy import Vacancy
from allocator.state.cluster_info import LAG_S
from allocator.state.location import Location
from ascend.chips import chip_set
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.errors import Refusal
from ascend.faults import FaultTime, chip_fault
from ascend.kube.objects import ConfigMap, Metadata
from ascend.reasons import Reason
from tests.allocator.builders import World, node, report

NOW_S = 1_800_000_000


def own(name: str = "n1", *, at_s: int = NOW_S, unhealthy: tuple[int, ...] = ()) -> ConfigMap:
    """A node's own report."""
    return report(name, data=encode_report(reported(at_s, unhealthy)))


def reported(at_s: int, unhealthy: tuple[int, ...]) -> DeviceReport:
    bad = chip_set(unhealthy)
    faults = tuple(
        chip_fault(chip_id=chip, level="SeparateNPU", codes={"80C98008": FaultTime(0, "SeparateNPU")})
        for chip in unhealthy
    )
    return DeviceReport(free=0xFF & ~bad, unhealthy=bad, network_unhealthy=0, update_time_s=at_s, faults=faults)


def entry(*, at_s: int = NOW_S, unhealthy: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    """ClusterD's entry about a node: its report, with what ClusterD knows besides."""
    inner = json.loads(encode_report(reported(at_s, unhealthy))["DeviceInfoCfg"])["DeviceInfo"]
    return {**inner, "CmName": "mindx-dl-deviceinfo-n1", "SuperPodID": -2, "RackID": -1, "ServerIndex": -2, **more}


def info(name: str, entries: object) -> ConfigMap:
    text = entries if isinstance(entries, str) else json.dumps(entries)
    return ConfigMap(metadata=Metadata(name=name, namespace="mindx-dl"), data={name: text})


def devices(number: int = 0, **nodes: object) -> ConfigMap:
    return info(f"cluster-info-device-{number}", {f"mindx-dl-deviceinfo-{name}": each for name, each in nodes.items()})


def world() -> World:
    made = World()
    made.add(node("n1"), own())
    return made


def healthy_chips(made: World, name: str = "n1") -> int:
    return made.vacancy(name).healthy


def faults(made: World, name: str = "n1") -> list[int]:
    return sorted(read_node(made.cluster.nodes[name], name).chips)


def test_a_chip_that_only_clusterd_knows_to_be_faulty_is_not_given_and_makes_its_pod_faulty() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry(unhealthy=(3,))))
    assert not made.vacancy("n1").free & chip_set([3])
    assert faults(made) == [3]
    made.cluster.reports.info_applied(devices(n1=entry(at_s=NOW_S + 1)))
    assert (healthy_chips(made), faults(made)) == (8, [])


def test_the_place_of_a_node_that_only_clusterd_knows_counts() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry(SuperPodID=3, ServerIndex=7, RackID=5)))
    assert made.cluster.index.topology.location("n1") == Location(3, 7, rack=5)


def test_a_fault_that_clusterd_filters_makes_no_pod_faulty_but_the_chip_is_not_given() -> None:
    made = world()
    made.add(own(unhealthy=(3,)))
    assert faults(made) == [3]
    made.cluster.reports.info_applied(devices(n1=entry()))
    assert (healthy_chips(made), faults(made)) == (7, [])


def test_a_fault_that_is_newer_than_what_clusterd_knows_counts() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry()))
    made.add(own(at_s=NOW_S + 1, unhealthy=(3,)))
    assert faults(made) == [3]


def test_what_clusterd_said_counts_no_more_once_it_has_missed_reports() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry(unhealthy=(3,))))
    made.add(own(at_s=NOW_S + LAG_S))
    assert healthy_chips(made) == 7
    made.add(own(at_s=NOW_S + LAG_S + 1))
    assert (healthy_chips(made), faults(made)) == (8, [])


@pytest.mark.parametrize("status", ["PreSeparate", "UnHealthy"])
def test_the_state_of_nodes_counts_until_it_is_no_longer_listed(status: str) -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry()))
    said = {"FaultDevList": None, "NodeStatus": status, "CmName": "", "UpdateTime": 0}
    made.cluster.reports.info_applied(info("cluster-info-node-cm", {"mindx-dl-nodeinfo-n1": said}))
    refusal = made.cluster.nodes["n1"].offer
    assert isinstance(refusal, Refusal)
    assert "its node agent" in refusal.message
    assert ("NodeD" in read_node(made.cluster.nodes["n1"], "n1").whole) == (status == "UnHealthy")
    made.cluster.reports.info_applied(info("cluster-info-node-cm", ""))
    assert isinstance(made.cluster.nodes["n1"].offer, Vacancy)


def test_a_fault_of_a_switch_counts() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n1=entry()))
    said = {"FaultInfo": [], "FaultLevel": "Separate", "UpdateTime": NOW_S, "NodeStatus": "UnHealthy"}
    switches = info("cluster-info-switch-0", {"mindx-dl-switchinfo-n1": said})
    made.cluster.reports.info_applied(switches)
    refusal = made.cluster.nodes["n1"].offer
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NODE_UNHEALTHY
    made.cluster.reports.info_deleted(switches)
    assert isinstance(made.cluster.nodes["n1"].offer, Vacancy)


def test_a_node_that_moves_to_another_config_map_is_known_throughout() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(0, n1=entry(unhealthy=(3,))))
    made.cluster.reports.info_applied(devices(1, n1=entry(unhealthy=(3,))))
    made.cluster.reports.info_applied(devices(0))
    assert faults(made) == [3]
    made.cluster.reports.info_deleted(devices(1))
    assert faults(made) == []


def test_nodes_that_do_not_exist_are_not_added_and_count_once_they_do() -> None:
    made = world()
    made.cluster.reports.info_applied(devices(n2=entry(unhealthy=(3,))))
    assert "n2" not in made.cluster.nodes
    made.add(node("n2"), own("n2"))
    assert faults(made, "n2") == [3]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"mindx-dl-deviceinfo-n1": 3}',
        '{"mindx-dl-deviceinfo-n1": {"DeviceList": {"huawei.com/Ascend910-Unhealthy": "x-1"}, "UpdateTime": 1}}',
        '{"mindx-dl-deviceinfo-n1": {"DeviceList": null, "UpdateTime": -1}}',
    ],
)
def test_what_can_not_be_read_is_said_and_ignored(content: str) -> None:
    said: list[str] = []
    made = world()
    made.cluster.reports.info.unreadable = said.append
    broken = content[:-1] + ', "mindx-dl-deviceinfo-n2": ' + json.dumps(entry(unhealthy=(3,))) + "}"
    made.add(node("n2"), own("n2"))
    made.cluster.reports.info_applied(info("cluster-info-device-0", broken if content.endswith("}") else content))
    assert (healthy_chips(made), faults(made)) == (8, [])
    assert faults(made, "n2") == ([3] if content.endswith("}") else [])
    (sentence,) = said
    assert "mindx-dl/cluster-info-device-0" in sentence


def test_a_chip_to_be_separated_is_given_to_no_new_pod() -> None:
    made = world()
    fault = chip_fault(chip_id=3, level="PreSeparateNPU", codes={"80C98008": FaultTime(0, "PreSeparateNPU")})
    said = DeviceReport(0xFF, 0, 0, update_time_s=NOW_S, faults=(fault,))
    inner = json.loads(encode_report(said)["DeviceInfoCfg"])["DeviceInfo"]
    made.cluster.reports.info_applied(devices(n1=entry(**inner)))
    assert made.vacancy("n1").free == 0xFF & ~chip_set([3])
    assert faults(made) == []


@pytest.mark.parametrize(("own_ids", "expected"), [((-2, -2), (7, 4)), ((0, 0), (0, 0)), ((5, -2), (5, 4))])
def test_the_super_pod_that_a_node_does_not_report_is_that_which_clusterd_says(
    own_ids: tuple[int, int], expected: tuple[int, int]
) -> None:
    made = world()
    decoded = DeviceReport(0xFF, 0, 0, update_time_s=NOW_S, super_pod_id=own_ids[0], server_index=own_ids[1])
    made.add(report("n1", data=encode_report(decoded)))
    made.cluster.reports.info_applied(devices(n1=entry(SuperPodID=7, ServerIndex=4)))
    location = made.cluster.index.topology.location("n1")
    assert (location.super_pod, location.server_index) == expected


def test_other_config_maps_with_the_label_are_ignored() -> None:
    made = world()
    made.cluster.reports.info_applied(info("something", "{"))
    assert healthy_chips(made) == 8
