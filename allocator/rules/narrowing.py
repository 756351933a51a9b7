"""Which products a pod's job is for: its node selector ``accelerator-type`` and its ``huawei.com/schedule_policy``.

spec/scheduling.md §3.2, §3.3. The reference takes the rule from these; here the rule is the node's, and these only
narrow down which nodes will do. What can't be kept is refused rather than ignored.
"""

from allocator.rules.identity import ACCELERATOR_TYPE, product_of_type
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS

SCHEDULE_POLICY = "huawei.com/schedule_policy"
SUB_HEALTH_STRATEGY = "subHealthyStrategy"

_NOT_OFFERED = frozenset({"chip8-node8-sp", "chip8-node8-ra64-sp", "chip1-softShareDev", "multilevel"})
"""Policies the reference knows, of which this allocator has no rule."""

_SUPER_POD = "-super-pod"
_SUPER_POD_POLICY = "-sp"
_SUPER_POD_BLOCK = "sp-block"


def wanted_products(pod: Pod) -> frozenset[str] | None:
    """The names of the products a pod's job is for; None: any.

    Raises:
        Refusal: ``UnknownProduct`` or ``UnknownPolicy`` where a value means nothing, ``UnsupportedPolicy`` where there
            is no rule for it, ``PolicyMismatch`` where the two contradict each other.
    """
    node_type = pod.spec.node_selector.get(ACCELERATOR_TYPE)
    policy = pod.metadata.annotations.get(SCHEDULE_POLICY)
    by_type = None if node_type is None else _by_type(pod, node_type)
    by_policy = None if policy is None else _by_policy(pod, policy)
    if by_type is None or by_policy is None:
        return by_type if by_policy is None else by_policy
    if not by_type & by_policy:
        raise Refusal(
            "PolicyMismatch",
            f"pod {pod.key}: node selector {ACCELERATOR_TYPE}={node_type} means {_join(by_type)} servers, "
            f"annotation {SCHEDULE_POLICY}={policy} means {_join(by_policy)} servers",
        )
    return by_type & by_policy


def shuns_sub_health(pod: Pod) -> bool:
    """Whether a pod's job wants no sub-healthy node: any strategy but ``ignore`` does (spec/scheduling.md §1.3)."""
    return pod.metadata.labels.get(SUB_HEALTH_STRATEGY, "ignore") != "ignore"


def wants_super_pod(pod: Pod) -> bool:
    """Whether a pod's job asks for blocks of nodes of one SuperPod (spec/scheduling.md §4.7)."""
    annotations = pod.metadata.annotations
    return (
        _SUPER_POD_BLOCK in annotations
        or pod.spec.node_selector.get(ACCELERATOR_TYPE, "").endswith(_SUPER_POD)
        or annotations.get(SCHEDULE_POLICY, "").endswith(_SUPER_POD_POLICY)
    )


def _by_type(pod: Pod, node_type: str) -> frozenset[str]:
    product = product_of_type(node_type)
    if product is None:
        raise Refusal(
            "UnknownProduct", f"pod {pod.key}: node selector {ACCELERATOR_TYPE}={node_type} names no known product"
        )
    return frozenset({product.name})


def _by_policy(pod: Pod, policy: str) -> frozenset[str]:
    if policy in _NOT_OFFERED:
        raise Refusal(
            "UnsupportedPolicy", f"pod {pod.key}: annotation {SCHEDULE_POLICY}={policy}: there is no rule for it here"
        )
    names = frozenset(product.name for product in PRODUCTS.values() if policy in product.policies)
    if not names:
        known = ", ".join(sorted({each for product in PRODUCTS.values() for each in product.policies}))
        raise Refusal(
            "UnknownPolicy", f"pod {pod.key}: annotation {SCHEDULE_POLICY}={policy} is none of the policies: {known}"
        )
    return names


def _join(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
