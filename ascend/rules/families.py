"""The placement rule of each family of products."""

from typing import Final

from ascend.products import Family
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
