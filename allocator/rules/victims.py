"""Whom a pod of higher priority displaces from a node: as few as possible, and the least important ones.

kube-scheduler counts chips when it chooses victims; which chips they hold decides whether those left are linked. So
the choice is made again here, by the same verdict that places pods. Among the sets of pods whose chips make the
request fit, best is the one whose most important pod is least important; then the smallest; then the one of lower
priorities in sum; then the one of younger pods. That is kube-scheduler's own order among nodes
(k/k:pkg/scheduler/framework/preemption, pickOneNodeForPreemption). Pods that are ending already cost nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import combinations, takewhile
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy, judge
from ascend.chips import ChipSet
from ascend.errors import Refusal

_TRIED: Final = 10
"""Of so many pods every set is tried (1,024 at most); of more, one after the other is spared where it can be."""


class Occupant(msgspec.Struct, frozen=True, eq=False):
    """A pod that may be displaced; two are equal only if they are one, which is told apart much faster than values.

    Attributes:
        uid: the pod's.
        pod: ``namespace/name``.
        priority: lower ones are displaced first.
        since: when it was created, RFC 3339; younger ones are displaced first.
        leaving: it is ending already.
        chips: the chips it holds.
        counted: how many the kubelet counts for it.
    """

    uid: str
    pod: str
    priority: int
    since: str
    leaving: bool
    chips: ChipSet
    counted: int


Cost: TypeAlias = tuple[int, int, int]
"""The highest priority, the number of pods, the sum of priorities; the smaller, the better."""

_Stake: TypeAlias = tuple[ChipSet, int, int, bool]
"""What counts of an occupant: its chips, how many the kubelet counts for it, its priority, whether it leaves."""

_NO_PRIORITY: Final = -(1 << 31) - 1
"""Below every priority."""


def select_victims(empty: Vacancy, ask: ChipRequest, occupants: Iterable[Occupant]) -> tuple[Occupant, ...] | Refusal:
    """The pods to displace, the most important first; none where the request fits beside all of them.

    Args:
        empty: what the node would have left if all of them were gone.
        ask: what the pod asks for.
        occupants: those who may be displaced.

    Returns:
        The victims, or why the request would not fit even without any of the occupants.
    """
    ranked = least_important_first(occupants)
    chosen = _choose(empty, ask, tuple((each.chips, each.counted, each.priority, each.leaving) for each in ranked))
    return chosen if isinstance(chosen, Refusal) else tuple(ranked[place] for place in chosen)


def cost(victims: Iterable[Occupant]) -> Cost:
    """What nodes are compared by."""
    priorities = [each.priority for each in victims if not each.leaving]
    return max(priorities, default=_NO_PRIORITY), len(priorities), sum(priorities)


def least_important_first(occupants: Iterable[Occupant]) -> list[Occupant]:
    """In the order in which pods are displaced."""
    youngest_first = sorted(occupants, key=lambda each: (each.since, each.uid), reverse=True)
    return sorted(youngest_first, key=lambda each: (not each.leaving, each.priority))


@lru_cache(maxsize=4096)
def _choose(empty: Vacancy, ask: ChipRequest, stakes: tuple[_Stake, ...]) -> tuple[int, ...] | Refusal:
    """The places of the victims in a list whose least important come first, the most important victim first.

    Many nodes of a cluster are alike but for the names of their pods, and they are asked about one after the other.
    """

    def fits(gone: Collection[int]) -> bool:
        free, room = empty.free, empty.room
        for place, (chips, counted, _, _) in enumerate(stakes):
            if place not in gone:
                free &= ~chips
                room -= counted
        # The verdict would say so too; a number is had at once.
        if free.bit_count() < ask.chips or room < ask.chips:
            return False
        remains = replace(empty, free=free, cut_off=empty.cut_off & free, room=room)
        return not isinstance(judge(remains, ask), Refusal)

    verdict = judge(empty, ask)
    if isinstance(verdict, Refusal):
        return verdict
    priorities = [priority for _, _, priority, _ in stakes]
    leaving = [place for place, (_, _, _, is_leaving) in enumerate(stakes) if is_leaving]
    staying = [place for place, (_, _, _, is_leaving) in enumerate(stakes) if not is_leaving]
    chosen = _fewest(staying, priorities, lambda gone: fits([*gone, *leaving]))
    ending = _spared(leaving, lambda gone: fits([*chosen, *gone]))
    return tuple(sorted((*chosen, *ending), reverse=True))


def _fewest(ranked: list[int], priorities: list[int], fits: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    if fits(()):
        return ()
    for highest in sorted({priorities[each] for each in ranked}):
        pool = list(takewhile(lambda each, highest=highest: priorities[each] <= highest, ranked))  # type: ignore[misc]  # bound
        if fits(pool):
            break
    if len(pool) > _TRIED:
        return _spared(pool, fits)
    for size in range(1, len(pool)):
        fitting = (each for each in combinations(pool, size) if fits(each))
        if priorities[pool[0]] == priorities[pool[-1]]:
            best = next(fitting, None)
        else:
            best = min(fitting, key=lambda each: sum(priorities[one] for one in each), default=None)
        if best is not None:
            return best
    return pool


def _spared(ranked: list[int], fits: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    """Those who can't be spared, the most important being spared first."""
    gone = list(ranked)
    for each in reversed(ranked):
        fewer = [other for other in gone if other != each]
        if fits(fewer):
            gone = fewer
    return gone
