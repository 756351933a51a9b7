"""The report of ``npuctl selftest``: no names, addresses, serial numbers or processes are in it."""

from collections.abc import Mapping, Sequence

import msgspec

from device_plugin.driver.dcmi.recording import Call
from device_plugin.inventory import ScanEntry
from npuctl.selftest.pods import PodBooks


class Timing(msgspec.Struct, frozen=True):
    """How long the calls of a function took, in milliseconds."""

    calls: int
    median_ms: float
    longest_ms: float


class Examination(msgspec.Struct, frozen=True):
    """What the driver of a node answers.

    Attributes:
        driver: the setting ``driver``: ``dcmi`` or ``simulated``.
        versions: of this program, Python, the kernel, the architecture, and the node's Kubernetes programs if known.
        problem: why the driver can't be read; empty if it can.
        server: the chips as the device plugin sees them, without addresses; None if there is a problem.
        values: what was measured, by chip and quantity.
        missing: what could not be asked, by chip and question: why.
        surprises: sentences about answers that docs/spec/dcmi.md does not expect of such a server.
        timings: by function.
        calls: every call of the driver's libraries, in the order in which they began.
    """

    driver: str
    versions: Mapping[str, str]
    problem: str
    server: ScanEntry | None
    values: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, Mapping[str, str]]
    surprises: Sequence[str]
    timings: Mapping[str, Timing]
    calls: Sequence[Call]


class Selftest(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/selftest/v1"):
    """The answer.

    Attributes:
        node: what its driver answers.
        pods: the pods that were tried; empty without ``--pods``.
    """

    node: Examination
    pods: Sequence[PodBooks] = ()
