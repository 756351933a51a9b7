"""The products: how many chips a server has, how they are linked, and which requests are valid.

One table for both programs. The links between the chips decide which rule applies (``Family``); the table has
everything else that a rule depends on (docs/spec/products.md#policies-and-rules, docs/spec/products.md#valid-requests,
docs/spec/products.md).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ascend.chips import ChipSet, chip_set


class Family(StrEnum):
    """How the chips of a server are linked, which decides the placement rule."""

    RINGS = "two HCCS rings"
    """A pod stays within one ring, or takes the whole server (910A)."""

    POOL = "all alike"
    """Any chips fit: a full mesh, a single ring, or cards without links."""

    PAIRED_RINGS = "two rings, linked chip by chip"
    """A pod stays within one ring, or takes chips i and i+8 of both (910B with 16)."""

    DIES = "cards of two dies"
    """A pod that requests more than one chip takes whole cards (A3)."""

    MESHES = "meshes of four"
    """Up to four chips come from one mesh; a multiple of four takes whole meshes."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product: a type of server. Each exists once, so products are compared by identity.

    Attributes:
        name: its name; it includes the number of chips if several servers have the same chip.
        chips: the number of chips of a complete server; physical ids are ``0 … chips-1``.
        family: how they are linked.
        linked: the number of chips in a ring, mesh or card.
        node_types: the values of ``accelerator-type`` that name it, as node label and in a job's node selector.
        policies: the values of a job's ``huawei.com/schedule_policy`` that name it; by default the node types.
        chip: the kind of chip: 910A, 910B or A3; empty if only a label identifies the server.
        requests: the numbers of chips that a pod may request; any by default.
        distributed_requests: the same as ``requests`` for a pod of a job of several pods; empty if there is no
            difference.
        has_network: the chips have a network of their own, which jobs of several pods need.
        shared_by_peers: whether several pods of one job may be on one server. The makers' documents say no for 910A,
            and for A3, where pods of a job on one server can't communicate collectively.
        rings: the groups of chips that are linked with each other: rings, meshes, or the two dies of a card.
        all_chips: the chips of a complete server.
    """

    name: str
    chips: int
    family: Family
    linked: int
    node_types: tuple[str, ...]
    policies: tuple[str, ...] = ()
    chip: str = ""
    requests: tuple[int, ...] = ()
    distributed_requests: tuple[int, ...] = ()
    has_network: bool = True
    shared_by_peers: bool = True
    rings: tuple[ChipSet, ...] = field(init=False)
    all_chips: ChipSet = field(init=False)

    def __post_init__(self) -> None:
        ids = range(self.chips)
        object.__setattr__(self, "policies", self.policies or self.node_types)
        object.__setattr__(self, "requests", self.requests or tuple(range(1, self.chips + 1)))
        object.__setattr__(self, "rings", tuple(chip_set(ids[at : at + self.linked]) for at in ids[:: self.linked]))
        object.__setattr__(self, "all_chips", chip_set(ids))

    def allowed(self, *, distributed: bool) -> tuple[int, ...]:
        """The numbers of chips that a pod may request, given whether its job has several pods."""
        return self.distributed_requests or self.requests if distributed else self.requests


def _even(most: int) -> tuple[int, ...]:
    return tuple(range(2, most + 1, 2))


ASCEND_910A = Product(
    "910A",
    8,
    Family.RINGS,
    linked=4,
    node_types=("module",),
    # The documents give this policy for 910A servers (docs/spec/products.md#the-policy-chip4-node8).
    policies=("chip4-node8",),
    chip="910A",
    requests=(1, 2, 4, 8),
    # Pods of a job of several pods take whole servers: docs/spec/affinity-rules.md#single-pods-and-distributed-jobs.
    distributed_requests=(8,),
    shared_by_peers=False,
)
"""Atlas 800 (9000): 8 chips in two HCCS rings of 4.

See docs/spec/affinity-rules.md#hccs-rings; docs/spec/products.md#910a-servers.
"""

ASCEND_910A_HALF = Product(
    "910A-4", 4, Family.POOL, linked=4, node_types=("half",), policies=("chip4-node4",), chip="910A", requests=(1, 2, 4)
)
"""The 910A server with one ring of 4."""

ASCEND_910_CARD = Product(
    "910-card",
    8,
    Family.POOL,
    linked=1,
    node_types=("card", "card-910b-2", "card-910b-infer"),
    policies=("chip1-node2",),
    has_network=False,
)
"""Servers with up to 8 PCIe cards, which are not linked."""

ASCEND_910B_8 = Product(
    "910B-8", 8, Family.POOL, linked=8, node_types=("module-910b-8",), policies=("chip8-node8",), chip="910B"
)
"""Atlas 800 A2: 8 chips, each linked with every other."""

ASCEND_910B_16 = Product(
    "910B-16",
    16,
    Family.PAIRED_RINGS,
    linked=8,
    node_types=("module-910b-16",),
    policies=("chip8-node16",),
    chip="910B",
    requests=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16),
)
"""Atlas 200T A2 Box16: two rings of 8; chip i is linked with chip i+8."""

ASCEND_A3_8 = Product(
    "A3-8",
    8,
    Family.DIES,
    linked=2,
    node_types=("module-a3-8", "module-a3-8-super-pod"),
    policies=("chip2-node8", "chip2-node8-sp"),
    chip="A3",
    requests=(1, *_even(8)),
    distributed_requests=_even(8),
    shared_by_peers=False,
)
"""Atlas A3 with 4 cards of two dies."""

ASCEND_A3_16 = Product(
    "A3-16",
    16,
    Family.DIES,
    linked=2,
    node_types=("module-a3-16", "module-a3-16-super-pod"),
    policies=("chip2-node16", "module-a3-16", "chip2-node16-sp"),
    chip="A3",
    requests=(1, *_even(16)),
    distributed_requests=_even(16),
    shared_by_peers=False,
)
"""Atlas 800/900 A3 with 8 cards of two dies."""

ATLAS_850_8 = Product(
    "850-8",
    8,
    Family.POOL,
    linked=8,
    node_types=("850-SuperPod-Atlas-8",),
    policies=("chip8-node8-sp",),
    distributed_requests=(8,),
)
"""Atlas 850 servers of a SuperPod: 8 chips, each linked with every other. A pod of a job of several takes all."""

MESH_8 = Product("mesh-8", 8, Family.MESHES, linked=4, node_types=("chip4-node8",))
"""Atlas 350 with two meshes of 4."""

MESH_16 = Product("mesh-16", 16, Family.MESHES, linked=4, node_types=("chip4-node16",))
"""Atlas 350 with four meshes of 4."""

PLAIN_8 = Product("plain-8", 8, Family.POOL, linked=1, node_types=("chip1-node8",), has_network=False)
"""Any other server with up to 8 chips; their links are unknown."""

PLAIN_16 = Product("plain-16", 16, Family.POOL, linked=1, node_types=("chip1-node16",), has_network=False)
"""Any other server with up to 16 chips; their links are unknown."""

PRODUCTS: dict[str, Product] = {
    product.name: product
    for product in (
        ASCEND_910A_HALF,
        ASCEND_910A,
        ASCEND_910_CARD,
        ASCEND_910B_8,
        ASCEND_910B_16,
        ASCEND_A3_8,
        ASCEND_A3_16,
        ATLAS_850_8,
        MESH_8,
        MESH_16,
        PLAIN_8,
        PLAIN_16,
    )
}
"""By name; of products with the same chip, the smaller first. If a pod fits on several, the first is preferred."""
