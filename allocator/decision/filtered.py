"""Where a pod fits, and why it does not fit elsewhere."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from allocator.rules.summary import count_reasons
from ascend.errors import Refusal
from ascend.reasons import Reason


@dataclass(frozen=True)
class Filtered:
    """Where a pod fits.

    Attributes:
        fitting: the nodes that fit, each once, in the order of the candidates.
        refused: why the other nodes don't.
    """

    fitting: list[str]
    refused: dict[str, Refusal]

    @cached_property
    def refusals(self) -> Counter[Refusal]:
        """The number of nodes for each refusal; nodes share refusals."""
        return Counter(self.refused.values())

    @cached_property
    def reasons(self) -> Counter[Reason]:
        """The number of nodes for each reason."""
        return count_reasons(self.refusals)


@dataclass(frozen=True, slots=True)
class Tier:
    """Nodes on which a pod fits equally well.

    Attributes:
        rank: 1 is the best.
        score: the reference scheduler's number for the placement; 0 for the node of a pod that is placed already.
        nodes: by name; the first node of the first tier is chosen.
    """

    rank: int
    score: int
    nodes: list[str]
