"""Which pods have to end so that a gang fits: no more, and no more important ones than needed.

The policy that places gangs is tried on the cluster as it would be without pods of lower priority (``trial.py``): first
without all of them, to know whether preemption helps; then without those up to the lowest priority that is enough. Of
these, nodes are cleared one after the other, the one with the fewest ending pods per seat first, until the gang fits;
at last every pod that can stay is reprieved, the most important first. A pod of a running gang counts as its whole
gang, because a gang that loses a pod can't work.

Nodes where this violates a PodDisruptionBudget are cleared last, and their pods reprieved first, whatever the priority
of the other pods: kube-scheduler compares the violations of two nodes before the priorities, too.
"""

import heapq
from collections.abc import Collection

from msgspec.structs import replace

from allocator.decision.trial import Trial, Unit
from allocator.gangs.policy import GangRequest
from allocator.rules.request import ChipRequest
from allocator.state.reservation import Seat
from allocator.state.switches import SwitchView
from ascend.errors import Refusal


class Fitting:
    """Whether a gang fits on the nodes of a trial."""

    def __init__(self, gang: GangRequest, trial: Trial) -> None:
        self._gang = gang
        self._trial = trial

    async def seats(self) -> list[Seat] | Refusal:
        """The seats; a refusal if it does not fit. Other tasks may run meanwhile."""
        await self._trial.turn.share()
        gang = self._gang
        if isinstance(gang.switches, SwitchView):  # jobs that have ended span no switches
            uses = self._trial.switch_uses(gang.job)
            gang = replace(gang, switches=replace(gang.switches, others=uses))
        return await self._trial.turn.share_between(gang.policy.place(gang, self._trial.index))

    async def check(self) -> bool:
        """Whether it fits."""
        return not isinstance(await self.seats(), Refusal)


async def clear(fitting: Fitting, trial: Trial, request: ChipRequest, disrupted: Collection[str]) -> None:
    """Let units end so that the gang fits: the least important, and as few as possible.

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
    units = list(trial.units.values())
    await trial.end(units)
    seats = await fitting.seats()
    if isinstance(seats, Refusal):
        raise Refusal(seats.reason, f"{seats.message}; also without the pods of lower priority")
    shielded = {unit for unit in units if unit.occupants.keys() & disrupted} or set(units)
    for highest in sorted({unit.priority for unit in shielded}):
        await trial.restore(trial.gone)
        pool = [unit for unit in units if unit.priority <= highest or unit not in shielded]
        await trial.turn.share()
        await trial.end(pool)
        if await fitting.check():
            break
    await trial.restore(pool)
    await _end_cheapest(fitting, trial, pool, request, disrupted)
    await _reprieve(fitting, trial, sorted(trial.gone, key=lambda unit: (unit not in shielded, *_importance(unit))))


async def _end_cheapest(
    fitting: Fitting, trial: Trial, pool: list[Unit], request: ChipRequest, disrupted: Collection[str]
) -> None:
    """Clear nodes until the gang fits, the one with the fewest ending pods per seat first."""

    def price(node: str) -> tuple[bool, float, int, str] | None:
        ending = [unit for unit in trial.units_on(node) if unit in allowed and not trial.is_gone(unit)]
        gain = trial.capacity(node, request, ending) - trial.capacity(node, request) if ending else 0
        if gain <= 0:
            return None
        pods, total = sum(unit.pods for unit in ending), sum(unit.total for unit in ending)
        return node in disrupted, pods / gain, total, node

    allowed = set(pool)
    heap: list[tuple[bool, float, int, str]] = []
    for node in trial.nodes_of(pool):
        if (found := price(node)) is not None:
            heap.append(found)
        await trial.turn.share()
    heapq.heapify(heap)
    while heap:
        await trial.turn.share()
        cost = heapq.heappop(heap)
        node = cost[3]
        now = price(node)
        if now != cost:
            if now is not None:
                heapq.heappush(heap, now)
            continue
        ending = [unit for unit in trial.units_on(node) if unit in allowed]
        await trial.end(ending)
        if await fitting.check():
            return
        # Other nodes are cheaper now, because pods of a gang on them have ended; an older entry is moved.
        for found in filter(None, map(price, trial.nodes_of(ending) - {node})):
            heapq.heappush(heap, found)
    await trial.end(pool)


async def _reprieve(fitting: Fitting, trial: Trial, units: list[Unit]) -> None:
    """Let all units stay that can, the first ones rather than the last ones."""
    await trial.restore(units)
    if await fitting.check():
        return
    await trial.end(units)
    if len(units) > 1:
        half = len(units) // 2
        await _reprieve(fitting, trial, units[:half])
        await _reprieve(fitting, trial, units[half:])


def _importance(unit: Unit) -> tuple[int, int, int, str]:
    """The sort key, the most important first: by priority, number of pods, sum of priorities; then the older ones."""
    return -unit.priority, -unit.pods, -unit.total, unit.since
