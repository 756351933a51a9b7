"""Chips that operators have taken out of use: who, when and why.

The list itself is ``ManuallySeparateNPU`` of the node's report, which the device plugin heeds
(docs/spec/faults.md#manual-separation); an annotation of the same ConfigMap says the rest, so one write changes both.
If a fault rule has listed the chip already, the annotation alone tells the device plugin of the cordon.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from ascend.chips import chip_name, parse_chip_name
from ascend.deviceinfo import read_manually_separated
from ascend.errors import UNREADABLE, InvalidValue
from ascend.kube.objects import ConfigMap
from ascend.printable import printable

CORDONED: Final = "ascend-affinity.io/cordoned-chips"
"""An annotation of the ConfigMap: by name of the chip, a ``Cordon`` as JSON. ``npuctl`` writes it; the device plugin
removes the entries of chips that are back in use."""


class Cordon(msgspec.Struct, frozen=True):
    """Why a chip was taken out of use.

    Attributes:
        reason: the operator's reason.
        by: the user, as the API server knew them; empty if it did not say.
        at: the time, RFC 3339.
    """

    reason: str
    by: str = ""
    at: str = ""

    def __str__(self) -> str:
        """Return who, when and why."""
        by = f" by {self.by}" if self.by else ""
        at = f" at {self.at}" if self.at else ""
        return printable(f"cordoned{by}{at}: {self.reason}")


def read_cordons(report: ConfigMap) -> dict[int, Cordon]:
    """The cordons of chips that are still out of use, by physical id; an entry that can't be read is left out."""
    separated = read_manually_separated(report.data)[0]
    return {chip: cordon for chip, cordon in read_all_cordons(report).items() if separated >> chip & 1}


def read_all_cordons(report: ConfigMap) -> dict[int, Cordon]:
    """The same with those of chips that are back in use."""
    try:
        written = msgspec.json.decode(report.metadata.annotations.get(CORDONED) or "{}", type=dict[str, Cordon])
    except UNREADABLE:
        return {}
    found = dict[int, Cordon]()
    for name, cordon in written.items():
        with contextlib.suppress(InvalidValue):
            found[parse_chip_name(name)] = cordon
    return found


def write_cordons(cordons: Mapping[int, Cordon]) -> str | None:
    """The annotation; None, which removes the annotation, if no chip is cordoned."""
    if not cordons:
        return None
    return msgspec.json.encode({chip_name(chip): cordon for chip, cordon in sorted(cordons.items())}).decode()
