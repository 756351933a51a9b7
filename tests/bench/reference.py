"""Results of Huawei's ascend-device-plugin on a real kubelet with the same fake driver: quoted, not measured here.

Source of every number: spec/baseline-device-plugin.md §2.1 to §2.5 (median, in seconds unless a unit is named). It is a
native binary; the machine was of the same type, with 2 cores that other programs used as well.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Said:
    """A result of the reference.

    Attributes:
        median: in seconds, unless the row names another unit.
        worst: the largest sample; None if unknown.
        section: of the source.
    """

    median: float
    worst: float | None
    section: str


REFERENCE: Final = {
    "start → registered": Said(0.11, 0.12, "2.1"),
    "start → allocatable 8": Said(0.37, 1.00, "2.1"),
    "start → ConfigMap": Said(5.24, 5.26, "2.1"),
    "Allocate, 2 chips": Said(0.0088, 1.009, "2.2"),
    "Allocate, 8 chips": Said(0.0016, 0.0017, "2.2"),
    "bind → AscendReal, 2 chips": Said(0.59, 1.90, "2.2"),
    "bind → AscendReal, 1 chip": Said(0.37, 1.56, "2.2"),
    "bind → Running, 2 chips": Said(1.01, 1.88, "2.2"),
    "fault by event → ConfigMap": Said(0.42, 0.89, "2.3"),
    "fault by event → allocatable 7": Said(0.92, 1.87, "2.3"),
    "fault by polling → ConfigMap": Said(2.99, 4.25, "2.3"),
    "fault by polling → allocatable 7": Said(3.49, 4.71, "2.3"),
    "card dropped → ConfigMap": Said(3.27, 4.28, "2.3"),
    "card dropped → allocatable 7": Said(3.79, 4.63, "2.3"),
    "event lost → ConfigMap": Said(float("inf"), None, "2.3"),
    "event lost → allocatable 7": Said(float("inf"), None, "2.3"),
    "kubelet.sock → registered": Said(2.47, 3.87, "2.5"),
    "kubelet.sock → allocatable 8": Said(2.71, 4.31, "2.5"),
    "RSS, MiB": Said(59, 65, "2.1"),
    "CPU, % of a core": Said(0.45, 0.47, "2.1"),
    "API requests, per min": Said(0, None, "2.1"),
    "driver calls, per min": Said(140, None, "2.1"),
    "API requests at the start": Said(15, None, "2.1"),
    "pairs swapped, %": Said(41, None, "2.4"),
}
"""By row; the last one is 7 of 17. A fault whose event was lost was not found within 40 s."""
