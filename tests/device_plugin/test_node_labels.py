"""Labels and annotations of the Node.

See docs/spec/node-report.md#node-annotations; the expected values are from a run of the reference.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from ascend.base_device_infos import ChipAddress
from ascend.kube.objects import NODES, JsonObject
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.publish.node_object import NodeWriter, node_annotations, node_labels
from tests.device_plugin.api import NODE, RecordingClient
from tests.device_plugin.builders import snapshot

EIGHT = Inventory(
    "Ascend910B",
    tuple(
        ChipFacts(
            phy_id, chip_name="910B3", hbm_mb=65536, address=ChipAddress(f"10.20.0.{phy_id + 1}"), logic_id=phy_id
        )
        for phy_id in range(8)
    ),
    driver_version="24.1.0",
    ai_cores=20,
    board_id=0x30,
)


def test_labels_and_annotations_are_those_of_the_reference() -> None:
    assert node_labels(EIGHT) == (
        {
            "accelerator": "huawei-Ascend910",
            "huawei.com/driver.version": "24.1.0",
            "mind-cluster/npu-chip-memory": "64G",
            "node.kubernetes.io/npu.chip.name": "910B3",
            "servertype": "Ascend910B-20",
        },
        [],
    )
    found = node_annotations(snapshot(of=EIGHT))
    infos = {f"Ascend910-{number}": {"IP": f"10.20.0.{number + 1}", "SuperDeviceID": 0} for number in range(8)}
    assert found.pop("baseDeviceInfos") == json.dumps(infos, separators=(",", ":"))
    assert found == {"serverIndex": "-2", "serverType": "", "superPodID": "-2"}


def test_an_a3_server_has_its_superpod_and_an_inference_server_its_type() -> None:
    a3 = Inventory("Ascend910A3", EIGHT.chips, super_pod_id=7, server_index=2)
    assert node_labels(a3)[0]["huawei.com/topotree.superpodid"] == "7"
    assert node_annotations(snapshot(of=a3))["serverType"] == "A3"
    inference = Inventory("Ascend910B", EIGHT.chips, board_id=0x28, super_pod_id=7)
    labels = node_labels(inference)[0]
    assert labels["accelerator-type"] == "card-910b-infer"
    assert "huawei.com/topotree.superpodid" not in labels


def test_unknown_facts_are_no_labels_instead_of_empty_ones() -> None:
    assert node_labels(Inventory("Ascend910", ())) == ({"accelerator": "huawei-Ascend910"}, [])


@given(st.text(min_size=1, max_size=70), st.text(min_size=1, max_size=70))
def test_only_valid_label_values_become_labels(version: str, name: str) -> None:
    labels, problems = node_labels(Inventory("Ascend910", (ChipFacts(0, chip_name=name),), driver_version=version))
    assert len(labels) + len(problems) == 3
    for value in labels.values():
        assert len(value) <= 63
        assert value.isascii()
        assert value[0].isalnum()
        assert value[-1].isalnum()


async def node(client: RecordingClient) -> JsonObject:
    found = await client.get(NODES, NODE)
    return {"labels": found.metadata.labels, "annotations": found.metadata.annotations}


async def test_only_differences_are_written_and_other_labels_stay(client: RecordingClient) -> None:
    body: JsonObject = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"of": "others"}}}
    await client.create(NODES, body)
    writer = NodeWriter(client, NODE)
    await writer.learn()
    await writer.write({"a": "1"}, {"servertype": "Ascend910B-20"})
    await writer.write({"a": "1"}, {"servertype": "Ascend910B-20"})
    assert len(client.to("/nodes/")) == 1
    assert await node(client) == {"labels": {"of": "others", "servertype": "Ascend910B-20"}, "annotations": {"a": "1"}}
    writer.forget()
    await writer.write({"a": "1"}, {"servertype": "Ascend910B-20"})
    assert len(client.to("/nodes/")) == 2


async def test_a_server_type_that_contradicts_the_driver_is_announced_once_and_overwritten(
    client: RecordingClient,
) -> None:
    body: JsonObject = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"servertype": "soc"}}}
    await client.create(NODES, body)
    announced: list[tuple[str, str, bool]] = []
    writer = NodeWriter(client, NODE, announce=lambda *words: announced.append(words))
    await writer.learn()
    await writer.write({}, {"accelerator": "huawei-Ascend910"})  # the driver has not said what it is yet
    assert (await node(client))["labels"] == {"servertype": "soc", "accelerator": "huawei-Ascend910"}
    labels = {"servertype": "Ascend910B-20", "accelerator": "huawei-Ascend910"}
    for _ in range(2):
        await writer.write({}, labels)
        writer.forget()
    assert (await node(client))["labels"] == labels
    sentence = (
        "the label servertype is 'soc', but the driver reports Ascend910B-20: schedulers would place pods by the rule "
        "of another product, so the label is overwritten"
    )
    assert announced == [("NPUServerTypeCorrected", sentence, True)]


async def test_labels_without_a_value_any_more_are_removed_once(client: RecordingClient) -> None:
    labels = {"of": "others", "ours": "0.3"}
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})
    writer = NodeWriter(client, NODE, outdated=("ours", "never there"))
    await writer.learn()
    await writer.write({}, {"accelerator": "huawei-Ascend910"})
    assert (await node(client))["labels"] == {"of": "others", "accelerator": "huawei-Ascend910"}
    await client.patch(NODES, NODE, {"metadata": {"labels": {"ours": "of-somebody"}}})
    writer.forget()
    await writer.write({}, {"accelerator": "huawei-Ascend910"})
    assert (await node(client))["labels"]["ours"] == "of-somebody"
