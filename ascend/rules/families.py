"""The placement rule of each family of products."""

from typing import Final

from ascend.errors import Refusal
from ascend.grammar import a
from ascend.products import Family, Product
from ascend.reasons import Reason
from ascend.rules import dies, meshes, paired_rings, pool, ring
from ascend.rules.placement import Rule

RULES: Final[dict[Family, Rule]] = {
    Family.RINGS: ring.RULE,
    Family.POOL: pool.RULE,
    Family.PAIRED_RINGS: paired_rings.RULE,
    Family.DIES: dies.RULE,
    Family.MESHES: meshes.RULE,
}
"""The placement rule of each family of products."""


def refuse_number(product: Product, chips: int, *, distributed: bool) -> Refusal:
    """The refusal of a number of chips that a pod may not request of a product, whatever is free.

    Args:
        product: the product.
        chips: not one of ``product.allowed``.
        distributed: whether the pod's job has several pods.
    """
    allowed = product.allowed(distributed=distributed)
    who = "a pod of a job of several pods" if allowed != product.requests else "a pod"
    numbers = ", ".join(map(str, allowed))
    return Refusal(
        Reason.INVALID_REQUEST, f"{who} may request {numbers} chips of {a(f'{product.name} server')}, not {chips}"
    )
