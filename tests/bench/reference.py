"""Results of Huawei's ascend-device-plugin on a real kubelet with the same fake driver: quoted, not measured here.

Source of every number: docs/spec/measurements.md (median, in seconds unless a unit is named). It is a
native binary; the machine was of the same type, with 2 cores shared with other programs.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Quoted:
    """A result of the reference.

    Attributes:
        median: in seconds, unless the row names another unit.
        worst: the largest sample; None if unknown.
        section: the heading of the source.
    """

    median: float
    worst: float | None
    section: str


REFERENCE: Final = {
    "start → registered": Quoted(0.11, 0.12, "start-and-idle"),
    "start → allocatable 8": Quoted(0.37, 1.00, "start-and-idle"),
    "start → ConfigMap": Quoted(5.24, 5.26, "start-and-idle"),
    "Allocate, 2 chips": Quoted(0.0088, 1.009, "allocate-and-annotations"),
    "Allocate, 8 chips": Quoted(0.0016, 0.0017, "allocate-and-annotations"),
    "bind → AscendReal, 2 chips": Quoted(0.59, 1.90, "allocate-and-annotations"),
    "bind → AscendReal, 1 chip": Quoted(0.37, 1.56, "allocate-and-annotations"),
    "bind → Running, 2 chips": Quoted(1.01, 1.88, "allocate-and-annotations"),
    "fault by event → ConfigMap": Quoted(0.42, 0.89, "faults"),
    "fault by event → allocatable 7": Quoted(0.92, 1.87, "faults"),
    "fault by polling → ConfigMap": Quoted(2.99, 4.25, "faults"),
    "fault by polling → allocatable 7": Quoted(3.49, 4.71, "faults"),
    "card dropped → ConfigMap": Quoted(3.27, 4.28, "faults"),
    "card dropped → allocatable 7": Quoted(3.79, 4.63, "faults"),
    "event lost → ConfigMap": Quoted(float("inf"), None, "faults"),
    "event lost → allocatable 7": Quoted(float("inf"), None, "faults"),
    "kubelet.sock → registered": Quoted(2.47, 3.87, "kubelet-restart"),
    "kubelet.sock → allocatable 8": Quoted(2.71, 4.31, "kubelet-restart"),
    "RSS, MiB": Quoted(59, 65, "start-and-idle"),
    "CPU, % of a core": Quoted(0.45, 0.47, "start-and-idle"),
    "API requests, per min": Quoted(0, None, "start-and-idle"),
    "driver calls, per min": Quoted(140, None, "start-and-idle"),
    "API requests at the start": Quoted(15, None, "start-and-idle"),
    "pairs swapped, %": Quoted(41, None, "two-pods-of-one-size"),
}
"""Results by row; the last one is 7 of 17 pairs. A fault whose event was lost was not detected within 40 s."""
