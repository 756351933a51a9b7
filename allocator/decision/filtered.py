"""Where a pod fits, and why it does not fit elsewhere."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from allocator.rules.request import ChipRequest
from allocator.rules.summary import count_reasons
from allocator.state.index import NodeIndex
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason


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

    @property
    def first(self) -> dict[Refusal, str]:
        """The first node of each refusal, in the order of the nodes."""
        last_first = dict(zip(reversed(self.refused.values()), reversed(self.refused), strict=True))
        return {refusal: last_first[refusal] for refusal in self.refusals}

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


def settled_refusal(pod: Pod, node: str) -> Refusal:
    """Why a pod can't be placed elsewhere."""
    return Refusal(Reason.ALREADY_PLACED, f"pod {pod.key} is bound to node {node}, or its Binding is in flight")


def on_settled(pod: Pod, settled: str, names: Collection[str]) -> Filtered:
    """Where a pod fits that is on a node already."""
    others = dict.fromkeys((name for name in names if name != settled), settled_refusal(pod, settled))
    return Filtered([name for name in names if name == settled], others)


def gang_refused(index: NodeIndex, request: ChipRequest, names: list[str], refusal: Refusal) -> Filtered:
    """Why a pod of a gang fits on none of these nodes."""
    if refusal.reason.category is Category.INCOMPLETE:
        return Filtered([], dict.fromkeys(names, refusal))
    return Filtered([], refused_with(index, request, names, refusal))


def refused_with(index: NodeIndex, request: ChipRequest, names: list[str], refusal: Refusal) -> dict[str, Refusal]:
    """The refusal of nodes that the gang does not use: their own, where freeing chips would not help.

    An occupied node gets the gang's refusal, so that no scheduler preempts there: room for one pod is not room for
    its gang.
    """
    return {
        name: verdict if isinstance(verdict, Refusal) and verdict.reason.category is not Category.OCCUPIED else refusal
        for name, verdict in index.verdicts(request, names).items()
    }
