"""Containers know where their chips are: by variables, and by a file about the server."""

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_ids
from ascend.daemon.observable import Observable
from ascend.deviceinfo import NAMESPACE
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, Metadata, Node
from ascend.leaf_switches import NAME, Spot, SwitchTable
from ascend.products import PRODUCTS, Product
from ascend.rules.identity import ACCELERATOR_TYPE, RACK_LABEL
from device_plugin.driver import NO_CARD, ChipFacts, ChipType, Inventory
from device_plugin.health.snapshot import Snapshot
from device_plugin.pods.container_edits import ContainerEdits
from device_plugin.pods.topology import (
    FILE,
    INSIDE,
    REFRESH_S,
    NodeTopology,
    TopologyFile,
    TopologyUpdates,
    node_topology,
    variables,
)
from sandbox.kubelet.runtime import NODE_IP
from tests.device_plugin.api import NODE, running
from tests.device_plugin.builders import server, snapshot
from tests.device_plugin.small_disk import SmallDisk
from tests.device_plugin.whole import whole_node

ADDRESS = "10.0.0.7"
TABLE = SwitchTable(2, is_single_layer=False, switches={5: "10.1.0.5"}, servers={ADDRESS: Spot(5, 0)})


def node(**labels: str) -> Node:
    return Node(metadata=Metadata(name=NODE, labels=labels))


def a3(chips: int = 16) -> Inventory:
    facts = (ChipFacts(chip, chip, chip // 2, chip % 2, numa_node=chip // 4) for chip in range(chips))
    return Inventory("Ascend910A3", tuple(facts), super_pod_id=3, server_index=12)


def test_a_server_of_a_super_pod_has_its_place_and_the_dies_of_its_cards() -> None:
    found = node_topology(
        node(**{RACK_LABEL: "7", "topology.kubernetes.io/zone": "z"}), snapshot(of=a3()), ADDRESS, TABLE
    )
    assert (found.node, found.super_pod, found.server_index) == (NODE, 3, 12)
    assert (found.rack, found.zone, found.leaf_switch, found.leaf_switch_ip) == ("7", "z", 5, "10.1.0.5")
    assert [(chip.ring, chip.card, chip.die, chip.numa_node) for chip in found.chips[:3]] == [
        (0, 0, 0, 0),
        (0, 0, 1, 0),
        (1, 1, 0, 0),
    ]
    assert variables(found, (3, 2)) == {
        "ASCEND_AFFINITY_CHIPS": "3,2",
        "ASCEND_AFFINITY_RINGS": "1,1",
        "ASCEND_AFFINITY_SUPER_POD": "3",
        "ASCEND_AFFINITY_SERVER_INDEX": "12",
        "ASCEND_AFFINITY_RACK": "7",
        "ASCEND_AFFINITY_LEAF_SWITCH": "5",
    }


def test_what_is_unknown_is_null_in_the_file_and_no_variable() -> None:
    lost = Inventory("Ascend910", (ChipFacts(0, NO_CARD, NO_CARD, NO_CARD),))
    found = node_topology(node(**{ACCELERATOR_TYPE: "of-tomorrow"}), snapshot(of=lost), ADDRESS, None)
    written = json.loads(
        json.dumps({name: getattr(found, name) for name in found.__struct_fields__ if name != "chips"})
    )
    assert set(written.values()) == {NODE, None}
    assert (found.chips[0].ring, found.chips[0].card, found.chips[0].die) == (None, None, None)
    assert variables(found, (0,)) == {"ASCEND_AFFINITY_CHIPS": "0"}


@given(st.sampled_from([*PRODUCTS.values()]), st.data())
def test_chips_have_the_same_number_exactly_if_they_are_linked(product: Product, data: st.DataObject) -> None:
    kinds: dict[str, ChipType] = {"910B": "Ascend910B", "A3": "Ascend910A3"}
    of = server(*map(ChipFacts, range(product.chips)), chip_type=kinds.get(product.chip, "Ascend910"))
    found = node_topology(node(**{ACCELERATOR_TYPE: product.node_types[0]}), snapshot(of=of), "", None)
    assert found.product is not None
    rings = {chip.id: chip.ring for chip in found.chips}
    one, other = data.draw(st.integers(0, product.chips - 1)), data.draw(st.integers(0, product.chips - 1))
    linked = any({one, other} <= set(chip_ids(ring)) for ring in product.rings)
    assert (rings[one] == rings[other]) == linked


def test_the_file_is_replaced_only_if_something_has_changed(tmp_path: Path) -> None:
    topology, found = TopologyFile(tmp_path), node_topology(node(), snapshot(of=a3()), ADDRESS, TABLE)
    topology.update(found)
    before = (tmp_path / FILE).stat().st_ino
    topology.update(found)
    assert (tmp_path / FILE).stat().st_ino == before
    topology.update(node_topology(node(), snapshot(of=a3()), ADDRESS, None))
    assert json.loads((tmp_path / FILE).read_text())["leaf_switch"] is None
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_a_file_that_could_not_be_written_is_written_later(small_disk: SmallDisk) -> None:
    topology, last = TopologyFile(small_disk.path), node_topology(node(), snapshot(of=a3()), ADDRESS, None)
    topology.update(node_topology(node(), snapshot(of=a3()), ADDRESS, TABLE))
    small_disk.fill()
    topology.update(last)
    edits = topology.add(ContainerEdits({}, {}), (0,))
    assert "ASCEND_AFFINITY_LEAF_SWITCH" not in edits.envs
    assert edits.mounts == {str(INSIDE): str(small_disk.path)}
    small_disk.empty()
    topology.update(last)
    assert json.loads((small_disk.path / FILE).read_text())["leaf_switch"] is None


@pytest.mark.parametrize("folder", ["missing", "a-file"])
def test_without_the_folder_containers_have_the_variables_only(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a-file").touch()
    topology = TopologyFile(tmp_path / folder)
    topology.update(node_topology(node(), snapshot(of=a3()), ADDRESS, TABLE))
    edits = topology.add(ContainerEdits({"A": "b"}, {}), (0,))
    assert edits.mounts == {}
    assert {"A", "ASCEND_AFFINITY_CHIPS"} <= edits.envs.keys()
    assert "ASCEND_AFFINITY_TOPOLOGY" not in edits.envs


async def test_a_container_gets_variables_and_file_by_the_table_of_leaf_switches(folder: Path) -> None:
    async with whole_node(folder) as whole:
        server_list = [{"tor_id": 2, "tor_ip": "10.0.0.2", "server": [{"server_ip": NODE_IP}]}]
        table: dict[str, Any] = {
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": {"tor_info": json.dumps({"tor_count": 4, "server_list": server_list})},
        }
        await whole.client.create(CONFIG_MAPS, table, NAMESPACE)
        await whole.client.patch(NODES, NODE, {"metadata": {"labels": {RACK_LABEL: "r7"}}})
        places = folder / "topology"
        places.mkdir()
        async with whole.plugin(topology_dir=places):
            await whole.bind("train", 5, 4)
            await whole.claimed("train")
            container = whole.node.kubelet.container("default/train", "main")
            assert container.env["ASCEND_AFFINITY_CHIPS"] == "5,4"
            assert container.env["ASCEND_AFFINITY_RINGS"] == "1,1"
            assert container.env["ASCEND_AFFINITY_LEAF_SWITCH"] == "2"
            assert container.env["ASCEND_AFFINITY_RACK"] == "r7"
            assert container.env["ASCEND_AFFINITY_TOPOLOGY"] == str(INSIDE / FILE)
            assert container.mounts[str(INSIDE)] == (str(places), True)
            written = json.loads((places / FILE).read_text())
            assert (written["schema"], written["product"]) == ("ascend-affinity/topology/v1", "910A")


class RelabelledNode(KubeClient):
    """An API server whose Node has the number of the read as its rack, and which has no table of leaf switches."""

    def __init__(self) -> None:
        self.read_at_s: list[float] = []

    async def request(self, _method: str, path: str, **_options: Any) -> bytes:  # type: ignore[override]  # what is used of it
        if not path.endswith(f"/nodes/{NODE}"):
            raise NotFound("not found", status=404)
        self.read_at_s.append(asyncio.get_running_loop().time())
        labels = {RACK_LABEL: str(len(self.read_at_s))}
        return json.dumps({"metadata": {"name": NODE, "labels": labels}}).encode()


@pytest.mark.looptime
async def test_the_node_is_read_again_in_time_however_often_pods_start(tmp_path: Path) -> None:
    client, topology = RelabelledNode(), TopologyFile(tmp_path)
    snapshots: Observable[Snapshot | None] = Observable(snapshot(of=a3()))
    updates = TopologyUpdates(client, node(), ADDRESS, snapshots, topology)
    start_s = asyncio.get_running_loop().time()
    await updates.begin()
    async with running(updates.run()):
        for number in range(70):
            await asyncio.sleep(10.0)
            snapshots.set(snapshot(of=a3(), used=number))
        await asyncio.sleep(REFRESH_S)
    assert [round(at_s - start_s) for at_s in client.read_at_s] == [0, 300, 600, 900]
    assert topology.add(ContainerEdits({}, {}), (0,)).envs["ASCEND_AFFINITY_RACK"] == "4"


def test_the_example_for_ray_gives_nodes_their_places_and_orders_them() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "deploy" / "examples" / "ray_actors.py"))

    def ray_node(node_id: str, chips: str, leaf: int | None) -> dict[str, Any]:
        topology = NodeTopology(node_id, "910A", 3, 0, None, leaf, None, None, ())
        ids = tuple(map(int, chips.split(",")))
        return {"NodeID": node_id, "Alive": True, "Resources": example["resources"](variables(topology, ids))}

    far, near, beside = ray_node("a", "4,5", 2), ray_node("b", "0,1,2,3", 1), ray_node("c", "0,1", 2)
    assert near["Resources"] == {"NPU": 4, "superpod-3": 1, "leaf-1": 1}
    head = {"NodeID": "d", "Alive": True, "Resources": {"CPU": 8.0} | example["resources"]({})}
    gone = {**near, "NodeID": "e", "Alive": False}
    assert example["in_order"]([far, head, near, gone, beside]) == [near, far, beside]
