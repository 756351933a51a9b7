"""Chips of pods that have ended, and that other pods may have.

MindCluster's device plugin finds the pod of an Allocate by its number of chips and its time, so that two pods may get
each other's (docs/spec/hand-over.md#finding-the-pod), and says which ones a pod got about a second later, or never if
it restarts in between. While it has not said so of a pod, the chips of those that end meanwhile may be in use.
This project's plugin hands over what is written, and says so with the same request as that it has done so.
"""

from collections.abc import Mapping
from typing import TypeAlias

from allocator.state.holding import Holding
from ascend.chips import ChipSet

Swaps: TypeAlias = Mapping[str, tuple[ChipSet, frozenset[str]]]
"""By the uid of a pod that has ended: its chips, and the uids of the pods that may have them."""


def after_end(swaps: Swaps, uid: str, holding: Holding, others: Mapping[str, Holding]) -> Swaps:
    """The chips that others may have once a pod has ended; ``others`` is what each pod beside it holds."""
    suspects = frozenset(other for other, each in others.items() if _may_be_swapped(holding, each))
    left = after_report(swaps, uid)
    return {**left, uid: (holding.chips, suspects)} if suspects else left


def after_report(swaps: Swaps, uid: str) -> Swaps:
    """The chips that others may have once it is known which ones a pod has."""
    if not swaps:
        return swaps
    left = ((ended, (chips, suspects - {uid})) for ended, (chips, suspects) in swaps.items())
    return {ended: each for ended, each in left if each[1]}


def _may_be_swapped(ended: Holding, other: Holding) -> bool:
    """Whether a pod may have chips that were meant for one that has ended."""
    if not ended.chips or other.counted != ended.counted or other.is_claimed:
        return False
    return other.is_unreported or ended.is_unreported or ended.disputed
