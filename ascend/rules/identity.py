"""The product of a node, by the node's labels and reported chips.

See docs/spec/node-report.md#node-labels, docs/spec/dcmi.md#chip-types.

The label ``accelerator-type`` names the product. Without it, the device plugin's label ``servertype`` or the chip name
gives the kind of chip, and the reported chips decide between the servers with that kind of chip. A node without any of
these labels is a 910A server: there were no others when docs/spec/affinity-rules.md was written.
"""

import re
from collections.abc import Mapping
from typing import Final

from ascend.annotations import SERVER_TYPE as SERVER_TYPE_ANNOTATION
from ascend.chips import ChipSet, chip_ids, join_names
from ascend.errors import Refusal
from ascend.grammar import a
from ascend.products import ASCEND_910_CARD, PLAIN_8, PLAIN_16, PRODUCTS, Product
from ascend.reasons import Reason

ACCELERATOR = "accelerator"
ACCELERATOR_TYPE = "accelerator-type"
SERVER_TYPE = "servertype"
CHIP_NAME = "node.kubernetes.io/npu.chip.name"
SUPER_POD_LABEL = "huawei.com/topotree.superpodid"
RACK_LABEL = "huawei.com/topotree.rackid"
SERVER_LABEL = "huawei.com/topotree.serverid"

CHIP_OF_SERVER_TYPE = {"Ascend910": "910A", "Ascend910B": "910B", "Ascend910A3": "A3"}
"""The kind of chip of each type that the driver distinguishes."""

_FAMILY_910 = "huawei-Ascend910"
_B = re.compile(r"(Ascend)?(910B\d|A2G\d)")
_A3 = re.compile(r"(Ascend)?910(_93|C)")
_A = re.compile(r"(Ascend)?910")
_BY_NODE_TYPE: Final = {node_type: product for product in PRODUCTS.values() for node_type in product.node_types}

_SMALLER: Final = {
    product.name: frozenset(
        other.all_chips for other in PRODUCTS.values() if other.chip == product.chip and other.chips < product.chips
    )
    for product in PRODUCTS.values()
    if product.chip
}
"""Some chips of a server may be missing; but exactly the chips of a smaller server mean that the label is wrong."""

KNOWN_TYPES: Final = ", ".join(_BY_NODE_TYPE)
"""The known values of ``accelerator-type``, for sentences."""


def product_of_type(node_type: str) -> Product | None:
    """The product for a value of ``accelerator-type``; None if the value is unknown."""
    product = _BY_NODE_TYPE.get(node_type)
    # Every value that contains "card" means servers with cards (docs/spec/products.md#policies-and-rules).
    return ASCEND_910_CARD if product is None and "card" in node_type else product


def identify(name: str, labels: Mapping[str, str], annotations: Mapping[str, str], reported: ChipSet) -> Product:
    """The product of a node.

    Args:
        name: the node's name, for messages.
        labels: the node's labels.
        annotations: the node's annotations.
        reported: the chips it reports.

    Raises:
        Refusal: ``UnknownProduct`` if a label has an unknown value, ``ProductMismatch`` if label and chips contradict
            each other, ``InvalidReport`` if no such server has the reported chips.
    """
    accelerator = labels.get(ACCELERATOR, _FAMILY_910)
    if accelerator != _FAMILY_910:
        raise _unknown(name, ACCELERATOR, accelerator, _FAMILY_910)
    chip = "A3" if annotations.get(SERVER_TYPE_ANNOTATION) == "A3" else _chip(labels)
    node_type = labels.get(ACCELERATOR_TYPE)
    if node_type is None:
        return _of_size(name, labels, _servers(labels, chip), reported)
    product = product_of_type(node_type)
    if product is None:
        raise _unknown(name, ACCELERATOR_TYPE, node_type, KNOWN_TYPES)
    _require_agreement(name, node_type, product, chip, reported)
    return product


def chip_model(labels: Mapping[str, str]) -> str:
    """The model of a node's chips, as ``910B3``; empty if it is unknown."""
    return labels.get(CHIP_NAME, "").removeprefix("Ascend")


def _servers(labels: Mapping[str, str], chip: str) -> list[Product]:
    """The servers with this kind of chip, the smaller first."""
    if chip:
        return [product for product in PRODUCTS.values() if product.chip == chip]
    is_unlabeled = not labels.get(SERVER_TYPE) and not labels.get(CHIP_NAME)
    return [product for product in PRODUCTS.values() if product.chip == "910A"] if is_unlabeled else [PLAIN_8, PLAIN_16]


def _chip(labels: Mapping[str, str]) -> str:
    """The kind of chip, as in ``Product.chip``; empty if no label names a known one."""
    chip = CHIP_OF_SERVER_TYPE.get(labels.get(SERVER_TYPE, "").rpartition("-")[0])
    if chip is not None:
        return chip
    name = labels.get(CHIP_NAME, "")
    if _B.match(name):
        return "910B"
    if _A3.match(name):
        return "A3"
    return "910A" if _A.match(name) else ""


def _of_size(name: str, labels: Mapping[str, str], servers: list[Product], reported: ChipSet) -> Product:
    product = next((server for server in servers if not reported & ~server.all_chips), None)
    if product is None:
        largest = servers[-1]
        names = join_names(chip_ids(reported & ~largest.all_chips))
        sentence = f"node {name} reports {names}, which {a(f'{largest.name} server')} does not have"
        if labels.get(SERVER_TYPE):
            raise Refusal(Reason.INVALID_REPORT, sentence)
        raise Refusal(
            Reason.UNKNOWN_PRODUCT,
            f"{sentence}, and no label says what the node is: set {ACCELERATOR_TYPE} to one of {KNOWN_TYPES}, or let "
            f"the device plugin write {SERVER_TYPE}",
        )
    return product


def _require_agreement(name: str, node_type: str, product: Product, chip: str, reported: ChipSet) -> None:
    problem = None
    if product.chip and chip and product.chip != chip:
        problem = f", but its chips are {chip}"
    elif foreign := reported & ~product.all_chips:
        problem = f", which does not have the reported {join_names(chip_ids(foreign))}"
    elif reported in _SMALLER.get(product.name, ()):
        problem = f" with {product.chips} chips, but it reports {reported.bit_count()}"
    if problem is not None:
        meaning = f"node {name}: label {ACCELERATOR_TYPE}={node_type} means {a(f'{product.name} server')}"
        raise Refusal(Reason.PRODUCT_MISMATCH, f"{meaning}{problem}")


def _unknown(name: str, label: str, value: str, known: str) -> Refusal:
    sentence = f"node {name}: label {label}={value} names no known product; known values: {known}"
    return Refusal(Reason.UNKNOWN_PRODUCT, sentence)
