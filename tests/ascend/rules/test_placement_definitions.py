"""The placement of servers with 16 chips against plain definitions of the rules, one set of free chips at a time.

Each test takes some sets of free chips at random, with the profile ``long`` all of them.
"""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings

from ascend.chips import chip_ids
from ascend.products import ASCEND_910B_16, ASCEND_A3_8, ASCEND_A3_16, MESH_8, MESH_16, Product
from ascend.rules.families import RULES

Answer = tuple[int, tuple[int, ...]] | None


def paired_rings(free: tuple[int, ...], request: int) -> Answer:
    """docs/spec/products.md#910b-with-16-chips."""
    if request > 8:
        pairs = [chip for chip in free if chip < 8 and chip + 8 in free]
        chips = [each for chip in pairs[: request // 2] for each in (chip, chip + 8)]
        return (len(pairs) - request // 2, tuple(chips)) if len(pairs) >= request // 2 else None
    rings = [[chip for chip in free if chip // 8 == ring] for ring in range(2)]
    found = [(len(ring) - request, ring[:request]) for ring in rings if len(ring) >= request]
    best = min(found, default=None)
    return (best[0], tuple(best[1])) if best else None


def dies(free: tuple[int, ...], request: int) -> Answer:
    """docs/spec/products.md#a3-servers."""
    left = len(free) - request
    halves = [chip for chip in free if chip ^ 1 not in free]
    if request == 1:
        return ((left, (halves[0],)) if halves else (left + 16, free[:1])) if free else None
    whole = [chip for chip in free if chip not in halves]
    return (left, tuple(whole[:request])) if len(whole) >= request else None


def meshes(free: tuple[int, ...], request: int, chips: int) -> Answer:
    """docs/spec/products.md#meshes-of-four."""
    left = len(free) - request
    if request > 4 and request % 4:
        return (left, free[:request]) if left >= 0 else None
    each = min(request, 4)
    found = [[chip for chip in free if chip // 4 == mesh] for mesh in range(chips // 4)]
    usable = sorted((mesh for mesh in found if len(mesh) >= each), key=len)
    taken = tuple(chip for mesh in usable[: request // each] for chip in mesh[:each])
    return (chips * (len(usable) - request // each) + left, taken) if len(taken) == request else None


SAMPLE = 2048


def compare(product: Product, request: int, definition: Callable[[tuple[int, ...], int], Answer]) -> None:
    rule = RULES[product.family]
    place = getattr(rule.place, "__wrapped__", rule.place)
    sets: Sequence[int] = range(product.all_chips + 1)
    if settings.get_current_profile_name() != "long":
        sets = random.sample(sets, min(SAMPLE, len(sets)))
    for free in sets:
        placement = place(product, free, request)
        found = None if placement is None else (placement.misfit, placement.chips)
        assert found == definition(chip_ids(free), request), f"{free:#x}"


@pytest.mark.parametrize("request_", ASCEND_910B_16.requests)
def test_paired_rings_are_placed_as_defined(request_: int) -> None:
    compare(ASCEND_910B_16, request_, paired_rings)


@pytest.mark.parametrize("request_", ASCEND_A3_16.requests)
def test_dies_are_placed_as_defined(request_: int) -> None:
    compare(ASCEND_A3_16, request_, dies)
    if request_ in ASCEND_A3_8.requests:
        compare(ASCEND_A3_8, request_, dies)


@pytest.mark.parametrize("request_", MESH_16.requests)
def test_meshes_are_placed_as_defined(request_: int) -> None:
    compare(MESH_16, request_, lambda free, request: meshes(free, request, 16))
    if request_ in MESH_8.requests:
        compare(MESH_8, request_, lambda free, request: meshes(free, request, 8))
