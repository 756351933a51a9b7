"""How a pod's chips are dealt out to its containers: what the scheduler and the kubelet count, and which are whose.

The allocator counts by it, the device plugin deals by it. The rule follows the kubelet's device manager
(spec/kubernetes.md §1.10): app containers and sidecars (restartable init containers) keep what they get, for the life
of the pod; what a regular init container gets is given again to the containers after it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

ContainerKind: TypeAlias = Literal["init", "sidecar", "app"]


class ContainerRequest(msgspec.Struct, frozen=True):
    """What one container of a pod asks for.

    Attributes:
        container: its name, of which a pod has each only once.
        kind: a regular init container, a sidecar, or an app container.
        count: how many chips.
    """

    container: str
    kind: ContainerKind
    count: int

    @property
    def keeps(self) -> bool:
        """Whether the container keeps its chips; those of a regular init container go on to later containers."""
        return self.kind != "init"


def effective_request(asks: Iterable[ContainerRequest]) -> int:
    """How many chips a pod needs: the most that its containers need at one time (spec/kubernetes.md §1.10).

    Args:
        asks: in the kubelet's order: init containers and sidecars as specified, then app containers.
    """
    kept = most = 0
    for ask in asks:
        most = max(most, kept + ask.count)
        kept += ask.count if ask.keeps else 0
    return most


def deal(asks: Iterable[ContainerRequest], chips: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The slice of each container, by its name.

    Sidecars and app containers get consecutive slices in their order; a regular init container gets the first chips
    that are not of a sidecar before it.

    Args:
        asks: in the kubelet's order.
        chips: the pod's chips in selection order, as many as ``effective_request``.
    """
    slices, start = {}, 0
    for ask in asks:
        slices[ask.container] = tuple(chips[start : start + ask.count])
        start += ask.count if ask.keeps else 0
    return slices


def choose(
    ask: ContainerRequest,
    asks: Iterable[ContainerRequest],
    chips: Sequence[int],
    *,
    kept: Mapping[str, Collection[int]],
    among: Collection[int] | None = None,
    must_include: Collection[int] = (),
) -> tuple[int, ...] | None:
    """The chips for a container, given what the kubelet has done so far; in selection order.

    It is the container's slice, unless the kubelet has given a part of that to another container: it hands on the chips
    of a finished init container as it likes. Any other choice serves as well then, because the chips that are not kept
    always suffice for the containers still to come.

    Args:
        ask: of the container.
        asks: of the pod, in the kubelet's order.
        chips: the pod's chips in selection order.
        kept: by name, what other containers of the pod were given and keep.
        among: what the kubelet can give; None: anything.
        must_include: what the kubelet has chosen already.

    Returns:
        None where there are not that many, or the kubelet has chosen something that is not the container's to have.
    """
    taken = {chip for container, given in kept.items() if container != ask.container for chip in given}
    usable = [chip for chip in chips if chip not in taken and (among is None or chip in among or chip in must_include)]
    if not set(must_include) <= set(usable):
        return None
    own = deal(asks, chips)[ask.container]
    ranked = sorted(usable, key=lambda chip: (chip not in must_include, chip not in own))
    chosen = set(ranked[: ask.count])
    if len(chosen) < ask.count or not set(must_include) <= chosen:
        return None
    return tuple(chip for chip in chips if chip in chosen)
