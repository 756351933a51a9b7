"""A pod gets the same chips whether its peers exist or not: their number is known, or does not matter."""

import re
from collections.abc import Mapping

import pytest

from ascend.chips import chip_set
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import TYPE, World, node, owned_by, pod, report, stateful_set

MODULE = {TYPE: "module"}


def ordinal(number: int, chips: int, *, labels: Mapping[str, str] | None = None) -> Pod:
    """A pod of a StatefulSet that names its product."""
    return owned_by(pod(f"train-{number}", chips, labels=labels, selector=MODULE), "StatefulSet")


def world_of(nodes: Mapping[str, list[int]], replicas: int | None) -> World:
    """910A servers with the chips whose network is unhealthy, and a StatefulSet; None if it has not been seen."""
    world = World()
    for name, cut_off in nodes.items():
        data = encode_report(DeviceReport(0xFF, 0, chip_set(cut_off), update_time_s=1))
        world.add(node(name, labels=MODULE), report(name, data=data))
    if replicas is not None:
        world.cluster.jobs.owners.apply(stateful_set(replicas))
    return world


@pytest.mark.parametrize("replicas", [2, None])
@pytest.mark.parametrize("seen", [0, 1, 2])
def test_the_first_pod_avoids_chips_without_a_network(seen: int, replicas: int | None) -> None:
    world = world_of({"n1": [0], "n2": []}, replicas)
    pods = [ordinal(number, 8) for number in range(2)]
    world.add(*pods[:seen])
    assert world.engine.place(pods[0]).node == "n2"
    # Its own reservation does not change the answer.
    assert world.engine.filter(pods[0]).fitting == ["n2"]
    assert world.engine.place(pods[0]).node == "n2"


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_no_pod_of_an_invalid_job_gets_chips(seen: int) -> None:
    world = world_of({"n1": []}, 2)
    pods = [ordinal(number, 4) for number in range(2)]
    world.add(*pods[:seen])
    for each in pods:
        refusal = world.refusal(each)
        assert refusal.reason is Reason.INVALID_REQUEST
        assert re.search("job default/train .* 4 chips; on 910A servers", refusal.message)


def test_a_job_of_one_pod_may_use_any_part_of_a_server() -> None:
    world = world_of({"n1": list(range(8))}, 1)
    assert len(world.engine.place(ordinal(0, 4)).take.chips) == 4


def test_pods_of_a_job_of_unknown_size_are_placed_one_by_one() -> None:
    world = world_of({"n1": [], "n2": []}, None)
    pods = [ordinal(number, 4) for number in range(2)]
    for each in pods:
        assert len(world.engine.place(each).take.chips) == 4
        world.add(each)


def test_a_pod_that_may_be_alone_prefers_chips_with_a_network() -> None:
    world = world_of({"n1": [0], "n2": []}, None)
    first = ordinal(0, 8)
    for _ in ("first call", "second call"):
        assert world.engine.filter(first, ["n1"]).fitting == ["n1"]
        assert world.engine.place(first, ["n1"]).node == "n1"
    assert world.engine.place(first, ["n1", "n2"]).node == "n2"


def test_a_pod_with_peers_waits_for_chips_with_a_network() -> None:
    later = ordinal(1, 8, labels={"apps.kubernetes.io/pod-index": "1"})
    refusals = [world_of({"n1": [0]}, None).refusal(later, ["n1"])]
    world = world_of({"n1": [0]}, None)
    world.add(ordinal(1, 8))
    refusals.append(world.refusal(ordinal(0, 8), ["n1"]))
    for refusal in refusals:
        assert refusal.reason is Reason.NOT_ENOUGH_CHIPS
        assert "network" in refusal.message
