"""Objects are decoded only as far as they are needed."""

import msgspec
import pytest

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue
from ascend.kube.containers import Container, EnvVar, Resources
from ascend.kube.objects import Metadata
from ascend.kube.workloads import StatefulSet
from ascend.templates import RESOURCE_CORES


def test_the_metadata_of_an_owner_is_kept_without_labels() -> None:
    seen = StatefulSet(metadata=Metadata("a", "b", "c", "7", labels={"d": "e"}, annotations={"f": "g"}))
    assert seen.metadata == Metadata("a", "b", "c", "7")


def test_only_environment_variables_with_a_rank_are_kept() -> None:
    rank = EnvVar("VC_TASK_INDEX", "7")
    assert Container("main", env=(EnvVar("PASSWORD", "x"), rank)).env == (rank,)


def requesting(**quantities: str) -> Container:
    return Container("main", Resources(quantities, {**quantities, "cpu": "1"}))


def test_containers_that_request_the_same_share_one_object() -> None:
    one, other = requesting(**{RESOURCE: "8"}), requesting(**{RESOURCE: "8", "memory": "4Gi"})
    assert one.resources is other.resources
    assert (one.chips, one.requests_chips, one.resources.requests) == (8, True, {RESOURCE: "8"})


def test_kinds_of_containers_beyond_a_number_are_not_remembered() -> None:
    many = {f"huawei.com/{number}": "1" for number in range(9)}
    assert requesting(**many).resources is not requesting(**many).resources
    known = requesting(**{RESOURCE: "1"}).resources
    for number in range(5000):
        assert requesting(**{"huawei.com/any": str(number)}).resources.limits == {"huawei.com/any": str(number)}
    assert requesting(**{RESOURCE: "1"}).resources == known


@pytest.mark.parametrize("quantity", ["", "0", "1k", "x", "-1", "1.5"])
def test_only_a_quantity_of_0_requests_no_chips(quantity: str) -> None:
    container = requesting(**{RESOURCE: quantity})
    assert container.requests_chips is (quantity not in {"", "0"})
    if container.requests_chips:
        with pytest.raises(InvalidValue):
            container.chips  # noqa: B018 - raises


def test_a_part_of_a_chip_counts_once_if_its_quantity_is_invalid() -> None:
    assert requesting(**{f"{RESOURCE}-2c": "x"}).vnpus == {"2c": 1}
    assert requesting(**{RESOURCE_CORES: "x"}).cores == 1
    assert not requesting(**{f"{RESOURCE}-2c": "0", RESOURCE_CORES: "0"}).requests_chips


def test_what_a_manifest_writes_beside_its_resources_counts_as_nothing() -> None:
    written = b'{"name":"main","resources":{"chips":[],"requestsChips":"yes","limits":{"cpu":"1"}}}'
    assert not msgspec.json.decode(written, type=Container).requests_chips
