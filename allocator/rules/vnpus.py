"""The vNPUs left of those that an administrator has cut out of a node's chips, and a pod's choice of them.

The best vNPU is on the chip of which the most are in use, so that the parts of whole chips stay together: an
administrator can cut an idle chip anew, and a fault of a chip concerns as many pods as before. The reference leaves the
choice to the kubelet (docs/spec/vnpu.md#static-vnpus).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.grammar import some
from ascend.reasons import Reason
from ascend.vnpus import Vnpu, device_type

HAS_NONE: Final = "the node has no vNPUs"
"""Ends the refusal of a node that has no vNPUs of any size."""


class Size(NamedTuple):
    """The vNPUs of one size on a node.

    Attributes:
        suffix: the size, as in the name of its resource.
        healthy: how many are on healthy chips.
        room: how many more the kubelet would admit.
        unknown: why it is unknown which of them are free, a sentence; empty if it is known.
    """

    suffix: str
    healthy: int
    room: int
    unknown: str = ""


class ChosenVnpu(NamedTuple):
    """The best free vNPU of a node.

    Attributes:
        vnpu: the vNPU.
        beside: how many others of its chip are in use.
        on_node: how many of the node are in use.
    """

    vnpu: Vnpu
    beside: int
    on_node: int


class VnpusLeft(msgspec.Struct, frozen=True, gc=False):
    """What a node has left of its vNPUs.

    Attributes:
        free: those that are on healthy chips and neither held nor reserved, in order.
        used: by chip, how many of its vNPUs are held or reserved; without chips of which none is.
        sizes: the sizes that the node has, in order.
    """

    free: tuple[Vnpu, ...]
    used: tuple[tuple[int, int], ...]
    sizes: tuple[Size, ...]

    def without(self, taken: Collection[Vnpu], chips: ChipSet = 0) -> "VnpusLeft":
        """The rest without the taken vNPUs, and without any of some chips."""
        used = Counter(dict(self.used))
        used.update(vnpu.chip for vnpu in taken)
        requested = Counter(vnpu.suffix for vnpu in taken)
        return VnpusLeft(
            _free(self.free, taken, chips),
            tuple(sorted(used.items())),
            tuple(size._replace(room=max(size.room - requested[size.suffix], 0)) for size in self.sizes),
        )

    @property
    def numbers(self) -> dict[str, int]:
        """By size, how many are known to be free, also 0."""
        free = Counter(vnpu.suffix for vnpu in self.free)
        return {size.suffix: 0 if size.unknown else free[size.suffix] for size in self.sizes}

    def keeping(self, kept: Collection[Vnpu]) -> "VnpusLeft":
        """The rest beside the vNPUs kept for others, free or not."""
        free = _free(self.free, kept, 0)
        fewer = Counter(vnpu.suffix for vnpu in self.free)
        fewer.subtract(vnpu.suffix for vnpu in free)
        sizes = tuple(size._replace(room=max(size.room - fewer[size.suffix], 0)) for size in self.sizes)
        return VnpusLeft(free, self.used, sizes)

    def choose(self, suffix: str) -> ChosenVnpu | Refusal:
        """The best free vNPU of a size, or why there is none."""
        size = next((size for size in self.sizes if size.suffix == suffix), None)
        if size is None:
            return no_such_vnpu(suffix, [size.suffix for size in self.sizes])
        if size.unknown:
            sentence = f"the free vNPUs {device_type(suffix)} are unknown: {size.unknown}"
            return Refusal(Reason.UNREADABLE_POD, sentence)
        used, left = dict(self.used), Counter(vnpu.chip for vnpu in self.free)
        fitting = [vnpu for vnpu in self.free if vnpu.suffix == suffix]
        if not fitting:
            sentence = f"1 vNPU {device_type(suffix)} requested, 0 free of {size.healthy} healthy"
            return Refusal(Reason.NO_FREE_VNPU, sentence)
        if not size.room:
            sentence = f"1 vNPU {device_type(suffix)} requested, the kubelet would admit 0"
            return Refusal(Reason.NO_ROOM_AT_KUBELET, sentence)
        best = min(fitting, key=lambda vnpu: (-used.get(vnpu.chip, 0), left[vnpu.chip], vnpu.chip, vnpu.vdev_id))
        return ChosenVnpu(best, used.get(best.chip, 0), sum(used.values()))


def _free(vnpus: Iterable[Vnpu], taken: Iterable[Vnpu], chips: ChipSet) -> tuple[Vnpu, ...]:
    """The vNPUs that are neither taken nor on these chips.

    After a chip was cut anew, the driver uses vdev ids again: a vNPU of another size or chip is the same device.
    """
    ids = {vnpu.vdev_id for vnpu in taken}
    return tuple(vnpu for vnpu in vnpus if vnpu.vdev_id not in ids and not chips >> vnpu.chip & 1)


def no_such_vnpu(suffix: str, there: Iterable[str]) -> Refusal:
    """Why a node refuses a size that it does not have.

    Args:
        suffix: the size.
        there: the sizes that it has.
    """
    names = some(list(map(device_type, there)))
    has = f"the node has only {names}" if names else HAS_NONE
    return Refusal(Reason.NO_SUCH_VNPU, f"1 vNPU {device_type(suffix)} requested, {has}")


def vnpus_left(
    vnpus: Iterable[Vnpu],
    *,
    excluded: ChipSet,
    held: Collection[Vnpu],
    counted: Mapping[str, int],
    allocatable: Mapping[str, int],
    unknown: Mapping[str, str] = MappingProxyType({}),
) -> VnpusLeft:
    """The vNPUs that a node has left beside its pods.

    Args:
        vnpus: those that it has.
        excluded: the chips of which no pod may get a part: unhealthy ones, and those that pods hold as a whole.
        held: the vNPUs of its pods.
        counted: by size, how many the kubelet counts for its pods.
        allocatable: by size, how many the kubelet has in all.
        unknown: by size, why it is unknown which are free, a sentence.
    """
    healthy = sorted(vnpu for vnpu in vnpus if not excluded >> vnpu.chip & 1)
    numbers = Counter(vnpu.suffix for vnpu in healthy)
    sizes = []
    for suffix in sorted({vnpu.suffix for vnpu in vnpus}):
        room = max(allocatable.get(suffix, 0) - counted.get(suffix, 0), 0)
        sizes.append(Size(suffix, numbers[suffix], min(room, numbers[suffix]), unknown.get(suffix, "")))
    used = Counter(vnpu.chip for vnpu in held if not excluded >> vnpu.chip & 1)
    return VnpusLeft(_free(healthy, held, 0), tuple(sorted(used.items())), tuple(sizes))
