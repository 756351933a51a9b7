"""How many chips a pod requests, and the properties of the request that rules depend on."""

from typing import Final

import msgspec

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.slices import ContainerRequest, effective_request
from ascend.takes import Take
from ascend.templates import Media
from ascend.vnpus import device_type

CORES_OF_CHIP: Final = 25
"""The most AI cores of a chip."""


class ChipRequest(msgspec.Struct, frozen=True, gc=False):
    """What a pod requests of a node: pods with equal requests are interchangeable for every rule.

    Attributes:
        chips: the number of chips, over all containers of the pod; 0 for a vNPU, and for AI cores.
        distributed: the job is known to have several pods that request chips: on some products these have to request
            more chips.
        needs_network: it can't use chips with an unhealthy network, because its pods use it, or may use it.
        products: names of the products that the job may use; None for any.
        avoids_sub_healthy: the job excludes sub-healthy nodes.
        is_spread: no two pods of its job may be on one node.
        vnpu: the size of the vNPU that it requests instead of chips, as in the name of the resource; empty for chips.
        cores: the number of AI cores that it requests instead: a vNPU that is cut for it, or whole chips; 0 for chips.
        media: how much of the media units that vNPU has.
        with_labels: labels of the pod ask for more than the number of AI cores says.
        model: the model of the chips; empty for one that is chosen for the whole gang, None for any.
    """

    chips: int
    distributed: bool = False
    needs_network: bool = False
    products: frozenset[str] | None = None
    avoids_sub_healthy: bool = False
    is_spread: bool = False
    vnpu: str = ""
    cores: int = 0
    media: Media = Media.SHARED
    with_labels: bool = False
    model: str | None = None

    @property
    def is_for_chips(self) -> bool:
        """Whether it names chips, not vNPUs or AI cores."""
        return not self.vnpu and not self.cores

    @property
    def what(self) -> str:
        """What is requested, for sentences: ``2 chips``, ``1 vNPU Ascend910-2c``, ``5 AI cores``."""
        if self.cores:
            return count(self.cores, "AI core")
        return f"1 vNPU {device_type(self.vnpu)}" if self.vnpu else count(self.chips, "chip")

    @property
    def size(self) -> float:
        """How much is requested, in chips: any vNPU is less than one chip."""
        return self.chips or self.cores / CORES_OF_CHIP or 0.5

    def is_for(self, take: Take) -> bool:
        """Whether this is as much as it requests."""
        if take.vnpu is not None:
            return self.vnpu == take.vnpu.suffix
        if take.cores or self.cores:
            return self.cores == take.cores and (take.cut is None or take.cut.size.media is self.media)
        return not self.vnpu and len(take.chips) == self.chips

    @classmethod
    def of(cls, take: Take) -> "ChipRequest":
        """The request of a pod that has this."""
        if take.cores:
            media = take.cut.size.media if take.cut is not None else Media.SHARED
            return cls(0, cores=take.cores, media=media, with_labels=media is not Media.SHARED)
        return cls(len(take.chips), vnpu=take.vnpu.suffix if take.vnpu is not None else "")


def requested_chips(pod: Pod) -> int:
    """The number of chips a pod requests over all its containers, at least 1.

    Raises:
        Refusal: ``InvalidRequest`` if a quantity is invalid or no chips are requested.
    """
    try:
        # Most pods have one container.
        chips = only.chips if (only := pod.only_container) is not None else effective_request(pod.container_requests)
    except InvalidValue as error:
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key}: {error}") from error
    if not chips:
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key} does not request {RESOURCE}")
    return chips


def requested_size(pod: Pod) -> str:
    """The size of the vNPU that a pod requests; empty if it requests none.

    Raises:
        Refusal: ``InvalidRequest`` if it requests several, or chips as well.
    """
    requests = [
        (container.name, suffix, number)
        for container, _ in pod.ordered_containers
        for suffix, number in container.vnpus.items()
    ]
    if not requests:
        return ""
    if counted_chips(pod):
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key} requests both whole chips and vNPUs")
    if len(requests) > 1 or requests[0][2] > 1:
        where = ", ".join(f"{number} {device_type(suffix)} in container {name}" for name, suffix, number in requests)
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key}: {where}; a pod may have one vNPU, in one container")
    return requests[0][1]


def counted_vnpus(pod: Pod) -> dict[str, int]:
    """By size, the number of vNPUs that kube-scheduler and the kubelet count for a pod."""
    if (only := pod.only_container) is not None:  # most pods
        return only.vnpus
    requests: dict[str, list[ContainerRequest]] = {}
    for container, kind in pod.ordered_containers:
        for suffix, number in container.vnpus.items():
            requests.setdefault(suffix, []).append(ContainerRequest(container.name, kind, number))
    return {suffix: effective_request(counts) for suffix, counts in requests.items()}


def counted_cores(pod: Pod) -> int:
    """The number of AI cores that kube-scheduler and the kubelet count for a pod."""
    if (only := pod.only_container) is not None:
        return only.cores
    requests = [(container, kind) for container, kind in pod.ordered_containers if container.cores]
    return effective_request([ContainerRequest(container.name, kind, container.cores) for container, kind in requests])


def requested_part(pod: Pod) -> str:
    """The size of a pod's requested vNPU, or its AI cores; empty if neither is requested."""
    cores = counted_cores(pod)
    return ",".join([*counted_vnpus(pod), *([f"{cores} cores"] if cores else [])])


def requested_what(pod: Pod) -> str:
    """What a pod requests, for sentences and the log."""
    chips, cores = counted_chips(pod), counted_cores(pod)
    vnpus = [f"{count(number, 'vNPU')} {device_type(suffix)}" for suffix, number in counted_vnpus(pod).items()]
    if cores:
        vnpus.append(count(cores, "AI core"))
    return " and ".join([*([count(chips, "chip")] if chips or not vnpus else []), *vnpus])


def counted_chips(pod: Pod) -> int:
    """The number of chips that kube-scheduler and the kubelet count for a pod; 0 if a quantity is invalid."""
    try:
        return only.chips if (only := pod.only_container) is not None else effective_request(pod.container_requests)
    except InvalidValue:
        return 0
