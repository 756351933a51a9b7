"""The products: how many chips a server has, how they are linked, and which requests make sense on it."""

from dataclasses import dataclass

from ascend.chips import ChipSet, chip_set


@dataclass(frozen=True, slots=True)
class Product:
    """A kind of server.

    Attributes:
        name: what people call it.
        chips: number of chips; physical ids are ``0 … chips-1``.
        rings: the HCCS rings; chips of different rings can't talk directly.
        requests: the numbers of chips a pod may ask for.
        accelerator: the value of the node label ``accelerator`` (spec/node-agent.md §5.8).
    """

    name: str
    chips: int
    rings: tuple[ChipSet, ...]
    requests: tuple[int, ...]
    accelerator: str

    @property
    def all_chips(self) -> ChipSet:
        """The set of every chip a full server has."""
        return (1 << self.chips) - 1


ASCEND_910A = Product(
    name="910A",
    chips=8,
    rings=(chip_set(range(4)), chip_set(range(4, 8))),
    requests=(1, 2, 4, 8),
    accelerator="huawei-Ascend910",
)
"""Atlas 800 (9000): 8 chips in two HCCS rings of 4 (seed 000, "Affinity Principles"; spec/scheduling.md §4.1)."""

PRODUCTS: dict[str, Product] = {product.name: product for product in (ASCEND_910A,)}
