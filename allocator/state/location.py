"""The location of a node: SuperPod and index there, rack, leaf switch and slot there.

docs/spec/superpod.md#superpod-ids: the device plugin publishes the ids in its report and on the Node. The report counts
first, since it is the newest; a field that is missing says nothing, and id 0 is a SuperPod like any other.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from allocator.state.report import NO_REPORT, NodeReport
from ascend.annotations import RACK_ID, SERVER_INDEX, SUPER_POD_ID, UNKNOWN
from ascend.errors import Refusal
from ascend.kube.objects import Node
from ascend.leaf_switches import Spot
from ascend.rules.identity import RACK_LABEL, SERVER_LABEL, SUPER_POD_LABEL

_MOST_DIGITS: Final = 10


class Level(StrEnum):
    """A level of the network at which nodes are grouped."""

    SUPER_POD = "SuperPod"
    RACK = "rack"
    SWITCH = "switch"
    HYPER_NODE = "HyperNode"


class Location(msgspec.Struct, frozen=True, gc=False):
    """The location of a node; an id below 0 is unknown or absent.

    Attributes:
        super_pod: the id of its SuperPod.
        server_index: its index within the SuperPod.
        rack: the id of its rack.
        switch: the number of its leaf switch.
        slot: its slot there.
    """

    super_pod: int = UNKNOWN
    server_index: int = UNKNOWN
    rack: int = UNKNOWN
    switch: int = UNKNOWN
    slot: int = UNKNOWN

    @property
    def spot(self) -> Spot | None:
        """The slot below the node's leaf switch; None if the switch is unknown."""
        return Spot(self.switch, self.slot) if self.switch >= 0 else None

    @property
    def places(self) -> Iterator[tuple[Level, int]]:
        """The known places it is in, each with its level and id."""
        if self.super_pod >= 0:
            yield Level.SUPER_POD, self.super_pod
        if self.rack >= 0:
            yield Level.RACK, self.rack
        if self.switch >= 0:
            yield Level.SWITCH, self.switch

    def place(self, level: Level) -> int:
        """The id of its place at a level; negative if unknown, and for HyperNodes, which may be several."""
        found = {Level.SUPER_POD: self.super_pod, Level.RACK: self.rack, Level.SWITCH: self.switch}
        return found.get(level, UNKNOWN)


NOWHERE: Final = Location()
"""Where most nodes are: in no SuperPod, and in no rack that anybody has published."""


def read_location(node: Node | None, report: NodeReport | Refusal, spot: Spot | None = None) -> Location:
    """Read where a node is.

    Args:
        node: the node; None if only its report is known.
        report: what its device plugin reports.
        spot: where it is below a leaf switch; None if it is below no known one.
    """
    annotations, labels = (node.metadata.annotations, node.metadata.labels) if node is not None else ({}, {})
    said = report if isinstance(report, NodeReport) else NO_REPORT
    super_pod = _first(said.super_pod, annotations.get(SUPER_POD_ID), labels.get(SUPER_POD_LABEL))
    rack = _first(said.rack, annotations.get(RACK_ID), labels.get(RACK_LABEL))
    if super_pod < 0 and rack < 0 and spot is None:
        return NOWHERE
    index = _first(said.server_index, annotations.get(SERVER_INDEX), labels.get(SERVER_LABEL))
    switch, slot = (spot.switch, spot.slot) if spot is not None else (UNKNOWN, UNKNOWN)
    return Location(super_pod, index, rack, switch, slot)


def malformed_ids(node: Node) -> Iterator[str]:
    """The annotations and labels of a node that should have an id and have something else, as in ``superPodID='x'``.

    A negative number is none: the device plugin writes it where there is no id.
    """
    annotations, labels = node.metadata.annotations, node.metadata.labels
    for what, key, text in (
        ("annotation", SUPER_POD_ID, annotations.get(SUPER_POD_ID)),
        ("annotation", SERVER_INDEX, annotations.get(SERVER_INDEX)),
        ("annotation", RACK_ID, annotations.get(RACK_ID)),
        ("label", SUPER_POD_LABEL, labels.get(SUPER_POD_LABEL)),
        ("label", RACK_LABEL, labels.get(RACK_LABEL)),
        ("label", SERVER_LABEL, labels.get(SERVER_LABEL)),
    ):
        if text and not _is_id(text.removeprefix("-")):
            yield f"{what} {key}={text!r}"


def _first(reported: int, *texts: str | None) -> int:
    """The first id that is known."""
    if reported >= 0:
        return reported
    return next((int(text) for text in texts if text is not None and _is_id(text)), UNKNOWN)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
