"""The pods to preempt on a node for a pod of higher priority, so that the least work ends.

kube-scheduler counts chips when it selects victims; but which chips a pod holds decides whether the chips that become
free are linked. So victims are selected again here, with the verdict that also places pods. Among the sets of pods
whose chips make the request fit, the best one has the lowest maximum priority, as with kube-scheduler
(k/k:pkg/scheduler/framework/preemption, pickOneNodeForPreemption); then the least work ends, in chips; then the least
important work; then the fewest pods; then the younger pods. A pod of a gang ends the work of all pods of its gang, on
whatever nodes, unless so many others stay that the gang can go on. Pods that are terminating already cost nothing.
"""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity, judge
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.vnpus import Vnpu

NEVER: Final = "Never"
"""The preemption policy of pods that don't preempt."""
CHIP: Final = 2400
"""The work of a pod for each chip that it holds; the AI cores of every kind of chip divide it."""

_EXHAUSTIVE: Final = 10
"""Up to this number of pods every set is tried (1,024 at most); with more pods, one after the other is reprieved if
the request fits beside it."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """The work of pods that end together: of a running gang, or of a single pod.

    Attributes:
        priority: the highest priority of the pods.
        size: the chips that they hold, times ``CHIP``.
        pods: their number.
        spare: how many of them may end while the others can go on.
    """

    priority: int
    size: int
    pods: int = 1
    spare: int = 0


class PodShare(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A pod's share of a node and of its job's work. Compared by identity, which is much faster than by value.

    Attributes:
        group: what tells the pods of its gang, or this pod alone, from others.
        work: the work of that group.
        size: its own part of the work.
        terminating: it is terminating already.
        chips: the chips it holds.
        counted: the number of chips that the kubelet counts for it.
    """

    group: Hashable
    work: Work
    size: int
    terminating: bool
    chips: ChipSet = 0
    counted: int = 0


class Occupant(PodShare, frozen=True, eq=False, gc=False, kw_only=True):
    """A pod that may be preempted.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``; empty for a pod without chips.
        priority: its own; ``work.priority`` decides.
        since: when it was created, RFC 3339; younger pods are preempted first.
        vnpus: the vNPUs it holds.
    """

    uid: str
    pod: str = ""
    priority: int = 0
    since: str = ""
    vnpus: tuple[Vnpu | Cut, ...] = ()


Cost: TypeAlias = tuple[int, int, int, int]
"""The highest priority, the work that ends, the sum of its parts times their priorities, the number of pods that can't
go on; smaller is better."""

_S = TypeVar("_S", bound=PodShare)

_NO_PRIORITY: Final = -(1 << 31) - 1
"""Below every priority."""


class VictimSet(msgspec.Struct, frozen=True, gc=False):
    """The pods that make room on a node.

    Attributes:
        node: the node.
        victims: the most important first; empty if the pod fits without preemption.
        pdb_violations: the number of violated PodDisruptionBudgets, as counted by the scheduler.
    """

    node: str
    victims: tuple[Occupant, ...]
    pdb_violations: int = 0

    @property
    def order(self) -> tuple[int, Cost, str]:
        """The sort key, smaller is better; by name of the node among equals, so that the answer is deterministic."""
        return self.pdb_violations, cost(self.victims), self.node


class Suggestion(msgspec.Struct, frozen=True, gc=False):
    """The victims that a scheduler selected on a node by counting chips.

    Attributes:
        uids: the uids of the pods.
        pdb_violations: the number of PodDisruptionBudgets that this violates.
    """

    uids: tuple[str, ...] = ()
    pdb_violations: int = 0


def select_victims(
    empty: Vacancy, request: ChipRequest, occupants: Iterable[Occupant], *, pods: int = 1
) -> tuple[Occupant, ...] | Refusal:
    """Select the pods to preempt, the most important first; none if the request fits beside all of them.

    Args:
        empty: what the node would have left without any of the occupants.
        request: what the pod requests.
        occupants: the pods that may be preempted.
        pods: how many pods with this request are to fit.

    Returns:
        The victims, or why the request would not fit even without any of the occupants.
    """
    ranked = least_important_first(occupants)
    groups = {share.group: position for position, share in enumerate(ranked)}
    values = tuple(
        (groups[share.group], share.work, share.size, share.terminating, share.chips, share.counted) for share in ranked
    )
    chosen = _choose(empty, request, pods, values)
    return chosen if isinstance(chosen, Refusal) else tuple(ranked[position] for position in chosen)


def cost(victims: Iterable[PodShare]) -> Cost:
    """The cost of preempting these pods, by which sets of victims and nodes are compared."""
    lost: dict[Hashable, list[PodShare]] = {}
    for victim in victims:
        if not victim.terminating:
            lost.setdefault(victim.group, []).append(victim)
    highest, size, importance, pods = _NO_PRIORITY, 0, 0, 0
    for members in lost.values():
        work = members[0].work
        is_over = len(members) > work.spare
        ended = work.size if is_over else sum(member.size for member in members)
        highest = max(highest, work.priority)
        size += ended
        importance += ended * work.priority
        pods += work.pods if is_over else len(members)
    return highest, size, importance, pods


def least_important_first(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Sort pods in the order in which they are preempted."""
    youngest_first = sorted(occupants, key=lambda pod: (pod.since, pod.uid), reverse=True)
    return sorted(youngest_first, key=lambda pod: (not pod.terminating, pod.work.priority))


def reprieved(victims: Sequence[_S], fits: Callable[[Collection[_S]], bool]) -> list[_S]:
    """The victims left after reprieving all work that can go on, the most costly first, and then single pods.

    Args:
        victims: pods without which the request fits, the least important first.
        fits: whether the request fits without some pods.
    """
    gone = list(victims)
    groups: dict[Hashable, list[_S]] = {}
    for victim in reversed(victims):
        groups.setdefault(victim.group, []).append(victim)
    by_cost = sorted(groups.values(), key=cost, reverse=True)
    for spared in (*by_cost, *([victim] for victim in reversed(victims))):
        fewer = [victim for victim in gone if victim not in spared]
        if len(fewer) < len(gone) and fits(fewer):
            gone = fewer
    return gone


@lru_cache(maxsize=4096)
def _choose(
    empty: Vacancy, request: ChipRequest, pods: int, values: tuple[tuple[int, Work, int, bool, ChipSet, int], ...]
) -> tuple[int, ...] | Refusal:
    """The positions of the victims in a list sorted by ``least_important_first``, the most important victim first.

    Cached, because many nodes of a cluster differ only in the names of their pods, and are examined one after the
    other.
    """
    shares = [PodShare(*value) for value in values]

    def fits(gone: Collection[PodShare]) -> bool:
        free, room = empty.free, empty.room
        for share in shares:
            if share not in gone:
                free &= ~share.chips
                room -= share.counted - (share.chips & empty.kept).bit_count()  # these don't count as room anyway
        # The verdict would be the same; comparing numbers is faster.
        if min(free.bit_count(), room) < pods * request.chips:
            return False
        return holds(replace(empty, free=free, cut_off=empty.cut_off & free, room=room))

    def holds(vacancy: Vacancy) -> bool:
        if pods == 1:
            return not isinstance(judge(vacancy, request), Refusal)
        return capacity.__wrapped__(vacancy, request)[0] >= pods  # cached it would displace what is asked for again

    if not holds(empty):
        return capacity.__wrapped__(empty, request)[1]
    terminating = [share for share in shares if share.terminating]
    running = [share for share in shares if not share.terminating]
    chosen = _cheapest(running, lambda gone: fits([*gone, *terminating]))
    victims = {*chosen, *reprieved(terminating, lambda gone: fits([*chosen, *gone]))}
    return tuple(position for position in reversed(range(len(shares))) if shares[position] in victims)


def _cheapest(ranked: list[PodShare], fits: Callable[[Collection[PodShare]], bool]) -> Collection[PodShare]:
    if fits(()):
        return ()
    for highest in sorted({share.work.priority for share in ranked}):
        pool = [share for share in ranked if share.work.priority <= highest]
        if fits(pool):
            break
    if len(pool) > _EXHAUSTIVE:
        return reprieved(pool, fits)
    # A set with a further pod costs no less, so the first set that fits is the cheapest one.
    heap: list[tuple[Cost, int, tuple[int, ...]]] = [(cost(()), 0, ())]
    while True:
        _, size, positions = heapq.heappop(heap)
        chosen = [pool[position] for position in positions]
        if positions and fits(chosen):
            return chosen
        for further in range(positions[-1] + 1 if positions else 0, len(pool)):
            extended = cost([*chosen, pool[further]])
            heapq.heappush(heap, (extended, size + 1, (*positions, further)))
