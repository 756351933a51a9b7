"""Which pods to preempt on a node for a pod of higher priority: as few as possible, and the least important ones.

kube-scheduler counts chips when it selects victims; but which chips a pod holds decides whether the chips that become
free are linked. So victims are selected again here, with the verdict that also places pods. Among the sets of pods
whose chips make the request fit, the best one has the lowest maximum priority; then the fewest pods; then the lowest
sum of priorities; then the younger pods. That is kube-scheduler's own order among nodes
(k/k:pkg/scheduler/framework/preemption, pickOneNodeForPreemption). Pods that are terminating already cost nothing.
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
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.vnpus import Vnpu

_EXHAUSTIVE: Final = 10
"""Up to this number of pods every set is tried (1,024 at most); with more pods, one after the other is reprieved if
the request fits beside it."""


class Occupant(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A pod that may be preempted. Compared by identity, which is much faster than by value.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        priority: pods of lower priority are preempted first.
        since: when it was created, RFC 3339; younger pods are preempted first.
        terminating: it is terminating already.
        chips: the chips it holds.
        counted: the number of chips that the kubelet counts for it.
        vnpus: the vNPUs it holds.
    """

    uid: str
    pod: str
    priority: int
    since: str
    terminating: bool
    chips: ChipSet
    counted: int
    vnpus: tuple[Vnpu | Cut, ...] = ()

    @classmethod
    def of(cls, pod: Pod, chips: ChipSet, counted: int, vnpus: tuple[Vnpu | Cut, ...] = ()) -> "Occupant":
        """The occupant that a pod is."""
        since = pod.metadata.creation_timestamp or ""
        return cls(pod.uid, pod.key, pod.priority, since, pod.is_terminating, chips, counted, vnpus)


Cost: TypeAlias = tuple[int, int, int]
"""The highest priority, the number of pods, the sum of priorities; smaller is better."""

_Share: TypeAlias = tuple[ChipSet, int, int, bool]
"""What the selection depends on: an occupant's chips, counted chips and priority, and whether it is terminating."""

_NO_PRIORITY: Final = -(1 << 31) - 1
"""Below every priority."""


def select_victims(
    empty: Vacancy, request: ChipRequest, occupants: Iterable[Occupant]
) -> tuple[Occupant, ...] | Refusal:
    """Select the pods to preempt, the most important first; none if the request fits beside all of them.

    Args:
        empty: what the node would have left without any of the occupants.
        request: what the pod requests.
        occupants: the pods that may be preempted.

    Returns:
        The victims, or why the request would not fit even without any of the occupants.
    """
    ranked = least_important_first(occupants)
    shares = tuple((each.chips, each.counted, each.priority, each.terminating) for each in ranked)
    chosen = _choose(empty, request, shares)
    return chosen if isinstance(chosen, Refusal) else tuple(ranked[position] for position in chosen)


def cost(victims: Iterable[Occupant]) -> Cost:
    """The cost of preempting these pods, by which nodes are compared."""
    priorities = [each.priority for each in victims if not each.terminating]
    return max(priorities, default=_NO_PRIORITY), len(priorities), sum(priorities)


def least_important_first(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Sort pods in the order in which they are preempted."""
    youngest_first = sorted(occupants, key=lambda each: (each.since, each.uid), reverse=True)
    return sorted(youngest_first, key=lambda each: (not each.terminating, each.priority))


@lru_cache(maxsize=4096)
def _choose(empty: Vacancy, request: ChipRequest, shares: tuple[_Share, ...]) -> tuple[int, ...] | Refusal:
    """The positions of the victims in a list sorted by ``least_important_first``, the most important victim first.

    Cached, because many nodes of a cluster differ only in the names of their pods, and are examined one after the
    other.
    """

    def fits(gone: Collection[int]) -> bool:
        free, room = empty.free, empty.room
        for position, (chips, counted, _, _) in enumerate(shares):
            if position not in gone:
                free &= ~chips
                room -= counted - (chips & empty.kept).bit_count()  # these don't count as room anyway
        # The verdict would be the same; comparing numbers is faster.
        if free.bit_count() < request.chips or room < request.chips:
            return False
        remains = replace(empty, free=free, cut_off=empty.cut_off & free, room=room)
        return not isinstance(judge(remains, request), Refusal)

    verdict = judge(empty, request)
    if isinstance(verdict, Refusal):
        return verdict
    priorities = [priority for _, _, priority, _ in shares]
    terminating = [position for position, (_, _, _, is_terminating) in enumerate(shares) if is_terminating]
    running = [position for position, (_, _, _, is_terminating) in enumerate(shares) if not is_terminating]
    chosen = _fewest(running, priorities, lambda gone: fits([*gone, *terminating]))
    ending = _reprieved(terminating, lambda gone: fits([*chosen, *gone]))
    return tuple(sorted((*chosen, *ending), reverse=True))


def _fewest(ranked: list[int], priorities: list[int], fits: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    if fits(()):
        return ()
    for highest in sorted({priorities[each] for each in ranked}):
        pool = list(takewhile(lambda each, highest=highest: priorities[each] <= highest, ranked))  # type: ignore[misc]  # bound
        if fits(pool):
            break
    if len(pool) > _EXHAUSTIVE:
        return _reprieved(pool, fits)
    for size in range(1, len(pool)):
        fitting = (each for each in combinations(pool, size) if fits(each))
        if priorities[pool[0]] == priorities[pool[-1]]:
            best = next(fitting, None)
        else:
            best = min(fitting, key=lambda each: sum(priorities[one] for one in each), default=None)
        if best is not None:
            return best
    return pool


def _reprieved(ranked: list[int], fits: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    """The victims that remain after every pod that can stay was reprieved, the most important one first."""
    gone = list(ranked)
    for each in reversed(ranked):
        fewer = [other for other in gone if other != each]
        if fits(fewer):
            gone = fewer
    return gone
