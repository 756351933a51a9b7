"""The products of a pod's job, by its node selector ``accelerator-type`` and ``huawei.com/schedule_policy``.

docs/spec/scheduling.md#labels-and-annotations-of-jobs, docs/spec/products.md#policies-and-rules. In the reference these
select the rule; here the node's product does, and these only restrict the nodes. What can't be satisfied is refused,
not ignored.

All pods of a job of several pods are placed on servers of one product: chips of different products differ in speed,
memory and network. On a cluster of several products such a job names its product, or an administrator names one for all
jobs that don't (``default_product``). A job with placed pods stays on their product.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS
from ascend.reasons import Reason
from ascend.rules.identity import ACCELERATOR_TYPE, KNOWN_TYPES, product_of_type

SCHEDULE_POLICY = "huawei.com/schedule_policy"
SUB_HEALTH_STRATEGY = "subHealthyStrategy"
SUPER_POD_BLOCK = "sp-block"
SUPER_POD_AFFINITY = "super-pod-affinity"
"""The label that says whether blocks may be split: ``soft``; any other value means that they may not."""
SUPER_POD_FIT = "sp-fit"
"""The annotation that says which SuperPods a MindIE job prefers: ``idlest``; any other value means the fullest."""
TOR_AFFINITY: Final = "tor-affinity"
"""The label that asks for servers below few leaf switches."""
NO_TOR_AFFINITY: Final = "null"
"""Its value that asks for nothing."""
SERVICE: Final = "inferserviceid"
"""The label with the id of the inference service that a job is an instance of."""
_MIND_IE: Final = ("app", "jobID")

_UNSUPPORTED = frozenset({"chip8-node8-ra64-sp", "chip1-softShareDev", "multilevel"})
"""Policies of the reference without a rule here."""

_ONLY: Final = {name: frozenset({name}) for name in PRODUCTS}
"""Each product's name as a set: thousands of pods that name the same product have the same set."""

_SUPER_POD = "-super-pod"
_SUPER_POD_POLICY = "-sp"


def wanted_products(pod: Pod) -> frozenset[str] | None:
    """The names of the products a pod's job names; None if it names none.

    Raises:
        Refusal: ``UnknownProduct`` or ``UnknownPolicy`` for an unknown value, ``UnsupportedPolicy`` for a policy
            without a rule, ``PolicyMismatch`` if selector and policy contradict each other.
    """
    node_type = pod.spec.node_selector.get(ACCELERATOR_TYPE)
    policy = pod.metadata.annotations.get(SCHEDULE_POLICY)
    by_type = None if node_type is None else _by_type(pod, node_type)
    by_policy = None if policy is None else _by_policy(pod, policy)
    if by_type is None or by_policy is None:
        return by_type if by_policy is None else by_policy
    if not by_type & by_policy:
        raise Refusal(
            Reason.POLICY_MISMATCH,
            f"pod {pod.key}: node selector {ACCELERATOR_TYPE}={node_type} means {_join(by_type)} servers, "
            f"annotation {SCHEDULE_POLICY}={policy} means {_join(by_policy)} servers",
        )
    return by_type & by_policy


def one_product(
    job: str, named: frozenset[str] | None, there: Collection[str], preferred: Iterable[str]
) -> frozenset[str] | None:
    """The one product for all pods of a job of several pods.

    Args:
        job: the job, for the sentence, as in ``job default/train has several pods``.
        named: names of the products that the job names; None if it names none.
        there: names of the products of the nodes that the pod's node selector matches.
        preferred: names of the products to choose from if several remain: the first of them that remains is taken.

    Returns:
        One name; ``named`` if no such product is there.

    Raises:
        Refusal: ``ProductNotNamed`` if several products remain.
    """
    remaining = frozenset(there) if named is None else named.intersection(there)
    if not remaining:
        return named
    for product in remaining if len(remaining) == 1 else preferred:
        if product in remaining:
            return _ONLY[product]
    raise Refusal(
        Reason.PRODUCT_NOT_NAMED,
        f"{job} and does not name its product; its nodes are {_join(remaining)} servers",
    )


def avoids_sub_healthy(pod: Pod) -> bool:
    """Whether a pod's job excludes sub-healthy nodes: every strategy but ``ignore`` does.

    See docs/spec/rescheduling.md#fault-predicate.
    """
    return pod.metadata.labels.get(SUB_HEALTH_STRATEGY, "ignore") != "ignore"


def wants_super_pod(pod: Pod) -> bool:
    """Whether a pod's job requests blocks of nodes of one SuperPod (docs/spec/superpod.md#which-jobs-have-blocks)."""
    return names_blocks(pod.metadata.annotations, pod.spec.node_selector)


def names_blocks(annotations: Mapping[str, str], node_selector: Mapping[str, str]) -> bool:
    """The same for the annotations and the node selector of a pod."""
    return (
        SUPER_POD_BLOCK in annotations
        or node_selector.get(ACCELERATOR_TYPE, "").endswith(_SUPER_POD)
        or annotations.get(SCHEDULE_POLICY, "").endswith(_SUPER_POD_POLICY)
    )


def product_marks(pod: Pod) -> tuple[str, ...]:
    """What names the product of a pod's job, as in ``annotation huawei.com/schedule_policy=chip8-node8``."""
    given = (
        ("node selector", ACCELERATOR_TYPE, pod.spec.node_selector.get(ACCELERATOR_TYPE)),
        ("annotation", SCHEDULE_POLICY, pod.metadata.annotations.get(SCHEDULE_POLICY)),
    )
    return tuple(f"{what} {key}={value}" for what, key, value in given if value is not None)


def block_marks(pod: Pod) -> tuple[str, ...]:
    """What requests blocks for a pod's job, as in ``annotation sp-block=32``; none for a job without blocks."""
    block = pod.metadata.annotations.get(SUPER_POD_BLOCK)
    named = (mark for mark in product_marks(pod) if mark.endswith((_SUPER_POD, _SUPER_POD_POLICY)))
    return (*((f"annotation {SUPER_POD_BLOCK}={block}",) if block is not None else ()), *named)


def is_mind_ie(labels: Mapping[str, str]) -> bool:
    """Whether the labels are a MindIE job's: both of MindIE's, with any value, and no inference service's."""
    return SERVICE not in labels and all(key in labels for key in _MIND_IE)


def _by_type(pod: Pod, node_type: str) -> frozenset[str]:
    product = product_of_type(node_type)
    if product is None:
        raise Refusal(
            Reason.UNKNOWN_PRODUCT,
            f"pod {pod.key}: node selector {ACCELERATOR_TYPE}={node_type} names no known product; "
            f"known values: {KNOWN_TYPES}",
        )
    return _ONLY[product.name]


def _by_policy(pod: Pod, policy: str) -> frozenset[str]:
    if policy in _UNSUPPORTED:
        raise Refusal(
            Reason.UNSUPPORTED_POLICY,
            f"pod {pod.key}: annotation {SCHEDULE_POLICY}={policy} is not supported",
        )
    names = frozenset(product.name for product in PRODUCTS.values() if policy in product.policies)
    if not names:
        known = ", ".join(sorted({policy for product in PRODUCTS.values() for policy in product.policies}))
        raise Refusal(
            Reason.UNKNOWN_POLICY,
            f"pod {pod.key}: annotation {SCHEDULE_POLICY}={policy} is not a known policy; the known ones are {known}",
        )
    return names


def _join(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
