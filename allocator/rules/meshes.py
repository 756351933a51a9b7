"""The rule of boards with meshes of 4 chips: a small pod stays within one, a multiple of 4 takes whole ones.

Other sizes take any chips (spec/scheduling.md §4.5).
"""

from functools import lru_cache

from allocator.rules.placement import OrderKey, Placement, Rule, per_ring
from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.products import Product
from ascend.reasons import Reason

_MESH = 4
_SCALE = {8: 16, 16: 64}
"""For a server of so many chips, more than its largest misfit."""


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit counts meshes that would have done as well, then chips that stay free."""
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


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """The better fit first."""
    return (placement.misfit,)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's number; it says nothing of health."""
    if _is_affine(len(placement.chips)):
        scale = _SCALE[product.chips]
        return scale * (scale - placement.misfit)
    return product.chips * (product.chips - placement.misfit)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """No mesh has enough free chips, or too few are free as a whole."""
    meshes = per_ring(product, free)
    what = "must be within one mesh of 4" if request < _MESH else f"must be {request // _MESH} whole meshes of 4"
    return Refusal(Reason.MESH_TOO_SMALL, f"{request} chips asked for {what}; the meshes have {meshes} free")


RULE = Rule(place, key, score, refuse)
