"""Nodes whose chips are cut while pods run, and pods that request AI cores."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ascend.annotations import REAL, Grant
from ascend.cores import parse_cut
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Node, Pod
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES, Divisible, divisible
from tests.allocator.builders import TYPE, node, pod


class Chip(NamedTuple):
    """A kind of chip, and the labels by which a node names it."""

    chip_type: str
    cores: int
    memory_gb: int
    accelerator: str = "module-910b-8"

    @property
    def kind(self) -> Divisible:
        found = divisible(self.chip_type, self.cores, self.memory_gb)
        assert found is not None
        return found

    @property
    def labels(self) -> dict[str, str]:
        return {
            TYPE: self.accelerator,
            "servertype": f"{self.chip_type}-{self.cores}",
            "mind-cluster/npu-chip-memory": f"{self.memory_gb}G",
        }


B1: Final = Chip("Ascend910B", 25, 64)
B2: Final = Chip("Ascend910B", 24, 64)
B3: Final = Chip("Ascend910B", 20, 64)
B4: Final = Chip("Ascend910B", 20, 32)
A3_24: Final = Chip("Ascend910A3", 24, 64, "module-a3-8")
A3_20: Final = Chip("Ascend910A3", 20, 64, "module-a3-8")
CHIPS: Final = (B1, B2, B3, B4, A3_24, A3_20)


def core_node(
    name: str,
    chip: Chip = B3,
    *,
    chips: Iterable[int] = range(8),
    cores: int | None = None,
    labels: Mapping[str, str] = {},
) -> Node:
    """A server that offers the AI cores of its chips; by default those of all."""
    ids = list(chips)
    made = node(name, chips=ids, allocatable=None, labels={**chip.labels, **labels})
    offered = {RESOURCE_CORES: str(chip.cores * len(ids) if cores is None else cores)}
    return replace(made, status=replace(made.status, allocatable=offered))


def core_pod(name: str, cores: int = 5, *, has: str = "", real: str = "", **more: Any) -> Pod:
    """A pod that requests AI cores, with what is written on it (``0-vir05_1c_16g``, or ``0,1``), if anything."""
    written: dict[str, str] = {}
    if has:
        take = Take.part(parse_cut(has)) if "-" in has else Take.whole(map(int, has.split(",")), cores=cores)
        written = Grant.of(take, 7).annotations()
    if real:
        written[REAL] = real
    annotations = {**written, **more.pop("annotations", {})}
    limits = {RESOURCE_CORES: str(cores)}
    return pod(name, containers=[Container("main", Resources(limits=limits))], annotations=annotations, **more)
