"""The chips and vNPUs of a pod, by the pod's annotations.

The allocator writes a vNPU under the name of its resource, ``huawei.com/Ascend910-2c: Ascend910-2c-100-1``, and what a
pod gets for AI cores as ``ascend.cores`` has it; the device plugin lists each in AscendReal, as it lists chips there.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ascend.annotations import ALLOCATED, REAL, Grant, read_predicate_time
from ascend.chips import ChipSet, chip_of_vnpu, chip_set, parse_names
from ascend.cores import Cut, is_made, parse_cores, parse_made
from ascend.errors import InvalidValue
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import RESOURCES, Vnpu, parse_vnpu

MAX_LIST_ENTRIES = 100
"""A longer list of chips is invalid (docs/spec/node-report.md#used-chips)."""


def read_grant(annotations: Mapping[str, str]) -> Grant | None:
    """Read what the allocator wrote on a pod; None if it wrote nothing.

    Raises:
        InvalidValue: the list of chips is malformed.
    """
    text = annotations.get(ALLOCATED)
    if text is None:
        return None
    return Grant(_parse_list(text, ALLOCATED), read_predicate_time(annotations))


def read_vnpu_grant(annotations: Mapping[str, str]) -> Grant | None:
    """Read the vNPU that the allocator wrote on a pod; None if it wrote none.

    Raises:
        InvalidValue: it is malformed, or there are several.
    """
    written = _written_vnpus(annotations)
    if len(written) > 1:
        raise InvalidValue(f"annotations name several vNPUs: {', '.join(vnpu.name for vnpu in written)}")
    return Grant((), read_predicate_time(annotations), written[0]) if written else None


def read_cores_grant(annotations: Mapping[str, str], cores: int) -> Grant | None:
    """Read the allocator's annotation on a pod that requests AI cores; None if the annotation is missing.

    Args:
        annotations: the pod's.
        cores: how many AI cores it requests.

    Raises:
        InvalidValue: it is malformed.
    """
    text = annotations.get(RESOURCE_CORES)
    if text is None:
        return None
    chips, cut = parse_cores(text)
    return Grant(chips, read_predicate_time(annotations), cut=cut, cores=cores if cut is None else cut.size.cores)


def held_chips(annotations: Mapping[str, str]) -> ChipSet:
    """The chips a live pod may hold: the union of the allocator's annotation and AscendReal.

    This project's device plugin hands over what the allocator wrote, so both are the same. MindCluster's may swap the
    chips of two pods, or write an AscendReal that is not what the container has
    (docs/spec/node-report.md#chips-in-use): so both count until the pod ends.

    Raises:
        InvalidValue: a list is malformed.
    """
    chips: ChipSet = 0
    for key in (REAL, ALLOCATED):
        text = annotations.get(key)
        if text:
            chips |= chip_set(_parse_list(text, key))
    return chips


def _parse_list(text: str, key: str) -> tuple[int, ...]:
    if text.count(",") >= MAX_LIST_ENTRIES:
        raise InvalidValue(f"annotation {key}: more than {MAX_LIST_ENTRIES} chips")
    return parse_names(text, f"annotation {key}")


class Held(NamedTuple):
    """What a live pod may hold of its node.

    Attributes:
        chips: whole chips.
        vnpus: vNPUs that were cut beforehand, in order.
        cuts: vNPUs that are cut for it, in order.
    """

    chips: ChipSet
    vnpus: tuple[Vnpu, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def parts(self) -> tuple[Vnpu | Cut, ...]:
        """All its vNPUs."""
        return (*self.vnpus, *self.cuts)

    @property
    def occupied(self) -> ChipSet:
        """The chips that the pod holds whole or in part."""
        return self.chips | chip_set(part.chip for part in self.parts)


def read_held(annotations: Mapping[str, str]) -> Held:
    """What a live pod may hold: the union of the allocator's annotation and AscendReal (as ``held_chips``).

    Raises:
        InvalidValue: a list or a name is malformed.
    """
    written = _written_vnpus(annotations)
    real = annotations.get(REAL, "")
    by_cores = annotations.get(RESOURCE_CORES)
    if not written and by_cores is None and not _names_vnpu(real):  # most pods
        return Held(held_chips(annotations))
    chips, vnpus, cuts = held_chips({ALLOCATED: annotations.get(ALLOCATED, "")}), set(written), set[Cut]()
    if by_cores is not None:
        whole, cut = parse_cores(by_cores)
        chips |= chip_set(whole)
        cuts |= {cut} if cut is not None else set()
    for name in filter(None, real.split(",")[:MAX_LIST_ENTRIES]):
        if is_made(name) or (by_cores is not None and chip_of_vnpu(name) is not None):
            cuts.add(parse_made(name))
        elif chip_of_vnpu(name) is not None:
            vnpus.add(parse_vnpu(name))
        else:
            chips |= chip_set(parse_names(name, f"annotation {REAL}"))
    return Held(chips, tuple(sorted(vnpus)), tuple(sorted(cuts)))


def _names_vnpu(names: str) -> bool:
    """Whether a list may name a vNPU: the name of a chip has one hyphen."""
    return names.count("-") > names.count(",") + 1


def _written_vnpus(annotations: Mapping[str, str]) -> list[Vnpu]:
    """The vNPUs that the allocator wrote: the key is the resource, the value the name."""
    found = []
    for key, text in annotations.items():
        if key in RESOURCES:
            vnpu = parse_vnpu(text)
            if vnpu.resource != key:
                raise InvalidValue(f"annotation {key}: {text!r} is a vNPU of another size")
            found.append(vnpu)
    return found
