"""The table of leaf switches: what can't be read costs only itself, and is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import ConfigMap, Metadata
from ascend.leaf_switches import NAME, Spot, SwitchTable, read_switches
from tests.allocator.switches.world import server, table


def config_map(info: Any, **data: str) -> ConfigMap:
    text = info if isinstance(info, str) else json.dumps(info)
    return ConfigMap(metadata=Metadata(name=NAME, namespace=NAMESPACE), data={"tor_info": text, **data})


def one_switch(*servers: dict[str, Any], **switch: Any) -> dict[str, Any]:
    return {"tor_count": 4, "server_list": [{"tor_id": 1, "tor_ip": "s1", "server": list(servers), **switch}]}


def read(info: Any, **data: str) -> SwitchTable:
    found = read_switches(config_map(info, **data))
    assert isinstance(found, SwitchTable), found
    return found


def test_a_table_of_the_makers_is_read() -> None:
    found = read_switches(table([0, 7]))
    assert isinstance(found, SwitchTable)
    assert (found.width, found.is_single_layer, found.problems) == (4, False, ())
    assert found.switches == {0: "192.168.0.0", 7: "192.168.0.7"}
    assert found.servers["10.0.7.3"] == Spot(7, 3)


def test_a_level_of_the_table_is_read_or_named() -> None:
    assert read(one_switch(), tor_level="single_layer").is_single_layer
    found = read(one_switch(), tor_level="three")
    assert not found.is_single_layer
    assert found.problems == (
        "ConfigMap kube-system/basic-tor-node-cm: tor_level='three' is not single_layer; it is ignored",
    )


def test_a_level_within_tor_info_is_named() -> None:
    found = read(one_switch({"server_ip": "a"}) | {"tor_level": "single_layer"})
    assert not found.is_single_layer
    (problem,) = found.problems
    assert problem.endswith("tor_level is not read there: it is a key of the ConfigMap's data, beside tor_info")


def test_a_missing_table_is_named() -> None:
    empty = config_map({})
    assert read_switches(replace(empty, data={})) == "ConfigMap kube-system/basic-tor-node-cm has no key tor_info"


def test_a_missing_slot_is_the_place_in_the_list() -> None:
    assert read(one_switch({"server_ip": "a"}, {"server_ip": "b"})).servers == {"a": Spot(1, 0), "b": Spot(1, 1)}


@pytest.mark.parametrize(
    ("info", "where"),
    [
        ("", "tor_info"),
        ("[]", "tor_info"),
        ({"server_list": []}, "tor_count"),
        ({"tor_count": 0, "server_list": []}, "tor_count"),
        ({"tor_count": "4", "server_list": []}, "tor_count"),
        ({"tor_count": 4}, "server_list"),
    ],
)
def test_a_table_of_which_nothing_can_be_used_is_refused_with_its_field(info: Any, where: str) -> None:
    found = read_switches(config_map(info))
    assert isinstance(found, str)
    assert found.startswith("ConfigMap kube-system/basic-tor-node-cm: tor_info: ")
    assert where in found


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"torid": 1}, "server_list[0]: Object missing required field `tor_id`"),
        (
            {"tor_id": 1, "server": [{"server_ip": str(number)} for number in range(5)]},
            "server_list[0]: has 5 servers, more than tor_count, 4; left out",
        ),
        ({"tor_id": 1, "server": [{"server_ip": ""}]}, "server_list[0].server[0]: "),
    ],
)
def test_a_table_of_which_every_server_is_left_out_is_refused_with_the_first_cause(entry: Any, problem: str) -> None:
    found = read_switches(config_map({"tor_count": 4, "server_list": [entry, {"tor_id": 2}]}, tor_level="three"))
    assert isinstance(found, str)
    assert found.startswith(f"ConfigMap kube-system/basic-tor-node-cm: tor_info: {problem}")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("x", "server_list[1]: "),
        ({"tor_ip": "s2"}, "server_list[1]: "),
        ({"tor_id": -1}, "server_list[1]: "),
        ({"tor_id": 1, "server": [{"server_ip": "b"}]}, "server_list[1]: tor_id 1 occurs twice"),
        (
            {"tor_id": 2, "server": [{"server_ip": str(number)} for number in range(5)]},
            "has 5 servers, more than tor_count, 4",
        ),
        (
            {"tor_id": 2, "server": [{"server_ip": "a", "slice_id": 0}]},
            "server_list[1].server[0]: server_ip a occurs twice",
        ),
        ({"tor_id": 2, "server": [{"server_ip": ""}]}, "server_list[1].server[0]: "),
        (
            {"tor_id": 2, "server": [{"server_ip": "b", "slice_id": "0"}]},
            'server_list[1].server[0]: Expected `int | null`, got `str` - at `$.slice_id` in {"server_ip": "b", ',
        ),
    ],
)
def test_a_malformed_entry_costs_only_itself(entry: Any, problem: str) -> None:
    info = one_switch({"server_ip": "a", "slice_id": 2})
    found = read(info | {"server_list": [*info["server_list"], entry]})
    assert found.servers == {"a": Spot(1, 2)}
    (said,) = found.problems
    assert problem in said


def test_of_two_servers_in_one_slot_the_first_counts() -> None:
    found = read(one_switch({"server_ip": "a", "slice_id": 0}, {"server_ip": "b", "slice_id": 0}))
    assert found.servers == {"a": Spot(1, 0)}
    assert "slice_id 0 occurs twice below the switch" in found.problems[0]


def test_a_slot_that_is_written_counts_before_a_place_in_the_list() -> None:
    found = read(one_switch({"server_ip": "a"}, {"server_ip": "b", "slice_id": 0}, {"server_ip": "c"}))
    assert found.servers == {"b": Spot(1, 0), "c": Spot(1, 2)}
    (problem,) = found.problems
    assert problem.endswith("server_list[0].server[0]: its place in the list, 0, is the slice_id of another; left out")


def test_a_server_that_occurs_twice_below_a_switch_has_one_slot() -> None:
    found = read(one_switch({"server_ip": "a"}, {"server_ip": "a", "slice_id": 3}))
    assert found.servers == {"a": Spot(1, 3)}
    (problem,) = found.problems
    assert problem.endswith("server_list[0].server[0]: server_ip a occurs twice; left out")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_content_of_the_table_is_an_error(info: Any) -> None:
    read_switches(config_map(info))
    read_switches(config_map({"tor_count": 4, "server_list": [info, {"tor_id": 1, "server": [info]}]}))


def test_what_can_not_be_read_is_told_once() -> None:
    told: list[str] = []
    cluster = Cluster(Ledger(ttl_s=1, monotonic=lambda: 0.0))
    cluster.switches.unreadable = told.append
    for _ in range(2):
        cluster.switches.apply(config_map("?"))
        cluster.switches.apply(ConfigMap(metadata=Metadata(name="other"), data={"tor_info": "?"}))
    assert len(told) == 1


@pytest.mark.parametrize("table_first", [True, False])
def test_nodes_are_found_by_their_internal_ip_whichever_comes_first(*, table_first: bool) -> None:
    cluster = Cluster(Ledger(ttl_s=1, monotonic=lambda: 0.0))
    if table_first:
        cluster.switches.apply(table([3]))
    cluster.node_applied(server(3, 2))
    cluster.switches.apply(table([3]))
    assert cluster.index.topology.location("t3-2").spot == Spot(3, 2)
    cluster.switches.delete(table([3]))
    assert cluster.index.topology.location("t3-2").spot is None
