"""The distribution of a pod's chips: how many chips the pod requests, and which container gets which chip.

The allocator counts by this rule, the device plugin distributes by it. It follows the kubelet's device manager
(docs/spec/kubelet.md#containers-of-a-pod): app containers and sidecars (restartable init containers) keep their chips
for the lifetime of the pod; the chips of a regular init container are reused for the containers after it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

ContainerKind: TypeAlias = Literal["init", "sidecar", "app"]


class ContainerRequest(msgspec.Struct, frozen=True):
    """What one container of a pod requests.

    Attributes:
        container: its name, unique within the pod.
        kind: a regular init container, a sidecar, or an app container.
        count: the number of chips.
    """

    container: str
    kind: ContainerKind
    count: int

    @property
    def keeps(self) -> bool:
        """Whether the container keeps its chips; those of a regular init container are reused for later containers."""
        return self.kind != "init"


def effective_request(requests: Iterable[ContainerRequest]) -> int:
    """The number of chips a pod requests: the largest sum of its containers' needs at one time.

    See docs/spec/kubelet.md#containers-of-a-pod.

    Args:
        requests: in the kubelet's order: init containers and sidecars as specified, then app containers.
    """
    kept = most = 0
    for request in requests:
        most = max(most, kept + request.count)
        kept += request.count if request.keeps else 0
    return most


def deal(requests: Iterable[ContainerRequest], chips: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Distribute a pod's chips: the slice of each container, by its name.

    Sidecars and app containers get consecutive slices in their order; a regular init container gets the first chips
    after those of the sidecars before it.

    Args:
        requests: in the kubelet's order.
        chips: the pod's chips in selection order, as many as ``effective_request`` returns.
    """
    slices, start = {}, 0
    for request in requests:
        slices[request.container] = tuple(chips[start : start + request.count])
        start += request.count if request.keeps else 0
    return slices


def choose(
    request: ContainerRequest,
    requests: Iterable[ContainerRequest],
    chips: Sequence[int],
    *,
    kept: Mapping[str, Collection[int]],
    among: Collection[int] | None = None,
    must_include: Collection[int] = (),
) -> tuple[int, ...] | None:
    """Choose the chips for a container, given what the kubelet has allocated so far; in selection order.

    The result is the container's slice, unless the kubelet has allocated a part of that to another container: it reuses
    the chips of a finished init container in any order. Then any other choice works as well, because the chips that are
    not kept always suffice for the remaining containers.

    Args:
        request: the request of the container.
        requests: the requests of the pod, in the kubelet's order.
        chips: the pod's chips in selection order.
        kept: the chips that other containers of the pod were given and keep, by name.
        among: the chips that the kubelet can allocate; None for any.
        must_include: the chips that the kubelet has chosen already.

    Returns:
        None if there are too few chips, or if the kubelet has chosen a chip that the container can't have.
    """
    taken = {chip for container, given in kept.items() if container != request.container for chip in given}
    usable = [chip for chip in chips if chip not in taken and (among is None or chip in among or chip in must_include)]
    if not set(must_include) <= set(usable):
        return None
    own = deal(requests, chips)[request.container]
    ranked = sorted(usable, key=lambda chip: (chip not in must_include, chip not in own))
    chosen = set(ranked[: request.count])
    if len(chosen) < request.count or not set(must_include) <= chosen:
        return None
    return tuple(chip for chip in chips if chip in chosen)
