"""Chips of pods that have ended, and that other pods may have.

MindCluster's device plugin finds the pod of an Allocate by its number of chips and its time, so that two pods may get
each other's (docs/spec/hand-over.md#finding-the-pod), and says which ones a pod got about a second later, or never if
it restarts in between. While it has not said so of a pod, the chips of those that end meanwhile may be in use.
This project's plugin hands over what is written, and says so with the same request as that it has done so.
"""

import functools
import operator
from dataclasses import dataclass, field

from allocator.state.holding import Holding
from ascend.chips import ChipSet


@dataclass(slots=True)
class Swaps:
    """The chips on a node that pods of which it is unknown may have, after the end of those that they were meant for.

    Attributes:
        chips: all of them.
    """

    chips: ChipSet = 0
    _left: dict[str, tuple[ChipSet, set[str]]] = field(default_factory=dict)  # by the ended pod; who may have them

    def ended(self, uid: str, holding: Holding, others: dict[str, Holding]) -> None:
        """Note that a pod has ended, while others hold something."""
        self._settle(uid)
        if suspects := {other for other, each in others.items() if _may_be_swapped(holding, each)}:
            self._left[uid] = holding.chips, suspects
            self._count()

    def seen(self, uid: str, holding: Holding) -> None:
        """Note what a live pod holds."""
        if holding.is_claimed and self._left:
            self._settle(uid)

    def _settle(self, uid: str) -> None:
        for ended, (_, suspects) in list(self._left.items()):
            suspects.discard(uid)
            if not suspects:
                del self._left[ended]
        self._count()

    def _count(self) -> None:
        self.chips = functools.reduce(operator.or_, (chips for chips, _ in self._left.values()), 0)


def _may_be_swapped(ended: Holding, other: Holding) -> bool:
    """Whether a pod may have chips that were meant for one that has ended."""
    if not ended.chips or other.counted != ended.counted or other.is_claimed:
        return False
    return other.is_unreported or ended.is_unreported or ended.disputed
