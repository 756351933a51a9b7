"""How many chips a pod asks for, and what a rule has to know of its asking."""

import msgspec

from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.slices import effective_request


class Ask(msgspec.Struct, frozen=True):
    """What a pod asks of a node: pods with equal asks are interchangeable for every rule.

    Attributes:
        chips: how many, with all containers of the pod.
        distributed: its job is known to have several pods that ask for chips: chips whose network is unhealthy don't
            serve it, and on some products it has to ask for more of them.
        minds_network: the first of these alone.
        products: names of the products its job is for; None: any.
        shuns_sub_health: its job wants no node that is sub-healthy.
        peers: names of the products that the placed pods of its job are on, which it has to join; None: none are.
        prefers: name of the product it takes before all others; None: the order of the products decides.
    """

    chips: int
    distributed: bool = False
    minds_network: bool = False
    products: frozenset[str] | None = None
    shuns_sub_health: bool = False
    peers: frozenset[str] | None = None
    prefers: str | None = None


def requested_chips(pod: Pod) -> int:
    """The number of chips a pod asks for with all its containers, at least 1.

    Raises:
        Refusal: ``InvalidRequest`` where the quantity makes no sense.
    """
    try:
        chips = effective_request(pod.asks)
    except InvalidValue as error:
        raise Refusal("InvalidRequest", f"pod {pod.key}: {error}") from error
    if not chips:
        raise Refusal("InvalidRequest", f"pod {pod.key} does not ask for {RESOURCE}")
    return chips


def counted_chips(pod: Pod) -> int:
    """How many chips kube-scheduler and the kubelet count for a pod; an unreadable quantity counts as none."""
    try:
        return effective_request(pod.asks)
    except InvalidValue:
        return 0
