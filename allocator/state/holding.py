"""What a live pod holds of the node it is bound to, as its annotations say."""

import msgspec

from allocator.rules.request import counted_chips, counted_cores, counted_vnpus, requested_what
from ascend.annotations import CLAIMED, KUBELET_IDS, REAL, read_predicate_time
from ascend.chips import ChipSet, chip_set
from ascend.cores import Cut
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from ascend.pod_devices import read_held
from ascend.vnpus import Vnpu


class Holding(msgspec.Struct, frozen=True, gc=False):
    """What a live pod holds of the node it is bound to.

    Attributes:
        pod: ``namespace/name``.
        chips: the chips it holds.
        counted: the number of chips that the kubelet counts for it.
        unreadable: why its list of chips can't be read, a sentence; None if it can.
        disputed: whether AscendReal and the allocator's list name more chips together than the kubelet counts.
        vnpus: the vNPUs it holds.
        counted_vnpus: by size, the number of vNPUs that the kubelet counts for it.
        unknown_vnpus: why it is unknown which vNPUs it holds, a sentence; None if that is known.
        cuts: the vNPUs it holds that were cut for it.
        counted_cores: the number of AI cores that the kubelet counts for it.
        unknown_cores: why it is unknown what it holds for them, a sentence; None if that is known.
        is_claimed: whether the device plugin has written what it was given.
        is_handed_over: whether the device plugin has handed its chips over, or is about to.
        is_reported: whether it has written which ones; AscendReal alone may be the allocator's.
    """

    pod: str
    chips: ChipSet
    counted: int
    unreadable: str | None = None
    disputed: bool = False
    vnpus: tuple[Vnpu, ...] = ()
    counted_vnpus: dict[str, int] = {}
    unknown_vnpus: str | None = None
    cuts: tuple[Cut, ...] = ()
    counted_cores: int = 0
    unknown_cores: str | None = None
    is_claimed: bool = False
    is_handed_over: bool = False
    is_reported: bool = False

    @property
    def parts(self) -> tuple[Vnpu | Cut, ...]:
        """All vNPUs that it holds."""
        return (*self.vnpus, *self.cuts)

    @property
    def occupied(self) -> ChipSet:
        """The chips held, whole or in part."""
        return self.chips | chip_set(part.chip for part in self.parts) if self.vnpus or self.cuts else self.chips


def read_holding(pod: Pod) -> Holding | None:
    """The holding of a live bound pod on its node; None if the pod requests no devices.

    AscendReal and what the allocator wrote both count until it ends (``ascend.pod_devices.read_held``).
    """
    counted, vnpus, cores = counted_chips(pod), counted_vnpus(pod), counted_cores(pod)
    if not counted and not vnpus and not cores:
        return None
    try:
        held = read_held(pod.metadata.annotations)
    except InvalidValue as error:
        sentence = f"pod {pod.key}: {error}"
        return Holding(
            pod.key,
            0,
            counted,
            sentence if counted else None,
            counted_vnpus=vnpus,
            unknown_vnpus=sentence if vnpus else None,
            counted_cores=cores,
            unknown_cores=sentence if cores else None,
        )

    def missing(what: str) -> str:
        return f"pod {pod.key} is bound with {requested_what(pod)}, but no annotation names {what}"

    return Holding(
        pod.key,
        held.chips,
        counted,
        missing("them") if counted and not held.chips else None,
        held.chips.bit_count() > counted and not cores,
        held.vnpus,
        vnpus,
        missing("it") if len(held.vnpus) < sum(vnpus.values()) else None,
        held.cuts,
        cores,
        missing("them") if cores and not held.chips and not held.cuts else None,
        REAL in pod.metadata.annotations,
        read_predicate_time(pod.metadata.annotations) == CLAIMED,
        KUBELET_IDS in pod.metadata.annotations,
    )
