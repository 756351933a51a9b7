"""The rule for boards with meshes of 4 chips: up to 4 chips come from one mesh, a multiple of 4 takes whole meshes.

Other numbers take any chips (docs/spec/products.md#meshes-of-four).
"""

from functools import lru_cache

from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.placement import Placement, Rule, by_misfit, per_ring

_MESH = 4
_SCALE = {8: 16, 16: 64}
"""By the number of chips of a server: a number greater than its largest misfit."""


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit counts further meshes that fit, then chips that stay free."""
    left = free.bit_count() - request
    if left < 0:
        return None
    if not _is_affine(request):
        return Placement.of(free, chip_ids(free)[:request], misfit=left)
    each = min(request, _MESH)
    needed = request // each
    usable = [mesh & free for mesh in product.rings if (mesh & free).bit_count() >= each]
    if len(usable) < needed:
        return None
    usable.sort(key=lambda chips: (chips.bit_count(), chips & -chips))
    chips = tuple(chip for mesh in usable[:needed] for chip in chip_ids(mesh)[:each])
    return Placement.of(free, chips, misfit=product.chips * (len(usable) - needed) + left)


def _is_affine(request: int) -> bool:
    return request <= _MESH or request % _MESH == 0


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's score; health has no influence on it."""
    if _is_affine(len(placement.chips)):
        scale = _SCALE[product.chips]
        return scale * (scale - placement.misfit)
    return product.chips * (product.chips - placement.misfit)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """The refusal if no mesh has enough free chips, or too few whole meshes are free."""
    meshes = per_ring(product, free)
    whole = count(request // _MESH, "whole mesh", "whole meshes")
    must = "must be within one mesh of 4" if request < _MESH else f"must be {whole} of 4"
    return Refusal(
        Reason.MESH_TOO_SMALL, f"{count(request, 'chip')} requested {must}; the meshes have {meshes} free chips"
    )


RULE = Rule(place, by_misfit, score, refuse, "mesh")
