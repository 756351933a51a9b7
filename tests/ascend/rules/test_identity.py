"""Which product a node is, and that a node whose labels and chips contradict each other is refused."""

import pytest

from allocator.state.node import Server, read_server
from ascend.annotations import SERVER_TYPE
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.products import PRODUCTS
from ascend.reasons import Reason
from ascend.rules.identity import identify
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.health.snapshot import Snapshot
from device_plugin.publish.node_object import node_annotations, node_labels
from sandbox.cluster import full_server, save_server
from tests.allocator.builders import node

CHIP_NAME = "node.kubernetes.io/npu.chip.name"
ATLAS_910A = {"accelerator": "huawei-Ascend910", "servertype": "Ascend910-32", CHIP_NAME: "910A"}
ATLAS_910B = {"accelerator": "huawei-Ascend910", "servertype": "Ascend910B-20", CHIP_NAME: "910B3"}
ATLAS_A3 = {"accelerator": "huawei-Ascend910", "servertype": "Ascend910A3-24", CHIP_NAME: "Ascend910"}


@pytest.mark.parametrize(
    ("labels", "chips", "product"),
    [
        ({}, range(8), "910A"),
        ({}, range(7), "910A"),
        ({}, range(4), "910A-4"),
        (ATLAS_910A, range(8), "910A"),
        (ATLAS_910A, range(4), "910A-4"),
        (ATLAS_910A, range(4, 8), "910A"),
        (ATLAS_910B, range(8), "910B-8"),
        (ATLAS_910B, range(16), "910B-16"),
        (ATLAS_910B, [0, 15], "910B-16"),
        ({CHIP_NAME: "910B3"}, range(8), "910B-8"),
        ({CHIP_NAME: "910A"}, range(8), "910A"),
        ({CHIP_NAME: "910_9362"}, range(8), "A3-8"),
        ({CHIP_NAME: "Ascend910_9391"}, range(16), "A3-16"),
        ({CHIP_NAME: "Ascend910C"}, range(16), "A3-16"),
        ({"servertype": "soc", CHIP_NAME: "910B3"}, range(8), "910B-8"),
        (ATLAS_A3, range(8), "A3-8"),
        (ATLAS_A3, range(16), "A3-16"),
        ({"servertype": "npu-32"}, range(8), "plain-8"),
        ({"servertype": "npu-32"}, range(16), "plain-16"),
        ({"accelerator-type": "module"}, range(8), "910A"),
        ({"accelerator-type": "module"}, range(6), "910A"),
        ({"accelerator-type": "half"}, range(4), "910A-4"),
        ({"accelerator-type": "card"}, range(2), "910-card"),
        ({**ATLAS_910B, "accelerator-type": "card-910b-infer"}, range(4), "910-card"),
        ({**ATLAS_910B, "accelerator-type": "card-of-tomorrow"}, range(4), "910-card"),
        ({**ATLAS_910B, "accelerator-type": "module-910b-16"}, range(16), "910B-16"),
        ({**ATLAS_910B, "accelerator-type": "module-910b-16"}, range(15), "910B-16"),
        ({**ATLAS_A3, "accelerator-type": "module-a3-16-super-pod"}, range(16), "A3-16"),
        ({**ATLAS_A3, "accelerator-type": "module-a3-8-super-pod"}, range(8), "A3-8"),
        ({"accelerator-type": "chip4-node8"}, range(8), "mesh-8"),
        ({"accelerator-type": "850-SuperPod-Atlas-8"}, range(8), "850-8"),
        ({"accelerator-type": "chip4-node16"}, range(16), "mesh-16"),
        ({"accelerator-type": "chip1-node16"}, range(16), "plain-16"),
    ],
)
def test_labels_and_chips_identify_the_product(labels: dict[str, str], chips: list[int], product: str) -> None:
    assert identify("n1", labels, {}, chip_set(chips)).name == product


@pytest.mark.parametrize(
    ("labels", "chips", "reason", "words"),
    [
        ({"accelerator": "huawei-Ascend310"}, range(4), Reason.UNKNOWN_PRODUCT, "Ascend310 names no known product; "),
        ({"accelerator-type": "gpu"}, range(8), Reason.UNKNOWN_PRODUCT, "=gpu names no known product; known values: "),
        ({}, range(16), Reason.UNKNOWN_PRODUCT, "Ascend910-8"),
        ({}, range(16), Reason.UNKNOWN_PRODUCT, "no label says what the node is: set accelerator-type to one of "),
        ({CHIP_NAME: "Ascend910"}, range(16), Reason.UNKNOWN_PRODUCT, "let the device plugin write servertype"),
        (ATLAS_910A, range(9), Reason.INVALID_REPORT, "Ascend910-8"),
        (ATLAS_A3, range(17), Reason.INVALID_REPORT, "Ascend910-16"),
        ({"accelerator-type": "module"}, range(16), Reason.PRODUCT_MISMATCH, "Ascend910-8"),
        ({"accelerator-type": "module"}, range(4), Reason.PRODUCT_MISMATCH, "8 chips, but it reports 4"),
        ({"accelerator-type": "half"}, range(8), Reason.PRODUCT_MISMATCH, "910A-4 server"),
        ({**ATLAS_910B, "accelerator-type": "module-910b-16"}, range(8), Reason.PRODUCT_MISMATCH, "16 chips"),
        ({**ATLAS_910B, "accelerator-type": "module"}, range(8), Reason.PRODUCT_MISMATCH, "its chips are 910B"),
        ({**ATLAS_A3, "accelerator-type": "module-910b-16"}, range(16), Reason.PRODUCT_MISMATCH, "its chips are A3"),
    ],
)
def test_labels_that_contradict_the_chips_are_refused(
    labels: dict[str, str], chips: list[int], reason: str, words: str
) -> None:
    with pytest.raises(Refusal) as refused:
        identify("n1", labels, {}, chip_set(chips))
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "n1" in refused.value.message


def test_an_a3_servers_annotation_overrides_a_changed_label() -> None:
    assert identify("n1", {"servertype": "mine"}, {SERVER_TYPE: "A3"}, 0xFFFF).name == "A3-16"


@pytest.mark.parametrize(
    ("chip_type", "ai_cores", "chip_name", "chips", "product"),
    [
        ("Ascend910", 32, "910A", 8, "910A"),
        ("Ascend910", 30, "910ProB", 4, "910A-4"),
        ("Ascend910B", 20, "910B3", 8, "910B-8"),
        ("Ascend910B", 24, "910B2", 16, "910B-16"),
        ("Ascend910A3", 24, "Ascend910", 16, "A3-16"),
    ],
)
def test_labels_written_by_the_device_plugin_are_identified(
    chip_type: str, ai_cores: int, chip_name: str, chips: int, product: str
) -> None:
    server = Inventory(
        chip_type,  # type: ignore[arg-type]  # one of the parameters above
        tuple(ChipFacts(chip, chip_name=chip_name) for chip in range(chips)),
        ai_cores=ai_cores,
    )
    labels, problems = node_labels(server)
    annotations = node_annotations(Snapshot(server, (), 0, {}))
    assert not problems
    assert identify("n1", labels, annotations, (1 << chips) - 1).name == product


def test_contradicting_labels_make_the_node_unusable() -> None:
    refused = read_server(node("n1", labels={**ATLAS_910B, "accelerator-type": "module"}))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.PRODUCT_MISMATCH
    good = read_server(node("n1", chips=range(16), allocatable=16, labels=ATLAS_A3))
    assert isinstance(good, Server)
    assert good.product.name == "A3-16"


def test_every_product_with_known_chips_can_be_simulated(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("driver") / "chips.json"
    for product in PRODUCTS.values():
        if product.chip:
            save_server(full_server(product), path)
            labels, _ = node_labels(SimulatedDriver(path).discover())
            assert identify("n1", labels, {}, product.all_chips) is product
