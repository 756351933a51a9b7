"""Which container uses a chip, for the labels of the chip's metrics (docs/spec/telemetry.md#containers)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from device_plugin.ledger.allocations import Allocation

SEVERAL: Final = "not_displayed_for_multi_pod"


@dataclass(frozen=True, slots=True)
class Holder:
    """The container that was given a chip; its pod owns the chip.

    Attributes:
        namespace: of its pod.
        pod_name: of its pod.
        container_name: its name; for a chip of several containers all three are ``SEVERAL``.
    """

    namespace: str = ""
    pod_name: str = ""
    container_name: str = ""

    @property
    def is_one(self) -> bool:
        """Whether exactly one container has the chip."""
        return self.container_name not in {"", SEVERAL}


NOBODY: Final = Holder()
_SEVERAL: Final = Holder(SEVERAL, SEVERAL, SEVERAL)


def holders(allocations: Iterable[Allocation]) -> dict[int, Holder]:
    """Return the holder of each chip that a container was given, by physical id.

    The containers of a pod are given their chips before any of them starts. A chip that a regular init container uses
    first belongs to the container that keeps it afterwards, or to the last init container if none does.
    """
    found: dict[int, Holder] = {}
    for allocation in allocations:
        namespace, _, pod_name = allocation.pod.partition("/")
        own: dict[int, Holder] = {}
        for part in sorted(allocation.parts, key=lambda part: part.keeps):
            own.update(dict.fromkeys(part.chips, Holder(namespace, pod_name, part.container)))
        for chip, holder in own.items():
            found[chip] = _SEVERAL if chip in found else holder
    return found
