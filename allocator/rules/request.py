"""How many chips a pod requests, and the properties of the request that rules depend on."""

import msgspec

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.slices import effective_request


class ChipRequest(msgspec.Struct, frozen=True, gc=False):
    """What a pod requests of a node: pods with equal requests are interchangeable for every rule.

    Attributes:
        chips: the number of chips, over all containers of the pod.
        distributed: the job is known to have several pods that request chips: on some products these have to request
            more chips.
        needs_network: it can't use chips with an unhealthy network, because its pods use it, or may use it.
        products: names of the products that the job may use; None for any.
        avoids_sub_healthy: the job excludes sub-healthy nodes.
        is_spread: no two pods of its job may be on one node.
    """

    chips: int
    distributed: bool = False
    needs_network: bool = False
    products: frozenset[str] | None = None
    avoids_sub_healthy: bool = False
    is_spread: bool = False


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


def counted_chips(pod: Pod) -> int:
    """The number of chips that kube-scheduler and the kubelet count for a pod; 0 if a quantity is invalid."""
    try:
        return effective_request(pod.container_requests)
    except InvalidValue:
        return 0
