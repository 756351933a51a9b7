"""Nodes with chips that are cut into vNPUs, and pods that request one."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ascend.annotations import REAL, Grant
from ascend.base_device_infos import ChipAddress, write_base_device_infos
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Node, Pod
from ascend.takes import Take
from ascend.vnpus import Vnpu, resource_of
from tests.allocator.builders import node, pod


def cut(chips: Iterable[int], suffix: str = "2c", *, parts: int = 4, first: int = 100) -> list[Vnpu]:
    """The vNPUs of chips that are each cut into some of one size."""
    each_of = [chip for chip in chips for _ in range(parts)]
    return [Vnpu(suffix, chip, first + number) for number, chip in enumerate(each_of)]


def cut_node(
    name: str,
    vnpus: Iterable[Vnpu],
    *,
    allocatable: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Node:
    """A 910A server with 8 chips, of which some are cut; by default the kubelet has everything."""
    parts = list(vnpus)
    whole = sorted(set(range(8)) - {each.chip for each in parts})
    infos = write_base_device_infos({chip: ChipAddress() for chip in whole})
    named = "".join(f', "{each.name}": {{}}' for each in parts)
    text = f"{{{infos[1:-1]}{named}}}" if whole else f"{{{named[2:]}}}"
    made = node(name, infos=text, allocatable=len(whole) or None, labels=labels)
    sizes = Counter(each.suffix for each in parts) if allocatable is None else allocatable
    counted = {resource_of(suffix): str(number) for suffix, number in sizes.items()}
    return replace(made, status=replace(made.status, allocatable=made.status.allocatable | counted))


def vnpu_pod(name: str, suffix: str = "2c", *, vnpu: Vnpu | None = None, real: Vnpu | None = None, **more: Any) -> Pod:
    """A pod that requests one vNPU; with the one that is written on it, if any, and the one that the plugin reports."""
    written = Grant.of(Take.part(vnpu), 7).annotations() if vnpu is not None else {}
    if real is not None:
        written[REAL] = real.name
    annotations = {**written, **more.pop("annotations", {})}
    limits = {resource_of(suffix): "1"}
    return pod(name, containers=[Container("main", Resources(limits=limits))], annotations=annotations, **more)
