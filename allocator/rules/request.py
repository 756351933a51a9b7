"""How many chips a pod asks for."""

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.slices import effective_request


def requested_chips(pod: Pod) -> int:
    """The number of chips a pod asks for with all its containers, at least 1.

    Raises:
        Refusal: ``InvalidRequest`` where the quantity makes no sense.
    """
    if not pod.asks_for_chips:
        raise Refusal("InvalidRequest", f"pod {pod.key} does not ask for {RESOURCE}")
    try:
        request = effective_request(pod.asks)
    except InvalidValue as error:
        raise Refusal("InvalidRequest", f"pod {pod.key}: {error}") from error
    if not request:
        raise Refusal("InvalidRequest", f"pod {pod.key} asks for 0 of {RESOURCE}")
    return request


def counted_chips(pod: Pod) -> int:
    """How many chips kube-scheduler and the kubelet count for a pod; an unreadable quantity counts as none."""
    try:
        return effective_request(pod.asks)
    except InvalidValue:
        return 0
