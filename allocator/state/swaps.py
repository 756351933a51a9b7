"""Chips of pods that have ended, and that other pods may have.

MindCluster's device plugin finds the pod of an Allocate by its number of chips and its time, so that pods may get each
other's (docs/spec/hand-over.md#finding-the-pod). It says which ones a pod got about a second later, or never if it
restarts in between, and of the pods of operators never, because the allocator has written AscendReal on them. While it
has not said so of a pod, the chips of those that end may be in use.
This project's plugin hands over what is written, and says so with the same request as that it has done so.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from allocator.state.holding import Holding
from ascend.chips import ChipSet


class Kept(NamedTuple):
    """What is kept of a pod that has ended.

    Attributes:
        chips: its chips.
        suspects: the uids of the pods that may have them.
    """

    chips: ChipSet
    suspects: frozenset[str]


Swaps: TypeAlias = Mapping[str, Kept]
"""What is kept, by the uid of the pod that has ended."""
Partners: TypeAlias = Mapping[str, frozenset[str]]
"""By uid: the uids of the pods that waited for their chips when those of this one were handed over, or the reverse."""


def after_change(partners: Partners, uid: str, holdings: Mapping[str, Holding], before: Holding | None) -> Partners:
    """The partners once a pod has changed; ``holdings`` is what each pod has now, ``before`` what this one had."""
    holding = holdings[uid]
    if not holding.is_handed_over or holding.is_reported or before is None or before.is_handed_over:
        return partners
    near = frozenset(
        other for other, held in holdings.items() if held.counted == holding.counted and not held.is_handed_over
    )
    if not near:
        return partners
    changed = {other: partners.get(other, frozenset()) | {uid} for other in near}
    return {**partners, **changed, uid: partners.get(uid, frozenset()) | near}


def without_partner(partners: Partners, uid: str) -> Partners:
    """The partners once a pod has ended."""
    if uid not in partners:
        return partners
    left = ((other, near - {uid}) for other, near in partners.items() if other != uid)
    return {other: near for other, near in left if near}


def after_end(swaps: Swaps, partners: Partners, uid: str, holding: Holding, others: Mapping[str, Holding]) -> Swaps:
    """What is kept once a pod has ended; ``others`` is what each pod beside it holds."""
    near = partners.get(uid, frozenset())
    suspects = frozenset(
        other for other, held in others.items() if _may_be_swapped(holding, held, are_partners=other in near)
    )
    left = after_report(swaps, uid)
    return {**left, uid: Kept(holding.chips, suspects)} if suspects else left


def after_report(swaps: Swaps, uid: str) -> Swaps:
    """What is kept once it is known which chips a pod has."""
    if not swaps:
        return swaps
    left = ((ended, Kept(kept.chips, kept.suspects - {uid})) for ended, kept in swaps.items())
    return {ended: kept for ended, kept in left if kept.suspects}


def _may_be_swapped(ended: Holding, other: Holding, *, are_partners: bool) -> bool:
    """Whether a pod may have chips that were meant for one that has ended."""
    if not ended.chips or other.counted != ended.counted or other.is_reported:
        return False
    if ended.is_reported and not ended.disputed:
        return False  # it had its own
    if are_partners:
        return True
    if other.is_claimed or (ended.is_claimed and not ended.disputed):
        return False
    return other.is_handed_over or ended.is_handed_over
