"""What the annotations of pods say of chips and vNPUs, and what containers and nodes have of vNPUs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import ALLOCATED, OURS, PREDICATE_TIME, REAL, Grant, is_ours
from ascend.chips import RESOURCE, chip_ids, chip_name, chip_set
from ascend.errors import InvalidValue
from ascend.jobs.ray import RayCluster
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Node, NodeStatus
from ascend.pod_devices import Held, read_grant, read_held, read_vnpu_grant
from ascend.takes import NOTHING, Take
from ascend.vnpus import SUFFIXES, Vnpu, resource_of

vnpus = st.builds(Vnpu, st.sampled_from(sorted(SUFFIXES.values())), st.integers(0, 15), st.integers(100, 999))


@given(vnpus, st.integers(0, 1 << 63))
def test_a_vnpu_is_written_under_its_resource_and_read_back(vnpu: Vnpu, time: int) -> None:
    grant = Grant.of(Take.part(vnpu), time)
    written = grant.annotations()
    assert written == {vnpu.resource: vnpu.name, PREDICATE_TIME: str(time)}
    assert read_vnpu_grant(written) == grant
    assert read_grant(written) is None
    assert grant.take == Take.part(vnpu)
    assert grant.take.names == (vnpu.name,)


@given(st.lists(st.integers(0, 15), unique=True, max_size=4), st.lists(vnpus, max_size=2), vnpus)
def test_what_was_written_and_what_is_reported_count_together(
    chips: list[int], reported: list[Vnpu], written: Vnpu
) -> None:
    text = ",".join([*map(chip_name, chips), *(each.name for each in reported)])
    held = read_held({ALLOCATED: "Ascend910-7", REAL: text, written.resource: written.name})
    assert held.chips == sum({1 << chip for chip in (*chips, 7)})
    assert held.vnpus == tuple(sorted({*reported, written}))
    assert held.occupied == chip_set([*chip_ids(held.chips), *(each.chip for each in held.vnpus)])


@pytest.mark.parametrize("size", ["x", "7c"])
def test_a_key_of_no_size_is_the_authors_and_names_nothing(size: str) -> None:
    # The admission policy protects the keys of known sizes only.
    assert read_held({f"{RESOURCE}-{size}": f"Ascend910-{size}-100-0"}) == Held(0)


@pytest.mark.parametrize(
    "annotations",
    [
        {f"{RESOURCE}-2c": ""},
        {f"{RESOURCE}-2c": "Ascend910-4c-100-0"},
        {f"{RESOURCE}-2c": "Ascend910-2c-100-0,Ascend910-2c-101-0"},
        {REAL: "Ascend910-2c-100-0,x"},
        {REAL: "Ascend910-2c-100-0_1"},
    ],
)
def test_a_malformed_name_is_refused(annotations: dict[str, str]) -> None:
    with pytest.raises(InvalidValue):
        read_held(annotations)


def test_several_vnpus_are_no_grant() -> None:
    assert read_vnpu_grant({"note": "a"}) is None
    with pytest.raises(InvalidValue, match="several"):
        read_vnpu_grant({f"{RESOURCE}-2c": "Ascend910-2c-100-0", f"{RESOURCE}-4c": "Ascend910-4c-101-0"})
    assert read_held({}) == Held(0)


def test_the_keys_of_vnpus_are_ours_like_those_of_chips() -> None:
    assert all(map(is_ours, [*OURS, *map(resource_of, SUFFIXES.values())]))
    assert not any(map(is_ours, ["note", "huawei.com/Ascend910B-2c", "hccl/rankIndex"]))


def test_containers_nodes_and_templates_name_vnpus_by_size() -> None:
    limits = {f"{RESOURCE}-2c": "1", f"{RESOURCE}-4c": "0", "cpu": "4", f"{RESOURCE}-odd": "1"}
    container = Container("main", Resources(limits=limits, requests={f"{RESOURCE}-2c": "1"}))
    assert (container.vnpus, container.requests_chips) == ({"2c": 1}, True)
    assert Container("main", Resources(limits={f"{RESOURCE}-2c": "many"})).vnpus == {"2c": 1}
    assert not Container("main", Resources(limits={"cpu": "4", f"{RESOURCE}-4c": "0"})).requests_chips
    node = Node(status=NodeStatus(allocatable={f"{RESOURCE}-2c": "4", f"{RESOURCE}-4c": "0", RESOURCE: "7"}))
    assert node.allocatable_vnpus == {"2c": 4}


@pytest.mark.parametrize(
    ("resource", "workers"), [(f"{RESOURCE}-2c", 3), (RESOURCE, 3), (f"{RESOURCE}-x", 0), ("cpu", 0)]
)
def test_the_templates_of_operators_may_request_vnpus(resource: str, workers: int) -> None:
    pod = {"spec": {"containers": [{"name": "main", "resources": {"limits": {resource: 1}}}]}}
    spec = {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [{"replicas": 3, "groupName": "a", "template": pod}]}
    ray = msgspec.convert({"metadata": {"name": "a"}, "spec": spec}, RayCluster)
    assert ray.facts.pods_with_chips == workers


def test_takes_say_what_they_are() -> None:
    assert (Take.whole((3, 1)).names, Take.whole((3, 1)).chip_set) == (("Ascend910-3", "Ascend910-1"), 0b1010)
    assert NOTHING.names == ()
