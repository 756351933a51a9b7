"""Which pods have to end so that a gang fits: no more, and no more important ones than needed.

The policy that places gangs is tried on the cluster as it would be without pods of lower priority (``trial.py``): first
without all of them, to know whether preemption helps; then without those up to the lowest priority that is enough. Of
these, nodes are cleared one after the other, the one with the least work that ends per seat first, until the gang fits;
at last everything that can stay is reprieved, the most important first. What ends is compared as for a pod alone
(``allocator/rules/victims.py``).

Nodes where this violates a PodDisruptionBudget are cleared last, and their pods reprieved first, whatever the priority
of the other pods: kube-scheduler compares the violations of two nodes before the priorities, too.
"""

import heapq
from collections.abc import Collection, Iterable
from typing import TypeAlias

from msgspec.structs import replace

from allocator.decision.trial import Trial, Unit
from allocator.gangs.one_model import place
from allocator.gangs.policy import GangRequest
from allocator.rules.request import ChipRequest
from allocator.rules.verdicts import capacity
from allocator.rules.victims import Occupant, cost, least_important_first
from allocator.state.job import Job
from allocator.state.reservation import Seat
from ascend.errors import Refusal

_Price: TypeAlias = tuple[bool, float, float, float, str]
"""What a further seat costs: whether it violates a PodDisruptionBudget, the work that ends, how important that is, the
number of pods; and its node."""


class Fitting:
    """Whether a gang fits on the nodes of a trial."""

    def __init__(self, gang: GangRequest, job: Job, trial: Trial) -> None:
        self._job = job
        self._gang = gang
        self._trial = trial

    async def seats(self) -> list[Seat] | Refusal:
        """The seats; a refusal if it does not fit. Other tasks may run meanwhile."""
        await self._trial.turn.share()
        gang = replace(self._gang, seen=self._trial.policy_view(self._job, self._gang.policy))
        return await self._trial.turn.share_between(place(gang, self._trial.index))

    async def check(self) -> bool:
        """Whether it fits."""
        return not isinstance(await self.seats(), Refusal)

    def missing(self, request: ChipRequest) -> int:
        """About how many seats it lacks: by the number of pods with this request that fit on each node."""
        members, buckets = len(self._gang.members), self._trial.index.buckets_of(self._gang.candidates)
        room = sum(nodes * capacity(bucket.vacancy, request)[0] for bucket, nodes in buckets)
        return members - room if room < members else members


async def clear(fitting: Fitting, trial: Trial, request: ChipRequest, disrupted: Collection[str]) -> None:
    """Let pods end so that the gang fits: the least work, and the least important.

    Args:
        fitting: the gang.
        trial: the cluster.
        request: what a pod of the gang requests of a node.
        disrupted: names of the nodes where this violates a PodDisruptionBudget.

    Raises:
        Refusal: it does not fit even if all end.
    """
    if await fitting.check():
        return
    units = list(trial.units.values())  # thousands: there is a pause after each step that reads all of them
    await trial.end(_pods(units))
    seats = await fitting.seats()
    if isinstance(seats, Refusal):
        raise Refusal(seats.reason, f"{seats.message}; also without the pods of lower priority")
    await trial.restore(_pods(units))
    shielded = {unit for unit in units if not unit.occupants.keys().isdisjoint(disrupted)} or set(units)
    await trial.turn.share()
    pool = units
    for highest in sorted({unit.work.priority for unit in shielded})[:-1]:  # without all of them it fits
        lower = [unit for unit in units if unit.work.priority <= highest or unit not in shielded]
        await trial.turn.share()
        await trial.end(_pods(lower))
        is_enough = await fitting.check()
        await trial.restore(_pods(lower))
        if is_enough:
            pool = lower
            break
    await _end_cheapest(fitting, trial, pool, request, disrupted)
    lost = sorted(trial.gone, key=lambda unit: (unit not in shielded, *_importance(unit)))
    await _reprieve(fitting, trial, [list(unit.ended.values()) for unit in lost])


def _pods(units: Iterable[Unit]) -> list[Occupant]:
    return [pod for unit in units for here in unit.occupants.values() for pod in here]


async def _end_cheapest(
    fitting: Fitting, trial: Trial, pool: list[Unit], request: ChipRequest, disrupted: Collection[str]
) -> None:
    """Let pods end on one node after the other until the gang fits: first where the least work ends per seat."""
    allowed, missing = set(pool), fitting.missing(request)

    def price(node: str) -> _Price | None:
        victims = trial.cheapest(node, request, allowed)
        if not victims:
            return None
        more = trial.capacity(node, request, trial.ending_with(victims)) - trial.capacity(node, request)
        gain, (_, size, importance, pods) = min(more, missing), cost(victims)
        return node in disrupted, size / gain, importance / gain, pods / gain, node

    heap: list[_Price] = []
    for node in {node for unit in pool for node in unit.occupants}:
        heap += filter(None, [price(node)])
        await trial.turn.share()
    heapq.heapify(heap)
    while heap:
        await trial.turn.share()
        cheapest = heapq.heappop(heap)
        node = cheapest[-1]
        changed = {node}
        if price(node) == cheapest:
            pods = trial.ending_with(trial.cheapest(node, request, allowed))
            await trial.end(pods)
            missing = fitting.missing(request)
            if await fitting.check():
                return
            # Other nodes are cheaper now, because pods of a gang on them have ended; an older entry is moved.
            changed |= trial.nodes_of(pods)
        for found in filter(None, map(price, changed)):
            heapq.heappush(heap, found)
    await trial.end([pod for unit in pool for pod in unit.pods if pod.uid not in unit.ended])


async def _reprieve(fitting: Fitting, trial: Trial, losses: list[list[Occupant]]) -> None:
    """Let all pods stay that can, of the first losses rather than of the last.

    Args:
        fitting: the gang.
        trial: the cluster.
        losses: the pods that have ended of each unit.
    """
    pods = [pod for loss in losses for pod in loss]
    await trial.restore(pods)
    if await fitting.check():
        return
    await trial.end(pods)
    if len(losses) > 1:
        half = len(losses) // 2
        await _reprieve(fitting, trial, losses[:half])
        await _reprieve(fitting, trial, losses[half:])
    elif len(pods) > 1 and (unit := trial.units[pods[0].group]).work.spare:
        await _reprieve(fitting, trial, [[pod] for pod in reversed(least_important_first(pods))])
        if len(unit.ended) > unit.work.spare:  # it can't go on, so the others may have its chips
            await trial.end([pod for pod in pods if pod.uid not in unit.ended])


def _importance(unit: Unit) -> tuple[int, int, int, str]:
    """The sort key, the most important first: by priority, work and pods that end; then the older ones."""
    size, pods = unit.loss
    return -unit.work.priority, -size, -pods, min(pod.since for pod in unit.ended.values())
