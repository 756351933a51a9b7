"""The placement rule of each family of products."""

from allocator.rules import dies, meshes, paired_rings, pool, ring
from allocator.rules.placement import Rule
from ascend.products import Family

RULES: dict[Family, Rule] = {
    Family.RINGS: ring.RULE,
    Family.POOL: pool.RULE,
    Family.PAIRED_RINGS: paired_rings.RULE,
    Family.DIES: dies.RULE,
    Family.MESHES: meshes.RULE,
}
